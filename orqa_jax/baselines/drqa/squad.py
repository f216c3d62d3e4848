"""The reader and its ablations on held-out articles of SQuAD (Chen et al. 2017, table 5)."""

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orqa_jax.baselines.drqa.answer import DrqaAnswerer
from orqa_jax.baselines.drqa.examples import (
    ReadingExample,
    read_squad,
    save_reading,
    split_by_document,
)
from orqa_jax.baselines.drqa.read import DocumentReader
from orqa_jax.baselines.drqa.retrieve import ARTICLES, TfIdfIndex
from orqa_jax.baselines.drqa.train import (
    DrqaTrainConfig,
    load_reader,
    reader_vectors,
    train_reader,
)
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import Interval, bootstrap_interval, paired_bootstrap
from orqa_jax.eval.evaluate import format_table
from orqa_jax.eval.scores import exact_match, token_f1
from orqa_jax.index.manifest import write_json

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "no_exact_match": {"exact_match": False},
    "no_aligned": {"aligned_embedding": False},
    "neither": {"exact_match": False, "aligned_embedding": False},
}

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class DrqaSquadConfig:
    """What to train and to measure.

    Attributes:
      squad: SQuAD 1.1 file; every fourth article is held out for testing.
      out: Folder of the split, the readers and the table.
      variants: Names of `VARIANTS`, with commas between them.
      hidden_size: As in `DrqaTrainConfig`, like all below.
      layers: Of each LSTM.
      epochs: Of each reader.
      batch_size: Examples of one update.
      seed: The same for all readers.
      vectors: File of word vectors, or "" for the installed package.
    """

    squad: str
    out: str
    variants: str = ",".join(VARIANTS)
    hidden_size: int = 128
    layers: int = 3
    epochs: int = 6
    batch_size: int = 32
    seed: int = 0
    vectors: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.variants.split(",") if name not in VARIANTS]
        if unknown:
            raise OrqaError(f"There is no variant {unknown[0]!r}; known are {', '.join(VARIANTS)}.")


def compare_readers(config: DrqaSquadConfig) -> str:
    """Trains each variant on the same articles and scores it on the others, given the paragraph.

    What an earlier call has finished is not done again.

    Returns:
      The table of all variants that are there, also written as `results.md`.
    """
    out = Path(config.out)
    train, test = split_by_document(read_squad(Path(config.squad)))
    save_reading(out / "train.jsonl", train)
    save_reading(out / "test.jsonl", test)
    for name in config.variants.split(","):
        folder = train_reader(
            DrqaTrainConfig(
                train=str(out / "train.jsonl"),
                out=str(out / name),
                vectors=config.vectors,
                epochs=config.epochs,
                batch_size=config.batch_size,
                hidden_size=config.hidden_size,
                layers=config.layers,
                seed=config.seed,
                **VARIANTS[name],
            )
        )
        if not (out / name / "predictions.json").exists():
            answers = answer_given_paragraphs(folder, test)
            write_json(out / name / "predictions.json", answers)
    table = describe(out, test)
    (out / "results.md").write_text(table + "\n", encoding="utf-8")
    return table


def answer_given_paragraphs(folder: Path, examples: Sequence[ReadingExample]) -> dict[str, str]:
    """From the id of each question to the best span of its paragraph, "" where there is none."""
    reader = DocumentReader(load_reader(folder, reader_vectors(folder)))
    spans = reader.read([e.question for e in examples], [[e.paragraph] for e in examples])
    return {e.id: span.text if span else "" for e, span in zip(examples, spans, strict=True)}


@dataclasses.dataclass(frozen=True)
class DrqaDecomposeConfig:
    """How much of the score is lost to finding the paragraph.

    Attributes:
      squad: SQuAD 1.1 file, of which every fourth article is held out.
      reader: Folder of a finished reader that was trained on the others.
      run: Run folder with ``corpus`` and ``tfidf``, over SQuAD's articles among others.
      questions: Held-out questions to answer, evenly spaced over all.
    """

    squad: str
    reader: str
    run: str
    questions: int = 500


