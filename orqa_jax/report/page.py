"""The report of one or more runs: one HTML page that needs nothing else, and the same in Markdown.

What goes in is read from the run folders: the metrics of their trainings, the predictions that name
the questions they were made for, and the table of a sweep. Nothing is measured anew.
"""

from __future__ import annotations

import html
import importlib.resources
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orqa_jax import __version__
from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import Interval
from orqa_jax.eval.evaluate import format_cells, metric
from orqa_jax.eval.judge import Judgement, answer_block
from orqa_jax.report import plots
from orqa_jax.report.files import Source, judge_source, open_source, read_about
from orqa_jax.report.tables import (
    Systems,
    Table,
    comparison_table,
    confidence_table,
    interval_cells,
    kind_tables,
    main_tables,
    outcome_table,
)
from orqa_jax.text.jsonl import read_json, read_jsonl
from orqa_jax.text.match import find_answer

# Questions shown of each sort.
SHOWN = 10
# Characters of a block shown before and after the answer.
_CONTEXT = 280
SWEEP_NAME = "sweep.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plot:
    """A plot with the words that stand for it where it is not seen."""

    title: str
    svg: str
    alt: str


@dataclass(frozen=True)
class Side:
    """What one system made of a question; `before`, `answer`, `after` is the text it points to."""

    system: str
    judgement: Judgement
    title: str
    before: str
    answer: str
    after: str


@dataclass(frozen=True)
class Shown:
    """A question, side by side."""

    question: str
    answers: tuple[str, ...]
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Shelf:
    """Questions of one sort."""

    title: str
    note: str
    questions: tuple[Shown, ...]


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Table | Plot | Shelf, ...]


def write_report(
    runs: Sequence[Path], out: Path, *, references: Path | None = None
) -> tuple[Path, Path]:
    """Writes ``report.html``, and ``report.md`` with its plots beside it.

    Args:
        runs: run folders (predictions in ``predictions/``, metrics in ``*/metrics.jsonl``) and
            sweep folders.
        out: folder of the report.
        references: question-answer pairs of all predictions; by default those that each
            predictions file was made for.

    Returns:
        The two files.

    Raises:
        OrqaError: a folder is missing, broken, or there is nothing in any of them to report.
    """
    for run in runs:
        if not run.is_dir():
            raise OrqaError(f"There is no run folder {run}; name folders that training wrote to.")
    sections = [
        *_question_sections(runs, references),
        *_learning_sections(runs),
        *_sweep_sections(runs),
    ]
    if not sections:
        raise OrqaError(
            f"There is nothing to report in {', '.join(map(str, runs))}: no predictions/*.jsonl "
            "with what they were made for, no */metrics.jsonl, no sweep; predict first, or name "
            "the questions with --references."
        )
    title = "Report: " + ", ".join(_labels(runs).values())
    out.mkdir(parents=True, exist_ok=True)
    (out / "plots").mkdir(exist_ok=True)
    page, text = out / "report.html", out / "report.md"
    for number, plot in enumerate(_plots(sections), 1):
        _write(out / "plots" / f"plot{number}.svg", _standalone(plot.svg))
    _write(page, to_html(title, sections))
    _write(text, to_markdown(title, sections))
    return page, text


def _plots(sections: Sequence[Section]) -> list[Plot]:
    return [part for section in sections for part in section.parts if isinstance(part, Plot)]


def _labels(runs: Sequence[Path]) -> dict[Path, str]:
    """Short names of the runs: their folders' names, or their paths where these are equal."""
    names = [run.resolve().name for run in runs]
    return {
        run: name if names.count(name) == 1 else str(run)
        for run, name in zip(runs, names, strict=True)
    }


# --- What there is to say -------------------------------------------------------------------------


