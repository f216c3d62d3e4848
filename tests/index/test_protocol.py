import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.errors import OrqaError
from orqa_jax.index.protocol import clip_k, top_k

# Few different values, so that ties are common.
scores = st.lists(st.sampled_from([-1.5, -0.0, 0.0, 2.0, 3.0]), min_size=1, max_size=30)


@given(scores, st.data())
def test_top_k_orders_by_score_then_position(scores, data):
    k = data.draw(st.integers(0, len(scores)))
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]

    ids, values = top_k(np.array(scores, np.float32), k)

    assert ids.dtype == np.int32
    assert values.dtype == np.float32
    assert ids.tolist() == expected
    assert values.tolist() == [scores[i] for i in expected]


def test_top_k_of_a_long_row_matches_a_full_sort():
    scores_N = np.random.default_rng(0).integers(0, 400, 20_000).astype(np.float32)
    ids, values = top_k(scores_N, 700)
    expected = np.argsort(-scores_N, kind="stable")[:700]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(values, scores_N[expected])


def test_clip_k_warns_once_for_each_size(caplog):
    with caplog.at_level(logging.WARNING):
        assert [clip_k(5000, 731), clip_k(5000, 731), clip_k(731, 731)] == [731, 731, 731]
    assert [record.getMessage() for record in caplog.records] == [
        "asked for 5000 blocks of a corpus of 731: each search returns all 731"
    ]


@pytest.mark.parametrize("k", [0, -3])
def test_clip_k_refuses_what_is_no_number_of_blocks(k):
    with pytest.raises(OrqaError, match=f"at least one block, but k is {k}"):
        clip_k(k, 10)
