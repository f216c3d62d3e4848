"""Training under the settings of the 2019 release against an oracle in numpy, step by step."""

import functools
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import inputs as oracle_inputs
from oracles import training as oracle
from safetensors.numpy import load_file, save_file
from tiny_world import finetune_config, ict_config, world

from experiments.configs import faithful_finetune, faithful_ict
from orqa_jax.corpus.store import BlockStore
from orqa_jax.losses import in_batch_softmax_loss, marginal_log_likelihood
from orqa_jax.models.bert import with_dropout
from orqa_jax.models.reader import span_mask_BLW
from orqa_jax.models.retriever import RetrieverConfig, init_dual_encoder
from orqa_jax.models.weights import load_bert, load_params
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import finetune, ict
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.config import make_config
from orqa_jax.train.encode import EncodeConfig, encode_corpus
from orqa_jax.train.inputs import pair_inputs, ragged
from orqa_jax.train.mesh import path_name
from orqa_jax.train.retrieve import spans_equal
from orqa_jax.train.state import (
    apply_gradients,
    bert_schedule,
    initial_state,
    make_optimizer,
    release_warmup,
)

STEPS = 20

# --- Reader inputs --------------------------------------------------------------------------------

LETTERS = ["[PAD]", "b", "c", "d", "e", "f", "g", "h", "[UNK]", "[MASK]", "[CLS]", "[SEP]"]


def tokenizer_of_the_known_case() -> WordPiece:
    tokenizer = WordPiece.from_vocab(LETTERS)
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id) == (10, 11, 0)
    return tokenizer


def test_the_known_case_of_the_reader_inputs() -> None:
    questions = ragged([np.array([0, 1])] * 2)
    blocks = ragged([np.array([2, 3, 4]), np.array([5, 6])])
    made = pair_inputs(tokenizer_of_the_known_case(), questions, blocks, 10)
    token_ids = [[10, 0, 1, 11, 2, 3, 4, 11, 0, 0], [10, 0, 1, 11, 5, 6, 11, 0, 0, 0]]
    np.testing.assert_array_equal(made["token_ids"], token_ids)
    np.testing.assert_array_equal(made["mask"].sum(axis=1), [8, 7])
    np.testing.assert_array_equal(made["segment_ids"].nonzero()[1], [4, 5, 6, 7, 4, 5, 6])
    np.testing.assert_array_equal(made["second_mask"].nonzero()[1], [4, 5, 6, 4, 5])
    # What the release carries as a map from wordpieces to words is a look-up by place here.
    maps = [[1, 2, 5], [1, 3]]
    for row, words in enumerate(maps):
        expected = oracle_inputs.pair([0, 1], [[2, 3, 4], [5, 6]][row], 10, token_map=words)
        placed = np.full(10, -1)
        placed[made["second_mask"][row]] = words
        assert placed.tolist() == expected[4]
    correct = spans_equal(made["token_ids"], [np.array([3, 4]), np.array([7])], 10)
    correct &= made["second_mask"][:, :, None]
    assert [(k, s, s + w) for k, s, w in np.argwhere(correct)] == [(0, 5, 6)]
    for ids, mask, gold in zip(token_ids, made["mask"], [[(5, 6)], []], strict=True):
        assert oracle_inputs.gold_spans(ids, mask, 2, [[3, 4], [7]]) == gold


IDS = st.lists(st.integers(1, 7), min_size=1, max_size=14)


