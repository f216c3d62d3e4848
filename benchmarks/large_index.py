"""Builds, opens and searches an index the size of English Wikipedia, of made-up vectors.

    python -m benchmarks.large_index FOLDER make
    python -m benchmarks.large_index FOLDER search exact int8 bfloat16 scann

`make` writes 13,353,718 vectors of 128 dimensions shard by shard, as `orqa index` does, and goes on
where it was interrupted. They lie around 20,000 centres, and both centres and distances from them
shrink from dimension to dimension, as those of real encoders do. `search` prepares what a way of
searching needs and times it, each in a process of its own, so that memory is that of the way alone.
Recall is against the exact search, so that one has to be among them.
"""

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orqa_jax.index.dense import open_search, prepare_search
from orqa_jax.index.embeddings import EmbeddingWriter, open_embeddings

PROJECTION_SIZE = 128
CHUNK = 65_536
CENTRES = 20_000
MADE_FROM = {"corpus_fingerprint": "synthetic", "weights_fingerprint": "synthetic"}
EXPONENT = 0.5  # of the decay of the standard deviation from one dimension to the next


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=("make", "search"))
    parser.add_argument("ways", nargs="*", default=["exact"])
    parser.add_argument("--blocks", type=int, default=13_353_718)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--k", nargs="+", type=int, default=[5, 100, 5000])
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder, options.blocks)
        return
    truth: dict[int, Any] = {}
    for way in options.ways:
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            pool.apply(prepare, (options.folder, way))
        with context.Pool(1) as pool:
            found = pool.apply(search, (options.folder, way, options.batch, options.k))
        truth = truth or found
        for k, ids_BK in found.items():
            recall = np.mean(
                [len(np.intersect1d(*rows)) / k for rows in zip(ids_BK, truth[k], strict=True)]
            )
            print(f"{way}: recall@{k} {recall:.4f}", flush=True)


def vectors(rng: np.random.Generator, centre_MP: np.ndarray, count: int) -> np.ndarray:
    deviation_P = np.arange(1, PROJECTION_SIZE + 1, dtype=np.float32) ** -EXPONENT
    noise_NP = rng.standard_normal((count, PROJECTION_SIZE), dtype=np.float32)
    noise_NP *= 0.7
    noise_NP += centre_MP[rng.integers(0, len(centre_MP), count)]
    noise_NP *= deviation_P
    return noise_NP


def centres() -> np.ndarray:
    shape = (CENTRES, PROJECTION_SIZE)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def make(folder: Path, count: int) -> None:
    started = time.perf_counter()
    writer = EmbeddingWriter(
        folder,
        count=count,
        projection_size=PROJECTION_SIZE,
        chunk_size=CHUNK,
        **MADE_FROM,
    )
    centre_MP = centres()
    for blocks in writer.pending:
        rng = np.random.default_rng((1, blocks.start))
        writer.write(blocks, vectors(rng, centre_MP, len(blocks)))
    writer.finish()
    print(f"made in {time.perf_counter() - started:.0f} s")


def prepare(folder: Path, way: Any) -> None:
    started = time.perf_counter()
    prepare_search(folder, open_embeddings(folder, **MADE_FROM), way, **MADE_FROM)
    print(f"{way}: prepared in {time.perf_counter() - started:.0f} s, {memory()}", flush=True)


def search(folder: Path, way: Any, batch: int, ks: Sequence[int]) -> dict[int, np.ndarray]:
    question_BP = vectors(np.random.default_rng(2), centres(), batch)
    before = memory()
    started = time.perf_counter()
    embeddings_NP = open_embeddings(folder, **MADE_FROM)
    index = open_search(folder, embeddings_NP, way, **MADE_FROM)
    print(f"{way}: opened in {time.perf_counter() - started:.2f} s, {before} before", flush=True)
    found = {}
    started = time.perf_counter()
    index.search(question_BP, ks[0])
    print(f"{way}: first search {time.perf_counter() - started:.2f} s", flush=True)
    for k in ks:
        times = []
        for _ in range(3):
            started, cpu = time.perf_counter(), time.process_time()
            found[k], _ = index.search(question_BP, k)
            times.append((time.perf_counter() - started, time.process_time() - cpu))
        clock, cpu = min(times)
        print(f"{way}: top-{k} {batch / clock:.1f} queries/s, {cpu:.2f} s of CPU, {memory()}")
    return found


def memory() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)
             if name in ("VmHWM", "VmRSS")}  # fmt: skip
    return f"resident {sizes['VmRSS'] / 2**20:.2f} GiB, at most {sizes['VmHWM'] / 2**20:.2f} GiB"


if __name__ == "__main__":
    main()
