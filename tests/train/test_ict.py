import dataclasses
import functools
import itertools
import signal
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from safetensors.numpy import load_file
from tiny_world import (
    documents,
    equal_trees,
    ict_config,
    indexed_run,
    metrics_of,
    run_and_kill,
    run_and_signal,
    start_training,
    vocabulary,
    world,
    write_jsonl,
)

from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import with_dropout
from orqa_jax.models.retriever import DualEncoder, RetrieverConfig, init_dual_encoder
from orqa_jax.models.weights import load_bert
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.config import make_config
from orqa_jax.train.ict import (
    ICTConfig,
    ICTExamples,
    batches,
    collate,
    ict_loss,
    make_step,
    pretrain,
    step_batch,
)
from orqa_jax.train.mesh import make_mesh, place_batch, tree_shardings
from orqa_jax.train.plan import find_collectives
from orqa_jax.train.state import initial_state


def examples(**changes):
    return ICTExamples(world().store, **{"seed": 0, "mask_rate": 0.9, **changes})


def joined(parts):
    return list(itertools.chain.from_iterable(parts))


def sentences(block):
    """The wordpieces of each sentence of a block."""
    store = world().store
    tokens = store.block_tokens(block).tolist()
    bounds = [*store.sentence_starts(block).tolist(), len(tokens)]
    return [tokens[start:end] for start, end in itertools.pairwise(bounds)]


# --- Data -----------------------------------------------------------------------------------------


def test_question_and_context_make_up_the_block():
    source = examples()
    seen = Counter()
    for position in range(3 * source.epoch_size):
        example = source[position]
        parts = sentences(example["block"])
        question, context = example["question"].tolist(), example["context"].tolist()
        assert question in parts
        if example["masked"]:
            without = [parts[:i] + parts[i + 1 :] for i, s in enumerate(parts) if s == question]
            assert context in [joined(rest) for rest in without]
        else:
            assert context == joined(parts)
        seen[len(parts) > 1, bool(example["masked"])] += 1
    assert seen[False, True] == 0
    assert min(seen[False, False], seen[True, False], seen[True, True]) > 0


def test_an_epoch_has_every_block_of_several_sentences_once():
    source, store = examples(), world().store
    several = {block for block in range(len(store)) if len(store.sentence_starts(block)) > 1}
    single = set(range(len(store))) - several
    share = round(0.1 * len(single))
    assert share > 0
    orders = []
    for epoch in range(3):
        start = epoch * source.epoch_size
        blocks = [int(source[start + place]["block"]) for place in range(source.epoch_size)]
        counts = Counter(blocks)
        assert set(counts.values()) == {1}
        assert several <= counts.keys()
        assert len(counts.keys() & single) == share
        orders.append(blocks)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("mask_rate", [0.0, 0.5, 0.9, 1.0])
def test_mask_rate_and_choice_of_sentence(mask_rate):
    source = examples(mask_rate=mask_rate)
    masked, places = [], Counter()
    for position in range(25 * source.epoch_size):
        example = source[position]
        parts = sentences(example["block"])
        if len(parts) > 1:
            masked.append(bool(example["masked"]))
        if len(parts) == 3:
            places[parts.index(example["question"].tolist())] += 1
    # Five standard deviations of a fair coin of that many throws.
    assert abs(np.mean(masked) - mask_rate) <= 5 * np.sqrt(
        mask_rate * (1 - mask_rate) / len(masked)
    )
    total = places.total()
    for place in range(3):
        assert abs(places[place] / total - 1 / 3) < 5 * np.sqrt(2 / 9 / total)


def test_an_example_depends_on_seed_and_position_alone():
    forward, backward, other = examples(), examples(), examples(seed=1)
    positions = range(2 * forward.epoch_size + 5)
    wanted = [forward[position] for position in positions]
    for position in reversed(positions):
        for name, value in backward[position].items():
            np.testing.assert_array_equal(value, wanted[position][name])
    assert [int(other[p]["block"]) for p in positions] != [int(w["block"]) for w in wanted]


