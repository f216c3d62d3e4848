"""Recall of the answer string among the best blocks by BM25, before and after tuning, and speed.

python -m benchmarks.bm25_recall STORE questions.jsonl [--dev dev.jsonl] [--peer 200]

With --dev, k1 and b are tuned on those questions. With --peer N, the first N questions are also
answered by rank_bm25 (`pip install rank-bm25`) on the same terms in the same run. Peak memory is
that of this process, which builds and searches.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.bm25 import K1, TUNED_RANKS, B, BM25Index, terms, tune_bm25
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.match import texts_with_answer


def measure(store: BlockStore, examples: list[Example], k1: float, b: float) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        index = BM25Index.build(store, Path(scratch) / "bm25", k1=k1, b=b)
        built = time.perf_counter()
        ids_BK, _ = index.search([example.question for example in examples], max(TUNED_RANKS))
        searched = time.perf_counter()
    found_BK = np.array(
        [
            texts_with_answer([store.text(int(i)) for i in ids_K], example.answers)
            for example, ids_K in zip(examples, ids_BK, strict=True)
        ]
    )
    recall = {k: 100 * found_BK[:, :k].any(axis=1).mean() for k in TUNED_RANKS}
    print(f"k1 {k1}, b {b}: {len(store)} blocks built in {built - start:.1f} s;", end=" ")
    print(f"{len(examples) / (searched - built):.0f} questions a second;", end=" ")
    print("recall " + ", ".join(f"@{k} {value:.1f}%" for k, value in recall.items()))


def measure_peer(store: BlockStore, examples: list[Example]) -> None:
    from rank_bm25 import BM25Okapi

    start = time.perf_counter()
    texts = (f"{store.title(i)}\n{store.text(i)}" for i in range(len(store)))
    peer = BM25Okapi([terms(text, store.language) for text in texts])
    built = time.perf_counter()
    for example in examples:
        np.argsort(-peer.get_scores(terms(example.question, store.language)))[: max(TUNED_RANKS)]
    searched = time.perf_counter()
    print(f"rank_bm25: built in {built - start:.1f} s;", end=" ")
    print(f"{len(examples) / (searched - built):.1f} questions a second")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--peer", type=int, default=0)
    options = parser.parse_args()
    store = BlockStore(options.store)
    examples = load_examples(options.questions)
    measure(store, examples, K1, B)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory so far {peak:.2f} GiB")
    if options.dev:
        measure(store, examples, *tune_bm25(store, load_examples(options.dev)))
    if options.peer:
        measure_peer(store, examples[: options.peer])


if __name__ == "__main__":
    main()