@given(st.lists(st.integers(1, 7), max_size=5), IDS, st.lists(IDS, min_size=1, max_size=3))
def test_reader_inputs_and_labels_are_those_of_the_oracle(question, block, answers) -> None:
    length, width = 16, 4
    tokenizer = tokenizer_of_the_known_case()
    made = pair_inputs(
        tokenizer, ragged([np.array(question, int)]), ragged([np.array(block)]), length
    )
    ids, mask, segments, inside, _ = oracle_inputs.pair(question, block, length)
    for name, row in zip(
        ("token_ids", "mask", "segment_ids", "second_mask"),
        (ids, mask, segments, inside),
        strict=True,
    ):
        np.testing.assert_array_equal(made[name][0], row)

    spans = oracle_inputs.candidates(length, width)
    anywhere = np.ones((1, length), bool)
    span_mask = span_mask_BLW(made["second_mask"], anywhere, anywhere, width)[0]
    expected = oracle_inputs.candidate_mask(inside, spans)
    assert [bool(span_mask[s, e - s]) for s, e in spans] == expected.tolist()
    assert span_mask.sum() == expected.sum()

    correct = spans_equal(made["token_ids"], [np.array(answer) for answer in answers], width)[0]
    found = {(int(s), int(s + w)) for s, w in np.argwhere(correct & span_mask)}
    gold = oracle_inputs.gold_spans(ids, mask, len(question), answers)
    assert found == {(s, e) for s, e in gold if e - s < width}


# --- Losses and optimiser -------------------------------------------------------------------------

SCORES = hnp.arrays(np.float32, 12, elements=st.floats(-300, 300, width=32))
likelihood = jax.jit(
    jax.value_and_grad(
        lambda s, c: -marginal_log_likelihood(s[None], c[None], c[None] | True)[0][0]
    )
)


@given(SCORES, hnp.arrays(bool, 12))
def test_marginal_loss_with_additive_masks(scores, correct) -> None:
    """Exact masks and those of -10,000 are the same to float32 where scores are within 1,000s."""
    expected, gradient = oracle.marginal_loss(scores.astype(np.float64), correct)
    value, found = likelihood(scores, correct)
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=2e-5)
    np.testing.assert_allclose(found, gradient, atol=3e-5)


in_batch = jax.jit(
    jax.value_and_grad(
        lambda q, b: in_batch_softmax_loss(q, b, jnp.arange(6))[0].mean(), argnums=(0, 1)
    )
)


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_in_batch_loss(scale) -> None:
    rng = np.random.default_rng(3)
    questions, blocks = (scale * rng.normal(size=(2, 6, 5))).astype(np.float32)
    loss, by_question, by_block = oracle.in_batch_loss(
        questions.astype(np.float64), blocks.astype(np.float64)
    )
    value, gradients = in_batch(questions, blocks)
    np.testing.assert_allclose(value, loss, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(gradients[0], by_question, atol=1e-5 * scale)
    np.testing.assert_allclose(gradients[1], by_block, atol=1e-5 * scale)


def test_the_schedule_of_bert_falls_from_its_first_step() -> None:
    schedule = bert_schedule(0.5, 4, 10)
    expected = [0.0, 0.125, 0.25, 0.375, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.0]
    assert [float(schedule(step)) for step in range(11)] == pytest.approx(expected)
    assert float(bert_schedule(0.5, 0, 10)(0)) == 0.5
    assert [release_warmup(n) for n in (20, 1_000, 1_009, 68_340, 100_000, 10**6)] == [
        100,
        100,
        100,
        6_834,
        10_000,
        10_000,
    ]


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 10.0])
def test_bert_adam(scale) -> None:
    rng = np.random.default_rng(5)
    names = ["a/kernel", "a/bias", "norm/scale"]
    model = oracle.Model({name: rng.normal(size=(3, 2)) for name in names}, heads=1)
    adam = oracle.BertAdam(model, peak=0.1, warmup=2, steps=6)

    def tree(values):
        values = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
        return unflatten_dict(values, sep="/")

    optimizer = make_optimizer(bert_schedule(0.1, 2, 6), name="bert")
    state = initial_state(tree(model.params), optimizer)
    for _ in range(6):
        gradients = {n: (scale * rng.normal(size=(3, 2))).astype(np.float32) for n in names}
        model.grads = {name: value.astype(np.float64) for name, value in gradients.items()}
        adam.update()
        state = apply_gradients(state, tree(gradients), optimizer)
    for name, value in flat(state.params).items():
        np.testing.assert_allclose(value, model.params[name], atol=2e-6)


# --- Trajectories ---------------------------------------------------------------------------------


def flat(params) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {path_name(path): np.asarray(value) for path, value in leaves}


