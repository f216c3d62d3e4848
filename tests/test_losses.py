import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.test_util import check_grads
from oracles import losses as oracle

from orqa_jax.losses import in_batch_softmax_loss, marginal_log_likelihood

likelihood = jax.jit(marginal_log_likelihood)
likelihood_gradient = jax.jit(jax.grad(lambda s, c, m: marginal_log_likelihood(s, c, m)[0].sum()))

SHAPE = (4, 6)
score_rows = hnp.arrays(
    np.float32,
    SHAPE,
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-20, 20, width=32),
)
bool_rows = hnp.arrays(np.bool_, SHAPE)


@given(score_rows, bool_rows, bool_rows)
def test_likelihood_matches_oracle_at_any_magnitude(scores, correct, mask):
    value, has_signal = likelihood(scores, correct, mask)
    expected, expected_signal = oracle.marginal_log_likelihood(scores, correct, mask)
    np.testing.assert_array_equal(has_signal, expected_signal)
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=2e-6)
    assert np.all(np.isfinite(likelihood_gradient(scores, correct, mask)))


@given(score_rows, bool_rows, bool_rows)
def test_likelihood_gradient_is_posterior_minus_prior(scores, correct, mask):
    scores = np.clip(scores, -50, 50)
    gradient = likelihood_gradient(scores, correct, mask)
    shifted = scores.astype(np.float64)
    prior = np.exp(shifted) * mask
    posterior = prior * correct
    has_signal = posterior.any(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = posterior / posterior.sum(1, keepdims=True) - prior / prior.sum(1, keepdims=True)
    np.testing.assert_allclose(gradient, np.where(has_signal, expected, 0.0), atol=3e-6)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, -1e9, 3e38])
def test_masked_scores_may_be_anything(junk):
    mask = np.array([[True, True, False], [False, False, False]])
    correct = np.array([[False, True, True], [True, True, True]])
    scores = np.where(mask, np.float32(1.0), np.float32(junk)).astype(np.float32)
    value, has_signal = likelihood(scores, correct, mask)
    np.testing.assert_allclose(value, [-np.log(2.0), 0.0], rtol=1e-6)
    assert has_signal.tolist() == [True, False]
    gradient = likelihood_gradient(scores, correct, mask)
    np.testing.assert_allclose(gradient, [[-0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], atol=1e-7)


def test_no_positive_is_exactly_zero_with_zero_gradient():
    scores = np.array([[3.0, -4.0], [1e30, -1e30]], np.float32)
    everything, nothing = np.ones((2, 2), bool), np.zeros((2, 2), bool)
    for mask in (everything, nothing):
        value, has_signal = likelihood(scores, nothing, mask)
        assert value.tolist() == [0.0, 0.0]
        assert has_signal.tolist() == [False, False]
        assert np.all(likelihood_gradient(scores, nothing, mask) == 0.0)


def test_all_positive_is_exactly_zero_with_zero_gradient():
    scores = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32) * 100
    everything = np.ones((3, 50), bool)
    value, has_signal = likelihood(scores, everything, everything)
    assert value.tolist() == [0.0, 0.0, 0.0]
    assert has_signal.all()
    np.testing.assert_allclose(
        likelihood_gradient(scores, everything, everything), np.zeros((3, 50)), atol=1e-7
    )


def test_large_scores_do_not_cancel():
    # A logarithm of sums near 1e4 has steps of 0.001 in float32; the loss must not.
    scores = np.array([[10000.0, 10000.5, 9999.0]], np.float32)
    correct = np.array([[False, True, False]])
    value, _ = likelihood(scores, correct, np.ones((1, 3), bool))
    expected = 0.5 - np.log(1.0 + np.exp(0.5) + np.exp(-1.0))
    np.testing.assert_allclose(value, [expected], rtol=1e-6)


