import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_world import equal_trees, finetune_config, indexed_run, metrics_of, world

from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.losses import marginal_log_likelihood
from orqa_jax.predict import load_answerer
from orqa_jax.qa.examples import load_examples
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.finetune import finetune, open_source
from orqa_jax.train.sparse import initial_sparse_params, sparse_weight, with_sparse_weight

QUESTIONS = ["Who founded the clock tower of Brellow in 1200?", "lamps of the salt market"]


@functools.cache
def bm25():
    return BM25Index.open(indexed_run() / "bm25", corpus_fingerprint=world().store.fingerprint)


def config_of(out, evidence, **changes):
    return dataclasses.replace(
        finetune_config(indexed_run()),
        out=str(out),
        evidence=evidence,
        bm25=str(indexed_run() / "bm25"),
        **changes,
    )


def source_of(evidence):
    about, _, tokenizer = load_model(indexed_run() / "ict" / "model", kind="dual encoder")
    config = config_of("", evidence)
    examples = load_examples(world().questions)
    return open_source(config, world().store, about, tokenizer, examples), examples


def test_the_last_coordinate_is_the_bm25_score():
    source, examples = source_of("hybrid")
    rng = np.random.default_rng(0)
    question_BX = rng.normal(size=(3, 17)).astype(np.float32)
    rows = np.array([4, 0, 9])
    beam = source.fetch(rows, question_BX)
    assert beam["vectors"].shape == (3, 20, 17)
    for row, ids, vectors in zip(rows, beam["block_ids"], beam["vectors"], strict=True):
        expected = bm25().scores(examples[row].question)[ids]
        np.testing.assert_array_equal(vectors[:, -1], expected)
    scores = np.einsum("bx,bcx->bc", question_BX, beam["vectors"])
    assert (np.diff(scores, axis=1) <= 1e-4).all()


def test_the_beam_of_bm25_alone_is_fixed():
    source, examples = source_of("bm25")
    beams = [source.fetch(np.array([3]), np.full((1, 1), w, np.float32)) for w in (0.1, 2.0)]
    expected, scores = bm25().search([examples[3].question], 20)
    for beam in beams:
        np.testing.assert_array_equal(beam["block_ids"], expected)
        np.testing.assert_array_equal(beam["vectors"][..., 0], scores)


def test_the_loss_trains_the_weight():
    rng = np.random.default_rng(1)
    question_BP = rng.normal(size=(2, 3)).astype(np.float32)
    vectors_BCX = rng.normal(size=(2, 6, 4)).astype(np.float32)
    correct_BC = rng.random((2, 6)) < 0.4
    correct_BC[:, 0] = True

    def loss(params):
        query_BX = with_sparse_weight(jnp.asarray(question_BP), params)
        scores_BC = jnp.einsum("bx,bcx->bc", query_BX, vectors_BCX)
        return marginal_log_likelihood(scores_BC, correct_BC, jnp.ones((2, 6), bool))[0].sum()

    def oracle(weight):
        total = 0.0
        for b in range(2):
            scores = vectors_BCX[b, :, :3].astype(float) @ question_BP[b]
            scores += weight * vectors_BCX[b, :, 3]
            total += np.log(np.exp(scores[correct_BC[b]]).sum() / np.exp(scores).sum())
        return total

    params = initial_sparse_params()
    weight = float(sparse_weight(params))
    assert weight == pytest.approx(0.1)
    assert float(loss(params)) == pytest.approx(oracle(weight), rel=1e-5)
    slope = (oracle(weight + 1e-4) - oracle(weight - 1e-4)) / 2e-4
    per_weight = float(sparse_weight({"weight": 1.0}))
    assert float(jax.grad(loss)(params)["weight"]) == pytest.approx(slope * per_weight, rel=1e-3)


@functools.cache
def trained(evidence):
    """The run folder of the tiny world, with a model that was trained on this evidence."""
    finetune(config_of(indexed_run() / f"finetune_{evidence}", evidence))
    return indexed_run()


@pytest.mark.parametrize("evidence", ["bm25", "hybrid"])
def test_training_moves_the_weight_and_predicts_with_it(evidence):
    folder = trained(evidence) / f"finetune_{evidence}"
    _, params, tokenizer = load_model(folder / "model", kind="question answerer")
    weight = float(sparse_weight(params["sparse"]))
    assert weight != pytest.approx(0.1, abs=1e-4)
    assert ("retriever" in params) == (evidence == "hybrid")
    assert metrics_of(folder)[-1]["loss"] > 0

    answerer = load_answerer(indexed_run(), system=f"trained_{evidence}")
    beam = answerer.read(QUESTIONS, 10)
    for row, question in enumerate(QUESTIONS):
        ids = beam.ids_BC[row]
        expected = weight * bm25().scores(question)[ids]
        if evidence == "hybrid":
            vectors_NP = np.load(indexed_run() / "index" / "embeddings.npy")
            vector = answerer.retriever.dense.encode([question])[0]
            expected = expected + vectors_NP[ids] @ vector
        np.testing.assert_allclose(beam.scores_BC[row], expected, rtol=1e-4, atol=1e-4)
    assert tokenizer.fingerprint == world().tokenizer.fingerprint


def test_two_phases_give_the_same_training(tmp_path):
    found = finetune(config_of(tmp_path / "hybrid", "hybrid", retrieval="two_phase"))
    a, b = (
        load_model(folder, kind="question answerer")[1]
        for folder in (found, trained("hybrid") / "finetune_hybrid" / "model")
    )
    equal_trees(a, b, rtol=1e-5, atol=1e-6)


def test_what_was_trained_on_other_evidence_is_refused():
    folder = trained("bm25") / "finetune_hybrid_kept"
    hybrid = indexed_run() / "finetune_hybrid"
    moved = hybrid.exists()
    if moved:
        hybrid.rename(folder)
    (indexed_run() / "finetune_bm25").rename(hybrid)
    try:
        with pytest.raises(OrqaError, match="trained with other evidence"):
            load_answerer(indexed_run(), system="trained_hybrid")
    finally:
        hybrid.rename(indexed_run() / "finetune_bm25")
        if moved:
            folder.rename(hybrid)
