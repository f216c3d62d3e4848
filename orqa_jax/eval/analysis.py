"""Tables over judged predictions: what went wrong, for which questions, and against whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orqa_jax.eval.bootstrap import Interval, bootstrap_interval, mcnemar, paired_bootstrap
from orqa_jax.eval.calibration import (
    area_under_risk_coverage,
    calibrate,
    expected_calibration_error,
    risk_coverage,
)
from orqa_jax.eval.evaluate import RECALL_AT, metric
from orqa_jax.eval.judge import OUTCOMES, Judgement, refuse
from orqa_jax.eval.questions import ANSWER_TYPES

COVERAGES = (0.1, 0.25, 0.5, 0.75, 1.0)
# Classes in the order of their tables; those that are not named here follow in alphabetical order.
_CLASS_ORDER = {
    name: place
    for place, name in enumerate(
        [
            *("1-5 words", "6-8 words", "9-12 words", "13 or more words"),
            *("never in training", "once", "2-9 times", "10 times or more"),
            *ANSWER_TYPES,
        ]
    )
}


def metric_names(judged: Sequence[Judgement]) -> list[str]:
    """All metrics that these judgements have, in the order of their tables."""
    names = ["exact_match", "modern_match", "f1"]
    if judged[0].retrieved is None:
        return names
    kinds = ["recall"]
    if any(one.rank_substring is not None for one in judged):
        kinds.append("substring_recall")
    if any(one.rank_gold is not None for one in judged):
        kinds.append("gold_recall")
    names += [f"{kind}@{k}" for kind in kinds for k in RECALL_AT]
    return [*names, "mrr", "oracle_exact", "oracle_f1"]


def all_intervals(judged: Sequence[Judgement]) -> dict[str, Interval]:
    """Mean and 95% bootstrap interval of each of `metric_names`."""
    return {name: bootstrap_interval(metric(judged, name)) for name in metric_names(judged)}


def outcome_shares(judged: Sequence[Judgement]) -> dict[str, Interval]:
    """Share of the questions with each of `OUTCOMES`; they add up to 1. {} without blocks."""
    if judged[0].retrieved is None:
        return {}
    return {name: bootstrap_interval([one.outcome == name for one in judged]) for name in OUTCOMES}


@dataclass(frozen=True)
class Group:
    """Questions of one class: how many there are, and their metrics."""

    value: str
    count: int
    intervals: dict[str, Interval]


def by_kind(judged: Sequence[Judgement]) -> dict[str, list[Group]]:
    """The metrics of each class of questions, for each grouping of `Judgement.kinds`.

    They are exact match and F1, and where blocks are known recall@5 and recall@20.
    """
    metrics = ["exact_match", "f1"]
    if judged[0].retrieved is not None:
        metrics += ["recall@5", "recall@20"]
    values = {name: metric(judged, name) for name in metrics}
    groups: dict[str, list[Group]] = {}
    for kind in judged[0].kinds:
        classes = np.array([one.kinds.get(kind, "") for one in judged])
        found = sorted(set(classes) - {""}, key=lambda c: (_CLASS_ORDER.get(c, -1), c))
        groups[kind] = [
            Group(
                str(value),
                int(np.sum(classes == value)),
                {n: bootstrap_interval(v[classes == value]) for n, v in values.items()},
            )
            for value in found
        ]
    return groups


@dataclass(frozen=True)
class Confidence:
    """How far the confidence of a system can be trusted.

    Attributes:
        ece: expected calibration error in 10 bins of equal width; None where the confidence is no
            probability and no dev questions were there to make it one.
        mean_confidence: mean probability, None likewise.
        aurc: area under the risk-coverage curve.
        at_coverage: exact match among the most confident share of the answers; answers of equal
            confidence are kept together, so the share may be a little larger.
        threshold: answer where the probability (or confidence) is at least this; chosen on dev,
            None without dev questions.
        answered: share of the questions that are answered with this threshold.
        answered_exact: exact match among them; None if there are none.
    """

    ece: float | None
    mean_confidence: float | None
    aurc: float
    at_coverage: dict[float, Interval]
    threshold: float | None = None
    answered: Interval | None = None
    answered_exact: Interval | None = None


def confidence_report(
    judged: Sequence[Judgement],
    dev: Sequence[Judgement] | None = None,
    *,
    wrong_cost: float = 1.0,
) -> Confidence | None:
    """Calibration, risk at some coverages, and what abstaining would do; None without confidences.

    Args:
        judged: the questions that are reported on.
        dev: other questions of the same system, for the calibration (Platt's) of its confidence
            and the threshold for abstaining. Without them a confidence between 0 and 1 counts as a
            probability as it is.
        wrong_cost: see `abstain_threshold`.
    """
    scores = [one.confidence for one in judged]
    dev_scores = [one.confidence for one in dev or ()]
    if any(score is None for score in [*scores, *dev_scores]):
        return None
    confidence = np.array(scores, np.float64)
    correct = metric(judged, "exact_match")
    threshold = answered = answered_exact = None
    probability = confidence if np.all((confidence >= 0) & (confidence <= 1)) else None
    if dev:
        dev_correct = metric(dev, "exact_match")
        calibration = calibrate(
            np.array(dev_scores, np.float64), dev_correct, wrong_cost=wrong_cost
        )
        probability, threshold = calibration.platt(confidence), calibration.threshold
        given = probability >= threshold
        answered = bootstrap_interval(given)
        answered_exact = bootstrap_interval(correct[given]) if given.any() else None
    coverage, _ = risk_coverage(confidence, correct)
    order = np.argsort(-confidence, kind="stable")
    at_coverage = {}
    for share in COVERAGES:
        reached = coverage[np.searchsorted(coverage, share - 1e-12)]
        given_first = order[: round(reached * len(order))]
        at_coverage[share] = bootstrap_interval(correct[given_first])
    return Confidence(
        ece=None if probability is None else expected_calibration_error(probability, correct),
        mean_confidence=None if probability is None else float(probability.mean()),
        aurc=area_under_risk_coverage(confidence, correct),
        at_coverage=at_coverage,
        threshold=threshold,
        answered=answered,
        answered_exact=answered_exact,
    )


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems on the same questions.

    Attributes:
        a, b: mean and interval of each.
        difference: mean(a - b) and its interval, by paired bootstrap.
        p_value: two-sided, by paired bootstrap.
        only_a, only_b: questions on which one system alone is right; None where the metric is
            not a matter of right and wrong.
        mcnemar_p: McNemar's exact test; None likewise.
    """

    a: Interval
    b: Interval
    difference: Interval
    p_value: float
    only_a: int | None = None
    only_b: int | None = None
    mcnemar_p: float | None = None


def compare(a: Sequence[Judgement], b: Sequence[Judgement]) -> dict[str, Comparison]:
    """Compares two systems question by question in every metric that both have.

    Raises:
        OrqaError: they are about different questions.
    """
    by_id = {one.id: one for one in b}
    refuse("of the first system but not of the second", [x.id for x in a if x.id not in by_id])
    known = {one.id for one in a}
    refuse("of the second system but not of the first", [x.id for x in b if x.id not in known])
    b = [by_id[one.id] for one in a]
    shared = [name for name in metric_names(a) if name in metric_names(b)]
    found = {}
    for name in shared:
        x, y = metric(a, name), metric(b, name)
        difference, p_value = paired_bootstrap(x, y)
        intervals = (bootstrap_interval(x), bootstrap_interval(y))
        found[name] = Comparison(*intervals, difference, p_value)
        if name not in ("f1", "oracle_f1", "mrr"):
            only_a, only_b, p = mcnemar(x, y)
            found[name] = dataclasses.replace(
                found[name], only_a=only_a, only_b=only_b, mcnemar_p=p
            )
    return found