def test_likelihood_of_one_row_does_not_touch_another():
    scores = jnp.array([[1.0, 2.0], [0.5, 0.1]])
    correct = jnp.array([[True, False], [False, False]])
    jacobian = jax.jacobian(lambda s: marginal_log_likelihood(s, correct, correct | True)[0])(
        scores
    )
    assert np.all(jacobian[0, 1] == 0.0)
    assert np.all(jacobian[1] == 0.0)


def test_likelihood_gradients_numerically():
    random = np.random.default_rng(1)
    scores = jnp.asarray(random.normal(size=(5, 7)), jnp.float32)
    mask = random.random((5, 7)) < 0.7
    correct = random.random((5, 7)) < 0.4
    correct[2] = False
    mask[3] = False
    # check_grads itself mixes types.
    with jax.numpy_dtype_promotion("standard"):
        check_grads(
            lambda s: marginal_log_likelihood(s, correct, mask)[0], (scores,), order=1, eps=1e-2
        )


in_batch_loss = jax.jit(in_batch_softmax_loss)
in_batch_gradients = jax.jit(
    jax.grad(lambda q, b, t, a: in_batch_softmax_loss(q, b, t, a)[0].sum(), (0, 1))
)


def in_batch_case(seed, batch=5, blocks=8, size=6, scale=1.0):
    random = np.random.default_rng(seed)
    question = (scale * random.normal(size=(batch, size))).astype(np.float32)
    block = (scale * random.normal(size=(blocks, size))).astype(np.float32)
    target = random.integers(0, blocks, batch).astype(np.int32)
    allowed = random.random((batch, blocks)) < 0.6
    return question, block, target, allowed


@given(st.integers(0, 10_000), st.sampled_from([0.01, 1.0, 5.0]))
def test_in_batch_loss_and_gradients_match_oracle(seed, scale):
    question, block, target, allowed = in_batch_case(seed, scale=scale)
    expected = oracle.in_batch_softmax(question, block, target, allowed)
    loss, correct = in_batch_loss(question, block, target, allowed)
    gradients = in_batch_gradients(question, block, target, allowed)
    np.testing.assert_allclose(loss, expected[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(correct, expected[1])
    np.testing.assert_allclose(gradients[0], expected[2], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(gradients[1], expected[3], rtol=2e-4, atol=2e-4)


def test_in_batch_loss_allows_everything_by_default():
    question, block, target, allowed = in_batch_case(3)
    default = in_batch_softmax_loss(question, block, target)
    explicit = in_batch_softmax_loss(question, block, target, np.ones_like(allowed))
    np.testing.assert_array_equal(default[0], explicit[0])
    expected = oracle.in_batch_softmax(question, block, target, np.ones_like(allowed))
    np.testing.assert_allclose(default[0], expected[0], rtol=1e-5)


def test_in_batch_loss_without_allowed_negatives_is_zero():
    question, block, target, allowed = in_batch_case(4)
    loss, correct = in_batch_softmax_loss(question, block, target, np.zeros_like(allowed))
    assert loss.tolist() == [0.0] * 5
    assert correct.all()


def test_in_batch_ties_are_not_correct():
    # An encoder that collapsed to one vector must not report perfect accuracy.
    ones = jnp.ones((4, 3))
    loss, correct = in_batch_softmax_loss(ones, ones, jnp.arange(4))
    np.testing.assert_allclose(loss, [np.log(4.0)] * 4, rtol=1e-6)
    assert not correct.any()


def test_in_batch_loss_survives_huge_vectors():
    question, block, target, allowed = in_batch_case(5, scale=1e15)
    loss, _ = in_batch_softmax_loss(question, block, target, allowed)
    assert np.all(np.isfinite(loss))
    gradients = in_batch_gradients(question, block, target, allowed)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_in_batch_gradients_numerically():
    question, block, target, allowed = in_batch_case(6, scale=0.5)
    with jax.numpy_dtype_promotion("standard"):
        check_grads(
            lambda q, b: in_batch_softmax_loss(q, b, target, allowed)[0],
            (question, block),
            order=1,
            modes=["rev"],
            eps=1e-2,
        )
