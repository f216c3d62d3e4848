import dataclasses
import functools
import signal
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from safetensors.numpy import load_file
from tiny_world import (
    equal_but_for_rounding,
    equal_trees,
    finetune_config,
    indexed_run,
    metrics_of,
    questions,
    run_and_kill,
    run_and_signal,
    trained_run,
    vocabulary,
    world,
    write_bert,
    write_jsonl,
)

from orqa_jax.errors import OrqaError
from orqa_jax.eval.scores import exact_match
from orqa_jax.index.embeddings import open_embeddings
from orqa_jax.index.exact import ExactIndex
from orqa_jax.models.bert import with_dropout
from orqa_jax.models.reader import (
    ReaderConfig,
    SpanReader,
    init_reader,
    reader_config_from_dict,
)
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict
from orqa_jax.models.weights import load_bert
from orqa_jax.predict import load_answerer
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import finetune as finetune_module
from orqa_jax.train.checkpoint import describe_model, load_model
from orqa_jax.train.config import make_config
from orqa_jax.train.finetune import (
    FinetuneConfig,
    Models,
    batches,
    beam_sizes,
    finetune,
    fingerprint_examples,
    initial_params,
    local_batch,
    make_finetune_optimizer,
    make_models,
    make_question_encoder,
    make_step,
    make_trial,
    open_source,
    orqa_loss,
    step_rows,
    total_steps,
    train_step,
)
from orqa_jax.train.mesh import make_mesh, place_batch, tree_shardings
from orqa_jax.train.retrieve import BeamSizes, BeamSource, fetch_by_device, question_batch
from orqa_jax.train.state import initial_state

KEY = jax.random.key(1)
SIZES = BeamSizes(early=20, read=8, reader_length=64, span_width=6)


@pytest.fixture(scope="module")
def retriever():
    return load_model(indexed_run() / "ict" / "model", kind="dual encoder")


@pytest.fixture(scope="module")
def source(retriever):
    about, _, tokenizer = retriever
    vectors_NP = open_embeddings(
        indexed_run() / "index",
        corpus_fingerprint=world().store.fingerprint,
        weights_fingerprint=about["weights_fingerprint"],
    )
    examples = load_examples(world().questions)
    examples += [Example("absent", "Who painted the moon?", ("Nobody Known",))]
    index = ExactIndex(vectors_NP)
    return BeamSource(world().store, index, vectors_NP, tokenizer, examples, SIZES)


# --- Data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "batch_size"), [(30, 8), (5, 8), (1, 3), (8, 8)])
def test_every_epoch_sees_every_question_once(tmp_path, count, batch_size):
    config = finetune_config(tmp_path, batch_size=batch_size, epochs=4)
    steps = total_steps(count, config)
    assert (steps - 1) * batch_size < 4 * count <= steps * batch_size
    rows = np.concatenate([step_rows(count, config, step) for step in range(steps)])
    assert len(rows) == steps * batch_size
    epochs = [rows[start : start + count].tolist() for start in range(0, 4 * count, count)]
    assert all(Counter(epoch) == Counter(range(count)) for epoch in epochs)
    if count > 4:
        assert epochs[0] != epochs[1]
        other = dataclasses.replace(config, seed=1)
        assert step_rows(count, other, 0).tolist() != rows[:batch_size].tolist()


def test_batches_continue_at_any_step(source, tmp_path):
    config = finetune_config(tmp_path)
    whole = list(batches(source, config, 32, 0, 5))
    rest = list(batches(source, config, 32, 3, 5))
    assert [b["rows"].tolist() for b in whole] == [
        step_rows(31, config, step).tolist() for step in range(5)
    ]
    for expected, found in zip(whole[3:], rest, strict=True):
        equal_trees(found, expected)
    assert list(batches(source, config, 32, 5, 5)) == []


def test_the_fingerprint_of_examples():
    examples = [Example("1", "q", ("a", "b")), Example("2", "r", ("c",))]
    different = [examples[::-1], examples[:1], [dataclasses.replace(examples[0], answers=("a",))]]
    prints = [fingerprint_examples(e) for e in [examples, *different]]
    assert len(set(prints)) == 4
    assert fingerprint_examples(list(examples)) == prints[0]


# --- Loss -----------------------------------------------------------------------------------------


class GivenValues:
    """Stands where the two modules stand; the parameters are what they would compute."""

    def question_vectors(self, params, batch, key):
        return params["question"]

    def span_logits(self, params, beam, key):
        return params["logits"]


