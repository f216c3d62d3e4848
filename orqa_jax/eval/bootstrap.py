"""Intervals and tests over questions: bootstrap, and McNemar's test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_CHUNK_ELEMENTS = 1 << 20
_FEW_VALUES = 16
# A multinomial draw costs so many draws of a question for each distinct value.
_COST_OF_A_VALUE = 32


@dataclass(frozen=True)
class Interval:
    """A mean with the lower and upper bound of its interval."""

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: npt.ArrayLike, *, seed: int = 0, samples: int = 10_000, level: float = 0.95
) -> Interval:
    """The percentile bootstrap interval of a mean (Efron and Tibshirani 1993, section 13.3).

    Args:
        values: [n], one score a question.
        seed: same seed, same interval.
        samples: number of resamples.
        level: share of the resampled means that the interval holds.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    array = _checked(values)
    return _interval(array, _resampled_means(array, seed, samples), level)


def paired_bootstrap(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    seed: int = 0,
    samples: int = 10_000,
    level: float = 0.95,
) -> tuple[Interval, float]:
    """Compares two systems on the same questions by resampling questions.

    Args:
        a: [n], scores of one system.
        b: [n], scores of the other, question by question.

    Returns:
        The interval of mean(a - b), and the two-sided p-value of no difference: twice the smaller
        share of resampled differences on or beyond zero, one added to each count so that it is
        never 0.

    Raises:
        ValueError: different lengths, no values, or one that is not finite.
    """
    a, b = _checked_pair(a, b)
    means = _resampled_means(a - b, seed, samples)
    smaller = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    p_value = min(1.0, 2 * (int(smaller) + 1) / (samples + 1))
    return _interval(a - b, means, level), p_value


def one_tailed_bootstrap(
    a: npt.ArrayLike, b: npt.ArrayLike, *, seed: int = 0, samples: int = 10_000
) -> float:
    """The p-value of "a is no better than b": the share of resampled mean differences at most 0.

    One is added to both counts, so that it is never 0. Arguments and errors as `paired_bootstrap`.
    """
    a, b = _checked_pair(a, b)
    means = _resampled_means(a - b, seed, samples)
    return (int(np.count_nonzero(means <= 0)) + 1) / (samples + 1)


def mcnemar(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[int, int, float]:
    """McNemar's exact test of two systems' right and wrong answers (McNemar 1947).

    Args:
        a: [n], 1 or True where one system is right.
        b: [n], likewise for the other, question by question.

    Returns:
        On how many questions only `a` is right, on how many only `b` is, and the two-sided p-value
        of no difference: that of so uneven a split, or a more uneven one, of as many fair coins.

    Raises:
        ValueError: different lengths, or values other than 0 and 1.
    """
    a, b = _checked_pair(a, b)
    if not np.isin(np.concatenate([a, b]), (0.0, 1.0)).all():
        raise ValueError("McNemar's test needs values that are 0 or 1")
    only_a, only_b = int(np.sum(a > b)), int(np.sum(b > a))
    return only_a, only_b, _two_sided_sign_test(only_a, only_b)


def _two_sided_sign_test(heads: int, tails: int) -> float:
    n, few = heads + tails, min(heads, tails)
    # Logarithms, since 2 ** -n is 0 in floating point from n = 1075 on.
    log_terms = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2.0)
        for i in range(few + 1)
    ]
    return min(1.0, 2.0 * math.fsum(math.exp(term) for term in log_terms))


def _checked(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError("a bootstrap needs a flat, non-empty array of finite values")
    return array


def _checked_pair(
    a: npt.ArrayLike, b: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    first, second = _checked(a), _checked(b)
    if len(first) != len(second):
        raise ValueError(f"paired scores differ in length: {len(first)} and {len(second)}")
    return first, second


def _interval(
    values: npt.NDArray[np.float64], means: npt.NDArray[np.float64], level: float
) -> Interval:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def _resampled_means(
    values: npt.NDArray[np.float64], seed: int, samples: int
) -> npt.NDArray[np.float64]:
    """Means of `samples` resamples with replacement, float64 [samples], in bounded memory."""
    rng = np.random.default_rng(seed)
    n = len(values)
    distinct, counts = np.unique(values, return_counts=True)
    means = np.empty(samples)
    if len(distinct) <= max(_FEW_VALUES, n // _COST_OF_A_VALUE):
        # How often each value is drawn is multinomial: the same distribution, without the draws.
        rows = max(1, _CHUNK_ELEMENTS // len(distinct))
        for start in range(0, samples, rows):
            chunk = means[start : start + rows]
            chunk[:] = rng.multinomial(n, counts / n, size=len(chunk)) @ distinct / n
        return means
    rows = max(1, _CHUNK_ELEMENTS // n)
    for start in range(0, samples, rows):
        chunk = means[start : start + rows]
        drawn = rng.integers(0, n, size=(len(chunk), n), dtype=np.int32)
        chunk[:] = values[drawn].mean(axis=1)
    return means