def _question_sections(runs: Sequence[Path], references: Path | None) -> Iterator[Section]:
    """One section for each file of questions, with all systems that answered it."""
    labels = _labels(runs)
    by_questions: dict[Path, dict[str, Source]] = {}
    for run in runs:
        for path in sorted((run / "predictions").glob("*.jsonl")):
            asked = references or Path(read_about(path).get("questions", ""))
            if not asked.is_file():
                logger.warning(
                    "%s is left out: the questions it was made for are not at hand; name them "
                    "with --references.",
                    path,
                )
                continue
            name = path.stem if len(runs) == 1 else f"{labels[run]}: {path.stem}"
            by_questions.setdefault(asked.resolve(), {})[name] = open_source(path, asked)
    for number, (asked, sources) in enumerate(by_questions.items()):
        systems: Systems = {name: judge_source(source) for name, source in sources.items()}
        yield _question_section(f"Questions of {asked.name}", systems, sources, f"q{number}")


def _question_section(
    title: str, systems: Systems, sources: Mapping[str, Source], prefix: str
) -> Section:
    best = max(systems, key=lambda name: metric(systems[name], "exact_match").mean())
    others = [name for name in systems if name != best]
    parts: list[Table | Plot | Shelf | None] = [
        *main_tables(systems),
        _plot(
            "Recall over depth",
            plots.recall_curve(systems, f"{prefix}-recall"),
            "Share of questions with an answer among the first k blocks, for each system.",
        ),
        outcome_table(systems),
        _plot(
            "What became of the questions",
            plots.outcome_bars(systems, f"{prefix}-outcomes"),
            "Share of questions that were right, lost by the reader, not in the beam or nowhere.",
        ),
        *(comparison_table(best, other, systems) for other in others),
        confidence_table(systems),
        _plot(
            "Risk and coverage",
            plots.risk_coverage_curve(systems, f"{prefix}-risk"),
            "Share of wrong answers over the share of questions answered, surest first.",
        ),
        *kind_tables(best, systems[best]),
        _worst(best, systems, sources),
        *(shelf for other in others for shelf in _changed(best, other, systems, sources)),
    ]
    return Section(title, tuple(part for part in parts if part is not None))


def _plot(title: str, svg: str | None, alt: str) -> Plot | None:
    return Plot(title, svg, alt) if svg else None


def _learning_sections(runs: Sequence[Path]) -> Iterator[Section]:
    curves: dict[str, dict[str, plots.Curve]] = {}
    for run, label in _labels(runs).items():
        for path in sorted(run.glob("*/metrics.jsonl")):
            if lines := [record for _, record in read_jsonl(path) if "step" in record]:
                curves.setdefault(path.parent.name, {})[label] = lines
    parts: list[Plot] = []
    for stage, of_runs in curves.items():
        svg = plots.learning_curves(of_runs, f"curves-{len(parts)}")
        if svg:
            parts.append(Plot(stage, svg, f"The metrics of {stage} over the steps of training."))
    if parts:
        yield Section("Learning curves", tuple(parts))


def _sweep_sections(runs: Sequence[Path]) -> Iterator[Section]:
    for number, run in enumerate(runs):
        path = run / SWEEP_NAME
        if path.exists():
            yield sweep_section(read_json(path), f"sweep{number}")


def sweep_section(sweep: Mapping[str, Any], prefix: str) -> Section:
    """The table and one plot a metric of a sweep, as `experiments.sweep` writes it.

    Keys: `name`; `note`; `rows`, each with `name`, `metrics`, a map from metric to its `mean`,
    `low` and `high`, and `against_first`, a map from metric to the `mean` difference from the first
    row and its `p`.
    """
    rows = {
        row["name"]: {name: Interval(**value) for name, value in row["metrics"].items()}
        for row in sweep["rows"]
    }
    metrics = list(dict.fromkeys(name for intervals in rows.values() for name in intervals))
    cells = interval_cells("setting", rows, metrics)
    for line, row in zip(cells[1:], sweep["rows"], strict=True):
        for place, name in enumerate(metrics, 1):
            if against := row["against_first"].get(name):
                line[place] += f" ({100 * against['mean']:+.1f}, p {against['p']:.2g})"
    parts: list[Table | Plot | Shelf] = [Table(sweep["name"], cells, sweep["note"])]
    for place, name in enumerate(metrics):
        having = {row: found[name] for row, found in rows.items() if name in found}
        svg = plots.interval_dots(having, name.replace("_", " "), f"{prefix}-{place}")
        parts.append(Plot(name.replace("_", " "), svg, f"{name} of each setting, with intervals."))
    return Section(f"Ablations: {sweep['name']}", tuple(parts))


