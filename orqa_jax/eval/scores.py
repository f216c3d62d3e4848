"""Scores of one answer string against its references (Rajpurkar et al. 2016)."""

from collections import Counter
from collections.abc import Sequence

from orqa_jax.text.normalize import normalize_answer


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """True if the prediction equals one of `answers` after normalisation."""
    normalized = normalize_answer(prediction)
    return any(normalized == normalize_answer(answer) for answer in answers)


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1, from 0 to 1, between the bags of normalised words of prediction and answer."""
    predicted = Counter(normalize_answer(prediction).split())
    return max((_f1(predicted, Counter(normalize_answer(a).split())) for a in answers), default=0.0)


def _f1(predicted: Counter[str], expected: Counter[str]) -> float:
    common = (predicted & expected).total()
    # Equal to 2pr / (p + r) with precision p = common / predicted and recall r = common / expected.
    return 2 * common / (predicted.total() + expected.total()) if common else 0.0
