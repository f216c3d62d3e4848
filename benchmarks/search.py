"""Times searches over block vectors against other ways to do them, all in one run.

    python -m benchmarks.search orqa numpy jax
    python -m benchmarks.search orqa faiss_flat scann_brute_force \\
        orqa_scann scann faiss_ivfpq --blocks 1000000 --batch 64 --vectors clustered

Each system answers batches of questions over made-up vectors of 128 dimensions: random directions,
or around 5,000 centres and with deviations that shrink from dimension to dimension, as those of
real encoders do. Systems take turns, so that other work on the machine strikes all of them alike. A
cell has the least clock time of a batch in milliseconds, the least CPU time in brackets, and recall
where the system approximates. `scann` is the bare library on the searcher that `orqa_scann` built,
with the same effort. `faiss_*` needs faiss-cpu.
"""

import argparse
import functools
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROJECTION_SIZE = 128
MADE_FROM = {"corpus_fingerprint": "synthetic", "weights_fingerprint": "synthetic"}
Search = Callable[[np.ndarray, int], Any]


def orqa(embeddings_NP: np.ndarray) -> Search:
    from orqa_jax.index.exact import ExactIndex

    return ExactIndex(embeddings_NP).search


def orqa_int8(embeddings_NP: np.ndarray) -> Search:
    from orqa_jax.index.compressed import compress
    from orqa_jax.index.exact import ExactIndex

    with tempfile.TemporaryDirectory() as folder:
        compressed = compress(embeddings_NP, Path(folder, "int8"), "int8", **MADE_FROM)
        return ExactIndex(embeddings_NP, compressed=compressed).search


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
        lambda embeddings_NP, question_BP, k: jax.lax.top_k(question_BP @ embeddings_NP.T, k)[::-1],
        static_argnums=2,
    )
    return lambda question_BP, k: jax.block_until_ready(top_k(on_device_NP, question_BP, k))


def faiss_flat(embeddings_NP: np.ndarray) -> Search:
    import faiss

    index = faiss.IndexFlatIP(PROJECTION_SIZE)
    index.add(embeddings_NP)
    return lambda question_BP, k: index.search(question_BP, k)[::-1]


def faiss_ivfpq(embeddings_NP: np.ndarray) -> Search:
    """Inverted lists with 4-bit product quantisation, tuned for recall as `ScannIndex` is."""
    import faiss

    lists = round(math.sqrt(len(embeddings_NP)))
    description = f"IVF{lists},PQ64x4fsr,RFlat"
    index = faiss.index_factory(PROJECTION_SIZE, description, faiss.METRIC_INNER_PRODUCT)
    rng = np.random.default_rng(3)
    sample = rng.choice(len(embeddings_NP), min(50 * lists, len(embeddings_NP)), replace=False)
    index.train(embeddings_NP[sample])
    index.add(embeddings_NP)
    exact = faiss.IndexFlatIP(PROJECTION_SIZE)
    exact.add(embeddings_NP)
    questions = embeddings_NP[sample[:64]]
    noise_BP = rng.standard_normal(questions.shape, dtype=np.float32)
    questions = questions + 0.5 * questions.std() * noise_BP  # as `ScannIndex.build` does
    efforts: dict[int, Any] = {}

    def search(question_BP: np.ndarray, k: int) -> Any:
        if k not in efforts:
            truth_BK = exact.search(questions, k)[1]
            tried = []
            for factor, probed in itertools.product((1, 2, 4, 8), (2**n for n in range(2, 11))):
                effort = faiss.IndexRefineSearchParameters(
                    k_factor=factor * (1 + 30 / math.sqrt(k)),
                    base_index_params=faiss.IVFSearchParameters(nprobe=min(probed, lists)),
                )
                started = time.process_time()
                found = recall(index.search(questions, k, params=effort)[1], truth_BK)
                tried.append((found, time.process_time() - started, effort))
            # The cheapest of those that find enough, or else the one that finds most.
            enough = [(cost, number) for number, (r, cost, _) in enumerate(tried) if r >= 0.95]
            best = min(enough)[1] if enough else max(range(len(tried)), key=lambda n: tried[n][0])
            efforts[k] = tried[best][2]
        return index.search(question_BP, k, params=efforts[k])[::-1]

    return search