# --- Questions, side by side ----------------------------------------------------------------------


def _worst(name: str, systems: Systems, sources: Mapping[str, Source]) -> Shelf | None:
    wrong = [one for one in systems[name] if not one.exact_match]
    surest = sorted(wrong, key=lambda one: -(one.confidence or 0.0))[:SHOWN]
    if not surest:
        return None
    return Shelf(
        f"Wrong, and surest of it: {name}",
        "Wrong answers with the highest confidence.",
        tuple(_show(one.id, systems, sources) for one in surest),
    )


def _changed(a: str, b: str, systems: Systems, sources: Mapping[str, Source]) -> Iterator[Shelf]:
    right = {name: {one.id: one for one in systems[name] if one.exact_match} for name in (a, b)}
    for winner, loser in ((a, b), (b, a)):
        ids = [i for i in right[winner] if i not in right[loser]]
        if ids:
            ids.sort(key=lambda i: -(right[winner][i].confidence or 0.0))
            yield Shelf(
                f"Only {winner} is right, not {loser}",
                f"{len(ids)} questions; the surest of them.",
                tuple(_show(i, systems, sources, (winner, loser)) for i in ids[:SHOWN]),
            )


def _show(
    identifier: str,
    systems: Systems,
    sources: Mapping[str, Source],
    names: Sequence[str] | None = None,
) -> Shown:
    sides = []
    for name in names or systems:
        judgement = next(one for one in systems[name] if one.id == identifier)
        source = sources[name]
        record = next(r for r in source.predictions.records if r["id"] == identifier)
        sides.append(Side(name, judgement, *_evidence(record, source)))
    first = sides[0].judgement
    return Shown(first.question, first.answers, tuple(sides))


def _evidence(record: Mapping[str, Any], source: Source) -> tuple[str, str, str, str]:
    """Title, and the text before, of and after the answer where it was read."""
    best: Mapping[str, Any] = next(iter(record.get("candidates") or ()), {})
    if {"block_text", "start", "end", "block_start"} <= best.keys():
        text, title = best["block_text"], best.get("title", "")
        start, end = best["start"] - best["block_start"], best["end"] - best["block_start"]
    else:
        block = answer_block(record)
        if block is None or not source.has_blocks:
            return "", "", record["answer"], ""
        passage = source.passage(block)
        title, text = passage.title, passage.text
        start, end = find_answer(text, [record["answer"]]) or (0, 0)
    first, last = max(0, start - _CONTEXT), min(len(text), end + _CONTEXT)
    # Cut where a word ends.
    before = re.sub(r"^\S*\s", "…", text[first:start]) if first else text[:start]
    after = re.sub(r"\s\S*$", "…", text[end:last]) if last < len(text) else text[end:]
    return title, before, text[start:end], after


# --- HTML -----------------------------------------------------------------------------------------