def test_a_corpus_of_single_sentences_has_nothing_to_take_out(tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", [{"title": "a", "text": "A river is lit."}] * 3)
    store = build_corpus([source], tmp_path / "store", world().tokenizer, workers=1)
    with pytest.raises(OrqaError, match=r"two sentences.*mask_rate"):
        ICTExamples(store, seed=0, mask_rate=0.9)
    assert len(ICTExamples(store, seed=0, mask_rate=0.0)[0]["question"]) == 5


def test_a_batch_is_its_examples_padded(tmp_path):
    config = ict_config(tmp_path, question_length=8, block_length=24)
    store, tokenizer = world().store, world().tokenizer
    source = examples()
    rows = [source[position] for position in range(20)]
    batch = collate(rows, store, tokenizer, config)
    for row, example in enumerate(rows):
        question = example["question"].tolist()[:6]
        expected = [tokenizer.cls_id, *question, tokenizer.sep_id]
        used = batch["question"]["mask"][row]
        assert batch["question"]["token_ids"][row][used].tolist() == expected
        title = store.title_tokens(int(example["block"])).tolist()
        context = example["context"].tolist()[: 24 - 3 - len(title)]
        expected = [tokenizer.cls_id, *title, tokenizer.sep_id, *context, tokenizer.sep_id]
        used = batch["block"]["mask"][row]
        assert batch["block"]["token_ids"][row][used].tolist() == expected
        assert batch["block"]["segment_ids"][row].sum() == len(context) + 1
        assert batch["masked"][row] == example["masked"]
        block = int(example["block"])
        place = sentences(block).index(example["question"].tolist())
        hashes = batch["sentence_hashes"][row]
        assert (hashes > 0).sum() == len(sentences(block))
        assert batch["question_hash"][row] == hashes[place]
    by_sentence = {}
    for row, example in enumerate(rows):
        for place, sentence in enumerate(sentences(int(example["block"]))):
            by_sentence.setdefault(tuple(sentence), set()).add(batch["sentence_hashes"][row, place])
    assert all(len(hashes) == 1 for hashes in by_sentence.values())
    assert len(set.union(*by_sentence.values())) == len(by_sentence)
    all_count = collate(
        rows, store, tokenizer, dataclasses.replace(config, exclude_duplicates=False)
    )
    assert all_count["sentence_hashes"].shape == (20, 0)


def test_batches_continue_at_any_step(tmp_path):
    config = ict_config(tmp_path, steps=9, batch_size=16)
    whole = list(batches(config, 0))
    assert len(whole) == 9
    source = examples()
    for step, batch in enumerate(whole):
        rows = [source[position] for position in range(16 * step, 16 * step + 16)]
        equal_trees(batch, collate(rows, world().store, world().tokenizer, config))
    for expected, found in zip(whole[6:], batches(config, 6), strict=True):
        equal_trees(found, expected)


def test_processes_share_a_batch_by_rows(tmp_path):
    config = ict_config(tmp_path, batch_size=12)
    whole = step_batch(config, 1, 0, 5)
    parts = [step_batch(config, 3, process, 5) for process in range(3)]
    equal_trees(jax.tree.map(lambda *rows: np.concatenate(rows), *parts), whole)


def test_workers_make_the_same_batches(tmp_path):
    config = ict_config(tmp_path, steps=5)
    for expected, found in zip(
        batches(config, 1), batches(dataclasses.replace(config, workers=2), 1), strict=True
    ):
        equal_trees(found, expected)


# --- Loss and step --------------------------------------------------------------------------------


class GivenVectors:
    """Stands where the dual encoder stands; its parameters are the vectors themselves."""

    config = RetrieverConfig(with_dropout(load_bert(world().encoder)[0], 0.0))

    def apply(self, variables, *inputs, method):
        return variables["params"][method]


def test_loss_and_metrics_of_given_vectors():
    rng = np.random.default_rng(0)
    question_BP, block_BP = rng.standard_normal((2, 6, 4)).astype(np.float32)
    # The sentences of each block, and the one that is asked for. Block 2 is a copy of block 0, and
    # block 4 has a sentence of block 1, which asks for that one.
    sentences = np.array([[3, 4], [5, 6], [3, 4], [7, 0], [8, 6], [9, 0]], np.int32)
    asked = np.array([3, 6, 4, 7, 8, 9], np.int32)
    masked = np.array([True, False, True, True, False, True])
    inputs = dict.fromkeys(("token_ids", "mask", "segment_ids"), np.zeros((6, 1), np.int32))
    batch = {"question_hash": asked, "sentence_hashes": sentences, "masked": masked}
    batch |= {"question": inputs, "block": inputs, "target": np.arange(6, dtype=np.int32)}
    params = {"encode_questions": question_BP, "encode_blocks": block_BP}
    batch, params = jax.tree.map(jnp.asarray, (batch, params))
    loss_function = functools.partial(ict_loss, mesh=make_mesh(jax.devices()[:1]))
    loss, metrics = jax.jit(loss_function, static_argnums=1)(params, GivenVectors(), batch, KEY)

    losses, correct, negatives = [], [], []
    for row in range(6):
        kept = [j for j in range(6) if j == row or asked[row] not in sentences[j]]
        scores = {j: float(question_BP[row].astype(np.float64) @ block_BP[j]) for j in kept}
        losses.append(np.log(sum(np.exp(list(scores.values())))) - scores[row])
        correct.append(max(scores, key=scores.__getitem__) == row)
        negatives.append(len(kept) - 1)
    assert negatives == [4, 4, 4, 5, 5, 5]
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-5)
    correct = np.array(correct)
    assert [float(x) for x in metrics["loss"]] == pytest.approx([sum(losses), 6], rel=1e-5)
    assert [float(x) for x in metrics["accuracy"]] == [correct.sum(), 6]
    assert [float(x) for x in metrics["accuracy_masked"]] == [correct[masked].sum(), 4]
    assert [float(x) for x in metrics["accuracy_unmasked"]] == [correct[~masked].sum(), 2]
    assert [float(x) for x in metrics["negatives"]] == [27, 6]


KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def step():
    """Runs one step of plain gradient descent, with dropout, on so many devices.

    Its updates are the gradients themselves, which Adam would hide behind their signs.
    """
    bert_config, bert_params = load_bert(world().encoder)
    model = DualEncoder(RetrieverConfig(bert_config, projection_size=16))
    params = jax.device_get(init_dual_encoder(model.config, jax.random.key(1), bert_params))
    config = ict_config(world().folder / "unused")
    source = examples()
    rows = [source[position] for position in range(16)]
    batch = collate(rows, world().store, world().tokenizer, config)
    optimizer = optax.sgd(1.0)

    def run(devices, *, number=0, chunk_size=0, shards=1):
        mesh = make_mesh(jax.devices()[:devices], parameter_shards=shards)
        state = initial_state(params, optimizer).replace(step=jnp.int32(number))
        shardings = tree_shardings(mesh, state)
        state = jax.device_put(state, shardings)
        settings = dataclasses.replace(config, chunk_size=chunk_size, chunk_lengths=2)
        function = make_step(settings, model, optimizer, mesh, shardings)
        placed = place_batch(mesh, batch)
        program = function.lower(state, placed, KEY).compile()
        state, metrics = program(state, placed, KEY)
        gradients = jax.tree.map(lambda a, b: a - np.asarray(b), params, state.params)
        return int(state.step), gradients, jax.device_get(metrics), state, program.as_text()

    return functools.cache(run)


def same_step(found, expected):
    assert found[0] == expected[0] == 1
    equal_trees(found[1], expected[1], rtol=1e-3, atol=1e-5)
    equal_trees(found[2], expected[2], rtol=1e-5)


def test_eight_devices_do_what_one_does(step):
    assert max(np.abs(g).max() for g in jax.tree.leaves(step(1)[1])) > 0.1
    same_step(step(8), step(1))


def test_chunks_do_what_the_whole_batch_does(step):
    """Dropout included, though chunks are cut shorter than the batch."""
    same_step(step(2, chunk_size=2), step(1))


def test_parameters_in_shares_do_what_copies_do(step):
    found = step(8, shards=4, chunk_size=1)
    same_step(found, step(1))
    kernel = found[3].params["block_encoder"]["bert"]["layer_1"]["query"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(8, 32)}


