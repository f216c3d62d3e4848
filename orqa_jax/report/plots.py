"""Plots as SVG that stands on light and dark ground: lines and letters take the colour of the text.

matplotlib draws; nothing of it is imported before a plot is asked for.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orqa_jax.eval.bootstrap import Interval, bootstrap_interval
from orqa_jax.eval.calibration import risk_coverage
from orqa_jax.eval.evaluate import metric
from orqa_jax.eval.judge import OUTCOMES
from orqa_jax.report.tables import Systems

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[Mapping[str, float]]

# Told apart on white and on black, and by people who do not see all colours (after Okabe and Ito).
COLORS = ("#2f7fc1", "#d9822b", "#2e9e77", "#b565a7", "#c8504f", "#8a8a2a", "#5aa9c9", "#7d6bc4")
_OUTCOME_COLORS = ("#2e9e77", "#8a8a2a", "#d9822b", "#c8504f", "#8b8f98")
# Drawn by matplotlib, then replaced by the colour of the surrounding text.
_INK = "#010203"
_FAINT = "#040506"
_DASHES = ("-", "--", "-.", ":")
_NOT_CURVES = {"step", "seconds_per_step", "examples_per_second"}
_COLUMNS = 3


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _style(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(_INK)
        label.set_fontsize(9)
    axes.title.set_color(_INK)
    axes.title.set_fontsize(9)
    axes.grid(axis="y", color=_FAINT, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(3, len(labels)),
            frameon=False,
            fontsize=8,
            labelcolor=_INK,
        )


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element; `name` makes the ids in it its own."""
    import matplotlib

    # Text stays text; ids and so the whole file are the same for the same figure.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = svg.replace(_INK, "currentColor").replace(_FAINT, "currentColor")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    # The page scales it to the room there is.
    return re.sub(r' (?:width|height)="[^"]*pt"', "", svg, count=2)


def recall_curve(systems: Systems, name: str) -> str | None:
    """Recall@k by tokens over k, with 95% bands; None where no system has blocks."""
    known = {s: judged for s, judged in systems.items() if judged[0].retrieved is not None}
    if not known:
        return None
    figure = _figure(6.4, 3.8)
    axes = figure.subplots()
    depths = {s: max(one.retrieved or 1 for one in judged) for s, judged in known.items()}
    for place, (system, judged) in enumerate(known.items()):
        ks = np.unique(np.geomspace(1, depths[system], 25).round().astype(int))
        found = [bootstrap_interval(metric(judged, f"recall@{k}"), samples=2000) for k in ks]
        low, high = ([100 * getattr(i, end) for i in found] for end in ("low", "high"))
        color = COLORS[place % len(COLORS)]
        axes.plot(
            ks,
            [100 * interval.mean for interval in found],
            color=color,
            linestyle=_DASHES[place % len(_DASHES)],
            label=system,
        )
        axes.fill_between(ks, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    ticks = [k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if k <= max(depths.values())]
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.minorticks_off()
    axes.set_xlabel("blocks retrieved, k")
    axes.set_ylabel("answer recall@k, %")
    _style(axes)
    _legend(figure, axes)
    return to_svg(figure, name)


def risk_coverage_curve(systems: Systems, name: str) -> str | None:
    """Share of wrong answers among the most confident ones; None without confidences."""
    known = {s: j for s, j in systems.items() if all(one.confidence is not None for one in j)}
    if not known:
        return None
    figure = _figure(6.4, 3.8)
    axes = figure.subplots()
    for place, (system, judged) in enumerate(known.items()):
        coverage, risk = risk_coverage(
            np.array([one.confidence for one in judged], np.float64),
            metric(judged, "exact_match"),
        )
        axes.step(
            100 * coverage,
            100 * risk,
            where="post",
            color=COLORS[place % len(COLORS)],
            linestyle=_DASHES[place % len(_DASHES)],
            label=system,
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 102)
    axes.set_xlabel("coverage: share of questions answered, surest first, %")
    axes.set_ylabel("risk: wrong among these, %")
    _style(axes)
    _legend(figure, axes)
    return to_svg(figure, name)


def outcome_bars(systems: Systems, name: str) -> str | None:
    """What became of the questions, one bar a system; None where no blocks are known."""
    known = {s: judged for s, judged in systems.items() if judged[0].retrieved is not None}
    if not known:
        return None
    figure = _figure(6.4, 1.2 + 0.42 * len(known))
    axes = figure.subplots()
    labels = list(known)
    left = np.zeros(len(known))
    for outcome, color in zip(OUTCOMES, _OUTCOME_COLORS, strict=True):
        share = np.array(
            [100 * np.mean([one.outcome == outcome for one in j]) for j in known.values()]
        )
        bars = axes.barh(labels, share, left=left, color=color, label=outcome, height=0.62)
        text = [f"{value:.0f}" if value >= 5 else "" for value in share]
        axes.bar_label(bars, text, label_type="center", color="black", fontsize=8)
        left += share
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of questions, %")
    _style(axes)
    axes.grid(visible=False)
    _legend(figure, axes)
    return to_svg(figure, name)


def learning_curves(curves: Mapping[str, Curve], name: str) -> str | None:
    """Each metric of a training over its steps, one small plot a metric, one line a run."""
    metrics = list(
        dict.fromkeys(key for curve in curves.values() for line in curve for key in line)
    )
    metrics = [key for key in metrics if key not in _NOT_CURVES]
    if not metrics:
        return None
    rows = -(-len(metrics) // _COLUMNS)
    figure = _figure(7.6, 0.5 + 1.9 * rows)
    grid: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(metrics):
            axes.set_visible(False)
            continue
        for number, (run, curve) in enumerate(curves.items()):
            points = [
                (line["step"], line[metrics[place]])
                for line in curve
                if line.get(metrics[place]) is not None
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    color=COLORS[number % len(COLORS)],
                    linestyle=_DASHES[number % len(_DASHES)],
                    linewidth=1.2,
                    label=run,
                )
        axes.set_title(metrics[place].replace("_", " "))
        _style(axes)
    if len(curves) > 1:
        _legend(figure, grid.flat[0])
    return to_svg(figure, name)


def interval_dots(rows: Mapping[str, Interval], label: str, name: str) -> str:
    """One dot with its interval for each row, the first of them as the line to compare with."""
    figure = _figure(6.4, 0.9 + 0.3 * len(rows))
    axes = figure.subplots()
    for place, interval in enumerate(rows.values()):
        color = COLORS[0] if place else COLORS[1]
        ends = [100 * interval.low, 100 * interval.high]
        axes.plot(ends, [place, place], color=color, linewidth=2, solid_capstyle="round")
        axes.plot([100 * interval.mean], [place], "o", color=color, markersize=5)
    first = next(iter(rows.values()))
    axes.axvline(100 * first.mean, color=COLORS[1], linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel(f"{label}, %")
    _style(axes)
    axes.grid(axis="x", color=_FAINT, alpha=0.25, linewidth=0.6)
    axes.grid(visible=False, axis="y")
    return to_svg(figure, name)
