"""Scores of a file of predictions: exact match, F1 and recall of the answer string."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import Interval, bootstrap_interval
from orqa_jax.eval.scores import exact_match, token_f1
from orqa_jax.text.jsonl import read_jsonl, record_id
from orqa_jax.text.match import texts_with_answer

_NAMED_IN_ERRORS = 3


@dataclass(frozen=True)
class Evaluation:
    """Scores of one system; the keys are "exact_match", "f1", "recall@1" and so on.

    Attributes:
        per_question: float64 [questions] for each metric, in the order of the references, for
            `paired_bootstrap`.
        intervals: mean and 95% bootstrap interval of each metric, between 0 and 1.
    """

    per_question: dict[str, npt.NDArray[np.float64]]
    intervals: dict[str, Interval]


def load_predictions(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads predictions, one JSON object a line.

    Keys: `id`, `answer` (string), optional `retrieved` (block numbers, best first); other keys are
    kept and ignored.

    Raises:
        OrqaError: a defect, named by file and line.
    """
    predictions = []
    for where, record in read_jsonl(path):
        if not isinstance(record.get("answer"), str):
            raise OrqaError(f"{where} needs an 'answer' that is a string (it may be empty).")
        blocks = record.get("retrieved", [])
        if not isinstance(blocks, list) or not all(type(b) is int and b >= 0 for b in blocks):
            raise OrqaError(f"{where} needs a 'retrieved' that is a list of block numbers.")
        predictions.append({**record, "id": record_id(where, record)})
    return predictions


def evaluate(
    predictions: Sequence[Mapping[str, Any]],
    references: Mapping[str, Sequence[str]],
    block_texts: Callable[[int], str] | None = None,
    recall_at: Sequence[int] = (1, 5, 20, 100),
) -> Evaluation:
    """Scores predictions against the reference answers of the same questions.

    Args:
        predictions: as `load_predictions` gives them, in any order.
        references: answers of each question id.
        block_texts: text of a block number; without it there is no recall.
        recall_at: recall@k is 1 for a question if one of its first k retrieved blocks (of those it
            has, if fewer) holds an answer by `has_answer` in mode "token".

    Raises:
        OrqaError: no references; a question without a prediction, a prediction without a question
            or two for one question; a prediction without `retrieved`, or a block that
            `block_texts` does not have, where recall is asked for.
    """
    if not references:
        raise OrqaError("There are no reference questions to evaluate on.")
    by_id = {prediction["id"]: prediction for prediction in predictions}
    counts = Counter(prediction["id"] for prediction in predictions)
    _refuse("predicted more than once", [i for i, count in counts.items() if count > 1])
    _refuse("without a prediction", [i for i in references if i not in by_id])
    _refuse("predicted but not in the references", [i for i in by_id if i not in references])

    pairs = [(by_id[i], answers) for i, answers in references.items()]
    scores: dict[str, Iterable[float]] = {
        "exact_match": (exact_match(p["answer"], answers) for p, answers in pairs),
        "f1": (token_f1(p["answer"], answers) for p, answers in pairs),
    }
    if block_texts is not None:
        _refuse(
            "predicted without 'retrieved' blocks",
            [i for i in by_id if "retrieved" not in by_id[i]],
        )
        depth = max(recall_at)
        ranks = [_rank_of_answer(p, answers, block_texts, depth) for p, answers in pairs]
        scores |= {f"recall@{k}": [rank < k for rank in ranks] for k in recall_at}
    per_question = {
        name: np.fromiter(values, dtype=np.float64, count=len(pairs))
        for name, values in scores.items()
    }
    intervals = {name: bootstrap_interval(values) for name, values in per_question.items()}
    return Evaluation(per_question, intervals)


def format_table(rows: Mapping[str, Mapping[str, Interval]]) -> str:
    """A Markdown table of systems by metrics, in percent: "43.2 [38.1, 48.0]"."""
    metrics = list(dict.fromkeys(name for intervals in rows.values() for name in intervals))
    cells = [["system", *metrics]]
    for system, intervals in rows.items():
        cells.append([system, *(_percent(intervals.get(name)) for name in metrics)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def _percent(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _refuse(defect: str, ids: Collection[str]) -> None:
    if ids:
        named = ", ".join(repr(i) for i in list(ids)[:_NAMED_IN_ERRORS])
        more = ", ..." if len(ids) > _NAMED_IN_ERRORS else ""
        raise OrqaError(
            f"{len(ids)} question id(s) {defect}: {named}{more}; "
            "predictions and references must hold the same questions, once each."
        )


def _rank_of_answer(
    prediction: Mapping[str, Any],
    answers: Sequence[str],
    block_texts: Callable[[int], str],
    depth: int,
) -> float:
    """Rank, from 0, of the first retrieved block that holds an answer; infinite if none does."""
    blocks = prediction["retrieved"][:depth]
    try:
        texts = [block_texts(block) for block in blocks]
    except IndexError as error:
        raise OrqaError(
            f"The prediction for question {prediction['id']!r} retrieves a block that the corpus "
            f"does not have ({error}); evaluate with the corpus that was searched."
        ) from error
    hits = np.flatnonzero(texts_with_answer(texts, answers))
    return float(hits[0]) if len(hits) else np.inf
