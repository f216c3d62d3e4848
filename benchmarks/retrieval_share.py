"""What share of a fine-tuning step retrieval takes, from the log of a short training.

    python -m benchmarks.retrieval_share RUN ENCODER QUESTIONS --steps 20

RUN holds a corpus and, in ict/, a retriever. Where it has no block vectors, random ones take their
place: the same work for the search, though labels are fewer than with real ones.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from orqa_jax.cli import start_logging
from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.embeddings import EmbeddingWriter
from orqa_jax.qa.examples import load_examples, save_examples
from orqa_jax.train.checkpoint import describe_model
from orqa_jax.train.finetune import FinetuneConfig, finetune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    start_logging()
    run = options.run
    store = BlockStore(run / "corpus")
    if not (run / "index" / "manifest.json").exists():
        write_random_vectors(run, store)
    with tempfile.TemporaryDirectory() as folder:
        questions = Path(folder, "questions.jsonl")
        save_examples(
            questions, load_examples(options.questions)[: options.steps * options.batch_size]
        )
        finetune(
            FinetuneConfig(
                corpus=str(run / "corpus"),
                retriever=str(run / "ict" / "model"),
                index=str(run / "index"),
                train=str(questions),
                out=str(Path(folder, "finetune")),
                encoder=str(options.encoder),
                epochs=1.0,
                batch_size=options.batch_size,
                log_every=max(1, options.steps // 4),
                checkpoint_every=options.steps,
            )
        )
        lines = Path(folder, "finetune", "metrics.jsonl").read_text().splitlines()
    print(f"{len(store):,} blocks, batches of {options.batch_size}")
    print("| steps to | seconds a step | search | gather | labels | together |")
    print("|---|---|---|---|---|---|")
    for line in map(json.loads, lines[1:]):  # the first has the compilation
        shares = [line[f"{name}_share"] for name in ("search", "gather", "labels")]
        cells = [f"{share:.1%}" for share in (*shares, sum(shares))]
        print(f"| {line['step']} | {line['seconds_per_step']:.2f} |", " | ".join(cells), "|")


def write_random_vectors(run: Path, store: BlockStore) -> None:
    about = describe_model(run / "ict" / "model", kind="dual encoder")
    writer = EmbeddingWriter(
        run / "index",
        count=len(store),
        projection_size=about["retriever"]["projection_size"],
        corpus_fingerprint=store.fingerprint,
        weights_fingerprint=about["weights_fingerprint"],
    )
    rng = np.random.default_rng(0)
    for blocks in writer.pending:
        shape = (len(blocks), writer.projection_size)
        writer.write(blocks, rng.standard_normal(shape, dtype=np.float32))
    writer.finish()


if __name__ == "__main__":
    main()
