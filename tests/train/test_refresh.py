import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file
from tiny_world import (
    equal_but_for_rounding,
    finetune_config,
    indexed_run,
    metrics_of,
    orqa,
    run_and_kill,
    world,
)

from orqa_jax.errors import OrqaError
from orqa_jax.index.exact import ExactIndex
from orqa_jax.models.bert import with_dropout
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict
from orqa_jax.predict import load_answerer
from orqa_jax.qa.examples import load_examples
from orqa_jax.train import finetune as finetuning
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.exporting import export_encoders
from orqa_jax.train.finetune import finetune, orqa_loss
from orqa_jax.train.inputs import block_inputs
from orqa_jax.train.mesh import make_mesh, place_batch
from orqa_jax.train.refresh import generations, staleness
from orqa_jax.train.retrieve import BeamSource, fetch_by_device
from orqa_jax.train.state import initial_state

EVERY = 2
STEPS = 8


def refresh_config(run, **changes):
    settings = {"refresh_every": EVERY, "epochs": 2.0, "dropout": 0.0, "learning_rate": 3e-3}
    settings["log_every"] = 1
    return finetune_config(run, **settings | changes)


def linked_run(folder):
    """A run folder as it is before fine-tuning."""
    folder.mkdir(exist_ok=True)
    for name in ("corpus", "ict", "index", "bm25"):
        (folder / name).symlink_to(indexed_run() / name)
    return folder


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    run = linked_run(tmp_path_factory.mktemp("refreshed"))
    finetune(refresh_config(run))
    return run


@pytest.fixture(scope="module")
def stale_refreshed(tmp_path_factory):
    run = linked_run(tmp_path_factory.mktemp("stale_refreshed"))
    finetune(stale_config(run))
    return run


def stale_config(run, **changes):
    return refresh_config(run, retrieval="two_phase", stale_by_one=True, **changes)


def test_which_generation_serves_follows_from_the_step():
    serving = {0: 0, 2: 0, 3: 0, 5: 0, 6: 1, 8: 1, 9: 2, 12: 3}
    assert {step: generations(step, 3)[0] for step in serving} == serving
    assert [staleness(step, 3) for step in range(10)] == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3]
    assert [staleness(step, 1) for step in range(4)] == [0, 1, 1, 1]


# --- Loss -----------------------------------------------------------------------------------------


class GivenValues:
    """Stands where the modules stand; the parameters are what they would compute."""

    def question_vectors(self, params, batch, key):
        return params["question"]

    def span_logits(self, params, beam, key):
        return params["logits"]

    def fresh_vectors(self, params, beam, key):
        return params["fresh"]


def log_share(scores, correct):
    weights = np.exp(scores - scores.max())
    return np.log(weights[correct].sum() / weights.sum())


def test_reading_is_scored_by_fresh_vectors_and_the_early_update_by_stored_ones():
    rng = np.random.default_rng(0)
    params = {
        "question": rng.standard_normal((3, 4)).astype(np.float32),
        "logits": rng.standard_normal((2, 2, 5, 3)).astype(np.float32),
        "fresh": rng.standard_normal((2, 2, 4)).astype(np.float32),
    }
    read = np.array([0, 2], np.int32)
    beam = {
        "vectors": rng.standard_normal((3, 6, 4)).astype(np.float32),
        "early_correct": np.arange(18).reshape(3, 6) % 4 == 1,
        "span_mask": rng.random((2, 2, 5, 3)) < 0.7,
        "readable": np.array([True, False, True]),
        "read": read,
        "block_token_ids": np.zeros((2, 2, 7), np.int32),
    }
    beam["span_mask"][:, 0, 0] = True
    beam["span_correct"] = np.zeros((2, 2, 5, 3), bool)
    beam["span_correct"][:, 0, 0, :2] = True

    def loss(params):
        def fetch(rows_B, question_BP):
            return jax.tree.map(jnp.asarray, beam)

        batch = {"rows": jnp.arange(3)}
        return orqa_loss(params, GivenValues(), batch, fetch, jax.random.key(0))[0]

    def oracle(params):
        total = 0.0
        for b in range(3):
            scores_C = beam["vectors"][b] @ params["question"][b].astype(np.float64)
            total -= log_share(scores_C, beam["early_correct"][b])
        for r, b in enumerate(read):
            scores_K = params["fresh"][r] @ params["question"][b].astype(np.float64)
            spans_KLW = params["logits"][r] + scores_K[:, None, None]
            mask = beam["span_mask"][r]
            total -= log_share(spans_KLW[mask], beam["span_correct"][r][mask])
        return total / 3

    assert float(loss(params)) == pytest.approx(oracle(params), rel=1e-5)
    gradients = jax.grad(loss)(params)
    for name, value in params.items():
        for place in list(np.ndindex(value.shape))[::3]:
            moved = {n: v.astype(np.float64) for n, v in params.items()}
            moved[name][place] += 1e-5
            up = oracle(moved)
            moved[name][place] -= 2e-5
            slope = (up - oracle(moved)) / 2e-5
            assert float(gradients[name][place]) == pytest.approx(slope, abs=2e-6)


