import dataclasses
import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax._src.cudnn import fused_attention_stablehlo
from oracles import bert as oracle
from oracles.checkpoint import write_checkpoint

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import (
    Bert,
    BertConfig,
    attend,
    bfloat16_product,
    drop_weights,
    own_attention,
    truncate_bert,
)
from orqa_jax.models.weights import load_bert

CONFIG = oracle.tiny_config()
TOKEN_IDS = np.array([[2, 7, 30, 7, 3, 11, 3], [2, 14, 9, 3, 25, 3, 0]], np.int32)
MASK = np.array([[True] * 7, [True] * 6 + [False]])
SEGMENT_IDS = np.array([[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0]], np.int32)
INPUTS = (TOKEN_IDS, MASK, SEGMENT_IDS)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "tiny"
    return load_bert(write_checkpoint(folder, CONFIG, oracle.random_weights(CONFIG)))


@functools.partial(jax.jit, static_argnums=0)
def apply(bert, params, inputs, key=None):
    rngs = None if key is None else {"dropout": key}
    return bert.apply({"params": params}, *inputs, deterministic=key is None, rngs=rngs)


def encode(config, params, inputs=INPUTS, **attributes):
    return apply(Bert(config, **attributes), params, inputs)


def test_values_of_the_torch_bert_model(loaded):
    # `BertModel.from_pretrained` of this folder, transformers 5.24.0 on torch 2.13.0, attention
    # "eager": positions 0, 3, 5 and the first four units of last_hidden_state, and of
    # pooler_output.
    golden_hidden = [
        [
            [-0.9205605, -0.8410754, -0.0249246, -0.2455101],
            [-1.4308084, 1.3616881, 0.387113, -0.5617542],
            [-0.9183742, -1.0651755, 0.4315943, 1.0725987],
        ],
        [
            [-0.7118922, -1.1582316, 0.1103692, -0.1313363],
            [-1.4984416, 0.4739679, 0.6891075, -0.4856687],
            [-0.8199471, -0.9923617, 0.3508177, 0.9056682],
        ],
    ]
    golden_pooled = [
        [0.2348963, -0.7809324, 0.1298456, 0.8175883],
        [0.2409674, -0.655335, -0.0691255, 0.8418939],
    ]
    config, params = loaded
    hidden = encode(config, params)
    np.testing.assert_allclose(hidden[:, [0, 3, 5], :4], golden_hidden, atol=2e-6)
    pooled = Bert(config).apply({"params": params}, hidden, method="pool")
    np.testing.assert_allclose(pooled[:, :4], golden_pooled, atol=2e-6)


@pytest.mark.parametrize("scale", [0.05, 0.2, 1.0, 30.0])
def test_matches_oracle(tmp_path, scale):
    # At scale 30 the attention logits reach the thousands.
    weights = oracle.random_weights(CONFIG, seed=1, scale=scale)
    config, params = load_bert(write_checkpoint(tmp_path / "bert", CONFIG, weights))
    random = np.random.default_rng(0)
    token_ids = random.integers(0, 31, (4, 20)).astype(np.int32)
    segment_ids = random.integers(0, 2, (4, 20)).astype(np.int32)
    mask = random.random((4, 20)) < 0.7
    mask[:, 0] = True
    expected = oracle.bert(CONFIG, weights, token_ids, mask, segment_ids)
    hidden = encode(config, params, (token_ids, mask, segment_ids))
    np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def test_padding_changes_nothing(loaded):
    config, params = loaded

    def pad(array):
        return np.pad(array, ((0, 0), (0, 9)))

    hidden = encode(config, params)
    padded = encode(config, params, [pad(array) for array in INPUTS])
    np.testing.assert_allclose(padded[0, :7], hidden[0], atol=1e-6)
    np.testing.assert_allclose(padded[1, :6], hidden[1, :6], atol=1e-6)


def test_a_row_of_padding_is_finite_with_finite_gradients(loaded):
    config, params = loaded
    mask = np.stack([MASK[0], np.zeros(7, bool)])

    @jax.jit
    @jax.value_and_grad
    def total(params):
        return Bert(config).apply({"params": params}, TOKEN_IDS, mask, SEGMENT_IDS).sum()

    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(total(params)))