def decompose(config: DrqaDecomposeConfig) -> str:
    """Exact match and F1 given the paragraph, given the document, and over the whole corpus.

    Returns:
      The table; for the corpus also how often the right article is among the five that are read.
    """
    _, test = split_by_document(read_squad(Path(config.squad)))
    count = min(config.questions, len(test))
    paragraphs = paragraphs_of_documents(test)
    test = [test[i] for i in np.linspace(0, len(test) - 1, count).round().astype(int)]
    folder = Path(config.reader)
    reader = DocumentReader(load_reader(folder, reader_vectors(folder)))
    questions = [e.question for e in test]
    store = BlockStore(Path(config.run) / "corpus")
    index = TfIdfIndex.open(Path(config.run) / "tfidf", corpus_fingerprint=store.fingerprint)
    given = {
        "given the paragraph": reader.read(questions, [[e.paragraph] for e in test]),
        "given the document": reader.read(questions, [paragraphs[e.document] for e in test]),
    }
    texts = {name: [span.text if span else "" for span in spans] for name, spans in given.items()}
    found = DrqaAnswerer(store, index, reader).answer(questions)
    texts["over the corpus"] = [a.candidates[0].answer if a.candidates else "" for a in found]
    rows = {}
    for name, answers in texts.items():
        scores = score({e.id: a for e, a in zip(test, answers, strict=True)}, test)
        rows[name] = {metric: bootstrap_interval(values) for metric, values in scores.items()}
    ids_BK, _ = index.search(questions, min(ARTICLES, len(index)))
    right = [
        any(store.title(index.blocks(article).start) == e.document for article in ids)
        for e, ids in zip(test, ids_BK.tolist(), strict=True)
    ]
    share = bootstrap_interval(np.array(right, np.float64))
    return (
        f"{format_table(rows)}\nthe right article is among five for {100 * share.mean:.1f}%"
        f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    )


def paragraphs_of_documents(examples: Sequence[ReadingExample]) -> dict[str, list[str]]:
    """The different paragraphs of each document, in their order."""
    found: dict[str, dict[str, None]] = {}
    for example in examples:
        found.setdefault(example.document, {})[example.paragraph] = None
    return {document: list(texts) for document, texts in found.items()}


def write_documents(squad: Path, out: Path) -> None:
    """Writes the articles of a SQuAD file as JSONL documents, for `orqa corpus`."""
    articles = paragraphs_of_documents(read_squad(squad))
    partial = out.with_name(out.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        for title, texts in articles.items():
            record = {"id": f"squad-{title}", "title": title, "text": "\n\n".join(texts)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    partial.replace(out)


def score(
    answers: dict[str, str], examples: Sequence[ReadingExample]
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Exact match and F1 of each question."""
    pairs = [(answers[e.id], e.answers) for e in examples]
    return {
        "exact_match": np.array([exact_match(*pair) for pair in pairs], np.float64),
        "f1": np.array([token_f1(*pair) for pair in pairs]),
    }


def describe(out: Path, test: Sequence[ReadingExample]) -> str:
    """The table of the readers in `out`, and what each loses against the full one."""
    files = {name: out / name / "predictions.json" for name in VARIANTS}
    scores = {
        name: score(json.loads(path.read_text(encoding="utf-8")), test)
        for name, path in files.items()
        if path.exists()
    }
    rows: dict[str, dict[str, Interval]] = {
        name: {metric: bootstrap_interval(values) for metric, values in found.items()}
        for name, found in scores.items()
    }
    lines = [format_table(rows)]
    for name, found in scores.items():
        if name != "full" and "full" in scores:
            lost, p = paired_bootstrap(scores["full"]["f1"], found["f1"])
            lines.append(
                f"{name} loses {100 * lost.mean:.1f} F1"
                f" [{100 * lost.low:.1f}, {100 * lost.high:.1f}], p {p:.4f}"
            )
    return "\n".join(lines)
