"""Builds a corpus and reports speed, memory and where the time goes.

    python benchmarks/corpus_build.py SOURCE --tokenizer FOLDER [--workers N] [--out FOLDER]

Shares are of CPU time, summed over all processes, so that other work on the machine does not show
in them. MB are 10^6 bytes of text, decompressed and without markup.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.readers import read_documents
from orqa_jax.corpus.store import BlockStore
from orqa_jax.text.sentences import split_sentences
from orqa_jax.text.wordpiece import WordPiece

GATHERED = 5000
SAMPLE = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, help="keep the store here")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    tokenizer = WordPiece.load(options.tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "corpus"
        before = cpu_seconds()
        store = build_corpus([options.source], out, tokenizer, workers=options.workers)
        cpu = cpu_seconds() - before
        report_memory(store)
        report_build(store, cpu, rust_share(options.source, tokenizer))
        report_reading(out)


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def report_build(store: BlockStore, total: float, rust_share_of_tokenizer: float) -> None:
    build = store.manifest["build"]
    print(f"documents         {store.manifest['documents']:,}")
    print(f"skipped           {store.manifest['skipped']}")
    print(f"blocks            {len(store):,} in {len(store.shards)} shards")
    print(f"wordpieces        {store.manifest['wordpieces']:,}")
    print(f"workers           {build['workers']}")
    print(f"seconds           {build['seconds']:.1f}")
    print(f"text              {build['text_bytes'] / 1e6:.1f} MB")
    print(f"rate              {build['text_bytes'] / 1e6 / build['seconds']:.2f} MB/s")
    cpu = build["cpu_seconds"]
    cpu["start, transfer"] = total - sum(cpu.values())
    print(f"CPU seconds       {total:.1f}, {build['text_bytes'] / 1e6 / total:.2f} MB each")
    for stage, seconds in sorted(cpu.items(), key=lambda item: -item[1]):
        print(f"  {stage:<16}{seconds / total:6.1%}")
    rust = rust_share_of_tokenizer * cpu["tokenizer"] / total
    print(f"  in Rust         {rust:6.1%} (within tokenizer)")


def report_memory(store: BlockStore) -> None:
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    own, of_worker = (
        resource.getrusage(who).ru_maxrss * unit / 1e6
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    workers = store.manifest["build"]["workers"]
    workers = workers if workers > 1 else 0
    print(
        f"peak memory       {own + workers * of_worker:.0f} MB at most "
        f"({own:.0f} here, {of_worker:.0f} in the largest of {workers} workers)"
    )


def rust_share(source: Path, tokenizer: WordPiece) -> float:
    """Share of `WordPiece.encode_ids` that the Rust library takes; the rest makes arrays of it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = [document.text for document in islice(read_documents([source]), SAMPLE)]
    sentences = [text[start:end] for text in texts for start, end in split_sentences(text)]
    rust = tokenizer._tokenizer
    spent = 0.0

    class Timed:
        def encode_batch_fast(self, *arguments: object, **options: object) -> object:
            nonlocal spent
            start = time.process_time()
            encodings = rust.encode_batch_fast(*arguments, **options)
            spent += time.process_time() - start
            return encodings

    tokenizer._tokenizer = Timed()  # type: ignore[assignment]
    start = time.process_time()
    tokenizer.encode_ids(sentences)
    total = time.process_time() - start
    tokenizer._tokenizer = rust
    return spent / total


def report_reading(folder: Path) -> None:
    opening = median_seconds(lambda: BlockStore(folder), repeats=20)
    print(f"opening           {opening * 1e3:.1f} ms")
    store = BlockStore(folder)
    beams: Sequence[np.ndarray] = np.random.default_rng(0).integers(len(store), size=(50, GATHERED))
    store.tokens(beams)  # reads the files into memory
    queue = iter(beams)
    gather = median_seconds(lambda: store.tokens(next(queue)), repeats=len(beams))
    print(f"tokens() of {GATHERED:,}  {gather * 1e3:.2f} ms, {store.lengths.mean():.0f} a block")


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


if __name__ == "__main__":
    main()