def test_too_long_a_sequence_is_refused(loaded):
    config, params = loaded
    ids = np.zeros((1, 21), np.int32)
    with pytest.raises(OrqaError, match=r"21 wordpieces does not fit .* 20 position"):
        encode(config, params, (ids, ids == 0, ids))


def test_bfloat16_computes_low_and_keeps_float32_parameters(loaded):
    config, params = loaded
    hidden = encode(config, params)
    low = encode(config, params, dtype=jnp.bfloat16)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(np.float32), hidden, atol=0.1)
    fresh = jax.eval_shape(Bert(config, jnp.bfloat16).init, jax.random.key(0), *INPUTS)
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}


def rounded(rng, *shape):
    """Normal numbers that bfloat16 holds exactly."""
    return jnp.asarray(rng.normal(size=shape), jnp.bfloat16)


def in_float64(array):
    return np.asarray(array.astype(jnp.float32), np.float64)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 7), (2, 40, 64)])
def test_bfloat16_products_and_their_gradients_are_summed_in_float32(shape):
    rng = np.random.default_rng(0)
    inputs, kernel = rounded(rng, *shape), rounded(rng, shape[-1], 9)
    gradient = rounded(rng, *shape[:-1], 9)

    def both(inputs, kernel, gradient):
        product, pull = jax.vjp(bfloat16_product, inputs, kernel)
        return product, *pull(gradient.astype(jnp.float32))

    product, of_inputs, of_kernel = jax.jit(both)(inputs, kernel.astype(jnp.float32), gradient)
    assert (product.dtype, of_inputs.dtype, of_kernel.dtype) == (
        jnp.float32,
        jnp.bfloat16,
        jnp.float32,
    )
    x, w, g = map(in_float64, (inputs, kernel, gradient))
    np.testing.assert_allclose(product, x @ w, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(
        of_kernel, x.reshape(-1, shape[-1]).T @ g.reshape(-1, 9), rtol=1e-6, atol=1e-5
    )
    np.testing.assert_allclose(in_float64(of_inputs), g @ w.T, rtol=2**-8, atol=1e-5)


def test_bfloat16_attention_has_the_gradient_of_float32():
    rng = np.random.default_rng(0)
    mask_BL = np.arange(24) < np.array([[24], [1], [17]])
    arrays = [rounded(rng, 3, 24, 2, 16) for _ in range(3)]
    weights = rng.normal(size=(3, 24, 2, 16)) * mask_BL[..., None, None]

    def loss(arrays):
        attended = own_attention(*arrays, mask_BL, weight_dropout=None)
        return jnp.sum(attended.astype(jnp.float32) * weights)

    low = jax.jit(jax.grad(loss))(arrays)
    exact = jax.jit(jax.grad(loss))([array.astype(jnp.float32) for array in arrays])
    for found, expected in zip(low, exact, strict=True):
        assert found.dtype == jnp.bfloat16
        error = in_float64(found) - in_float64(expected)
        assert np.linalg.norm(error) < 0.01 * np.linalg.norm(expected)
        # A sequence of one wordpiece attends to itself, whatever the query and the key.
        np.testing.assert_array_equal(in_float64(found)[1, 1:], 0.0)


def test_training_in_bfloat16_has_the_gradients_of_float32(loaded):
    config, params = loaded

    def gradients_in(dtype):
        bert = Bert(config, dtype)
        return jax.jit(
            jax.grad(
                lambda params: jnp.square(
                    bert.apply({"params": params}, *INPUTS)[:, 0].astype(jnp.float32) - 1.0
                ).sum()
            )
        )(params)

    low, exact = gradients_in(jnp.bfloat16), gradients_in(jnp.float32)
    norms = jax.tree.map(lambda a, b: (jnp.linalg.norm(a - b), jnp.linalg.norm(b)), low, exact)
    for name, (error, size) in traverse_util.flatten_dict(norms, sep="/").items():
        # A key's bias moves all logits of a query alike: its gradient is rounding alone.
        if not name.endswith("key/bias"):
            assert error <= 0.05 * size, name


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(bert, params):
    def loss(params):
        hidden = bert.apply({"params": params}, *INPUTS)
        return jnp.square(hidden[:, 0]).sum() + hidden[:, 2, 5].sum()

    return jax.value_and_grad(loss)(params)


def gradients(config, params, frozen_layers):
    value, gradient = value_and_gradients(Bert(config, frozen_layers=frozen_layers), params)
    return value, traverse_util.flatten_dict(gradient, sep="/")


@pytest.mark.parametrize("frozen_layers", [1, 2])
def test_frozen_layers_get_no_gradient_and_the_rest_the_same(loaded, frozen_layers):
    config, params = loaded
    params = {name: value for name, value in params.items() if name != "pooler"}
    full_value, full = gradients(config, params, 0)
    value, frozen = gradients(config, params, frozen_layers)
    np.testing.assert_allclose(value, full_value, rtol=1e-6)
    # Among the full gradients only those of the key biases are zero, up to rounding.
    assert all(np.any(leaf != 0) for leaf in full.values())
    below = ["embeddings", *(f"layer_{index}" for index in range(frozen_layers))]
    for name, leaf in frozen.items():
        if name.split("/")[0] in below:
            assert np.all(leaf == 0), name
        else:
            np.testing.assert_allclose(leaf, full[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_frozen_layers_are_never_differentiated(loaded):
    config, params = loaded
    bert = Bert(config, frozen_layers=1)

    def products(function):
        return jax.jit(function).lower(params).as_text().count("stablehlo.dot_general")

    def forward(params):
        return bert.apply({"params": params}, TOKEN_IDS, MASK, SEGMENT_IDS).sum()

    # Eight products a layer: six dense, two in attention; each has two more in its gradient,
    # except that nothing asks for that of the first layer's input.
    assert products(forward) == 16
    assert products(jax.grad(forward)) == 16 + 2 * 8 - 3


def test_frozen_layers_beyond_the_encoder_are_refused(loaded):
    config, params = loaded
    with pytest.raises(OrqaError, match="frozen_layers is 3, but the encoder has 2 layers"):
        encode(config, params, frozen_layers=3)


@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_truncated_encoder_is_the_lower_layers(loaded, num_layers):
    config, params = truncate_bert(*loaded, num_layers)
    assert config.num_hidden_layers == num_layers
    assert set(params) == {"embeddings", "pooler", *(f"layer_{i}" for i in range(num_layers))}
    weights = oracle.random_weights(CONFIG)
    expected = oracle.bert(CONFIG, weights, TOKEN_IDS, MASK, SEGMENT_IDS, num_layers)
    np.testing.assert_allclose(encode(config, params), expected, atol=1e-5)


@pytest.mark.parametrize("num_layers", [3, -1])
def test_truncation_to_layers_it_does_not_have_is_refused(loaded, num_layers):
    with pytest.raises(OrqaError, match=f"Cannot keep {num_layers} layers of an encoder that has"):
        truncate_bert(*loaded, num_layers)


def dropped(config, params, seed):
    return apply(Bert(config), params, INPUTS, jax.random.key(seed))


def test_dropout_is_a_function_of_its_key(loaded):
    config, params = loaded
    np.testing.assert_array_equal(dropped(config, params, 0), dropped(config, params, 0))
    assert np.abs(dropped(config, params, 0) - dropped(config, params, 1)).max() > 0.1


@pytest.mark.parametrize("rate", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_each_dropout_rate_is_read(loaded, rate):
    config, params = loaded
    none = dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    hidden = encode(config, params)
    np.testing.assert_allclose(dropped(none, params, 0), hidden, atol=1e-6)
    one = dataclasses.replace(none, **{rate: 0.5})
    assert np.abs(dropped(one, params, 0) - hidden).max() > 0.1


def test_attention_drops_weights_after_normalising_them():
    random = np.random.default_rng(0)
    query, key, value = random.normal(size=(3, 2, 5, 8)).astype(np.float32)
    mask = np.ones((2, 5), bool)
    whole = attend(query, key, value, mask, 2, lambda weights: weights)
    doubled = attend(query, key, value, mask, 2, lambda weights: 2 * weights)
    np.testing.assert_allclose(doubled, 2 * whole, rtol=1e-6)


def test_dropout_of_attention_falls_alike_on_a_longer_sequence():
    weights = np.random.default_rng(0).uniform(0.5, 1.0, (2, 3, 40, 40)).astype(np.float32)
    found = np.asarray(drop_weights(weights, rate=0.25, key=jax.random.key(1)))
    kept = found != 0.0
    np.testing.assert_allclose(found[kept], weights[kept] / 0.75, rtol=1e-6)
    # Five standard deviations of that many throws, over all and over each head, row and column.
    for axes in ((), (0,), (1,), (2,), (3,)):
        rest = tuple(set(range(4)) - set(axes))
        throws = kept.size / np.prod([kept.shape[axis] for axis in axes])
        assert np.abs(kept.mean(axis=rest) - 0.75).max() < 5 * np.sqrt(0.25 * 0.75 / throws)
    short = drop_weights(weights[:, :, :17, :17], rate=0.25, key=jax.random.key(1))
    np.testing.assert_array_equal(short, found[:, :, :17, :17])


@pytest.mark.parametrize(
    ("dtype", "size", "dropout", "fused"),
    [
        (jnp.bfloat16, 64, False, True),
        (jnp.float16, 64, False, True),
        (jnp.float32, 64, False, False),
        (jnp.bfloat16, 12, False, False),  # no multiple of 8
        (jnp.bfloat16, 64, True, False),
    ],
)
def test_gpus_get_the_fused_kernel_where_it_applies(monkeypatch, dtype, size, dropout, fused):
    """In the program as it is lowered for a GPU. Of cuDNN, only its version is asked."""
    version = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", version)
    drop = functools.partial(drop_weights, rate=0.1, key=jax.random.key(0)) if dropout else None
    array = jax.ShapeDtypeStruct((3, 10, 2 * size), dtype)
    mask = jax.ShapeDtypeStruct((3, 10), bool)

    def program(platform):
        # As in pre-training, where each row has a dropout key of its own.
        def row(query, key, value, mask):
            rows = (array[None] for array in (query, key, value, mask))
            return attend(*rows, 2, drop)[0]

        def loss(*arrays):
            return jax.vmap(row)(*arrays).astype(jnp.float32).sum()

        # The gradient of the library's own attention does not lower in bfloat16 under "strict".
        with jax.numpy_dtype_promotion("standard"):
            gradient = jax.jit(jax.grad(loss)).trace(array, array, array, mask)
            return gradient.lower(lowering_platforms=(platform,)).as_text()

    kernels = {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    assert set(re.findall(r"__cudnn\$\w+", program("cuda"))) == (kernels if fused else set())
    assert "__cudnn" not in program("cpu")
    assert "__cudnn" not in program("tpu")


def test_without_cudnn_a_gpu_takes_what_any_accelerator_does(monkeypatch):
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", None)
    array, mask = jnp.ones((2, 8, 128), jnp.bfloat16), jnp.ones((2, 8), bool)
    run = jax.jit(lambda *arrays: attend(*arrays, 2)).trace(array, array, array, mask)
    program = run.lower(lowering_platforms=("cuda",)).as_text()
    assert "dot_general" in program
    assert "__cudnn" not in program


def test_config_round_trip():
    config = BertConfig.from_dict(CONFIG)
    assert config == BertConfig(31, 16, 2, 4, 24, max_position_embeddings=20)
    assert BertConfig.from_dict(config.to_dict()) == config
    assert CONFIG.items() <= config.to_dict().items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu', but only 'gelu' and 'gelu_new' are"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"model_type": "roberta"}, "model_type is 'roberta', but only 'bert'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"hidden_size": 18}, "hidden_size 18 does not divide into num_attention_heads 4"),
        ({"vocab_size": 0}, "vocab_size must be a positive integer, not 0"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, not 'many'"),
        ({"layer_norm_eps": None}, "layer_norm_eps must lie in .*, not None"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must lie in .*, not 1.0"),
    ],
)
def test_config_of_something_else_is_refused(changes, message):
    with pytest.raises(OrqaError, match=message):
        BertConfig.from_dict(CONFIG | changes)


def test_config_names_all_that_is_missing():
    config = {k: v for k, v in CONFIG.items() if k not in ("vocab_size", "hidden_size")}
    with pytest.raises(OrqaError, match="vocab_size, hidden_size missing"):
        BertConfig.from_dict(config)
