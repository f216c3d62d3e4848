import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from orqa_jax.eval import bootstrap
from orqa_jax.eval.bootstrap import bootstrap_interval, mcnemar, paired_bootstrap


@pytest.mark.parametrize("draw", ["binary", "continuous"])
def test_interval_of_a_mean_agrees_with_the_normal_approximation(draw: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2, 2000) if draw == "binary" else rng.normal(3, 2, 2000)
    interval = bootstrap_interval(values)
    half = 1.959964 * values.std() / np.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.06 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.06 * half)
    narrow = bootstrap_interval(values, level=0.5)
    assert narrow.high - narrow.low == pytest.approx(2 * half * 0.67449 / 1.959964, rel=0.06)


def test_both_ways_of_resampling_have_one_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.25])
    # Every resample of three values, each with its probability, worked out in full.
    small = values[:3]
    means = np.sort([np.mean(small[list(i)]) for i in np.ndindex(3, 3, 3)])
    counted = bootstrap._resampled_means(small, 0, 60_000)
    monkeypatch.setattr(bootstrap, "_FEW_VALUES", 0)
    drawn = bootstrap._resampled_means(small, 0, 60_000)
    for resampled in (counted, drawn):
        for mean in np.unique(means):
            share = np.isclose(resampled, mean).mean()
            assert share == pytest.approx(np.isclose(means, mean).mean(), abs=0.01)


def test_coverage() -> None:
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(200):
        interval = bootstrap_interval(rng.random(100) < 0.4, seed=trial, samples=500)
        inside += interval.low <= 0.4 <= interval.high
    assert 180 <= inside <= 199


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(0, 5))
def test_interval_lies_within_the_values_and_repeats(values: list[float], seed: int) -> None:
    interval = bootstrap_interval(values, seed=seed, samples=200)
    assert interval == bootstrap_interval(values, seed=seed, samples=200)
    slack = 1e-9 * (1 + np.abs(values).max())
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack


def test_paired_bootstrap() -> None:
    rng = np.random.default_rng(3)
    base = rng.random(400)
    better = base + rng.normal(0.1, 0.3, 400)
    interval, p_value = paired_bootstrap(better, base)
    assert interval.mean == pytest.approx((better - base).mean())
    assert 0 < interval.low < interval.high
    assert p_value < 0.001
    reverse, reverse_p = paired_bootstrap(base, better)
    assert (reverse.low, reverse.high) == pytest.approx((-interval.high, -interval.low))
    assert reverse_p == p_value
    same, same_p = paired_bootstrap(base, base)
    assert (same.mean, same.low, same.high, same_p) == (0, 0, 0, 1)


def test_p_value_of_a_small_difference() -> None:
    # mean 0.05, standard error 0.05: z = 1, p = 0.317 by the normal approximation.
    a = np.array([1.0] * 50 + [0.0] * 40)
    b = np.zeros(90)
    a[50:], b[50:] = 0.0, 1.0
    difference = a - b
    z = difference.mean() / (difference.std() / np.sqrt(90))
    _, p_value = paired_bootstrap(a, b)
    assert z == pytest.approx(1.0607, abs=1e-3)
    assert p_value == pytest.approx(0.2888, abs=0.06)


@pytest.mark.parametrize("values", [[], [[1.0]], [1.0, np.nan], [np.inf]])
def test_useless_values_are_refused(values: list) -> None:
    with pytest.raises(ValueError, match="flat, non-empty array of finite"):
        bootstrap_interval(values)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length: 1 and 2"):
        paired_bootstrap([1.0], [1.0, 2.0])


def test_memory_is_bounded() -> None:
    values = np.random.default_rng(0).random(10_000)
    tracemalloc.start()
    started = time.process_time()
    bootstrap_interval(values, samples=10_000)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert seconds < 15


@pytest.mark.parametrize(
    ("only_a", "only_b", "p_value"),
    [
        (0, 0, 1.0),
        (3, 3, 1.0),
        (5, 0, 2 / 32),
        (0, 1, 1.0),
        (9, 1, 2 * 11 / 1024),
        (1, 2, 1.0),
    ],
)
def test_mcnemar_by_hand(only_a: int, only_b: int, p_value: float) -> None:
    a = [1] * only_a + [0] * only_b + [1, 1, 0]
    b = [0] * only_a + [1] * only_b + [1, 1, 0]
    assert mcnemar(a, b) == (only_a, only_b, pytest.approx(p_value))
    assert mcnemar(b, a) == (only_b, only_a, pytest.approx(p_value))


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_is_the_exact_binomial_test(only_a: int, only_b: int) -> None:
    p_value = mcnemar([1] * only_a + [0] * (only_b + 1), [0] * only_a + [1] * only_b + [0])[2]
    expected = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert p_value == pytest.approx(expected, rel=1e-8)


def test_mcnemar_needs_right_and_wrong() -> None:
    with pytest.raises(ValueError, match="0 or 1"):
        mcnemar([0.5], [1])
    with pytest.raises(ValueError, match="differ in length: 2 and 1"):
        mcnemar([1, 0], [1])


def test_many_questions_with_few_values_are_resampled_by_counts() -> None:
    # As F1 is: some hundred distinct values on ten thousand questions.
    values = np.random.default_rng(1).integers(0, 200, 10_000) / 200
    started = time.process_time()
    interval = bootstrap_interval(values)
    assert time.process_time() - started < 2
    half = 1.959964 * values.std() / 100
    assert interval.low == pytest.approx(values.mean() - half, abs=0.06 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.06 * half)