def log_share(scores, correct):
    """Log of the share of the correct ones in a softmax; None where there is none."""
    if not correct.any():
        return None
    weights = np.exp(scores - scores.max())
    return np.log(weights[correct].sum() / weights.sum())


def loss_oracle(question_BP, logits_BKLW, beam):
    """Early and reading loss of each question, in float64; None for no signal."""
    losses = []
    for b in range(len(question_BP)):
        scores_C = beam["vectors"][b].astype(np.float64) @ question_BP[b]
        early = log_share(scores_C, beam["early_correct"][b])
        total_KLW = logits_BKLW[b] + scores_C[: logits_BKLW.shape[1], None, None]
        mask = beam["span_mask"][b]
        reading = log_share(total_KLW[mask], beam["span_correct"][b][mask])
        losses.append((early, reading))
    return losses


@pytest.fixture(scope="module")
def given():
    """A beam of 4 questions: both signals, the early one alone, none, and every span correct."""
    rng = np.random.default_rng(0)
    beam = {
        "vectors": rng.standard_normal((4, 7, 5)).astype(np.float32),
        "early_correct": rng.random((4, 7)) < 0.4,
        "span_mask": rng.random((4, 2, 6, 3)) < 0.6,
    }
    beam["span_correct"] = beam["span_mask"] & (rng.random((4, 2, 6, 3)) < 0.2)
    beam["early_correct"][0] = [False, False, True, False, False, True, True]
    beam["early_correct"][1] = [False] * 6 + [True]
    beam["span_correct"][1:3] = False
    beam["early_correct"][2] = False
    beam["span_correct"][3] = beam["span_mask"][3]
    beam["early_correct"][3] = True
    beam["readable"] = beam["span_correct"].any(axis=(1, 2, 3))
    beam["read"] = np.arange(4, dtype=np.int32)
    params = {
        "question": rng.standard_normal((4, 5)).astype(np.float32),
        "logits": (3 * rng.standard_normal((4, 2, 6, 3))).astype(np.float32),
    }
    return params, beam


def loss_of(params, beam):
    def fetch(rows_B, question_BP):
        return jax.tree.map(jnp.asarray, beam)

    return orqa_loss(params, GivenValues(), {"rows": jnp.arange(4)}, fetch, KEY)


def test_loss_and_metrics_match_an_oracle(given):
    params, beam = given
    loss, metrics = loss_of(params, beam)
    oracle = loss_oracle(params["question"], params["logits"], beam)
    early = [-e for e, _ in oracle if e is not None]
    reading = [-r for _, r in oracle if r is not None]
    assert (len(early), len(reading)) == (3, 2)
    assert float(loss) == pytest.approx((sum(early) + sum(reading)) / 4, rel=1e-5)

    def pair(name):
        return [float(x) for x in metrics[name]]

    assert pair("loss") == pytest.approx([sum(early) + sum(reading), 4], rel=1e-5)
    assert pair("early_loss") == pytest.approx([sum(early), 3], rel=1e-5)
    assert pair("reading_loss") == pytest.approx([sum(reading), 2], rel=1e-5)
    assert pair("no_signal") == [1, 4]
    assert pair("span_in_beam") == [2, 4]
    assert pair("recall@5") == [2, 4]  # that of question 1 stands in place 7
    scores = np.einsum("bp,bcp->bc", params["question"], beam["vectors"])
    total = params["logits"] + scores[:, :2, None, None]
    total = np.where(beam["span_mask"], total, -np.inf).reshape(4, -1)
    best = beam["span_correct"].reshape(4, -1)[np.arange(4), total.argmax(axis=1)]
    assert pair("span_not_read") == [0, 4]
    assert pair("exact_span") == [best.sum(), 2]


def parts_read(params, beam, read):
    """What the same questions give when only those in ``read`` are read."""
    part = {name: beam[name][read] for name in ("span_mask", "span_correct")}
    part = beam | part | {"read": np.array(read, np.int32)}
    return params | {"logits": params["logits"][np.array(read)]}, part


