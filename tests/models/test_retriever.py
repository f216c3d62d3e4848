import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import bert as oracle
from oracles.checkpoint import write_checkpoint

from orqa_jax.errors import OrqaError
from orqa_jax.models.retriever import (
    DualEncoder,
    RetrieverConfig,
    init_dual_encoder,
    mean_pool,
    question_tower,
    tower_names,
)
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
def questions(model, params):
    return model.apply({"params": params}, TOKEN_IDS, MASK, method="encode_questions")


@functools.partial(jax.jit, static_argnums=0)
def blocks(model, params):
    return model.apply({"params": params}, TOKEN_IDS, MASK, SEGMENT_IDS, method="encode_blocks")


def expected_vectors(tower, pooling, segment_ids, layer_norm=False):
    hidden = oracle.bert(CONFIG, WEIGHTS, TOKEN_IDS, MASK, segment_ids)
    if pooling == "cls":
        pooled = hidden[:, 0]
    elif pooling == "mean":
        pooled = np.stack([row[mask].mean(0) for row, mask in zip(hidden, MASK, strict=True)])
    else:
        weight, bias = WEIGHTS["pooler.dense.weight"], WEIGHTS["pooler.dense.bias"]
        pooled = np.tanh(hidden[:, 0] @ weight.T + bias)
    vector = pooled @ tower["projection"]["kernel"] + tower["projection"]["bias"]
    if layer_norm:
        norm = tower["norm"]
        vector = oracle.layer_norm(vector, norm["scale"], norm["bias"], eps=1e-3)
    return vector


def shake(params, seed=0):
    """Breaks every symmetry of fresh projections and norms; BERT stays as it is."""
    random = np.random.default_rng(seed)

    def leaf(path, value):
        if any(part.key == "bert" for part in path):
            return value
        return value + jnp.asarray(random.normal(size=value.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(leaf, params)


@pytest.mark.parametrize("pooling", ["cls", "mean", "pooler"])
def test_separate_towers_match_oracle(loaded, pooling):
    config = RetrieverConfig(loaded[0], projection_size=5, pooling=pooling)
    params = shake(init_dual_encoder(config, jax.random.key(0), loaded[1]))
    assert set(params) == {"question_encoder", "block_encoder"}
    model = DualEncoder(config)
    np.testing.assert_allclose(
        questions(model, params),
        expected_vectors(params["question_encoder"], pooling, np.zeros_like(SEGMENT_IDS)),
        atol=2e-5,
    )
    np.testing.assert_allclose(
        blocks(model, params),
        expected_vectors(params["block_encoder"], pooling, SEGMENT_IDS),
        atol=2e-5,
    )


def test_shared_tower_with_layer_norm_matches_oracle(loaded):
    config = RetrieverConfig(loaded[0], projection_size=5, shared_towers=True, layer_norm=True)
    params = shake(init_dual_encoder(config, jax.random.key(0), loaded[1]))
    assert set(params) == {"encoder"}
    expected = expected_vectors(params["encoder"], "cls", SEGMENT_IDS, layer_norm=True)
    np.testing.assert_allclose(blocks(DualEncoder(config), params), expected, atol=2e-5)
    expected = expected_vectors(params["encoder"], "cls", 0 * SEGMENT_IDS, layer_norm=True)
    np.testing.assert_allclose(questions(DualEncoder(config), params), expected, atol=2e-5)


def test_each_method_needs_only_its_own_tower(loaded):
    config = RetrieverConfig(loaded[0], projection_size=5)
    params = shake(init_dual_encoder(config, jax.random.key(0), loaded[1]))
    model = DualEncoder(config)
    for method, tower in ((questions, "question_encoder"), (blocks, "block_encoder")):
        alone = method(model, {tower: params[tower]})
        np.testing.assert_array_equal(alone, method(model, params))


def test_gradients_stay_in_their_own_tower(loaded):
    config = RetrieverConfig(loaded[0], projection_size=5)
    params = init_dual_encoder(config, jax.random.key(0), loaded[1])

    @jax.jit
    @jax.grad
    def gradient(params):
        return questions(DualEncoder(config, frozen_layers=1), params).sum()

    gradients = gradient(params)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradients["block_encoder"]))
    bert = gradients["question_encoder"]["bert"]
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(bert["layer_0"]))
    assert np.any(bert["layer_1"]["query"]["kernel"] != 0)


