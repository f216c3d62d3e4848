"""Questions with their answers, in JSON Lines."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from orqa_jax.errors import OrqaError
from orqa_jax.text.jsonl import read_jsonl, record_id

Match = Literal["string", "regex"]


@dataclass(frozen=True)
class Place:
    """A character of a document's text, as `BlockStore.document_start` counts them."""

    document_id: str
    start: int


@dataclass(frozen=True)
class Example:
    """A question and what answers it: strings, or regular expressions where `match` says so.

    `taken_from` is where the question itself was taken from the corpus, if it was (`qa.cloze`). The
    block there would give it away, so fine-tuning does not retrieve it.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    match: Match = "string"
    taken_from: Place | None = None


def load_examples(path: str | os.PathLike[str], *, answers_needed: bool = True) -> list[Example]:
    """Reads question-answer pairs: plain JSONL, or .gz, .bz2 or .xz.

    Keys: `question`; `answer` (a string or a list of strings) or `answers`; optional `id`, by
    default the line number; optional `match`, "string" by default, or "regex" where the answers
    are regular expressions; optional `taken_from`, an object of `document_id` and `start`, see
    `Example`. Other keys are ignored, blank answers among others are dropped.

    Args:
        answers_needed: False for a file of questions that are to be answered; answers that it has
            are left unread.

    Raises:
        OrqaError: a defect, named by file and line, or a file without questions.
    """
    examples = []
    first_use: dict[str, str] = {}
    for where, record in read_jsonl(path):
        example = _parse(where, record, answers_needed)
        if example.id in first_use:
            raise OrqaError(
                f"{where} repeats the id {example.id!r} of {first_use[example.id]}; "
                "give every question its own id."
            )
        first_use[example.id] = where
        examples.append(example)
    if not examples:
        raise OrqaError(f"{path} holds no questions; it needs one JSON object a line.")
    return examples


def save_examples(path: str | os.PathLike[str], examples: Iterable[Example]) -> None:
    """Writes `examples` as plain JSONL that `load_examples` reads back equal, atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        written = Path(scratch) / path.name
        with written.open("w", encoding="utf-8") as file:
            for e in examples:
                record: dict[str, Any] = {"id": e.id, "question": e.question, "answer": e.answers}
                if e.match != "string":
                    record["match"] = e.match
                if e.taken_from:
                    record["taken_from"] = asdict(e.taken_from)
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        os.replace(written, path)


def _parse(where: str, record: dict[str, Any], answers_needed: bool) -> Example:
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise OrqaError(f"{where} needs a 'question' that is a string and not blank.")
    line_number = where.rpartition(":")[2]
    if not answers_needed:
        return Example(record_id(where, record, default=line_number), question, ())
    keys = [key for key in ("answer", "answers") if key in record]
    if len(keys) != 1:
        raise OrqaError(
            f"{where} needs one of 'answer' and 'answers', not {'both' if keys else 'neither'}."
        )
    answers = record[keys[0]]
    if isinstance(answers, str):
        answers = [answers]
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise OrqaError(f"{where} needs {keys[0]!r} to be a string or a list of strings.")
    answers = tuple(answer for answer in answers if answer.strip())
    if not answers:
        raise OrqaError(f"{where} needs at least one answer that is not blank.")
    match = record.get("match", "string")
    if match not in get_args(Match):
        raise OrqaError(f'{where} needs \'match\' to be "string" or "regex", not {match!r}.')
    place = _parse_place(where, record.get("taken_from"))
    return Example(record_id(where, record, default=line_number), question, answers, match, place)


def _parse_place(where: str, value: Any) -> Place | None:
    if value is None:
        return None
    try:
        place = Place(**value)
    except TypeError:
        place = None
    if place is None or type(place.document_id) is not str or type(place.start) is not int:
        raise OrqaError(
            f"{where} needs 'taken_from' to be an object of 'document_id', a string, and 'start', "
            "a whole number."
        )
    return place
