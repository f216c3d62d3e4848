import re

import pytest

from orqa_jax.eval.judge import Judgement
from orqa_jax.report.plots import learning_curves, recall_curve


def judged(depth):
    return [
        Judgement(
            id=f"q{rank}", question="?", answers=("a",), answer="a", exact_match=True,
            modern_match=True, f1=1.0, rank_token=rank, rank_substring=rank, rank_gold=None,
            retrieved=depth, oracle_exact=True, oracle_f1=1.0, outcome="right", confidence=None,
            kinds={},
        )
        for rank in (1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("order", [("deep", "flat"), ("flat", "deep")])
def test_the_axis_reaches_the_deepest_system(order):
    systems = {"deep": judged(100), "flat": judged(5)}
    svg = recall_curve({name: systems[name] for name in order}, "x")
    labels = re.findall(r">([^<>]+)</text>", svg)
    assert [label for label in labels if label.isdigit()][:7] == [
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
        "100",
    ]


def test_speed_is_no_learning_curve():
    line = {"step": 1, "seconds_per_step": 0.5, "examples_per_second": 16.0}
    assert learning_curves({"run": [line]}, "x") is None
    assert ">loss</text>" in learning_curves({"run": [{**line, "loss": 2.0}]}, "x")
