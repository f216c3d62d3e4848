"""Does a system know when it is wrong: calibration, risk-coverage, and when to abstain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_NEWTON_STEPS = 100


@dataclass(frozen=True)
class ReliabilityBin:
    """Answers of like confidence: how many, their mean confidence, and the share that is right."""

    count: int
    confidence: float
    accuracy: float


def reliability(
    probability: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 10
) -> list[ReliabilityBin]:
    """The bins of equal width over [0, 1] that hold answers, from low confidence to high.

    Args:
        probability: [n], that each answer is right; a value on a border falls in the upper bin,
            1 in the last.
        correct: [n], whether it is.

    Raises:
        ValueError: different lengths, no values, or a probability outside [0, 1].
    """
    probability, correct = _pair(probability, correct)
    if probability.min() < 0.0 or probability.max() > 1.0:
        raise ValueError("probabilities lie between 0 and 1; calibrate scores first")
    place = np.minimum((probability * bins).astype(int), bins - 1)
    found = []
    for number in np.unique(place):
        inside = place == number
        found.append(
            ReliabilityBin(
                int(inside.sum()), float(probability[inside].mean()), float(correct[inside].mean())
            )
        )
    return found


def expected_calibration_error(
    probability: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 10
) -> float:
    """Mean distance of confidence and accuracy over the bins of `reliability`, weighted by count.

    ECE = sum over bins of count / n * |accuracy - confidence| (Naeini et al. 2015; Guo et al. 2017,
    equation 3), with bins of equal width.
    """
    found = reliability(probability, correct, bins)
    total = sum(one.count for one in found)
    return sum(one.count * abs(one.accuracy - one.confidence) for one in found) / total


def risk_coverage(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Share of wrong answers when only the most confident are given (El-Yaniv and Wiener 2010).

    Answers of equal confidence are given together, so there is one point a distinct confidence.

    Returns:
        coverage [m] rising to 1, and risk [m], the share of wrong answers among those given.

    Raises:
        ValueError: different lengths, or no values.
    """
    confidence, correct = _pair(confidence, correct)
    order = np.argsort(-confidence, kind="stable")
    given = np.arange(1, len(order) + 1)
    wrong = np.cumsum(1.0 - correct[order])
    last_of_ties = np.append(np.diff(confidence[order]) != 0, True)
    return given[last_of_ties] / len(order), wrong[last_of_ties] / given[last_of_ties]


def area_under_risk_coverage(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> float:
    """Mean risk over all coverages from 1/n to 1 (AURC); ties count as given in random order."""
    confidence, correct = _pair(confidence, correct)
    coverage, risk = risk_coverage(confidence, correct)
    ends = np.rint(coverage * len(correct)).astype(int)
    wrong = risk * ends
    total, start, wrong_before = 0.0, 0, 0.0
    for end, wrong_after in zip(ends, wrong, strict=True):
        given = np.arange(start + 1, end + 1)
        share = (given - start) / (end - start)
        total += float(np.sum((wrong_before + share * (wrong_after - wrong_before)) / given))
        start, wrong_before = int(end), float(wrong_after)
    return total / len(correct)


@dataclass(frozen=True)
class Platt:
    """Turns scores into probabilities: 1 / (1 + exp(-(slope * score + intercept)))."""

    slope: float
    intercept: float

    def __call__(self, score: npt.ArrayLike) -> Floats:
        z = self.slope * np.asarray(score, np.float64) + self.intercept
        return np.exp(-np.logaddexp(0.0, -z))


def fit_platt(score: npt.ArrayLike, correct: npt.ArrayLike) -> Platt:
    """Logistic regression of right and wrong on the score (Platt 1999), by Newton's method.

    Targets are his smoothed ones, (right + 1) / (right + 2) and 1 / (wrong + 2), so that scores
    that separate right from wrong leave the slope finite. A slope below 0 is set to 0: then the
    score says nothing that can be used, and every answer has the same probability.

    Args:
        score: [n], higher for answers that the system is surer of.
        correct: [n], whether each is right.

    Raises:
        ValueError: different lengths, or no values.
    """
    score, correct = _pair(score, correct)
    right = correct.sum()
    wrong = len(correct) - right
    target = np.where(correct > 0, (right + 1.0) / (right + 2.0), 1.0 / (wrong + 2.0))
    center, scale = score.mean(), score.std() or 1.0
    z = (score - center) / scale
    slope, intercept = 0.0, float(np.log((right + 1.0) / (wrong + 1.0)))
    for _ in range(_NEWTON_STEPS):
        p = Platt(slope, intercept)(z)
        weight = np.maximum(p * (1.0 - p), 1e-12)
        gradient = np.array([np.sum((p - target) * z), np.sum(p - target)])
        cross = np.sum(weight * z)
        hessian = np.array([[np.sum(weight * z * z), cross], [cross, np.sum(weight)]])
        step = np.linalg.solve(hessian + 1e-9 * np.eye(2), gradient)
        # Far from the optimum a whole Newton step can overshoot.
        step *= min(1.0, 5.0 / max(np.abs(step).max(), 1e-300))
        slope, intercept = slope - step[0], intercept - step[1]
        if np.abs(step).max() < 1e-10:
            break
    if slope < 0:
        base = (right + 1.0) / (len(correct) + 2.0)
        return Platt(0.0, float(np.log(base / (1.0 - base))))
    return Platt(float(slope / scale), float(intercept - slope * center / scale))


def abstain_threshold(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, *, wrong_cost: float = 1.0
) -> float:
    """The least confidence at which answering pays, chosen on held-out (dev) questions.

    An answer earns 1 if it is right and costs `wrong_cost` if it is wrong; silence earns nothing.
    Among the thresholds with the largest total the highest is taken. Answer where
    ``confidence >= threshold``; it is infinite where every way of answering loses.

    Raises:
        ValueError: different lengths, or no values.
    """
    confidence, correct = _pair(confidence, correct)
    coverage, risk = risk_coverage(confidence, correct)
    earned = coverage * (1.0 - risk * (1.0 + wrong_cost))
    best = int(np.argmax(earned))
    if earned[best] <= 0.0:
        return float("inf")
    given = round(coverage[best] * len(confidence))
    return float(np.sort(confidence)[::-1][given - 1])


@dataclass(frozen=True)
class Calibration:
    """What one system's confidence is worth, and when it had better say nothing.

    Attributes:
        platt: from confidence to the probability that the answer is right.
        threshold: the least such probability at which answering pays; infinite where it never does.
    """

    platt: Platt
    threshold: float

    def probability(self, confidence: float) -> float:
        """That an answer of this confidence is right."""
        return float(self.platt(confidence))

    def abstains(self, confidence: float) -> bool:
        """Whether an answer of this confidence had better not be given."""
        return self.probability(confidence) < self.threshold


def calibrate(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, *, wrong_cost: float = 1.0
) -> Calibration:
    """Fits both on the same held-out (dev) questions; see `fit_platt` and `abstain_threshold`.

    Raises:
        ValueError: different lengths, or no values.
    """
    platt = fit_platt(confidence, correct)
    threshold = abstain_threshold(platt(confidence), correct, wrong_cost=wrong_cost)
    return Calibration(platt, threshold)


def _pair(values: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, Floats]:
    first, second = np.asarray(values, np.float64), np.asarray(correct, np.float64)
    if first.ndim != 1 or first.shape != second.shape or not first.size:
        raise ValueError(f"needs two flat arrays of one length, not {first.shape}, {second.shape}")
    if not np.isfinite(first).all():
        raise ValueError("confidences must be finite")
    return first, second
