"""Recall of the answer string among the best blocks by BM25, before and after tuning, and speed.

python -m benchmarks.bm25_recall STORE questions.jsonl [--dev dev.jsonl] [--peer 200] [--lucene JAR]

With --dev, k1 and b are tuned on those questions. With --peer N, the first N questions are also
answered by rank_bm25 (`pip install rank-bm25`) on the same terms in the same run. With --lucene,
all are by Lucene with its English analyzer, through Anserini, whose jar is in the package pyserini
(pyserini/resources/jars); `java` has to be there, of version 21 or later. Peak memory is that of
this process, which builds and searches.
"""

import argparse
import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.bm25 import K1, TUNED_RANKS, B, BM25Index, terms, tune_bm25
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.match import texts_with_answer


def measure(store: BlockStore, examples: list[Example], k1: float, b: float) -> np.ndarray:
    """Builds, searches and prints; returns the ids, int32 [questions, 100]."""
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        index = BM25Index.build(store, Path(scratch) / "bm25", k1=k1, b=b)
        built = time.perf_counter()
        ids_BK, _ = index.search([example.question for example in examples], max(TUNED_RANKS))
        searched = time.perf_counter()
    print(f"k1 {k1}, b {b}: {len(store)} blocks built in {built - start:.1f} s;", end=" ")
    print(f"{len(examples) / (searched - built):.0f} questions a second;", end=" ")
    print(f"recall {describe_recall(store, examples, ids_BK)}")
    return ids_BK


def describe_recall(store: BlockStore, examples: list[Example], ids_BK: np.ndarray) -> str:
    """Ids below 0 are none."""
    found_BK = np.array(
        [
            texts_with_answer([store.text(i) if i >= 0 else "" for i in ids], example.answers)
            for example, ids in zip(examples, ids_BK.tolist(), strict=True)
        ]
    )
    recall = {k: 100 * found_BK[:, :k].any(axis=1).mean() for k in TUNED_RANKS}
    return ", ".join(f"@{k} {value:.1f}%" for k, value in recall.items())


def measure_lucene(
    store: BlockStore, examples: list[Example], jar: Path, ours_BK: np.ndarray
) -> None:
    """The same blocks and questions by Lucene, each step a process of its own, on one thread."""
    most = max(TUNED_RANKS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "blocks").mkdir()
        with (folder / "blocks" / "blocks.jsonl").open("w", encoding="utf-8") as file:
            for block in range(len(store)):
                contents = f"{store.title(block)}\n{store.text(block)}"
                file.write(json.dumps({"id": str(block), "contents": contents}) + "\n")
        asked = (" ".join(example.question.split()) for example in examples)
        lines = "".join(f"{row}\t{question}\n" for row, question in enumerate(asked))
        (folder / "questions.tsv").write_text(lines, encoding="utf-8")
        java = ["java", "-Xmx2g", "--add-modules", "jdk.incubator.vector", "-cp", str(jar)]
        build = "io.anserini.index.IndexCollection -collection JsonCollection -input blocks"
        build += " -generator DefaultLuceneDocumentGenerator -index index -threads 1"
        find = "io.anserini.search.SearchCollection -index index -topics questions.tsv"
        find += f" -topicReader TsvInt -output found.txt -bm25 -bm25.k1 {K1} -bm25.b {B}"
        find += f" -hits {most} -threads 1 -parallelism 1"
        seconds = []
        for command in (build, find):
            start = time.perf_counter()
            run = [*java, *command.split()]
            subprocess.run(run, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - start)
        ids_BK = np.full(ours_BK.shape, -1, np.int32)
        for line in (folder / "found.txt").read_text(encoding="utf-8").splitlines():
            row, _, block, rank, *_ = line.split()
            ids_BK[int(row), int(rank) - 1] = int(block)
    print(f"Lucene: built in {seconds[0]:.1f} s;", end=" ")
    print(f"{len(examples) / seconds[1]:.0f} questions a second, starting included;", end=" ")
    print(f"recall {describe_recall(store, examples, ids_BK)};", end=" ")
    for k in TUNED_RANKS:
        pairs = zip(ours_BK[:, :k].tolist(), ids_BK[:, :k].tolist(), strict=True)
        shared = np.mean([len({*ours} & {*theirs}) / k for ours, theirs in pairs])
        print(f"shared @{k} {100 * shared:.1f}%", end=" ")
    print()


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
    parser.add_argument("--lucene", type=Path)
    options = parser.parse_args()
    store = BlockStore(options.store)
    examples = load_examples(options.questions)
    ours_BK = measure(store, examples, K1, B)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory so far {peak:.2f} GiB")
    if options.dev:
        measure(store, examples, *tune_bm25(store, load_examples(options.dev)))
    if options.lucene:
        measure_lucene(store, examples, options.lucene, ours_BK)
    if options.peer:
        measure_peer(store, examples[: options.peer])


if __name__ == "__main__":
    main()