@pytest.mark.parametrize("shared_towers", [False, True])
def test_fresh_towers_are_equal_orthogonal_and_can_be_donated(loaded, shared_towers):
    config = RetrieverConfig(loaded[0], projection_size=8, shared_towers=shared_towers)
    params = init_dual_encoder(config, jax.random.key(0), loaded[1])
    assert tuple(params) == tower_names(config)
    assert question_tower(params) == tower_names(config)[0]
    for tower in params.values():
        kernel = np.asarray(tower["projection"]["kernel"])
        np.testing.assert_allclose(kernel.T @ kernel, np.eye(8), atol=1e-5)
        np.testing.assert_array_equal(
            kernel, params[tower_names(config)[0]]["projection"]["kernel"]
        )
        np.testing.assert_array_equal(
            tower["bert"]["embeddings"]["word"], loaded[1]["embeddings"]["word"]
        )
        assert "pooler" not in tower["bert"]
    # One buffer in two places would be refused here.
    jax.jit(lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0)(params)


def test_a_square_projection_keeps_inner_products(loaded):
    config = RetrieverConfig(loaded[0], projection_size=16, pooling="mean")
    params = init_dual_encoder(config, jax.random.key(1), loaded[1])
    hidden = [
        oracle.bert(CONFIG, WEIGHTS, TOKEN_IDS, MASK, segments)
        for segments in (np.zeros_like(SEGMENT_IDS), SEGMENT_IDS)
    ]
    pooled = [np.asarray(mean_pool(jnp.asarray(h, jnp.float32), MASK)) for h in hidden]
    model = DualEncoder(config)
    scores = questions(model, params) @ blocks(model, params).T
    np.testing.assert_allclose(scores, pooled[0] @ pooled[1].T, rtol=1e-4, atol=1e-4)


def test_without_pretrained_weights_the_key_decides(loaded):
    config = RetrieverConfig(loaded[0])
    one, same, other = (
        init_dual_encoder(config, jax.random.key(seed))["block_encoder"]["bert"]["embeddings"][
            "word"
        ]
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)
    assert 0.015 < float(jnp.std(one)) < 0.025


def test_bfloat16_vectors_come_out_in_float32(loaded):
    config = RetrieverConfig(loaded[0], projection_size=5, pooling="mean")
    params = init_dual_encoder(config, jax.random.key(0), loaded[1])
    low = blocks(DualEncoder(config, jnp.bfloat16), params)
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, blocks(DualEncoder(config), params), atol=0.05)


def test_projection_dropout_falls_on_the_finished_vector(loaded):
    none = dataclasses.replace(loaded[0], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = RetrieverConfig(none, projection_size=64, projection_dropout=0.25, layer_norm=True)
    params = init_dual_encoder(config, jax.random.key(0), loaded[1])
    dropped = DualEncoder(config).apply(
        {"params": params},
        TOKEN_IDS,
        MASK,
        deterministic=False,
        rngs={"dropout": jax.random.key(3)},
        method="encode_questions",
    )
    whole = questions(DualEncoder(config), params)
    kept = np.asarray(dropped) != 0
    np.testing.assert_allclose(dropped, np.where(kept, whole / 0.75, 0.0), atol=1e-5)
    assert 0.6 < kept.mean() < 0.9


def test_pooler_pooling_needs_a_pooler(loaded):
    config = RetrieverConfig(loaded[0], pooling="pooler")
    without = {name: value for name, value in loaded[1].items() if name != "pooler"}
    with pytest.raises(OrqaError, match='no pooler, which pooling "pooler" needs'):
        init_dual_encoder(config, jax.random.key(0), without)


def test_weights_of_another_bert_are_refused(loaded):
    config = RetrieverConfig(dataclasses.replace(loaded[0], num_hidden_layers=3))
    with pytest.raises(
        OrqaError,
        match=r"do not fit the BERT config at layer_2/attention_norm/bias, .*value/kernel;",
    ):
        init_dual_encoder(config, jax.random.key(0), loaded[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max'; choose one of cls, mean, pooler"),
        ({"projection_size": 0}, "projection_size is 0"),
        ({"projection_dropout": 1.0}, r"projection_dropout is 1\.0"),
    ],
)
def test_bad_configs_are_refused(loaded, changes, message):
    with pytest.raises(OrqaError, match=message):
        RetrieverConfig(loaded[0], **changes)


def test_mean_of_nothing_is_zero():
    pooled = mean_pool(jnp.ones((1, 3, 2)), np.zeros((1, 3), bool))
    assert pooled.tolist() == [[0.0, 0.0]]
