"""How long the whole evaluation of many predictions takes, on one core.

    python -m benchmarks.evaluator STORE QUESTIONS.jsonl [--count 10000]

Searches STORE by BM25 for the questions (repeated under new ids until there are --count), takes
the first words of the best block for answers, and writes predictions with 100 blocks each. Then it
times what `orqa eval --details` does: reading, exact match, F1, recall@k by two definitions, MRR,
the best span of 5 blocks, the search of the corpus, the decomposition, tables by four groupings,
calibration, and every bootstrap interval. The peer, in the same run: recall@100 alone as DPR's
evaluation counts it, every block tokenised anew for every question, on a share of the questions,
scaled up.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from orqa_jax.corpus.store import BlockStore
from orqa_jax.eval.judge import write_details
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.qa.examples import Example, load_examples, save_examples
from orqa_jax.report.files import about_path, judge_file
from orqa_jax.report.tables import system_tables
from orqa_jax.text.match import match_tokens

RETRIEVED = 100
PEER_SHARE = 0.02


def write_inputs(folder: Path, store: BlockStore, questions: list[Example], count: int) -> None:
    index = BM25Index.build(store, folder / "bm25")
    ids_QC, scores_QC = index.search([example.question for example in questions], RETRIEVED)
    examples, lines = [], []
    for number in range(count):
        row = number % len(questions)
        example, blocks = questions[row], [int(block) for block in ids_QC[row]]
        examples.append(Example(str(number), example.question, example.answers))
        # Every third answer is right, so that there is something to count.
        words = store.text(blocks[0]).split()[:2]
        answer = example.answers[0] if number % 3 == 0 else " ".join(words)
        score = float(scores_QC[row, 0])
        best = {"answer": answer, "block": blocks[0], "probability": score / (score + 20.0)}
        lines.append(
            {"id": str(number), "answer": answer, "retrieved": blocks, "candidates": [best]}
        )
    save_examples(folder / "references.jsonl", examples)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "predictions.jsonl").write_text(text)
    about = {"corpus": str(store.folder), "corpus_fingerprint": store.fingerprint, "reader_beam": 5}
    about_path(folder / "predictions.jsonl").write_text(json.dumps(about))


def recall_as_dpr_counts(store: BlockStore, predictions: Path, references: Path) -> float:
    examples = load_examples(references)
    examples = examples[: max(1, round(PEER_SHARE * len(examples)))]
    lines = predictions.read_text().splitlines()[: len(examples)]
    found = 0
    for example, line in zip(examples, lines, strict=True):
        answers = [match_tokens(answer) for answer in example.answers]
        hits = 0
        for block in json.loads(line)["retrieved"]:
            words = match_tokens(store.text(block))
            hits += any(
                words[start : start + len(answer)] == answer
                for answer in answers
                for start in range(len(words) - len(answer) + 1)
            )
        found += hits > 0
    return found / len(examples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    store = BlockStore(options.store)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder, store, load_examples(options.questions), options.count)
        predictions, references = folder / "predictions.jsonl", folder / "references.jsonl"

        clock, cpu = time.perf_counter(), time.process_time()
        judged = judge_file(predictions, references, train=references)
        judging = time.process_time() - cpu
        write_details(folder / "details.jsonl", judged)
        tables = system_tables("BM25", judged)
        ours, ours_clock = time.process_time() - cpu, time.perf_counter() - clock

        cpu = time.process_time()
        recall_as_dpr_counts(store, predictions, references)
        peer = (time.process_time() - cpu) / PEER_SHARE
    print("\n".join(table.to_markdown() for table in tables[:3]))
    print(
        f"{options.count} predictions, {len(store)} blocks: {ours:.1f} s of CPU ({judging:.1f} s "
        f"judging, the rest writing and intervals), {ours_clock:.1f} s by the clock. Recall@100 "
        f"alone as DPR counts it: {peer:.0f} s of CPU, {peer / ours:.1f} times as long."
    )


if __name__ == "__main__":
    main()