def to_html(title: str, sections: Sequence[Section]) -> str:
    """One page without scripts, that loads nothing; all text of documents is escaped."""
    css = importlib.resources.files("orqa_jax.report").joinpath("style.css").read_text("utf-8")
    links = "".join(
        f'<a href="#s{number}">{_escape(section.title)}</a> '
        for number, section in enumerate(sections)
    )
    body = "\n".join(
        f'<section id="s{number}"><h2>{_escape(section.title)}</h2>\n'
        + "\n".join(map(_part_html, section.parts))
        + "</section>"
        for number, section in enumerate(sections)
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_escape(title)}</title>
<style>
{css}</style>
</head>
<body>
<header><h1>{_escape(title)}</h1>
<p class="note">Made by orqa_jax {__version__}.</p>
<nav aria-label="Sections">{links}</nav></header>
<main>
{body}
</main>
</body>
</html>
"""


def _part_html(part: Table | Plot | Shelf) -> str:
    if isinstance(part, Table):
        return _table_html(part)
    heading = f"<h3>{_escape(part.title)}</h3>\n"
    if isinstance(part, Plot):
        svg = part.svg.replace("<svg", f'<svg role="img" aria-label="{_escape(part.alt)}"', 1)
        return f'{heading}<figure tabindex="0">{svg}</figure>'
    cards = "\n".join(map(_question_html, part.questions))
    return f'{heading}<p class="note">{_escape(part.note)}</p>\n{cards}'


def _table_html(table: Table) -> str:
    head = "".join(f'<th scope="col">{_escape(cell)}</th>' for cell in table.cells[0])
    rows = "\n".join(
        f'<tr><th scope="row">{_escape(row[0])}</th>'
        + "".join(f"<td>{_escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in table.cells[1:]
    )
    note = f'<p class="note">{_escape(table.note)}</p>\n' if table.note else ""
    return (
        f"<h3>{_escape(table.title)}</h3>\n{note}"
        # Scrolled by keyboard too, so it can be reached by one.
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _question_html(shown: Shown) -> str:
    sides = "".join(
        f'<div class="side"><h5>{_escape(side.system)}</h5>'
        f'<p><span class="{"right" if side.judgement.exact_match else "wrong"}">'
        f"{_escape(side.judgement.answer) or '(no answer)'}</span> "
        f'<span class="soft">{_escape(_verdict(side.judgement))}</span></p>'
        f'<p class="evidence"><b>{_escape(side.title)}</b> {_escape(side.before)}'
        f"<mark>{_escape(side.answer)}</mark>{_escape(side.after)}</p></div>"
        for side in shown.sides
    )
    return (
        f'<div class="question"><h4>{_escape(shown.question)}</h4>'
        f'<p class="soft">Expected: {_escape("; ".join(shown.answers))}</p>'
        f'<div class="sides">{sides}</div></div>'
    )


def _verdict(judgement: Judgement) -> str:
    parts = ["right" if judgement.exact_match else "wrong"]
    if judgement.outcome not in ("", "right"):
        parts.append(judgement.outcome)
    if judgement.confidence is not None:
        parts.append(f"confidence {judgement.confidence:.2f}")
    if judgement.retrieved is not None:
        rank = judgement.rank_token
        parts.append(f"answer in block {rank}" if rank else f"not in {judgement.retrieved} blocks")
    return ", ".join(parts)


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


# --- Markdown -------------------------------------------------------------------------------------


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The same in Markdown, with plots as files in ``plots/``."""
    lines = [f"# {_mark(title)}", "", f"Made by orqa_jax {__version__}.", ""]
    number = 0
    for section in sections:
        lines += [f"## {_mark(section.title)}", ""]
        for part in section.parts:
            lines += [f"### {_mark(part.title)}", ""]
            if isinstance(part, Plot):
                number += 1
                lines += [f"![{_mark(part.alt)}](plots/plot{number}.svg)", ""]
            elif isinstance(part, Table):
                lines += [part.note, ""] if part.note else []
                lines += [format_cells([[_mark(c) for c in row] for row in part.cells]), ""]
            else:
                lines += [_mark(part.note), ""]
                for shown in part.questions:
                    lines += [*_question_markdown(shown), ""]
    return "\n".join(lines).rstrip() + "\n"


def _question_markdown(shown: Shown) -> list[str]:
    lines = [f"- **{_mark(shown.question)}** Expected: {_mark('; '.join(shown.answers))}"]
    for side in shown.sides:
        lines.append(
            f"  - {_mark(side.system)}: **{_mark(side.judgement.answer) or '(no answer)'}** "
            f"({_mark(_verdict(side.judgement))}). *{_mark(side.title)}*: {_mark(side.before)}"
            f"**{_mark(side.answer)}**{_mark(side.after)}"
        )
    return lines


def _mark(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    escaped = re.sub(r"([\\`*_#~]|(?<=\])\()", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _standalone(svg: str) -> str:
    """An SVG file of its own: it has no text around it whose colour it could take."""
    style = (
        "<style>svg{color:#1b1e24}@media (prefers-color-scheme:dark){svg{color:#e6e8ec}}</style>"
    )
    return svg[: svg.index(">") + 1] + style + svg[svg.index(">") + 1 :] + "\n"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
