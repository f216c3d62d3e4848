"""Recall of the answer string among the best blocks by BM25, and its speed.

python -m benchmarks.bm25_recall STORE questions.jsonl
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.match import texts_with_answer

RANKS = (1, 5, 20, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("questions", type=Path)
    options = parser.parse_args()
    store = BlockStore(options.store)
    examples = load_examples(options.questions)

    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        index = BM25Index.build(store, Path(scratch) / "bm25")
        built = time.perf_counter()
        ids_BK, _ = index.search([example.question for example in examples], max(RANKS))
        searched = time.perf_counter()

    found_BK = np.array(
        [
            texts_with_answer([store.text(int(i)) for i in ids_K], example.answers)
            for example, ids_K in zip(examples, ids_BK, strict=True)
        ]
    )
    recall = {k: 100 * found_BK[:, :k].any(axis=1).mean() for k in RANKS}
    print(f"{len(store)} blocks: built in {built - start:.1f} s")
    print(f"{len(examples)} questions: {len(examples) / (searched - built):.0f} a second")
    print("recall: " + ", ".join(f"@{k} {value:.1f}%" for k, value in recall.items()))


if __name__ == "__main__":
    main()
