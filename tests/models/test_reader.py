import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import bert as oracle
from oracles import spans as span_oracle
from oracles.checkpoint import write_checkpoint

from orqa_jax.errors import OrqaError
from orqa_jax.models.reader import ReaderConfig, SpanReader, SpanScore, init_reader, span_mask_BLW
from orqa_jax.models.weights import load_bert

CONFIG = oracle.tiny_config()
WEIGHTS = oracle.random_weights(CONFIG)
TOKEN_IDS = np.array([[2, 7, 30, 7, 3, 11, 3], [2, 14, 9, 3, 25, 3, 0]], np.int32)
MASK = np.array([[True] * 7, [True] * 6 + [False]])
SEGMENT_IDS = np.array([[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0]], np.int32)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_bert(write_checkpoint(tmp_path_factory.mktemp("bert") / "tiny", CONFIG, WEIGHTS))


@functools.partial(jax.jit, static_argnums=0)
def read(model, params):
    return model.apply({"params": params}, TOKEN_IDS, MASK, SEGMENT_IDS)


def random_params(like, seed=0):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape), jnp.float32), like)


def reader_params(config, bert_params):
    params = init_reader(config, jax.random.key(0), bert_params)
    assert set(params) == {"bert", "endpoints", "span_score"}
    return random_params(params) | {"bert": params["bert"]}


# The last is a width of all there is and more.
@pytest.mark.parametrize("width", [1, 3, 10])
def test_span_logits_match_oracle(loaded, width):
    config = ReaderConfig(loaded[0], span_hidden_size=12, max_span_wordpieces=width)
    params = reader_params(config, loaded[1])
    hidden = oracle.bert(CONFIG, WEIGHTS, TOKEN_IDS, MASK, SEGMENT_IDS)
    endpoints = hidden @ np.asarray(params["endpoints"]["kernel"])
    endpoints = endpoints + np.asarray(params["endpoints"]["bias"])
    expected = span_oracle.span_logits(
        endpoints[..., :12], endpoints[..., 12:], *score_arrays(params["span_score"]), width
    )
    logits = read(SpanReader(config), params)
    assert logits.shape == (2, 7, width)
    past_the_end = np.isnan(expected)
    np.testing.assert_array_equal(np.asarray(logits) == -1e9, past_the_end)
    np.testing.assert_allclose(logits[~past_the_end], expected[~past_the_end], rtol=1e-4, atol=1e-4)


def score_arrays(params):
    return [np.asarray(params[name]) for name in ("norm_scale", "norm_bias", "kernel", "bias")]


def plain_span_logits(params, start, end, width):
    """The formula as it is written, for its gradient."""
    length = start.shape[1]
    padded = jnp.pad(end, ((0, 0), (0, width - 1), (0, 0)))
    shifted = jnp.stack([padded[:, w : w + length] for w in range(width)], axis=2)
    hidden = jax.nn.relu(start[:, :, None] + shifted)
    mean = hidden.mean(-1, keepdims=True)
    variance = ((hidden - mean) ** 2).mean(-1, keepdims=True)
    hidden = (hidden - mean) / jnp.sqrt(variance + 1e-3)
    hidden = hidden * params["norm_scale"] + params["norm_bias"]
    return (hidden @ params["kernel"] + params["bias"])[..., 0]


def test_gradients_are_those_of_the_plain_formula():
    random = np.random.default_rng(0)
    start, end = random.normal(size=(2, 2, 9, 16)).astype(np.float32)
    weight = random.normal(size=(2, 9, 4)).astype(np.float32)
    weight *= np.arange(9)[:, None] + np.arange(4) < 9
    model = SpanScore(4)
    params = random_params(jax.eval_shape(model.init, jax.random.key(0), start, end)["params"])

    def fast(params, start, end):
        return (model.apply({"params": params}, start, end) * weight).sum()

    def plain(params, start, end):
        return (plain_span_logits(params, start, end, 4) * weight).sum()

    gradients, expected = (
        jax.jit(jax.grad(function, (0, 1, 2)))(params, start, end) for function in (fast, plain)
    )
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4),
        gradients,
        expected,
    )


def test_span_activations_are_never_stored():
    start = jnp.zeros((8, 288, 256))
    model = SpanScore(10)
    params = model.init(jax.random.key(0), start, start)
    gradient = jax.jit(jax.grad(lambda p, s, e: model.apply(p, s, e).sum(), (0, 1, 2)))
    memory = gradient.lower(params, start, start).compile().memory_analysis()
    all_widths = start.nbytes * 10
    assert memory.temp_size_in_bytes < all_widths / 2


def test_bfloat16_logits_come_out_in_float32(loaded):
    config = ReaderConfig(loaded[0], span_hidden_size=12, max_span_wordpieces=2)
    params = init_reader(config, jax.random.key(0), loaded[1])
    low = read(SpanReader(config, jnp.bfloat16), params)
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, read(SpanReader(config), params), atol=0.02)


def test_fresh_reader_has_the_pretrained_bert_and_its_own_buffers(loaded):
    config = ReaderConfig(loaded[0])
    params = init_reader(config, jax.random.key(0), loaded[1])
    assert params["endpoints"]["kernel"].shape == (16, 512)
    assert "pooler" not in params["bert"]
    np.testing.assert_array_equal(
        params["bert"]["layer_1"]["output"]["kernel"], loaded[1]["layer_1"]["output"]["kernel"]
    )


def test_frozen_layers_reach_the_encoder(loaded):
    config = ReaderConfig(loaded[0], span_hidden_size=12, max_span_wordpieces=2)
    params = reader_params(config, loaded[1])
    model = SpanReader(config, frozen_layers=1)
    gradients = jax.jit(jax.grad(lambda params: jnp.tanh(read(model, params)).sum()))(params)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradients["bert"]["layer_0"]))
    assert np.any(gradients["bert"]["layer_1"]["query"]["kernel"] != 0)


@pytest.mark.parametrize("name", ["span_hidden_size", "max_span_wordpieces"])
def test_empty_spans_are_refused(loaded, name):
    with pytest.raises(OrqaError, match=f"{name} is 0; it must be at least 1"):
        ReaderConfig(loaded[0], **{name: 0})


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_span_mask_matches_enumeration(seed, width):
    random = np.random.default_rng(seed)
    first, last = np.sort(random.integers(0, 9, (2, 3)), axis=0)
    positions = np.arange(8)
    block_mask = (first[:, None] <= positions) & (positions < last[:, None])
    starts_word, ends_word = random.random((2, 3, 8)) < 0.6
    expected = span_oracle.span_mask(block_mask, starts_word, ends_word, width)
    mask = span_mask_BLW(block_mask, starts_word, ends_word, width)
    assert isinstance(mask, np.ndarray)
    np.testing.assert_array_equal(mask, expected)


def test_span_mask_of_jax_arrays_is_a_jax_array():
    block_mask = jnp.array([[False, True, True, True, False]])
    starts_word = jnp.array([[True, True, False, True, True]])
    ends_word = jnp.array([[True, False, True, True, True]])
    mask = jax.jit(span_mask_BLW, static_argnums=3)(block_mask, starts_word, ends_word, 2)
    assert isinstance(mask, jax.Array)
    # Two words, the first of two wordpieces: "1-2", "3"; "2-3" would start inside a word.
    assert [tuple(span) for span in np.argwhere(mask[0])] == [(1, 1), (3, 0)]
