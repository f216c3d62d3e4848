"""Tables of judged predictions, as cells: rendered to Markdown here and to HTML in `page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orqa_jax.eval.analysis import (
    Comparison,
    all_intervals,
    by_kind,
    compare,
    confidence_report,
    outcome_shares,
)
from orqa_jax.eval.bootstrap import Interval
from orqa_jax.eval.evaluate import format_cells, percent
from orqa_jax.eval.judge import OUTCOMES, Judgement

Systems = Mapping[str, Sequence[Judgement]]

_METRIC_NAMES = {
    "exact_match": "exact match",
    "modern_match": "modern match",
    "f1": "F1",
    "mrr": "MRR",
    "oracle_exact": "best span, exact match",
    "oracle_f1": "best span, F1",
}


@dataclass(frozen=True)
class Table:
    """A table of which the first row is the head and the first column names the rows."""

    title: str
    cells: list[list[str]]
    note: str = ""

    def to_markdown(self) -> str:
        note = f"{self.note}\n\n" if self.note else ""
        return f"### {self.title}\n\n{note}{format_cells(self.cells)}\n"


def main_tables(systems: Systems) -> list[Table]:
    """Every metric of every system, with intervals: one table of answers, one of retrieval."""
    found = {name: all_intervals(judged) for name, judged in systems.items()}
    metrics = list(dict.fromkeys(metric for row in found.values() for metric in row))
    answers = [m for m in metrics if "@" not in m and m != "mrr"]
    count = len(next(iter(systems.values())))
    tables = [
        Table(
            "Answers",
            interval_cells("system", found, answers),
            f"{count} questions; percent, with 95% bootstrap intervals over the questions. Exact "
            "match is as published; the modern match knows Unicode punctuation, leaves no answer "
            "empty, and wants patterns to match the whole answer. The best span is what a perfect "
            "reader of the same blocks would score.",
        )
    ]
    retrieval = [metric for metric in metrics if metric not in answers]
    if retrieval:
        # One row a metric: there are too many for columns.
        cells = [["metric", *found]]
        for metric in retrieval:
            row = [percent(intervals.get(metric)) for intervals in found.values()]
            cells.append([metric_title(metric), *row])
        tables.append(
            Table(
                "Retrieval",
                cells,
                "recall@k: an answer stands among the first k blocks, by whole tokens, by raw "
                "characters (substring), or the block is of the passage that the question was "
                "written from (gold). MRR: mean reciprocal rank of the first block with an answer.",
            )
        )
    return tables


def outcome_table(systems: Systems) -> Table | None:
    """What became of the questions, see `eval.judge`; None where no blocks are known."""
    shares = {name: found for name, j in systems.items() if (found := outcome_shares(j))}
    if not shares:
        return None
    return Table(
        "What went wrong",
        interval_cells("system", shares, list(OUTCOMES)),
        "Percent of the questions. Spurious hit: right, but read from a block that is not the gold "
        "passage or, where that is unknown, shares no content word with the question. Lost by the "
        "reader: the answer could have been read from the blocks that were read.",
    )


def kind_tables(name: str, judged: Sequence[Judgement]) -> list[Table]:
    """The metrics by kind of question, one table for each grouping."""
    tables = []
    for kind, groups in by_kind(judged).items():
        rows = {f"{group.value} ({group.count})": group.intervals for group in groups}
        cells = interval_cells(kind, rows, list(groups[0].intervals))
        tables.append(Table(f"By {kind}: {name}", cells))
    return tables


def confidence_table(
    systems: Systems, dev: Systems | None = None, *, wrong_cost: float = 1.0
) -> Table | None:
    """Calibration and risk-coverage of the systems that have confidences; None if none has."""
    cells: list[list[str]] = []
    for name, judged in systems.items():
        found = confidence_report(judged, (dev or {}).get(name), wrong_cost=wrong_cost)
        if found is None:
            continue
        if not cells:
            shares = [f"EM of the surest {share:.0%}" for share in found.at_coverage]
            cells = [["system", "ECE", "AURC", *shares, "threshold", "answered", "EM if answered"]]
        cells.append(
            [
                name,
                "–" if found.ece is None else f"{100 * found.ece:.1f}",
                f"{100 * found.aurc:.1f}",
                *(percent(interval) for interval in found.at_coverage.values()),
                "–" if found.threshold is None else f"{found.threshold:.3f}",
                percent(found.answered),
                percent(found.answered_exact),
            ]
        )
    if not cells:
        return None
    if all(row[-3] == "–" for row in cells[1:]):
        cells = [row[:-3] for row in cells]
    return Table(
        "Confidence",
        cells,
        "ECE: expected calibration error, 10 bins of equal width; of the model's own probability, "
        "or of one calibrated on dev questions where there are any (a threshold for abstaining is "
        f"then chosen there, a wrong answer costing {wrong_cost:g} times what a right one earns). "
        "AURC: area under the risk-coverage curve, lower is better.",
    )


def comparison_table(a: str, b: str, systems: Systems) -> Table:
    """Two systems in every metric that both have, with paired tests."""
    cells = [
        [
            "metric",
            a,
            b,
            "difference",
            "p (bootstrap)",
            "only first right",
            "only second",
            "McNemar p",
        ]
    ]
    for name, found in compare(systems[a], systems[b]).items():
        cells.append(_comparison_row(name, found))
    return Table(
        f"{a} against {b}",
        cells,
        "Percent, and points of difference with their interval by paired bootstrap over the "
        "questions; two-sided p-values, McNemar's exact.",
    )


def system_tables(
    name: str,
    judged: Sequence[Judgement],
    dev: Sequence[Judgement] | None = None,
    *,
    wrong_cost: float = 1.0,
) -> list[Table]:
    """Everything there is to say of one system; `dev` are other questions, to calibrate on."""
    systems = {name: judged}
    tables = [
        *main_tables(systems),
        outcome_table(systems),
        confidence_table(systems, {name: dev} if dev else None, wrong_cost=wrong_cost),
        *kind_tables(name, judged),
    ]
    return [table for table in tables if table is not None]


def _comparison_row(name: str, found: Comparison) -> list[str]:
    difference = found.difference
    values = (100 * x for x in (difference.mean, difference.low, difference.high))
    return [
        metric_title(name),
        percent(found.a),
        percent(found.b),
        "{:+.1f} [{:.1f}, {:.1f}]".format(*values),
        f"{found.p_value:.2g}",
        "–" if found.only_a is None else str(found.only_a),
        "–" if found.only_b is None else str(found.only_b),
        "–" if found.mcnemar_p is None else f"{found.mcnemar_p:.2g}",
    ]


def metric_title(name: str) -> str:
    """A metric's name as people read it."""
    return _METRIC_NAMES.get(name, name.replace("_", " "))


def interval_cells(
    corner: str, rows: Mapping[str, Mapping[str, Interval]], metrics: Sequence[str]
) -> list[list[str]]:
    """Rows of intervals in percent."""
    cells = [[corner, *map(metric_title, metrics)]]
    for name, intervals in rows.items():
        cells.append([name, *(percent(intervals.get(metric)) for metric in metrics)])
    return cells
