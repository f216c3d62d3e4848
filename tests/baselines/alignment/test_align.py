import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.baselines.alignment.align import (
    ONE_TO_ALL,
    ONE_TO_ONE,
    Aligner,
    AlignmentWeights,
)
from orqa_jax.baselines.alignment.terms import content_lemmas
from orqa_jax.text.word_vectors import WordVectors

WORDS = ["river", "salt", "lamp", "tower", "market", "wool", "ridge", "well", "tin", "oil"]
VECTORS = WordVectors(
    {word: row for row, word in enumerate(WORDS[:7])},
    np.random.default_rng(5).normal(size=(7, 4)).astype(np.float32),
)
QUESTIONS = ["river salt", "salt lamp", "salt and tin", "old tower", "oil"]


def oracle(question, text, weights, questions=QUESTIONS):
    """Straight from the equations, one term at a time."""
    bags = [set(content_lemmas(q)) for q in questions]

    def similarity(a, b):
        if a == b:
            return 1.0
        if a not in VECTORS.rows or b not in VECTORS.rows:
            return 0.0
        x, y = (VECTORS.matrix_VD[VECTORS.rows[w]].astype(float) for w in (a, b))
        return x @ y / math.sqrt((x @ x) * (y @ y))

    total = 0.0
    for term in set(content_lemmas(question)):
        count = sum(term in bag for bag in bags)
        idf = math.log((len(bags) - count + 0.5) / (count + 0.5))
        ranked = sorted(similarity(term, other) for other in set(content_lemmas(text)))
        pos = sum(a / k for k, a in enumerate(ranked[::-1][: weights.most], 1))
        neg = sum(a / k for k, a in enumerate(ranked[: weights.least], 1))
        total += idf * (pos + weights.negative_weight * neg)
    return total


texts = st.lists(st.sampled_from([*WORDS, "the", "zyx"]), max_size=9).map(" ".join)


@given(
    texts,
    st.lists(texts, max_size=4),
    st.builds(AlignmentWeights, st.integers(0, 12), st.integers(0, 12), st.floats(-1, 1)),
)
def test_scores_follow_the_equations(question, candidates, weights):
    found = Aligner(VECTORS, QUESTIONS).scores(question, candidates, weights)
    expected = [oracle(question, text, weights) for text in candidates]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_score_worked_by_hand():
    vectors = WordVectors({"salt": 0, "tin": 1}, np.array([[1, 0], [0.6, 0.8]], np.float32))
    aligner = Aligner(vectors, ["salt", "wool", "wool"])
    idf = math.log((3 - 1 + 0.5) / 1.5)
    # Similarities of "salt" are 1 to itself, 0.6 to "tin" and 0 to "cloth", which has no vector.
    weights = AlignmentWeights(most=2, least=1, negative_weight=0.5)
    assert aligner.idf("salt") == pytest.approx(idf)
    np.testing.assert_allclose(
        aligner.scores("Salt?", ["tin, salt and cloth", "tin", ""], weights),
        [idf * (1 + 0.6 / 2 + 0.5 * 0.0), idf * (0.6 + 0.5 * 0.6), 0.0],
        rtol=1e-6,
    )


def test_the_ablations_are_the_best_term_and_all_terms():
    aligner = Aligner(VECTORS, QUESTIONS)
    text = "salt tower market wool ridge lamp"
    ranked = np.sort([oracle("river", word, ONE_TO_ONE) for word in text.split()])
    ranked = ranked if aligner.idf("river") < 0 else ranked[::-1]
    one = aligner.scores("river", [text], ONE_TO_ONE)[0]
    every = aligner.scores("river", [text], ONE_TO_ALL)[0]
    assert one == pytest.approx(ranked[0], rel=1e-5)
    assert every == pytest.approx((ranked / np.arange(1, 7)).sum(), rel=1e-5)


def test_without_vectors_it_is_the_weighted_overlap_of_lemmas():
    aligner = Aligner(WordVectors({}, np.zeros((0, 1), np.float32)), ["wells", "ridge", "tin"])
    scores = aligner.scores(
        "The wells of the ridge", ["A well.", "ridges and wells", "tin"], ONE_TO_ONE
    )
    idf = math.log(2.5 / 1.5)
    np.testing.assert_allclose(scores, [idf, 2 * idf, 0], rtol=1e-6)
