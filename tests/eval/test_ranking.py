import math

import numpy as np
import pytest

from orqa_jax.eval.bootstrap import one_tailed_bootstrap, paired_bootstrap
from orqa_jax.eval.ranking import average_precision, precision_at_1


def test_average_precision_by_hand():
    scores = [[3, 1, 2], [1, 1, 1], [5, -np.inf, -np.inf]]
    relevant = [[False, True, True], [False, False, True], [True, False, False]]
    expected = [(1 / 2 + 2 / 3) / 2, 1 / 3, 1.0]
    np.testing.assert_allclose(average_precision(scores, relevant), expected)
    with pytest.raises(ValueError, match="relevant"):
        average_precision([[1, 2]], [[False, False]])


def test_the_first_of_equal_candidates_counts():
    scores, relevant = [[1, 1], [1, 1], [1, 2]], [[True, False], [False, True], [False, True]]
    assert precision_at_1(scores, relevant).tolist() == [1.0, 0.0, 1.0]


def test_one_tail_is_half_of_two_where_a_is_better():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.3, 1, 200), rng.normal(0, 1, 200)
    _, both = paired_bootstrap(a, b)
    assert one_tailed_bootstrap(a, b) == pytest.approx(both / 2)
    assert one_tailed_bootstrap(b, a) == pytest.approx(1 - both / 2, abs=2e-4)


def test_one_tail_agrees_with_the_normal_approximation():
    difference = np.random.default_rng(4).normal(0.15, 1.0, 400)
    z = difference.mean() / (difference.std() / 20)
    normal = 0.5 * math.erfc(z / 2**0.5)
    assert one_tailed_bootstrap(difference, np.zeros(400)) == pytest.approx(normal, abs=0.005)