# --- The whole run --------------------------------------------------------------------------------


@functools.cache
def block_vectors(model):
    """Vectors of all blocks at once, from the parameters of a retriever."""
    store = world().store
    batch = block_inputs(store, world().tokenizer, np.arange(len(store)), 48)
    encode = jax.jit(functools.partial(model.apply, method="encode_blocks"))
    inputs = (batch[name] for name in ("token_ids", "mask", "segment_ids"))
    inputs = tuple(inputs)
    return lambda retriever: np.asarray(encode({"params": retriever}, *inputs))


@pytest.mark.parametrize("stale", [pytest.param(False, marks=pytest.mark.slow), True])
def test_each_step_searches_the_vectors_of_its_generation(request, stale):
    """Step by step, with the vectors of all blocks made in one batch."""
    run = request.getfixturevalue("stale_refreshed" if stale else "refreshed")
    config = dataclasses.replace(refresh_config(run), encoder=str(world().encoder))
    about, retriever, tokenizer = load_model(run / "ict" / "model", kind="dual encoder")
    params_key, key = jax.random.split(jax.random.key(config.seed))
    reader_config, params = finetuning.initial_params(config, retriever, params_key)
    shape = retriever_config_from_dict(about["retriever"])
    shape = dataclasses.replace(shape, bert=with_dropout(shape.bert, 0.0))
    models = finetuning.make_models(config, shape, reader_config)
    examples = load_examples(world().questions)
    assert finetuning.total_steps(len(examples), config) == STEPS
    optimizer = finetuning.make_finetune_optimizer(config, STEPS)
    mesh = make_mesh()
    update = jax.jit(
        functools.partial(
            finetuning.train_step, models=models, optimizer=optimizer, fetch=None, mesh=mesh
        )
    )
    encode = finetuning.make_question_encoder(models, mesh)
    state = initial_state(params, optimizer)
    states, differ = [], []
    for step in range(STEPS):
        states.append(state.params)
        made = [0, 0, 0, 0, 2, 2, 4, 4][step]
        vectors_NP, fresh_NP = (
            block_vectors(models.retriever)(states[at]["retriever"]) for at in (made, step)
        )
        source = BeamSource(
            world().store,
            ExactIndex(vectors_NP),
            vectors_NP,
            tokenizer,
            examples,
            finetuning.beam_sizes(config, 48),
        )
        batch = finetuning.local_batch(source, config, about["question_length"], step)
        batch = place_batch(mesh, batch)
        by = states[max(step - 1, 0)] if stale else state.params
        question_BP = encode(by, batch, state.step, key)
        beam = fetch_by_device(source, batch["rows"], question_BP)
        ids_BC = ExactIndex(fresh_NP).search(np.asarray(question_BP), 20)[0]
        differ.append(not np.array_equal(ids_BC, beam["block_ids"]))
        state, _ = update(state, batch, place_batch(mesh, beam), key)
    assert any(differ)  # else no index would be told from another
    found = load_model(run / "finetune" / "model", kind="question answerer")[1]
    equal_but_for_rounding(found, jax.device_get(state.params), steps=STEPS)
    lines = metrics_of(run / "finetune")
    assert [line["staleness"] for line in lines] == [0, 1, 2, 3, 2, 3, 2, 3]


def test_both_towers_learn(refreshed):
    ict = load_model(refreshed / "ict" / "model", kind="dual encoder")[1]
    params = load_model(refreshed / "finetune" / "model", kind="question answerer")[1]
    assert params["retriever"].keys() == {"question_encoder", "block_encoder"}
    for tower, before in ict.items():
        after = traverse_util.flatten_dict(params["retriever"][tower], sep="/")
        for name, start in traverse_util.flatten_dict(before, sep="/").items():
            if name.endswith("kernel"):
                assert np.abs(after[name] - start).max() > 1e-3, (tower, name)


def same_result(found, expected):
    for name in ("model/weights.safetensors", "index/embeddings.npy", "index/manifest.json"):
        a, b = (run / "finetune" / name for run in (found, expected))
        assert a.read_bytes() == b.read_bytes(), name
    assert metrics_of(found / "finetune") == metrics_of(expected / "finetune")
    assert not (found / "finetune" / "refresh").exists()


@pytest.mark.slow
def test_a_killed_run_makes_again_what_it_was_encoding(refreshed, tmp_path):
    run = linked_run(tmp_path / "run")
    config = refresh_config(run, checkpoint_every=5)
    run_and_kill(config, at_step=8)  # continues after step 5, from vectors of steps 2 and 4
    shutil.rmtree(run / "finetune" / "refresh")
    finetune(config)
    same_result(run, refreshed)


@pytest.mark.slow
def test_a_killed_run_that_is_stale_by_one_too_changes_the_index_as_it_would(
    stale_refreshed, tmp_path
):
    run = linked_run(tmp_path / "run")
    config = stale_config(run)
    run_and_kill(config, at_step=5)  # continues after step 4, with the change
    assert (run / "finetune" / "refresh" / "4").exists()
    finetune(config)
    same_result(run, stale_refreshed)


