import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from orqa_jax.baselines.drqa.reader import DrqaReader, DrqaReaderConfig, bi_lstm, span_loss

B, L, Q, X, H = 3, 6, 4, 5, 2
LENGTHS = [6, 3, 1]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def oracle_lstm(inputs_LX, kernel, recurrent, bias):
    """One direction over one sequence, as in the textbook."""
    hidden, cell, found = np.zeros(H), np.zeros(H), []
    for x in inputs_LX:
        i, f, g, o = np.split(x @ kernel + hidden @ recurrent + bias, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        found.append(hidden)
    return np.array(found)


def lstm_arguments(seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(B, L, X), (2, X, 4 * H), (2, H, 4 * H), (2, 4 * H)]
    inputs, kernel, recurrent, bias = (rng.normal(size=s).astype(np.float32) for s in shapes)
    mask = np.arange(L) < np.array(LENGTHS)[:, None]
    return inputs, mask, kernel, recurrent, bias


def test_a_layer_is_two_lstms_over_what_is_real():
    inputs, mask, kernel, recurrent, bias = lstm_arguments()
    found = np.asarray(jax.jit(bi_lstm)(inputs, mask, kernel, recurrent, bias))
    for row, length in enumerate(LENGTHS):
        real = inputs[row, :length].astype(float)
        forward = oracle_lstm(real, kernel[0], recurrent[0], bias[0])
        backward = oracle_lstm(real[::-1], kernel[1], recurrent[1], bias[1])[::-1]
        np.testing.assert_allclose(found[row, :length], np.hstack([forward, backward]), atol=1e-5)
        assert (found[row, length:] == 0).all()


def test_the_gradient_of_a_layer():
    inputs, mask, kernel, recurrent, bias = lstm_arguments(1)
    layer = jax.jit(lambda *x: bi_lstm(x[0], mask, *x[1:]))
    check_grads(layer, (inputs, kernel, recurrent, bias), order=1, modes=["rev"], atol=2e-2)


def batch(seed=0, length=L):
    rng = np.random.default_rng(seed)
    made = {
        "vectors": rng.normal(size=(B, length, X)),
        "features": rng.normal(size=(B, length, 2)),
        "question_vectors": rng.normal(size=(B, Q, X)),
    }
    made = {name: value.astype(np.float32) for name, value in made.items()}
    made["tuned"] = rng.integers(0, 3, (B, length)).astype(np.int32)
    made["question_tuned"] = rng.integers(0, 3, (B, Q)).astype(np.int32)
    made["mask"] = np.arange(length) < np.array(LENGTHS)[:, None]
    made["question_mask"] = np.arange(Q) < np.array([4, 2, 3])[:, None]
    return made


CONFIG = DrqaReaderConfig(vector_size=X, features=2, tuned_words=2, hidden_size=H, layers=2)


@pytest.fixture(scope="module")
def model_and_params():
    model = DrqaReader(CONFIG)
    params = jax.jit(model.init)(jax.random.key(0), batch())["params"]
    rng = np.random.default_rng(9)
    return model, jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), params)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def oracle_reader(p, b, row):
    """Start and end logits of one row, from the formulas of section 3.2."""

    def stacked(inputs, name):
        outputs = []
        for layer in range(CONFIG.layers):
            weights = [p[name][f"{part}_{layer}"] for part in ("kernel", "recurrent", "bias")]
            forward = oracle_lstm(inputs, *(w[0] for w in weights))
            backward = oracle_lstm(inputs[::-1], *(w[1] for w in weights))[::-1]
            inputs = np.hstack([forward, backward])
            outputs.append(inputs)
        return np.hstack(outputs)

    def embed(vectors, tuned):
        return np.where(tuned[:, None] > 0, p["tuned_vectors"][tuned], vectors)

    length, asked = LENGTHS[row], int(b["question_mask"][row].sum())
    words = embed(b["vectors"][row, :length], b["tuned"][row, :length])
    question = embed(b["question_vectors"][row, :asked], b["question_tuned"][row, :asked])
    dense = p["align"]["projection"]

    def project(x):
        return np.maximum(x @ dense["kernel"] + dense["bias"], 0)

    aligned = np.array([softmax(project(w) @ project(question).T) @ question for w in words])
    encoded = stacked(np.hstack([words, b["features"][row, :length], aligned]), "paragraph")
    hidden = stacked(question, "question")
    pooled = softmax((hidden @ p["question_attention"]["kernel"])[:, 0]) @ hidden
    return [encoded @ (pooled @ p[e]["kernel"] + p[e]["bias"]) for e in ("start", "end")]


def test_the_logits_follow_the_paper(model_and_params):
    model, params = model_and_params
    b = batch()
    found = jax.jit(model.apply)({"params": params}, b)
    for row, length in enumerate(LENGTHS):
        for logits, expected in zip(found, oracle_reader(params, b, row), strict=True):
            np.testing.assert_allclose(logits[row, :length], expected, atol=1e-4)
            assert (np.asarray(logits)[row, length:] == -1e9).all()


def test_padding_changes_nothing(model_and_params):
    model, params = model_and_params
    b = batch()
    apply = jax.jit(model.apply)
    shorter = apply({"params": params}, b)
    longer = {
        name: np.pad(x, [(0, 0), (0, 5)] + [(0, 0)] * (x.ndim - 2), constant_values=x.dtype.type(1))
        if not name.startswith("question")
        else x
        for name, x in b.items()
    }
    longer["mask"][:, L:] = False
    for a, c in zip(shorter, apply({"params": params}, longer), strict=True):
        np.testing.assert_allclose(a, np.asarray(c)[:, :L], atol=1e-5)


def test_only_words_with_a_slot_are_tuned(model_and_params):
    model, params = model_and_params
    b = batch()

    def loss(params):
        start, end = model.apply({"params": params}, b)
        return span_loss(start, end, jnp.array([1, 0, 0]), jnp.array([3, 2, 0])).sum()

    gradient = np.asarray(jax.jit(jax.grad(loss))(params)["tuned_vectors"])
    assert (gradient[0] == 0).all()
    assert (np.abs(gradient[1:]) > 0).any(axis=1).all()


def test_dropout_is_on_in_training_only(model_and_params):
    model, params = model_and_params
    apply = jax.jit(model.apply, static_argnames="deterministic")

    def logits(seed):
        rngs = {"dropout": jax.random.key(seed)}
        return np.asarray(apply({"params": params}, batch(), deterministic=False, rngs=rngs)[0])

    np.testing.assert_array_equal(logits(1), logits(1))
    assert np.abs(logits(1) - logits(2)).max() > 0.1


def test_the_loss_is_the_cross_entropy_of_both_ends():
    start = np.array([[1.0, 2.0, 0.5], [0.0, 0.0, -1e9]], np.float32)
    end = np.array([[0.0, 1.0, 3.0], [2.0, 1.0, -1e9]], np.float32)
    found = span_loss(start, end, jnp.array([1, 0]), jnp.array([2, 1]))
    expected = [
        -np.log(softmax(s)[i]) - np.log(softmax(e)[j])
        for s, e, i, j in zip(start, end, [1, 0], [2, 1], strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