@pytest.mark.parametrize(
    ("devices", "options"), [(8, {}), (2, {"chunk_size": 2}), (8, {"shards": 4, "chunk_size": 1})]
)
def test_embeddings_are_gathered_and_gradients_reduced_but_no_activations_move(
    step, devices, options
):
    moved = list(find_collectives(step(devices, **options)[4], devices))
    shapes = {
        kind: {
            tuple(size for size in s if size > 1) for m in moved if m.kind == kind for s in m.shapes
        }
        for kind in {m.kind for m in moved}
    }
    params = {param.shape for param in jax.tree.leaves(step(1)[1])}
    # Of the position table, only the rows of a sequence have a gradient where there are no chunks.
    gradients = params | {(32, 32), (48, 32)}
    gradients |= {shape[::-1] for shape in gradients}
    embeddings, hashes = (16, 16), (16, 3)
    assert embeddings in shapes["all-gather"]
    assert params - {(96, 32), (32, 16)} <= shapes["all-reduce"]
    assert shapes.keys() == {"all-gather", "all-reduce"}
    assert shapes["all-reduce"] <= gradients | {embeddings, ()}
    gathered = {embeddings, hashes, (16,)}
    assert shapes["all-gather"] <= (gathered | params if "shards" in options else gathered)
    # Nothing is exchanged within the loop over chunks.
    before, _, entry = step(devices, **options)[4].partition("\nENTRY ")
    assert entry
    assert not list(find_collectives(before, devices))


def test_dropout_depends_on_the_step(step):
    first, second = step(8), step(8, number=1)
    assert first[2]["loss"][0] != second[2]["loss"][0]


# --- The whole run --------------------------------------------------------------------------------


def test_a_killed_run_continues_to_the_bit(tmp_path):
    whole = indexed_run() / "ict"
    config = ict_config(tmp_path, corpus=str(indexed_run() / "corpus"))
    run_and_kill(config, at_step=6)
    assert not (tmp_path / "model").exists()
    pretrain(config)
    weights = "model/weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (whole / weights).read_bytes()
    assert metrics_of(tmp_path) == metrics_of(whole)
    assert [line["step"] for line in metrics_of(tmp_path)] == [2, 4, 6]

    # Killed after the last step, before the model was written:
    before = (tmp_path / weights).read_bytes()
    (tmp_path / "model").rename(tmp_path / "gone")
    pretrain(config)
    assert (tmp_path / weights).read_bytes() == before

    # Finished: nothing is done again, and other settings are refused.
    written = (tmp_path / "model" / "model.json").stat().st_mtime_ns
    assert pretrain(config) == tmp_path / "model"
    assert (tmp_path / "model" / "model.json").stat().st_mtime_ns == written
    with pytest.raises(OrqaError, match="seed was 0 and is 1"):
        pretrain(ict_config(tmp_path, corpus=str(indexed_run() / "corpus"), seed=1))
    (tmp_path / "model").rename(tmp_path / "gone too")
    with pytest.raises(OrqaError, match="seed was 0 and is 1"):
        pretrain(ict_config(tmp_path, corpus=str(indexed_run() / "corpus"), seed=1))


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGINT, 130, "orqa: interrupted; the same command continues where it can."),
        (signal.SIGTERM, 0, "Stopped by SIGTERM; step 5 is saved, and the same command continues."),
    ],
)
def test_a_run_that_is_asked_to_stop_saves_its_step(tmp_path, number, status, line):
    config = ict_config(tmp_path, corpus=str(indexed_run() / "corpus"))
    stopped = run_and_signal(config, at_step=5, number=number)
    assert stopped.returncode == status, stopped.stderr
    assert stopped.stderr.splitlines()[-1] == line
    assert (tmp_path / "checkpoints" / "steps" / "5").exists()
    assert not (tmp_path / "model").exists()
    pretrain(config)
    weights = "model/weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (indexed_run() / "ict" / weights).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_at_random_moments_change_nothing(tmp_path):
    """Also between a checkpoint's first file and its last, as one is written after every step."""
    settings = {"corpus": str(indexed_run() / "corpus"), "steps": 120, "log_every": 1}
    config = ict_config(tmp_path / "killed", **settings, checkpoint_every=1)
    rng = np.random.default_rng(0)
    kills = 0
    while kills < 20:
        process = start_training(config)
        newest = newest_step(tmp_path / "killed")
        deadline = time.monotonic() + 200
        while newest_step(tmp_path / "killed") == newest and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.3))
        assert process.poll() is None, "finished before it was killed so many times"
        process.kill()
        process.wait()
        kills += 1
    assert start_training(config).wait() == 0
    # Undisturbed, it needs none: writing one takes longer than a step.
    whole = ict_config(tmp_path / "whole", **settings, checkpoint_every=120)
    assert start_training(whole).wait() == 0
    weights = "model/weights.safetensors"
    assert (tmp_path / "killed" / weights).read_bytes() == (
        tmp_path / "whole" / weights
    ).read_bytes()
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


