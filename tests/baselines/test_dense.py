import jax.numpy as jnp
import numpy as np
import pytest
from tiny_world import indexed_run, orqa, world, write_bert

from orqa_jax.baselines.dense import UntrainedConfig, save_untrained
from orqa_jax.errors import OrqaError
from orqa_jax.index.embeddings import open_embeddings
from orqa_jax.models.bert import Bert
from orqa_jax.models.weights import load_bert
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.inputs import pair_inputs


def vectors_of(kind, run):
    """What `orqa untrained` and `orqa index` make of the tiny world."""
    run.mkdir()
    (run / "corpus").symlink_to(indexed_run() / "corpus")
    orqa("untrained", "--run", run, "--kind", kind, "--encoder", world().encoder)
    orqa("index", "--run", run)
    about, params, _ = load_model(run / "ict" / "model", kind="dual encoder")
    fingerprints = (world().store.fingerprint, about["weights_fingerprint"])
    names = ("corpus_fingerprint", "weights_fingerprint")
    return open_embeddings(run / "index", **dict(zip(names, fingerprints, strict=True))), params


def inputs_of(blocks):
    store, tokenizer = world().store, world().tokenizer
    return pair_inputs(tokenizer, store.titles(blocks), store.tokens(blocks), 96)


def test_static_vectors_are_averaged(tmp_path):
    vectors_NP, _ = vectors_of("static", tmp_path / "run")
    assert vectors_NP.shape == (len(world().store), 32)
    _, params = load_bert(world().encoder)
    e = params["embeddings"]
    blocks = np.arange(5)
    batch = inputs_of(blocks)
    means = []
    for row in blocks:
        n = int(batch["mask"][row].sum())
        ids, segments = batch["token_ids"][row, :n], batch["segment_ids"][row, :n]
        summed = e["word"][ids] + e["position"][:n] + e["segment"][segments]
        centred = summed - summed.mean(axis=1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        means.append((normal * e["norm"]["scale"] + e["norm"]["bias"]).mean(axis=0))
    expected = np.array(means)
    # A rotation: inner products are those of the averages.
    found = vectors_NP[:5]
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=1e-3, atol=1e-3)


def test_mean_pooled_states_keep_their_inner_products(tmp_path):
    vectors_NP, _ = vectors_of("mean_pooled", tmp_path / "run")
    config, params = load_bert(world().encoder)
    batch = inputs_of(np.arange(6))
    hidden_BLH = Bert(config).apply(
        {"params": {k: v for k, v in params.items() if k != "pooler"}},
        *(jnp.asarray(batch[name]) for name in ("token_ids", "mask", "segment_ids")),
    )
    mask_BL1 = batch["mask"][..., None]
    expected = (np.asarray(hidden_BLH) * mask_BL1).sum(axis=1) / mask_BL1.sum(axis=1)
    found = vectors_NP[:6]
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=1e-3, atol=1e-3)


def test_a_random_projection_is_orthogonal(tmp_path):
    vectors_NP, params = vectors_of("random_projection", tmp_path / "run")
    assert vectors_NP.shape[1] == 128
    kernel_HP = params["block_encoder"]["projection"]["kernel"]
    np.testing.assert_allclose(kernel_HP @ kernel_HP.T, np.eye(32), atol=1e-5)


def test_an_encoder_of_another_tokenizer_is_refused(tmp_path):
    other = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x"])
    encoder = write_bert(tmp_path / "encoder", other)
    config = UntrainedConfig(
        corpus=str(indexed_run() / "corpus"), encoder=str(encoder), out=str(tmp_path), kind="static"
    )
    with pytest.raises(OrqaError, match="another tokenizer"):
        save_untrained(config)
