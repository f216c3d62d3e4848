"""Times exact search on the host against other ways to do it.

    python -m benchmarks.exact_search orqa numpy jax

Each system answers batches of questions over random vectors of 128 dimensions. `faiss` needs
faiss-cpu, and may run in an environment that has nothing else but numpy.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PROJECTION_SIZE = 128
Search = Callable[[np.ndarray, int], Any]


def orqa(embeddings_NP: np.ndarray) -> Search:
    from orqa_jax.index.exact import ExactIndex

    return ExactIndex(embeddings_NP).search


def numpy(embeddings_NP: np.ndarray) -> Search:
    """The whole score matrix, argpartition, and a sort of what it leaves."""

    def search(question_BP: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores_BN = question_BP @ embeddings_NP.T
        ids_BK = np.argpartition(scores_BN, -k, axis=1)[:, -k:]
        scores_BK = np.take_along_axis(scores_BN, ids_BK, axis=1)
        order_BK = np.argsort(-scores_BK, axis=1)
        return (
            np.take_along_axis(ids_BK, order_BK, axis=1),
            np.take_along_axis(scores_BK, order_BK, axis=1),
        )

    return search


def jax(embeddings_NP: np.ndarray) -> Search:
    import jax

    on_device_NP = jax.device_put(embeddings_NP)
    top_k = jax.jit(
        lambda embeddings_NP, question_BP, k: jax.lax.top_k(question_BP @ embeddings_NP.T, k),
        static_argnums=2,
    )
    return lambda question_BP, k: jax.block_until_ready(top_k(on_device_NP, question_BP, k))


def faiss(embeddings_NP: np.ndarray) -> Search:
    import faiss

    index = faiss.IndexFlatIP(PROJECTION_SIZE)
    index.add(embeddings_NP)
    return index.search


SYSTEMS = {system.__name__: system for system in (orqa, numpy, jax, faiss)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--blocks", nargs="+", type=int, default=[38_000, 342_000])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--k", nargs="+", type=int, default=[100, 5000])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()

    print("milliseconds a batch, median (fastest)")
    print("| blocks | batch | k |", " | ".join(options.systems), "|")
    print("|---" * (3 + len(options.systems)) + "|")
    random = np.random.default_rng(0)
    for blocks in options.blocks:
        embeddings_NP = random.standard_normal((blocks, PROJECTION_SIZE), dtype=np.float32)
        searches = [SYSTEMS[name](embeddings_NP) for name in options.systems]
        for batch in options.batch:
            question_BP = random.standard_normal((batch, PROJECTION_SIZE), dtype=np.float32)
            for k in options.k:
                cells = [
                    milliseconds(search, question_BP, k, options.repeats) for search in searches
                ]
                print(f"| {blocks} | {batch} | {k} |", " | ".join(cells), "|", flush=True)


def milliseconds(search: Search, question_BP: np.ndarray, k: int, repeats: int) -> str:
    search(question_BP, k)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        search(question_BP, k)
        times.append(1000 * (time.perf_counter() - start))
    return f"{statistics.median(times):.1f} ({min(times):.1f})"


if __name__ == "__main__":
    main()
