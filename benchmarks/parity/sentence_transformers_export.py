"""Are exported encoders the same function in sentence-transformers?

Where orqa_jax is installed, write an export and what it should give:

    python -m benchmarks.parity.sentence_transformers_export write FOLDER

In an environment with torch and sentence-transformers, compare:

    python benchmarks/parity/sentence_transformers_export.py compare FOLDER

Random towers of every kind are written (pooling by [CLS], mean and pooler; with and without
LayerNorm, ORQA's and REALM's epsilon), with questions and (title, text) pairs. The largest
difference is printed.
"""

import json
import sys
from pathlib import Path

import numpy as np

KINDS = [
    ("cls", False, 1e-3),
    ("mean", False, 1e-3),
    ("pooler", False, 1e-3),
    ("cls", True, 1e-3),
    ("pooler", True, 1e-3),
    ("pooler", True, 1e-12),
]
QUESTIONS = ["who lit the lamps?", "In 1702 the river Umber froze", "quay"]
BLOCKS = [["Salt market of Tarnholt", "It burned twice."], ["Ilse", "A river, it flows past it."]]


def write(folder: Path) -> None:
    import jax

    from orqa_jax.models.bert import BertConfig
    from orqa_jax.models.export import export_tower
    from orqa_jax.models.retriever import DualEncoder, RetrieverConfig, init_dual_encoder
    from orqa_jax.text.wordpiece import WordPiece
    from orqa_jax.train.inputs import pair_inputs, question_inputs, ragged

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    characters = [*letters, *"0123456789.,?"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "market"]
    tokenizer = WordPiece.from_vocab([*special, *characters, *(f"##{c}" for c in characters)])
    bert = BertConfig(tokenizer.vocab_size, 32, 3, 4, 48)
    for number, (pooling, norm, eps) in enumerate(KINDS):
        config = RetrieverConfig(bert, 16, pooling, True, norm, projection_norm_eps=eps)
        params = init_dual_encoder(config, jax.random.key(number))
        rng = np.random.default_rng(number)
        for leaf in jax.tree.leaves(params := jax.tree.map(np.array, params)):
            leaf += 0.2 * rng.normal(size=leaf.shape)
        out = folder / f"{number}"
        out.mkdir(parents=True, exist_ok=True)
        export_tower(out / "encoder", config, params["encoder"], tokenizer, 96)
        model = DualEncoder(config)
        ids = [encoded.ids for encoded in tokenizer.encode(QUESTIONS)]
        batch = question_inputs(tokenizer, ids, 96)
        questions = model.apply(
            {"params": params}, batch["token_ids"], batch["mask"], method="encode_questions"
        )
        titles, texts = (
            ragged([encoded.ids for encoded in tokenizer.encode(part)])
            for part in zip(*BLOCKS, strict=True)
        )
        batch = pair_inputs(tokenizer, titles, texts, 96)
        arrays = (batch[name] for name in ("token_ids", "mask", "segment_ids"))
        blocks = model.apply({"params": params}, *arrays, method="encode_blocks")
        np.savez(out / "expected.npz", questions=questions, blocks=blocks)


def compare(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    worst = 0.0
    for number, kind in enumerate(KINDS):
        model = SentenceTransformer(str(folder / f"{number}" / "encoder"), device="cpu")
        expected = np.load(folder / f"{number}" / "expected.npz")
        differences = [
            float(np.abs(model.encode(texts) - expected[name]).max())
            for name, texts in (("questions", QUESTIONS), ("blocks", BLOCKS))
        ]
        worst = max(worst, *differences)
        print(json.dumps({"kind": kind, "questions, blocks": differences}))
    print(f"largest difference {worst:.1e}")
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    {"write": write, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
