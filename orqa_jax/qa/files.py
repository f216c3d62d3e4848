"""Question-answer pairs as people have them: JSONL, a table of two columns, or SQuAD's JSON."""

from __future__ import annotations

import ast
import csv
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from orqa_jax.errors import OrqaError
from orqa_jax.qa.datasets import read_squad
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.jsonl import DAMAGE, limited_lines, open_bytes

_TABLES = (".csv", ".tsv")
_PACKED = (".gz", ".bz2", ".xz")
_ANSWER_COLUMNS = ("answer", "answers")


def load_question_file(path: str | os.PathLike[str]) -> list[Example]:
    """Reads question-answer pairs, in the format that the ending of the name tells.

    - ``.jsonl``: see `load_examples`.
    - ``.csv``, ``.tsv``: a header with ``question``, and ``answer`` or ``answers`` (and ``id``, if
      there is one), or no header and two columns, as DPR has them. A cell of several answers is a
      list of strings in brackets, ``["1912", "in 1912"]``.
    - ``.json``: SQuAD 1.1, of which questions and answers are taken and paragraphs are not.

    Each may be compressed (.gz, .bz2, .xz).

    Raises:
        OrqaError: an unknown ending, or a defect, named by file and line.
    """
    path = Path(path)
    plain = path.with_suffix("") if path.suffix in _PACKED else path
    if plain.suffix in _TABLES:
        examples = list(_read_table(path))
    elif plain.suffix == ".json":
        examples = list(read_squad([path]))
    elif plain.suffix in (".jsonl", ".ndjson"):
        return load_examples(path)
    else:
        raise OrqaError(
            f"{path} is no file of questions by its name; call it .jsonl, .csv, .tsv, or .json "
            "(SQuAD's format)."
        )
    if not examples:
        raise OrqaError(f"{path} holds no questions; give a file with at least one.")
    return examples


def _read_table(path: Path) -> Iterator[Example]:
    columns: dict[str, int] | None = None
    ids: set[str] = set()
    for line, cells in _rows(path):
        if columns is None:
            columns = _columns(path, cells)
            if columns["header"]:
                continue
        where = f"{path}:{line}"
        if len(cells) <= max(columns["question"], columns["answer"]):
            raise OrqaError(f"{where} has {len(cells)} columns, too few for a question and answer.")
        question, answers = cells[columns["question"]], _answers(where, cells[columns["answer"]])
        if not question.strip():
            raise OrqaError(f"{where} has an empty question.")
        if not answers:
            raise OrqaError(f"{where} has an empty answer.")
        id_ = cells[columns["id"]].strip() if columns.get("id", len(cells)) < len(cells) else ""
        id_ = id_ or str(line)
        if id_ in ids:
            raise OrqaError(f"{where} has the id {id_!r}, as a question before it; ids are unique.")
        ids.add(id_)
        yield Example(id_, question, answers)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of its last line, cells) for each row that is not blank."""
    try:
        with open_bytes(path) as file:
            lines = (line.decode("utf-8") for line in limited_lines(path, file))
            first = next(lines, "").removeprefix("\ufeff")
            text = itertools.chain([first], lines)
            # DPR's tables have tabs whatever they are called, and do not quote: a quotation mark
            # there is a character like any other.
            if "\t" in first:
                rows = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
            else:
                rows = csv.reader(text, strict=True)
            for cells in rows:
                if any(cell.strip() for cell in cells):
                    yield rows.line_num, cells
    except (csv.Error, UnicodeDecodeError, *DAMAGE) as error:
        raise OrqaError(f"{path} cannot be read as a table ({error}); save it again.") from error


def _columns(path: Path, first: list[str]) -> dict[str, int]:
    """Where question, answer and id stand; ``header`` is 1 where the first row names columns."""
    names = {name.strip().lower(): place for place, name in enumerate(first)}
    answer = next((names[name] for name in _ANSWER_COLUMNS if name in names), None)
    if "question" in names and answer is not None:
        found = {"header": 1, "question": names["question"], "answer": answer}
        return found | ({"id": names["id"]} if "id" in names else {})
    if len(first) == 2 and "question" not in names:
        return {"header": 0, "question": 0, "answer": 1}
    raise OrqaError(
        f"{path} starts with the columns {', '.join(first)}; it needs a header with 'question' and "
        "'answer', or two columns without a header."
    )


def _answers(where: str, cell: str) -> tuple[str, ...]:
    cell = cell.strip()
    if not cell.startswith("["):
        return (cell,) if cell else ()
    try:
        with warnings.catch_warnings():
            # Of a backslash that begins no escape: it is one, then.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            listed = ast.literal_eval(cell)
        # An escape can spell half a character, which nothing could print later.
        "".join(answer for answer in listed if isinstance(answer, str)).encode("utf-8")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not all(isinstance(answer, str) for answer in listed):
        raise OrqaError(
            f"{where} has an answer that starts with a bracket and is no list of strings, such as "
            '["1912", "in 1912"].'
        )
    return tuple(dict.fromkeys(answer for answer in listed if answer.strip()))
