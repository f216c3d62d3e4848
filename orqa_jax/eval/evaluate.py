"""Scores of a file of predictions: exact match, F1 and recall of the answer string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orqa_jax.eval.bootstrap import Interval, bootstrap_interval
from orqa_jax.eval.judge import Judgement

RECALL_AT = (1, 5, 20, 100)
_OF_THE_ANSWER = ("exact_match", "modern_match", "f1")


@dataclass(frozen=True)
class Evaluation:
    """Scores of one system; the keys are "exact_match", "modern_match", "f1", "recall@1" and so on.

    Attributes:
        per_question: float64 [questions] for each metric, in the order of the references, for
            `paired_bootstrap`.
        intervals: mean and 95% bootstrap interval of each metric, between 0 and 1.
    """

    per_question: dict[str, npt.NDArray[np.float64]]
    intervals: dict[str, Interval]


def summarize(judged: Sequence[Judgement]) -> Evaluation:
    """The main metrics of what was judged, with their intervals; recall only where it is known."""
    names = [*_OF_THE_ANSWER]
    if judged[0].retrieved is not None:
        names += [f"recall@{k}" for k in RECALL_AT]
    per_question = {name: metric(judged, name) for name in names}
    return Evaluation(per_question, {n: bootstrap_interval(v) for n, v in per_question.items()})


def metric(judged: Sequence[Judgement], name: str) -> npt.NDArray[np.float64]:
    """One metric of each question, float64 [questions] from 0 to 1.

    Args:
        name: "exact_match", "modern_match", "f1", "oracle_exact", "oracle_f1"; "recall@k",
            "substring_recall@k" or "gold_recall@k" for a number k, 1 if one of the first k
            retrieved blocks (of those there are, if fewer) holds an answer, see `Ranks`; or "mrr",
            the reciprocal rank of the first block that holds an answer by tokens (0 without one).

    Raises:
        KeyError: there is no metric of that name.
        ValueError: it needs blocks, and they were not at hand.
    """
    kind, _, k = name.partition("@")
    fields = {"recall": "rank_token", "substring_recall": "rank_substring"}
    fields |= {"gold_recall": "rank_gold", "mrr": "rank_token"}
    fields |= {n: n for n in (*_OF_THE_ANSWER, "oracle_exact", "oracle_f1")}
    found = [getattr(one, fields[kind]) for one in judged]
    needs_blocks = kind not in _OF_THE_ANSWER
    if needs_blocks and any(one.retrieved is None for one in judged):
        raise ValueError(f"{name} needs the texts of the blocks")
    if kind == "mrr":
        return np.array([0.0 if rank is None else 1.0 / rank for rank in found])
    if k:
        return np.array([rank is not None and rank <= int(k) for rank in found], np.float64)
    return np.array(found, np.float64)


def format_table(
    rows: Mapping[str, Mapping[str, Interval]], *, corner: str = "system", decimals: int = 1
) -> str:
    """A Markdown table of systems by metrics, in percent: "43.2 [38.1, 48.0]"."""
    metrics = list(dict.fromkeys(name for intervals in rows.values() for name in intervals))
    cells = [[corner, *metrics]]
    for system, intervals in rows.items():
        cells.append([system, *(percent(intervals.get(name), decimals) for name in metrics)])
    return format_cells(cells)


def format_cells(cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table of which the first row is the head."""
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def percent(interval: Interval | None, decimals: int = 1) -> str:
    """An interval in percent, a dash for none."""
    if interval is None:
        return "–"
    numbers = (f"{100 * x:.{decimals}f}" for x in (interval.mean, interval.low, interval.high))
    return "{} [{}, {}]".format(*numbers)