def test_what_is_not_read_for_want_of_an_answer_changes_nothing(given):
    params, beam = given
    whole, metrics = jax.grad(loss_of, has_aux=True)(params, beam)
    some, some_metrics = jax.grad(loss_of, has_aux=True)(*parts_read(params, beam, [0, 3]))
    np.testing.assert_allclose(some["question"], whole["question"], rtol=1e-6)
    np.testing.assert_allclose(some["logits"], whole["logits"][np.array([0, 3])], rtol=1e-6)
    for name, pair in metrics.items():
        np.testing.assert_allclose(some_metrics[name], pair, rtol=1e-6, err_msg=name)


def test_an_answer_that_is_not_read_is_counted(given):
    params, beam = given
    loss, metrics = loss_of(*parts_read(params, beam, [1, 3]))
    oracle = loss_oracle(params["question"], params["logits"], beam)
    expected = -sum(e for e, _ in oracle if e is not None) - oracle[3][1]
    assert float(loss) == pytest.approx(expected / 4, rel=1e-5)
    assert [float(x) for x in metrics["span_not_read"]] == [1, 4]
    assert [float(x) for x in metrics["span_in_beam"]] == [2, 4]


def test_gradients_match_finite_differences_of_the_oracle(given):
    params, beam = given
    gradients, _ = jax.grad(loss_of, has_aux=True)(params, beam)

    def oracle(name, place, by):
        moved = {key: value.astype(np.float64) for key, value in params.items()}
        moved[name][place] += by
        losses = loss_oracle(moved["question"], moved["logits"], beam)
        return -sum(x for pair in losses for x in pair if x is not None) / 4

    for name in ("question", "logits"):
        for place in np.ndindex(params[name].shape):
            slope = (oracle(name, place, 1e-5) - oracle(name, place, -1e-5)) / 2e-5
            assert float(gradients[name][place]) == pytest.approx(slope, abs=2e-6)


