"""How many negatives of the Inverse Cloze Task are copies of the right block.

    python -m benchmarks.duplicate_blocks STORE

Two batches of 4096 from the start of training, seed 0, and as many examples in batches of 64. They
are what `exclude_duplicates` leaves out.
"""

import argparse
from pathlib import Path

import numpy as np

from orqa_jax.corpus.store import BlockStore
from orqa_jax.train.ict import ICTExamples

EXAMPLES = 2 * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("store", type=Path)
    options = parser.parse_args()
    examples = ICTExamples(BlockStore(options.store), seed=0, mask_rate=0.9)
    found = [examples[position] for position in range(EXAMPLES)]
    sentences_NS = np.stack([example["sentence_hashes"] for example in found])
    question_N = np.array([example["question_hash"] for example in found])
    for size in (64, 4096):
        copies = 0
        for start in range(0, EXAMPLES, size):
            rows = slice(start, start + size)
            holds_BB = (sentences_NS[None, rows] == question_N[rows, None, None]).any(axis=2)
            np.fill_diagonal(holds_BB, False)
            copies += int(holds_BB.any(axis=1).sum())
        print(f"batches of {size}: {copies} of {EXAMPLES} pseudo-questions have such a negative")


if __name__ == "__main__":
    main()