def test_answers_come_from_the_vectors_of_the_trained_tower(refreshed, tmp_path):
    about, params, _ = load_model(refreshed / "finetune" / "model", kind="question answerer")
    model = DualEncoder(retriever_config_from_dict(about["retriever"]))
    expected_NP = block_vectors(model)(params["retriever"])
    embeddings_NP = np.load(refreshed / "finetune" / "index" / "embeddings.npy")
    np.testing.assert_allclose(embeddings_NP, expected_NP, rtol=1e-4, atol=1e-4)
    assert np.abs(embeddings_NP - np.load(refreshed / "index" / "embeddings.npy")).max() > 0.01
    answerer = load_answerer(refreshed)
    question = load_examples(world().questions)[3].question
    scores_N = expected_NP @ answerer.retriever.encode([question])[0]
    answer = answerer.answer([question])[0]
    np.testing.assert_allclose(answer.retrieval_scores[:9], np.sort(scores_N)[:-10:-1], rtol=1e-3)
    load_answerer(refreshed, system="zero_shot")

    run = linked_run(tmp_path / "run")
    shutil.copytree(refreshed / "finetune", run / "finetune")
    shutil.rmtree(run / "finetune" / "index")
    with pytest.raises(OrqaError, match="orqa index"):
        load_answerer(run)
    shutil.copytree(run / "index", run / "finetune" / "index")
    with pytest.raises(OrqaError, match=about["block_encoder_fingerprint"][:16]):
        load_answerer(run)
    orqa("index", "--run", run)
    np.testing.assert_array_equal(np.load(run / "finetune/index/embeddings.npy"), embeddings_NP)
    load_answerer(run)


def test_the_trained_block_tower_is_exported(refreshed, tmp_path):
    params = load_model(refreshed / "finetune" / "model", kind="question answerer")[1]
    for folder, tower in zip(
        export_encoders(refreshed, tmp_path / "out"), params["retriever"], strict=True
    ):
        dense = load_file(folder / "3_Projection" / "model.safetensors")
        kernel = params["retriever"][folder.name]["projection"]["kernel"]
        np.testing.assert_array_equal(dense["linear.weight"], kernel.T, err_msg=tower)


def test_a_model_without_refresh_has_no_index_of_its_own(tmp_path):
    assert finetuning.trained_block_encoder(tmp_path) is None
    (tmp_path / "model.json").write_text(json.dumps({}))
    with pytest.raises(OrqaError, match="not a model description"):
        finetuning.trained_block_encoder(tmp_path)


def test_bm25_has_nothing_to_refresh(tmp_path):
    with pytest.raises(OrqaError, match="refresh_every"):
        refresh_config(tmp_path, evidence="bm25")


@pytest.mark.slow
def test_a_hybrid_refreshes_its_dense_part(tmp_path):
    run = linked_run(tmp_path / "run")
    out, bm25 = run / "finetune_hybrid", str(run / "bm25")
    changes = {"evidence": "hybrid", "bm25": bm25, "epochs": 1.0, "refresh_every": 1}
    finetune(refresh_config(run, out=str(out), **changes))
    params = load_model(out / "model", kind="question answerer")[1]
    assert params["retriever"].keys() == {"question_encoder", "block_encoder"}
    assert [line["staleness"] for line in metrics_of(out)] == [0, 1, 1, 1]
    expected_NP = np.load(out / "index" / "embeddings.npy")
    assert np.abs(expected_NP - np.load(run / "index" / "embeddings.npy")).max() > 1e-3
    question = load_examples(world().questions)[3].question
    answer = load_answerer(run, system="trained_hybrid").answer([question])[0]
    assert answer.retrieval_scores[0] >= answer.retrieval_scores[1]
    shutil.rmtree(out / "index")
    orqa("index", "--run", run)
    np.testing.assert_array_equal(np.load(out / "index" / "embeddings.npy"), expected_NP)


def test_fresh_vectors_keep_the_bm25_score():
    about, params, _ = load_model(indexed_run() / "ict" / "model", kind="dual encoder")
    shape = retriever_config_from_dict(about["retriever"])
    shape = dataclasses.replace(shape, bert=with_dropout(shape.bert, 0.0))
    models = finetuning.Models(DualEncoder(shape), None)
    ids_RK = np.array([[4, 9], [17, 4]])
    store, tokenizer = world().store, world().tokenizer
    inputs = block_inputs(store, tokenizer, ids_RK.reshape(-1), 48)
    beam = {f"block_{name}": x.reshape(2, 2, 48) for name, x in inputs.items()}
    rng = np.random.default_rng(0)
    beam |= {"vectors": rng.standard_normal((3, 5, 17)).astype(np.float32)}
    beam["read"] = np.array([2, 0])
    found = models.fresh_vectors({"retriever": params}, beam, jax.random.key(0))
    expected_NP = np.load(indexed_run() / "index" / "embeddings.npy")
    np.testing.assert_allclose(found[..., :16], expected_NP[ids_RK], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found[..., 16], beam["vectors"][[2, 0], :2, 16])