def scann_brute_force(embeddings_NP: np.ndarray) -> Search:
    from scann import scann_ops_pybind

    searcher = scann_ops_pybind.builder(embeddings_NP, 100, "dot_product").score_brute_force()
    search = searcher.build().search_batched_parallel
    return lambda question_BP, k: search(question_BP, final_num_neighbors=k, batch_size=32)


@functools.cache
def scann_folder() -> Path:
    return Path(tempfile.mkdtemp())


def orqa_scann(embeddings_NP: np.ndarray) -> Search:
    from orqa_jax.index.scann import ScannIndex

    ScannIndex.build(embeddings_NP, scann_folder() / "scann", **MADE_FROM)
    # Opened, as the bare one is: what was just built lies elsewhere in memory, and is slower.
    index = ScannIndex.open(scann_folder() / "scann", embeddings_NP, **MADE_FROM)
    print(index.efforts)
    return index.search


def scann(embeddings_NP: np.ndarray) -> Search:
    from scann import scann_ops_pybind

    from orqa_jax.index.scann import ScannIndex

    folder = scann_folder() / "scann"
    efforts = ScannIndex.open(folder, embeddings_NP, **MADE_FROM).efforts
    searcher = scann_ops_pybind.load_searcher(str(folder / "0"))

    def search(question_BP: np.ndarray, k: int) -> Any:
        effort = next(effort for effort in efforts if effort.k >= k)
        return searcher.search_batched_parallel(
            question_BP,
            final_num_neighbors=k,
            pre_reorder_num_neighbors=effort.rescored,
            leaves_to_search=effort.leaves,
            batch_size=32,
        )

    return search


SYSTEMS = {
    system.__name__: system
    for system in (
        *(orqa, orqa_int8, numpy, jax, faiss_flat, faiss_ivfpq),
        *(scann_brute_force, orqa_scann, scann),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--blocks", nargs="+", type=int, default=[38_000, 342_000])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--k", nargs="+", type=int, default=[100, 5000])
    parser.add_argument("--vectors", choices=("random", "clustered"), default="random")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    print("| blocks | batch | k |", " | ".join(options.systems), "|")
    print("|---" * (3 + len(options.systems)) + "|")
    rng = np.random.default_rng(0)
    for blocks in options.blocks:
        vectors_NP = make(rng, blocks + max(options.batch), options.vectors)
        embeddings_NP, questions = vectors_NP[:blocks], vectors_NP[blocks:]
        searches = [SYSTEMS[name](embeddings_NP) for name in options.systems]
        for batch in options.batch:
            for k in options.k:
                cells = times(searches, questions[:batch], k, options.repeats)
                print(f"| {blocks} | {batch} | {k} |", " | ".join(cells), "|", flush=True)


def make(rng: np.random.Generator, count: int, kind: str) -> np.ndarray:
    vectors_NP = rng.standard_normal((count, PROJECTION_SIZE), dtype=np.float32)
    if kind == "clustered":
        centre_MP = rng.standard_normal((5000, PROJECTION_SIZE), dtype=np.float32)
        vectors_NP *= 0.7
        vectors_NP += centre_MP[rng.integers(0, len(centre_MP), count)]
        vectors_NP *= np.arange(1, PROJECTION_SIZE + 1, dtype=np.float32) ** -0.5
    return vectors_NP


def times(searches: list[Search], question_BP: np.ndarray, k: int, repeats: int) -> list[str]:
    found = [np.asarray(search(question_BP, k)[0]) for search in searches]
    taken: list[list[tuple[float, float]]] = [[] for _ in searches]
    for _ in range(repeats):
        for search, of_search in zip(searches, taken, strict=True):
            clock, cpu = time.perf_counter(), time.process_time()
            search(question_BP, k)
            of_search.append((time.perf_counter() - clock, time.process_time() - cpu))
    cells = []
    for of_search, ids_BK in zip(taken, found, strict=True):
        clock, cpu = (1000 * min(column) for column in zip(*of_search, strict=True))
        share = recall(ids_BK, found[0])
        cells.append(f"{clock:.0f} ({cpu:.0f})" + ("" if share > 0.9999 else f" {share:.3f}"))
    return cells


def recall(found_BK: np.ndarray, truth_BK: np.ndarray) -> float:
    pairs = zip(found_BK, truth_BK, strict=True)
    return float(np.mean([len(np.intersect1d(*pair)) / len(pair[1]) for pair in pairs]))


if __name__ == "__main__":
    main()
