"""Scores of one answer string against its references (Rajpurkar et al. 2016; Lee et al. 2019)."""

from collections import Counter
from collections.abc import Callable, Sequence

from orqa_jax.text.match import first_match
from orqa_jax.text.normalize import normalize_answer

Normalize = Callable[[str], str]


def exact_match(
    prediction: str, answers: Sequence[str], normalize: Normalize = normalize_answer
) -> bool:
    """True if the prediction equals one of `answers` after normalisation."""
    normalized = normalize(prediction)
    return any(normalized == normalize(answer) for answer in answers)


def token_f1(
    prediction: str, answers: Sequence[str], normalize: Normalize = normalize_answer
) -> float:
    """The best F1, from 0 to 1, between the bags of normalised words of prediction and answer."""
    predicted = Counter(normalize(prediction).split())
    return max(
        (_f1(predicted, Counter(normalize(answer).split())) for answer in answers), default=0.0
    )


def regex_match(prediction: str, patterns: Sequence[str]) -> bool:
    """True if one of `patterns` matches from the start of the prediction (CuratedTREC).

    Case and Unicode are ignored as Python's ``IGNORECASE | UNICODE | MULTILINE`` ignore them. What
    follows the match may be anything: "Paris" accepts "Parisian fashion". A pattern that is broken
    or takes too long (see `text.match.REGEX_SECONDS`) matches nothing.
    """
    return any(first_match(pattern, prediction, "start") for pattern in patterns)


def regex_fullmatch(prediction: str, patterns: Sequence[str]) -> bool:
    """Like `regex_match`, but the pattern must match the prediction from its start to its end."""
    return any(first_match(pattern, prediction, "whole") for pattern in patterns)


def _f1(predicted: Counter[str], expected: Counter[str]) -> float:
    common = (predicted & expected).total()
    # Equal to 2pr / (p + r) with precision p = common / predicted and recall r = common / expected.
    return 2 * common / (predicted.total() + expected.total()) if common else 0.0
