"""Predictions from files: our own, and those of other systems in their published formats.

=====================  ====================================================================
format                 what a file holds
=====================  ====================================================================
orqa_jax               JSONL: `id`, `answer`, `retrieved`, `candidates`, ...
NQ-open, ORQA          JSONL: `question`, `prediction`
SQuAD                  one JSON object: question id -> answer
DPR reader             JSON list: `question`, `predictions` [`top_k`, `prediction` {`text`, ...}]
DPR retriever          JSON list: `question`, `answers`, `ctxs` [`id`, `title`, `text`, `score`]
=====================  ====================================================================

The last three hold no block numbers of ours; the passages that DPR writes out are kept beside the
predictions and numbered in the order in which they come.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orqa_jax.errors import OrqaError
from orqa_jax.eval.judge import Question
from orqa_jax.text.jsonl import read_json, read_jsonl, read_lines, record_id


@dataclass(frozen=True)
class Passage:
    """A passage as another system wrote it out; `id` is "" where it has none."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Predictions:
    """What a file of predictions holds.

    Attributes:
        records: with `id` and `answer`, where known `retrieved`, `candidates` and `confidence`.
        passages: what `retrieved` numbers, where the file brings its passages along; None where
            they are blocks of a corpus, or unknown.
    """

    records: list[dict[str, Any]]
    passages: list[Passage] | None = None