@functools.cache
def encoder_with_pooler() -> Path:
    folder = world().folder / "encoder_with_pooler"
    shutil.copytree(world().encoder, folder)
    tensors = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(11)
    tensors["pooler.dense.weight"] = rng.normal(0.0, 0.3, (32, 32)).astype(np.float32)
    tensors["pooler.dense.bias"] = rng.normal(0.0, 0.3, 32).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def faithful(config, preset, **sizes):
    """``config`` under all of a preset that is not size, place or pace."""
    kept = {"optimizer", "pooling", "shared_towers", "projection_layer_norm", "projection_init"}
    kept |= {"projection_learning_rate_factor", "head_learning_rate_factor", "exclude_duplicates"}
    kept |= {"whole_word_spans", "substring_labels", "weight_decay", "mask_rate", "frozen_layers"}
    chosen = {key: value for key, value in dict(preset).items() if key in kept}
    return make_config(type(config), config.__dict__ | chosen | sizes)


@functools.cache
def ict_run() -> tuple[Path, ict.ICTConfig]:
    run = world().folder / "faithful"
    shutil.copytree(world().store.folder, run / "corpus")
    config = faithful(
        ict_config(run / "ict"),
        faithful_ict.get_config(),
        corpus=str(run / "corpus"),
        encoder=str(encoder_with_pooler()),
        steps=STEPS,
        batch_size=8,
        learning_rate=1e-4,
        warmup_steps=5,
        dropout=0.0,
    )
    assert config.optimizer == "bert"
    assert config.shared_towers
    ict.pretrain(config)
    return run, config


def padded(rows) -> list[np.ndarray]:
    ids, mask, segments = (np.array(part) for part in zip(*rows, strict=True))
    return [ids, mask.astype(bool), segments]


def special_ids() -> dict[str, int]:
    tokenizer = world().tokenizer
    return {"cls": tokenizer.cls_id, "sep": tokenizer.sep_id, "pad": tokenizer.pad_id}


