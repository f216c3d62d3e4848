import dataclasses

import numpy as np
import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.eval.analysis import (
    all_intervals,
    by_kind,
    compare,
    confidence_report,
    metric_names,
    outcome_shares,
)
from orqa_jax.eval.bootstrap import bootstrap_interval, mcnemar, paired_bootstrap
from orqa_jax.eval.calibration import expected_calibration_error, fit_platt
from orqa_jax.eval.judge import OUTCOMES, Judgement


def made(count=200, *, seed=0, **changes):
    """Questions of which a third is right, and surer the more often."""
    rng = np.random.default_rng(seed)
    judged = []
    for number in range(count):
        right = bool(rng.random() < 0.3)
        rank = int(rng.integers(1, 40))
        outcome = "right" if right else OUTCOMES[int(rng.integers(2, 5))]
        kinds = {"question word": ("who", "when")[number % 2], "answer type": "date"}
        one = Judgement(
            id=f"q{number}",
            question="?",
            answers=("a",),
            answer="a" if right else "b",
            exact_match=right,
            modern_match=right,
            f1=1.0 if right else float(rng.integers(0, 3)) / 4,
            rank_token=rank if rank < 30 else None,
            rank_substring=rank if rank < 20 else None,
            rank_gold=None,
            retrieved=30,
            oracle_exact=right or outcome == "lost by the reader",
            oracle_f1=1.0 if right else 0.5,
            outcome=outcome,
            confidence=float(np.clip(rng.normal(0.6 if right else 0.4, 0.2), 0, 1)),
            kinds=kinds,
        )
        judged.append(dataclasses.replace(one, **changes))
    return judged


def test_names_follow_what_is_known():
    recall = [f"recall@{k}" for k in (1, 5, 20, 100)]
    substring = [f"substring_{name}" for name in recall]
    rest = ["mrr", "oracle_exact", "oracle_f1"]
    answers = ["exact_match", "modern_match", "f1"]
    assert metric_names(made(40)) == [*answers, *recall, *substring, *rest]
    gold = [f"gold_{name}" for name in recall]
    assert metric_names(made(40, rank_gold=3, rank_substring=None)) == [
        *answers,
        *recall,
        *gold,
        *rest,
    ]
    assert metric_names(made(40, retrieved=None)) == answers


def test_intervals_are_those_of_the_values():
    judged = made()
    found = all_intervals(judged)
    assert found["exact_match"] == bootstrap_interval([one.exact_match for one in judged])
    expected = [1 / one.rank_token if one.rank_token else 0.0 for one in judged]
    assert found["mrr"] == bootstrap_interval(expected)


def test_outcomes_add_up():
    shares = outcome_shares(made())
    assert list(shares) == list(OUTCOMES)
    assert sum(interval.mean for interval in shares.values()) == pytest.approx(1.0)
    assert outcome_shares(made(9, retrieved=None)) == {}


def test_by_kind():
    judged = made()
    groups = by_kind(judged)
    assert {kind: [(g.value, g.count) for g in found] for kind, found in groups.items()} == {
        "question word": [("when", 100), ("who", 100)],
        "answer type": [("date", 200)],
    }
    whens = [one.exact_match for one in judged if one.kinds["question word"] == "when"]
    first = groups["question word"][0].intervals
    assert first["exact_match"] == bootstrap_interval(whens)
    assert list(first) == ["exact_match", "f1", "recall@5", "recall@20"]


def test_classes_have_an_order_of_their_own():
    lengths = ["13 or more words", "1-5 words", "9-12 words", "6-8 words"]
    judged = [made(1, kinds={"question length": name})[0] for name in lengths]
    assert [g.value for g in by_kind(judged)["question length"]] == [
        lengths[i] for i in (1, 3, 2, 0)
    ]


def test_confidence_as_it_is():
    judged = made()
    found = confidence_report(judged)
    confidence = np.array([one.confidence for one in judged])
    correct = np.array([one.exact_match for one in judged], float)
    assert found.ece == pytest.approx(expected_calibration_error(confidence, correct))
    assert found.mean_confidence == pytest.approx(confidence.mean())
    best = correct[np.argsort(-confidence, kind="stable")]
    assert found.at_coverage[0.25] == bootstrap_interval(best[:50])
    assert found.at_coverage[1.0] == bootstrap_interval(best)
    assert found.at_coverage[0.1].mean > found.at_coverage[1.0].mean
    assert (found.threshold, found.answered, found.answered_exact) == (None, None, None)


def test_equal_confidences_stay_together():
    found = confidence_report(made(confidence=0.5))
    assert len(set(found.at_coverage.values())) == 1


def test_confidence_calibrated_and_abstaining_on_dev():
    dev, test = made(seed=1), made(seed=2)
    scores = [100 * one.confidence for one in dev]
    dev = [dataclasses.replace(one, confidence=s) for one, s in zip(dev, scores, strict=True)]
    test = [dataclasses.replace(one, confidence=100 * one.confidence) for one in test]
    assert confidence_report(test).ece is None
    found = confidence_report(test, dev)
    platt = fit_platt(scores, [one.exact_match for one in dev])
    probability = platt([one.confidence for one in test])
    correct = np.array([one.exact_match for one in test], float)
    assert found.ece == pytest.approx(expected_calibration_error(probability, correct))
    given = probability >= found.threshold
    assert found.answered == bootstrap_interval(given)
    assert found.answered_exact == bootstrap_interval(correct[given])
    assert found.answered_exact.mean > correct.mean()
    careful = confidence_report(test, dev, wrong_cost=9.0)
    assert careful.threshold > found.threshold
    never = confidence_report(test, [dataclasses.replace(one, exact_match=False) for one in dev])
    assert (never.threshold, never.answered.mean, never.answered_exact) == (np.inf, 0.0, None)


def test_no_confidence():
    assert confidence_report(made(9, confidence=None)) is None


def test_compare():
    a, b = made(seed=3), made(seed=4)
    found = compare(a, b[::-1])
    x, y = ([float(one.exact_match) for one in judged] for judged in (a, b))
    first = found["exact_match"]
    assert (first.difference, first.p_value) == paired_bootstrap(x, y)
    assert (first.only_a, first.only_b, first.mcnemar_p) == mcnemar(x, y)
    assert (first.a, first.b) == (bootstrap_interval(x), bootstrap_interval(y))
    assert found["f1"].mcnemar_p is None
    assert found["mrr"].only_a is None
    assert found["recall@5"].mcnemar_p is not None
    assert list(compare(a, made(retrieved=None))) == ["exact_match", "modern_match", "f1"]


def test_only_the_same_questions_are_compared():
    with pytest.raises(OrqaError, match="of the first system but not of the second: 'q2'"):
        compare(made(3), made(2))
    with pytest.raises(OrqaError, match="of the second system but not of the first: 'q2'"):
        compare(made(2), made(3))