def test_without_the_early_update_only_reading_trains(given):
    params, beam = given

    def loss(params):
        def fetch(rows_B, question_BP):
            return jax.tree.map(jnp.asarray, beam)

        batch = {"rows": jnp.arange(4)}
        return orqa_loss(params, GivenValues(), batch, fetch, KEY, early_update=False)

    (value, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    oracle = loss_oracle(params["question"], params["logits"], beam)
    assert float(value) == pytest.approx(-sum(r for _, r in oracle if r is not None) / 4, rel=1e-5)
    whole, whole_metrics = jax.grad(loss_of, has_aux=True)(params, beam)
    np.testing.assert_allclose(gradients["logits"], whole["logits"], rtol=1e-6)
    assert not np.any(gradients["question"][1])  # its answer is in no span
    assert np.any(gradients["question"][0])
    for name, pair in whole_metrics.items():
        if name != "loss":
            np.testing.assert_allclose(metrics[name], pair, rtol=1e-6, err_msg=name)


def test_no_signal_gives_no_gradient(given):
    """Exactly none: not even rounding errors of cancelled terms."""
    params, beam = given
    gradients, _ = jax.grad(loss_of, has_aux=True)(params, beam)
    assert not np.any(gradients["question"][2])
    assert not np.any(gradients["logits"][2])
    assert not np.any(gradients["logits"][1])  # the early update alone moves its question
    assert np.any(gradients["question"][1])


# --- Step -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step(retriever, source):
    """Runs one step of plain gradient descent, with dropout: its updates are the gradients."""
    about, params, _ = retriever
    bert_config, bert_params = load_bert(world().encoder)
    reader_config = ReaderConfig(bert_config, span_hidden_size=16, max_span_wordpieces=6)
    reader = init_reader(reader_config, jax.random.key(2), bert_params)
    params = jax.device_get(
        {"retriever": {"question_encoder": params["question_encoder"]}, "reader": reader}
    )
    models = Models(
        DualEncoder(retriever_config_from_dict(about["retriever"])), SpanReader(reader_config)
    )
    optimizer = optax.sgd(1.0)

    @functools.cache
    def step_function(devices, retrieval, shards):
        mesh = make_mesh(jax.devices()[:devices], parameter_shards=shards)
        shardings = tree_shardings(mesh, jax.eval_shape(lambda: initial_state(params, optimizer)))
        return mesh, make_step(models, optimizer, source, mesh, shardings, retrieval)[0]

    def run(devices, retrieval, rows=(0, 5, 9, 30, 14, 2, 7, 21), shards=1):
        mesh, function = step_function(devices, retrieval, shards)
        state = initial_state(params, optimizer)
        state = jax.device_put(state, tree_shardings(mesh, state))
        batch = place_batch(mesh, question_batch(source, np.array(rows), 32))
        state, metrics = function(state, batch, KEY)
        assert int(state.step) == 1
        gradients = jax.tree.map(lambda a, b: a - np.asarray(b), params, state.params)
        return gradients, jax.device_get(metrics)

    return run


@pytest.mark.timeout(250)
def test_callback_and_two_phases_do_the_same(step):
    inside, between = step(8, "callback"), step(8, "two_phase")
    equal_trees(inside[1], between[1], rtol=1e-5)
    equal_trees(inside[0], between[0], rtol=1e-3, atol=1e-5)


@pytest.mark.timeout(250)
def test_eight_devices_do_what_one_does(step):
    of_eight, of_one = step(8, "two_phase"), step(1, "two_phase")
    equal_trees(of_eight[1], of_one[1], rtol=1e-5)
    equal_trees(of_eight[0], of_one[0], rtol=1e-3, atol=1e-5)


@pytest.mark.timeout(250)
def test_parameters_in_shares_do_what_copies_do(step):
    shares, copies = step(8, "callback", shards=4), step(8, "two_phase")
    equal_trees(shares[1], copies[1], rtol=1e-5)
    equal_trees(shares[0], copies[0], rtol=1e-3, atol=1e-5)


def test_question_tower_and_reader_both_learn(step):
    gradients, metrics = step(8, "two_phase")
    assert metrics["no_signal"][0] >= 1  # question 30 has no answer anywhere
    assert 0 < metrics["span_in_beam"][0] < 8
    for name, gradient in traverse_util.flatten_dict(gradients, sep="/").items():
        if name.endswith("kernel"):
            assert np.abs(gradient).max() > 1e-4, name


def test_a_batch_without_any_signal_changes_nothing(step):
    gradients, metrics = step(8, "two_phase", rows=(30,) * 8)
    assert metrics["no_signal"][0] == 8
    assert metrics["loss"][0] == 0.0
    assert not any(np.any(gradient) for gradient in jax.tree.leaves(gradients))


# --- The whole run --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_phase_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("two_phase")
    finetune(finetune_config(indexed_run(), retrieval="two_phase", out=str(out)))
    return out


def test_a_killed_run_continues_to_the_bit(two_phase_run, tmp_path):
    config = finetune_config(indexed_run(), retrieval="two_phase", out=str(tmp_path))
    run_and_kill(config, at_step=3)
    assert not (tmp_path / "model").exists()
    finetune(config)
    weights = "model/weights.safetensors"
    expected = (two_phase_run / weights).read_bytes()
    assert (tmp_path / weights).read_bytes() == expected
    assert metrics_of(tmp_path) == metrics_of(two_phase_run)
    assert [line["step"] for line in metrics_of(tmp_path)] == [2, 4]

    # Killed after the last step, before the model was written:
    (tmp_path / "model").rename(tmp_path / "gone")
    finetune(config)
    assert (tmp_path / weights).read_bytes() == expected

    with pytest.raises(OrqaError, match=r"reader_beam was 3 and is 2"):
        finetune(dataclasses.replace(config, reader_beam=2))
    (tmp_path / "model").rename(tmp_path / "gone too")
    with pytest.raises(OrqaError, match=r"reader_beam was 3 and is 2"):
        finetune(dataclasses.replace(config, reader_beam=2))


@pytest.mark.slow
def test_ctrl_c_saves_the_step(two_phase_run, tmp_path):
    config = finetune_config(indexed_run(), retrieval="two_phase", out=str(tmp_path))
    stopped = run_and_signal(config, at_step=3, number=signal.SIGINT)
    assert stopped.returncode == 130, stopped.stderr
    assert (tmp_path / "checkpoints" / "steps" / "3").exists()
    finetune(config)
    weights = "model/weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (two_phase_run / weights).read_bytes()


@pytest.mark.parametrize(("found", "kept"), [([0.1, 0.5, 0.2, 0.4], 2), ([0.1, 0.5, 0.5, 0.4], 3)])
def test_the_best_of_several_trials_is_kept(two_phase_run, tmp_path, monkeypatch, found, kept):
    tried = []

    def make_trial(models, source, question_length, batch_size):
        assert [len(source.questions), batch_size] == [len(questions()), 8]

        def trial(params):
            tried.append(jax.device_get(params))
            return found[len(tried) - 1]

        return trial

    monkeypatch.setattr(finetune_module, "make_trial", make_trial)
    out, dev = tmp_path / "out", str(world().questions)
    config = finetune_config(
        indexed_run(), retrieval="two_phase", out=str(out), dev=dev, dev_every=1, log_every=1
    )
    about, params, _ = load_model(finetune(config), kind="question answerer")
    assert (about["step"], about["dev_exact_match"]) == (kept, found[kept - 1])
    equal_trees(params, tried[kept - 1])
    assert [line["dev_exact_match"] for line in metrics_of(out)] == found
    # Trials change nothing about the training.
    last = load_model(two_phase_run / "model", kind="question answerer")[1]
    equal_trees(tried[-1], last)


def test_a_trial_counts_what_the_answerer_gets_right(tmp_path):
    model = trained_run() / "finetune" / "model"
    about, params, tokenizer = load_model(model, kind="question answerer")
    settings = {"reading_share": 1.0, "early_update_beam": 20}
    config = finetune_config(indexed_run(), **settings)
    examples = load_examples(world().questions)
    answers = load_answerer(trained_run()).answer([example.question for example in examples])
    # Some are made right, so that there is something to count.
    examples = [
        dataclasses.replace(example, answers=(answer.candidates[0].answer,))
        if number % 3 == 0
        else example
        for number, (example, answer) in enumerate(zip(examples, answers, strict=True))
    ]
    right = [
        bool(exact_match(answer.candidates[0].answer, example.answers))
        for answer, example in zip(answers, examples, strict=True)
    ]
    started_from = describe_model(indexed_run() / "ict" / "model", kind="dual encoder")
    source = open_source(config, world().store, started_from, tokenizer, examples)
    reader_config = reader_config_from_dict(about["reader"])
    models = make_models(config, retriever_config_from_dict(about["retriever"]), reader_config)
    trial = make_trial(models, source, about["question_length"], 8)
    assert trial(params) == pytest.approx(np.mean(right))
    assert np.mean(right) >= 10 / 30


def test_both_ways_of_retrieval_train_the_same_model(two_phase_run):
    weights = [
        load_file(folder / "model" / "weights.safetensors")
        for folder in (two_phase_run, trained_run() / "finetune")
    ]
    equal_trees(*weights, rtol=1e-3, atol=1e-4)
    lines = [metrics_of(f) for f in (two_phase_run, trained_run() / "finetune")]
    equal_trees(*lines, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def stale_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("stale")
    finetune(stale_config(out))
    return out


def stale_config(out):
    return finetune_config(
        indexed_run(), retrieval="two_phase", stale_by_one=True, out=str(out), dropout=0.0
    )


def test_stale_by_one_retrieves_by_the_parameters_of_a_step_earlier(stale_run, source, retriever):
    """Step by step, by the programs of the default."""
    config = stale_config(stale_run)
    about, params, tokenizer = retriever
    examples = load_examples(world().questions)
    sizes = beam_sizes(config, about["block_length"])
    found = BeamSource(world().store, *source.searched, tokenizer, examples, sizes)
    params_key, key = jax.random.split(jax.random.key(config.seed))
    config = dataclasses.replace(config, encoder=str(world().encoder))
    reader_config, params = initial_params(config, params, params_key)
    retriever_config = retriever_config_from_dict(about["retriever"])
    without_dropout = with_dropout(retriever_config.bert, 0.0)
    retriever_config = dataclasses.replace(retriever_config, bert=without_dropout)
    models = make_models(config, retriever_config, reader_config)
    steps = total_steps(len(examples), config)
    optimizer = make_finetune_optimizer(config, steps)
    mesh = make_mesh()
    state = initial_state(params, optimizer)
    encode = make_question_encoder(models, mesh)
    update = jax.jit(
        functools.partial(train_step, models=models, optimizer=optimizer, fetch=None, mesh=mesh)
    )
    before = state.params
    beams = {"stale": [], "fresh": []}
    for step in range(steps):
        batch = place_batch(mesh, local_batch(found, config, about["question_length"], step))
        for name, chosen in (("stale", before), ("fresh", state.params)):
            question_BP = encode(chosen, batch, state.step, key)
            beams[name].append(fetch_by_device(found, batch["rows"], question_BP))
        before = state.params
        state, _ = update(state, batch, place_batch(mesh, beams["stale"][-1]), key)
    weights = load_model(stale_run / "model", kind="question answerer")[1]
    equal_but_for_rounding(weights, jax.device_get(state.params), steps=steps)
    same = [
        np.array_equal(stale["block_ids"], fresh["block_ids"])
        for stale, fresh in zip(*beams.values(), strict=True)
    ]
    assert same[0]
    assert not all(same)


@pytest.mark.slow
def test_a_killed_run_that_is_stale_by_one_continues_to_the_bit(stale_run, tmp_path):
    config = stale_config(tmp_path)
    run_and_kill(config, at_step=4)
    finetune(config)
    weights = "model/weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (stale_run / weights).read_bytes()
    assert metrics_of(tmp_path) == metrics_of(stale_run)


def test_only_the_question_tower_of_the_retriever_is_trained_and_kept(retriever):
    params = load_model(trained_run() / "finetune" / "model", kind="question answerer")[1]
    assert params.keys() == {"retriever", "reader"}
    assert params["retriever"].keys() == {"question_encoder"}
    before = traverse_util.flatten_dict(retriever[1]["question_encoder"], sep="/")
    after = traverse_util.flatten_dict(params["retriever"]["question_encoder"], sep="/")
    way = sum(1e-3 * share for share in (1.0, 0.75, 0.5, 0.25))
    for name, start in before.items():
        moved = np.abs(after[name] - start).max()
        assert moved < 1.05 * way, name
        if name.endswith("kernel"):
            assert moved > 0.1 * way, name


def test_frozen_layers_and_a_reader_of_fewer_layers(retriever, tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", questions()[:8])
    config = finetune_config(
        indexed_run(),
        retrieval="two_phase",
        out=str(tmp_path / "out"),
        train=str(train),
        frozen_layers=1,
        reader_layers=1,
        warmup_share=0.0,
    )
    model = load_model(finetune(config), kind="question answerer")[1]
    assert "layer_1" not in model["reader"]["bert"]
    before = {
        "reader": load_bert(world().encoder)[1],
        "retriever": retriever[1]["question_encoder"]["bert"],
    }
    after = {
        "reader": model["reader"]["bert"],
        "retriever": model["retriever"]["question_encoder"]["bert"],
    }
    for name in ("reader", "retriever"):
        for part in ("embeddings", "layer_0"):
            equal_trees(after[name][part], before[name][part])
    moved = after["retriever"]["layer_1"]["query"]["kernel"]
    assert np.abs(moved - before["retriever"]["layer_1"]["query"]["kernel"]).max() > 1e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, ["epochs"]),
        ({"batch_size": 12}, ["batch_size", "8"]),
        ({"log_every": 0}, ["log_every"]),
        ({"reader_beam": 0}, ["reader_beam"]),
        ({"early_update_beam": 0}, ["early_update_beam"]),
        ({"reader_layers": 3}, ["3 layers"]),
        ({"reader_length": 8}, ["reader_length"]),
        ({"reader_length": 200, "retrieval": "two_phase"}, ["200", "96"]),
        ({"dtype": "float99"}, ["dtype", "float99"]),
        ({"retrieval": "post"}, ["retrieval", "post"]),
        ({"stale_by_one": True}, ["stale_by_one", "two_phase"]),
        ({"index": "/nowhere"}, ["/nowhere"]),
        ({"retriever": "/nowhere"}, ["/nowhere"]),
        ({"train": "/nowhere.jsonl"}, ["/nowhere.jsonl"]),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path, changes, words):
    values = dataclasses.asdict(finetune_config(indexed_run(), out=str(tmp_path))) | changes
    with pytest.raises(OrqaError) as raised:
        finetune(make_config(FinetuneConfig, values))
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_questions_of_another_corpus_are_refused(tmp_path):
    train = write_jsonl(tmp_path / "t.jsonl", [{"question": "Who?", "answer": "Nobody Known"}] * 8)
    with pytest.raises(OrqaError, match="None of the training answers"):
        finetune(finetune_config(indexed_run(), out=str(tmp_path / "out"), train=str(train)))


def test_a_reader_of_another_vocabulary_is_refused(tmp_path):
    """It would read other words than those that stand in the blocks."""
    other = WordPiece.from_vocab(["[PAD]", *reversed(vocabulary()[1:])])
    encoder = write_bert(tmp_path / "encoder", other)
    config = finetune_config(indexed_run(), out=str(tmp_path / "out"), encoder=str(encoder))
    with pytest.raises(OrqaError, match="tokenizer") as raised:
        finetune(config)
    assert str(encoder) in str(raised.value)