def test_ict_takes_the_path_of_the_oracle() -> None:
    run, config = ict_run()
    store = BlockStore(run / "corpus")
    bert_config, bert_params = load_bert(encoder_with_pooler())
    key, _ = jax.random.split(jax.random.key(config.seed))
    shape = RetrieverConfig(
        bert=with_dropout(bert_config, 0.0),
        projection_size=config.projection_size,
        pooling="pooler",
        shared_towers=True,
        layer_norm=True,
        projection_init="glorot_uniform",
    )
    model = oracle.Model(flat(init_dual_encoder(shape, key, bert_params)), heads=2)
    start = dict(model.params)
    adam = oracle.BertAdam(model, config.learning_rate, config.warmup_steps, STEPS)
    examples = ict.ICTExamples(store, seed=config.seed, mask_rate=config.mask_rate)
    for step in range(STEPS):
        rows = [examples[step * 8 + row] for row in range(8)]
        question = [
            oracle_inputs.single(row["question"], config.question_length, **special_ids())
            for row in rows
        ]
        block = [
            oracle_inputs.pair(
                store.title_tokens(int(row["block"])),
                row["context"],
                config.block_length,
                **special_ids(),
            )[:3]
            for row in rows
        ]
        oracle.ict_step(model, adam, {"question": padded(question), "block": padded(block)})
    trained = flat(load_params(run / "ict" / "model" / "weights.safetensors"))
    assert trained.keys() == model.params.keys()
    for name, value in trained.items():
        np.testing.assert_allclose(value, model.params[name], rtol=0, atol=1e-5, err_msg=name)
    moved = [np.abs(model.params[name] - start[name]).max() for name in start]
    assert np.median(moved) > 5e-4


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fine_tuning_takes_the_path_of_the_oracle() -> None:
    run, _ = ict_run()
    encode_corpus(EncodeConfig(str(run / "corpus"), str(run / "ict" / "model"), str(run / "index")))
    config = faithful(
        finetune_config(run),
        faithful_finetune.get_config(),
        epochs=5.3,
        batch_size=8,
        learning_rate=1e-3,
        dropout=0.0,
        encoder=str(encoder_with_pooler()),
    )
    assert config.substring_labels
    assert not config.whole_word_spans
    store = BlockStore(run / "corpus")
    examples = load_examples(Path(config.train))
    assert finetune.total_steps(len(examples), config) == STEPS
    about, retriever_params, tokenizer = load_model(run / "ict" / "model", kind=ict.MODEL_KIND)
    key, _ = jax.random.split(jax.random.key(config.seed))
    _, params = finetune.initial_params(config, retriever_params, key)
    model = oracle.Model(flat(params), heads=2)
    adam = oracle.BertAdam(model, config.learning_rate, release_warmup(STEPS), STEPS)
    start = dict(model.params)
    vectors = np.load(run / "index" / "embeddings.npy").astype(np.float64)
    texts = [store.text(block) for block in range(len(store))]
    ids_of = [encoded.ids for encoded in tokenizer.encode([e.question for e in examples])]
    spans = oracle_inputs.candidates(config.reader_length, config.max_span_wordpieces)

    def beam(rows, b, question_P):
        example = examples[rows[b]]
        scores = vectors @ question_P
        early = np.lexsort((np.arange(len(scores)), -scores))[: config.early_update_beam]
        answers = [encoded.ids for encoded in tokenizer.encode(example.answers)]
        read, span_mask, span_correct = [], [], []
        for block in early[: config.reader_beam]:
            made = oracle_inputs.pair(
                ids_of[rows[b]],
                store.block_tokens(int(block)),
                config.reader_length,
                **special_ids(),
            )
            gold = oracle_inputs.gold_spans(made[0], made[1], len(ids_of[rows[b]]), answers)
            read.append(made[:3])
            span_mask.append(oracle_inputs.candidate_mask(made[3], spans))
            span_correct.append([span in gold for span in spans])
        return {
            "vectors": vectors[early],
            "early_correct": np.array(
                [any(answer in texts[block] for answer in example.answers) for block in early]
            ),
            "reader": padded(read),
            "spans": spans,
            "span_mask": np.array(span_mask),
            "span_correct": np.array(span_correct),
        }

    losses = []
    for step in range(STEPS):
        rows = finetune.step_rows(len(examples), config, step)
        question = [
            oracle_inputs.single(ids_of[row], about["question_length"], **special_ids())
            for row in rows
        ]
        batch = {"question": padded(question), "beams": functools.partial(beam, rows)}
        losses.append(oracle.orqa_step(model, adam, batch))
    assert min(losses) > 0.0
    finetune.finetune(config)
    trained = flat(load_params(run / "finetune" / "model" / "weights.safetensors"))
    assert trained.keys() == model.params.keys()
    for name, value in trained.items():
        np.testing.assert_allclose(value, model.params[name], rtol=0, atol=1e-5, err_msg=name)
    moved = [np.abs(model.params[name] - start[name]).max() for name in start]
    assert np.median(moved) > 5e-4


def test_the_oracle_has_the_gradients_of_its_own_losses() -> None:
    """Finite differences, so that both cannot be wrong in the same way."""
    bert_config, bert_params = load_bert(encoder_with_pooler())
    shape = RetrieverConfig(bert_config, 16, "pooler", True, True)
    params = flat(init_dual_encoder(shape, jax.random.key(2), bert_params))
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 40, (2, 9))
    mask = np.arange(9) < np.array([[9], [6]])
    batch = (ids, mask, (np.arange(9) > 4) * np.ones((2, 1), int))
    out = rng.normal(size=(2, 16))

    def loss(model):
        vectors, back = model.tower("encoder", *batch)
        return (vectors * out).sum(), back

    model = oracle.Model(params, heads=2)
    _, back = loss(model)
    back(out)
    for name in params:
        place = tuple(rng.integers(0, size) for size in params[name].shape)
        if name.endswith("word"):
            place = (ids[0, 1], place[1])
        nudged = []
        for sign in (1, -1):
            other = oracle.Model(params, heads=2)
            other.params[name][place] += sign * 1e-5
            nudged.append(loss(other)[0])
        slope = (nudged[0] - nudged[1]) / 2e-5
        np.testing.assert_allclose(model.grads[name][place], slope, rtol=1e-4, atol=1e-7)