def load_predictions(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads predictions of this package, one JSON object a line.

    Keys: `id`, `answer` (string), optional `retrieved` (block numbers, best first); other keys are
    kept.

    Raises:
        OrqaError: a defect, named by file and line.
    """
    return [_own(where, record) for where, record in read_jsonl(path)]


def read_predictions(path: str | os.PathLike[str], references: Sequence[Question]) -> Predictions:
    """Reads predictions in any of the formats above, told by what the file holds.

    Predictions without an id belong to the reference with the same question. Where several
    references ask it, there is either one prediction for all of them or one for each, in order.
    SQuAD's scorer counts an absent prediction as wrong; here it has to be there (it may be "").

    Raises:
        OrqaError: the format is unknown, a defect, or a question that the references do not ask.
    """
    first_line = next((line for _, line in read_lines(path) if line.strip()), "")
    if first_line.lstrip().startswith("["):
        return _dpr(path, read_json(path), references)
    records = read_jsonl(path)
    try:
        where, record = next(records, ("", None))
    except OrqaError:
        # Not one object a line: then the whole file may be one.
        return Predictions(_squad(path, read_json(path)))
    if record is None:
        raise OrqaError(f"{path} holds no predictions; it needs one JSON object a line.")
    if "answer" not in record and "prediction" not in record:
        if all(isinstance(value, str) for value in record.values()):
            return Predictions(_squad(path, read_json(path)))
        raise OrqaError(
            f"{where} needs an 'answer' (or, as in NQ-open, a 'prediction') that is a string."
        )
    if "answer" in record:
        return Predictions(load_predictions(path))
    return Predictions(_nq_open(path, read_jsonl(path), references))


def _own(where: str, record: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(record.get("answer"), str):
        raise OrqaError(f"{where} needs an 'answer' that is a string (it may be empty).")
    blocks = record.get("retrieved", [])
    if not isinstance(blocks, list) or not all(type(b) is int and b >= 0 for b in blocks):
        raise OrqaError(f"{where} needs a 'retrieved' that is a list of block numbers.")
    candidates = record.get("candidates", [])
    if not isinstance(candidates, list) or not all(isinstance(c, dict) for c in candidates):
        raise OrqaError(f"{where} needs 'candidates' that are a list of objects.")
    return {**record, "id": record_id(where, record)}


def _squad(path: str | os.PathLike[str], answers: Any) -> list[dict[str, Any]]:
    if not isinstance(answers, dict) or not answers:
        raise OrqaError(
            f"{path} is no file of predictions; see `orqa eval --help` for the formats."
        )
    for key, answer in answers.items():
        if not isinstance(answer, str):
            raise OrqaError(f"{path} needs a string as the answer to question {key!r}.")
    return [{"id": key, "answer": answer} for key, answer in answers.items()]


def _nq_open(
    path: str | os.PathLike[str],
    records: Iterable[tuple[str, dict[str, Any]]],
    references: Sequence[Question],
) -> list[dict[str, Any]]:
    answered = []
    for where, record in records:
        if not isinstance(record.get("prediction"), str):
            raise OrqaError(f"{where} needs a 'prediction' that is a string (it may be empty).")
        if record.get("id") is None and not isinstance(record.get("question"), str):
            raise OrqaError(f"{where} needs the 'question' that it answers.")
        keys = ("id", "question", "confidence")
        kept = {key: record[key] for key in keys if record.get(key) is not None}
        if "id" in kept:
            kept["id"] = record_id(where, record)
        answered.append({**kept, "answer": record["prediction"]})
    return _with_ids(path, answered, references)


def _dpr(path: str | os.PathLike[str], items: Any, references: Sequence[Question]) -> Predictions:
    if not isinstance(items, list) or not items:
        raise OrqaError(f"{path} holds no predictions; DPR writes a JSON list of questions.")
    passages = _Numbered()
    records = []
    for number, item in enumerate(items, 1):
        where = f"{path}, question {number},"
        if not isinstance(item, dict) or not isinstance(item.get("question"), str):
            raise OrqaError(f"{where} needs a 'question' that is a string.")
        if isinstance(item.get("ctxs"), list):
            records.append(_dpr_retrieved(where, item, passages))
        elif isinstance(item.get("predictions"), list) and item["predictions"]:
            records.append(_dpr_read(where, item, passages))
        else:
            raise OrqaError(
                f"{where} needs 'ctxs' (of a retriever) or 'predictions' (of a reader)."
            )
    return Predictions(_with_ids(path, records, references), passages.found or None)


@dataclass
class _Numbered:
    """Passages, each once, numbered as they come."""

    found: list[Passage] = field(default_factory=list)
    numbers: dict[Passage, int] = field(default_factory=dict)

    def number(self, passage: Passage) -> int:
        if passage not in self.numbers:
            self.numbers[passage] = len(self.found)
            self.found.append(passage)
        return self.numbers[passage]


def _dpr_retrieved(where: str, item: Mapping[str, Any], passages: _Numbered) -> dict[str, Any]:
    retrieved = []
    for context in item["ctxs"]:
        if not isinstance(context, dict) or not isinstance(context.get("text"), str):
            raise OrqaError(f"{where} has a passage without 'text'.")
        title = context.get("title") or ""
        passage = Passage(str(context.get("id", "")), str(title), context["text"])
        retrieved.append(passages.number(passage))
    return {"question": item["question"], "answer": "", "retrieved": retrieved}


def _dpr_read(where: str, item: Mapping[str, Any], passages: _Numbered) -> dict[str, Any]:
    """The prediction over the most passages: DPR writes one for each number that it was asked."""
    try:
        chosen = max(item["predictions"], key=lambda found: int(found["top_k"]))["prediction"]
        answer, passage = chosen["text"], chosen.get("passage", "")
        score = float(chosen["score"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise OrqaError(
            f"{where} needs 'predictions' with 'top_k' and a 'prediction' that has 'text' and "
            f"'score', as DPR's reader writes them ({error!r})."
        ) from error
    if not isinstance(answer, str) or not isinstance(passage, str):
        raise OrqaError(f"{where} needs a 'text' and a 'passage' that are strings.")
    record = {"question": item["question"], "answer": answer, "confidence": score}
    if passage:
        block = passages.number(Passage("", "", passage))
        record["candidates"] = [{"answer": answer, "block": block}]
    return record


def _with_ids(
    path: str | os.PathLike[str],
    records: Sequence[dict[str, Any]],
    references: Sequence[Question],
) -> list[dict[str, Any]]:
    """Gives each record without an id that of the reference with the same question."""
    ids = defaultdict(list)
    for reference in references:
        ids[reference.question].append(reference.id)
    given = [record for record in records if "id" in record]
    asked = Counter(record["question"] for record in records if "id" not in record)
    for question, count in asked.items():
        if not ids[question]:
            raise OrqaError(
                f"{path} has a prediction for the question {question!r}, which the references do "
                "not ask; give the references that it was made for."
            )
        if count not in (1, len(ids[question])):
            raise OrqaError(
                f"{path} has {count} predictions for the question {question!r}, which the "
                f"references ask {len(ids[question])} times; give the predictions ids, or the "
                "right references."
            )
    used: Counter[str] = Counter()
    matched = []
    for record in records:
        if "id" in record:
            continue
        question = record["question"]
        if asked[question] == 1:
            matched += [{**record, "id": i} for i in ids[question]]
        else:
            matched.append({**record, "id": ids[question][used[question]]})
            used[question] += 1
    return given + matched