def newest_step(out):
    steps = [int(path.name) for path in out.glob("checkpoints/steps/[0-9]*") if path.name.isdigit()]
    return max(steps, default=0)


def test_training_moves_what_it_should(tmp_path):
    """The projection ten times as far as the BERT, which goes the sum of the learning rates."""
    bert_config, bert_params = load_bert(world().encoder)
    params_key, _ = jax.random.split(jax.random.key(0))
    config = RetrieverConfig(bert_config, projection_size=16)
    before = traverse_util.flatten_dict(init_dual_encoder(config, params_key, bert_params), sep="/")
    after = load_file(indexed_run() / "ict" / "model" / "weights.safetensors")
    assert before.keys() == after.keys()
    way = sum([0.0, 0.5e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    for name, start in before.items():
        moved = np.abs(after[name] - np.asarray(start)).max()
        factor = 1.0 if "/bert/" in name else 10.0
        assert moved < 1.05 * factor * way, name
        if name.endswith("kernel"):  # biases may have no gradient at all
            assert moved > 0.5 * factor * way, name


def test_frozen_layers_stay_as_they_were(tmp_path):
    config = ict_config(
        tmp_path, frozen_layers=1, steps=2, warmup_steps=0, shared_towers=True, batch_size=8
    )
    before = load_bert(world().encoder)[1]
    after = load_file(pretrain(config) / "weights.safetensors")
    assert {name.split("/")[0] for name in after} == {"encoder"}
    for name, value in after.items():
        path = name.split("/")
        if path[1] != "bert":
            continue
        start = functools.reduce(lambda tree, key: tree[key], path[2:], before)
        if path[2] in ("embeddings", "layer_0"):
            assert value.tobytes() == np.ascontiguousarray(start).tobytes()
        elif path[-1] == "kernel":
            assert np.abs(value - start).max() > 1e-4


def test_an_encoder_of_another_vocabulary_is_refused(tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", documents()[:4])
    other = WordPiece.from_vocab([*vocabulary(), "more"])
    store = build_corpus([source], tmp_path / "store", other, max_wordpieces=48, workers=1)
    with pytest.raises(OrqaError, match=r"another tokenizer.*--encoder"):
        pretrain(ict_config(tmp_path / "ict", corpus=str(store.folder)))


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": -1},
        {"batch_size": 0},
        {"batch_size": 12},  # of 8 devices
        {"chunk_size": 3, "batch_size": 32},  # of 4 rows a device
        {"chunk_lengths": 0},
        {"parameter_shards": 3},  # of 8 devices
        {"log_every": 0},
        {"checkpoint_every": -1},
        {"mask_rate": 1.5},
        {"question_length": 2},
        {"block_length": 3},
        {"block_length": 500},  # of 96 positions
        {"pooling": "max"},
        {"frozen_layers": 3},  # of 2
        {"projection_size": 0},
        {"dtype": "float99"},
        {"encoder": "/nowhere"},
        {"corpus": "/nowhere"},
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path, changes):
    values = dataclasses.asdict(ict_config(tmp_path / "out")) | changes
    with pytest.raises(OrqaError) as raised:
        pretrain(make_config(ICTConfig, values))
    assert "\n" not in str(raised.value)
    (name, value) = next(iter(changes.items()))
    assert name in str(raised.value) or str(value) in str(raised.value)
