import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from orqa_jax.eval.calibration import (
    Platt,
    ReliabilityBin,
    abstain_threshold,
    area_under_risk_coverage,
    calibrate,
    expected_calibration_error,
    fit_platt,
    reliability,
    risk_coverage,
)

PAIRS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.95, 1.0]), st.booleans()),
    min_size=1,
    max_size=30,
)


def test_calibration_error_by_hand():
    probability, correct = [0.1, 0.15, 0.9, 1.0], [0, 1, 1, 1]
    assert reliability(probability, correct) == [
        ReliabilityBin(2, pytest.approx(0.125), 0.5),
        ReliabilityBin(2, pytest.approx(0.95), 1.0),
    ]
    expected = (2 * abs(0.5 - 0.125) + 2 * abs(1.0 - 0.95)) / 4
    assert expected_calibration_error(probability, correct) == pytest.approx(expected)
    # With two bins the border 0.5 belongs to the upper one.
    assert [one.count for one in reliability([0.5, 0.49], [1, 0], bins=2)] == [1, 1]


@given(PAIRS)
def test_calibration_error_is_that_of_the_definition(pairs):
    probability, correct = map(np.array, zip(*pairs, strict=True))
    total = 0.0
    for low in np.arange(10):
        inside = [(p, c) for p, c in pairs if low <= p * 10 < low + 1 or (low == 9 and p == 1)]
        if inside:
            p, c = np.mean(np.array(inside, float), axis=0)
            total += len(inside) / len(pairs) * abs(c - p)
    assert expected_calibration_error(probability, correct) == pytest.approx(total)


def test_risk_coverage_by_hand():
    coverage, risk = risk_coverage([0.9, 0.2, 0.9, 0.5], [1, 0, 0, 1])
    np.testing.assert_allclose(coverage, [0.5, 0.75, 1.0])
    np.testing.assert_allclose(risk, [0.5, 1 / 3, 0.5])
    # Sorted with the tie in both orders: risks 0, 1/2, 1/3, 1/2 and 1, 1/2, 1/3, 1/2.
    expected = np.mean([np.mean([0, 1 / 2, 1 / 3, 1 / 2]), np.mean([1, 1 / 2, 1 / 3, 1 / 2])])
    assert area_under_risk_coverage([0.9, 0.2, 0.9, 0.5], [1, 0, 0, 1]) == pytest.approx(expected)


@given(PAIRS)
def test_area_is_the_mean_over_random_orders_of_ties(pairs):
    confidence, correct = (np.array(x, float) for x in zip(*pairs, strict=True))
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(300):
        order = np.lexsort((rng.random(len(pairs)), -confidence))
        areas.append(np.mean(np.cumsum(1 - correct[order]) / np.arange(1, len(pairs) + 1)))
    spread = np.std(areas) / np.sqrt(len(areas))
    assert area_under_risk_coverage(confidence, correct) == pytest.approx(
        np.mean(areas), abs=6 * spread + 1e-9
    )


def test_platt_finds_the_maximum_of_the_likelihood():
    rng = np.random.default_rng(4)
    score = rng.normal(3.0, 20.0, 400)
    correct = rng.random(400) < 1 / (1 + np.exp(-(0.07 * score - 0.4)))
    found = fit_platt(score, correct)
    target = np.where(
        correct, (correct.sum() + 1) / (correct.sum() + 2), 1 / ((~correct).sum() + 2)
    )

    def loss(x):
        z = x[0] * score + x[1]
        return np.sum(target * np.logaddexp(0, -z) + (1 - target) * np.logaddexp(0, z))

    best = minimize(loss, [0.0, 0.0], tol=1e-12).x
    assert (found.slope, found.intercept) == (
        pytest.approx(best[0], rel=1e-4),
        pytest.approx(best[1], rel=1e-4),
    )
    probability = found(score)
    assert expected_calibration_error(probability, correct) < 0.06
    assert Platt(2.0, 1.0)([0.5]) == pytest.approx(1 / (1 + np.exp(-2.0)))


@pytest.mark.parametrize(
    ("score", "correct"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1]),
        ([5, 5, 5], [1, 0, 1]),
        ([1e6, -1e6], [1, 0]),
        ([0.3], [1]),
        ([1, 2, 3], [0, 0, 0]),
    ],
)
def test_platt_stays_finite(score, correct):
    probability = fit_platt(score, correct)(score)
    assert np.all((probability > 0) & (probability < 1))
    assert np.all(np.diff(probability[np.argsort(score)]) >= -1e-12)


def test_platt_of_a_useless_score_is_constant():
    found = fit_platt([1, 2, 3, 4], [1, 1, 0, 0])
    assert found.slope == 0
    assert found([7.0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("confidence", "correct", "cost", "threshold"),
    [
        ([0.9, 0.8, 0.2], [1, 1, 0], 1.0, 0.8),
        ([0.9, 0.8, 0.2], [1, 0, 1], 0.5, 0.2),
        ([0.9, 0.8, 0.2], [1, 0, 1], 2.0, 0.9),
        ([0.9, 0.8], [0, 0], 1.0, np.inf),
        ([0.9, 0.9, 0.9], [1, 1, 0], 1.0, 0.9),
        ([0.5, 0.5], [1, 0], 1.0, np.inf),
    ],
)
def test_threshold_by_hand(confidence, correct, cost, threshold):
    assert abstain_threshold(confidence, correct, wrong_cost=cost) == threshold


@given(PAIRS, st.sampled_from([0.25, 1.0, 3.0]))
def test_no_threshold_earns_more(pairs, cost):
    confidence, correct = (np.array(x, float) for x in zip(*pairs, strict=True))

    def earned(threshold):
        given = correct[confidence >= threshold]
        return given.sum() - cost * (1 - given).sum()

    found = abstain_threshold(confidence, correct, wrong_cost=cost)
    best = max(0.0, *(earned(t) for t in confidence))
    assert earned(found) == pytest.approx(best)


@pytest.mark.parametrize(
    ("values", "correct", "message"),
    [([], [], "two flat"), ([1.0], [1, 0], "two flat"), ([np.nan], [1], "finite")],
)
def test_useless_input_is_refused(values, correct, message):
    for function in (risk_coverage, fit_platt, abstain_threshold, expected_calibration_error):
        with pytest.raises(ValueError, match=message):
            function(values, correct)


def test_scores_are_no_probabilities():
    with pytest.raises(ValueError, match="between 0 and 1"):
        reliability([1.5], [1])


def test_a_calibration_says_what_an_answer_is_worth():
    rng = np.random.default_rng(4)
    confidence = rng.random(400)
    correct = rng.random(400) < confidence**2
    found = calibrate(confidence, correct, wrong_cost=1.0)
    assert found.platt == fit_platt(confidence, correct)
    probability = found.platt(confidence)
    assert found.threshold == abstain_threshold(probability, correct, wrong_cost=1.0)
    given = np.array([not found.abstains(one) for one in confidence])
    assert given.tolist() == (probability >= found.threshold).tolist()
    assert 0.5 < confidence[given].min() < 0.9  # where half of the answers are right
    assert found.probability(0.9) == pytest.approx(0.81, abs=0.08)
    # The dearer a wrong answer, the less is answered; at the end nothing.
    thresholds = [calibrate(confidence, correct, wrong_cost=c).threshold for c in (0, 1, 4)]
    assert thresholds == sorted(thresholds)
    never = calibrate(confidence, np.zeros(400), wrong_cost=1.0)
    assert never.threshold == np.inf
    assert never.abstains(1.0)
