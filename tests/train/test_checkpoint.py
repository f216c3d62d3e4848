import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file
from tiny_world import equal_trees, vocabulary

from orqa_jax.errors import OrqaError
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.checkpoint import (
    Checkpoints,
    is_finished,
    load_model,
    save_model,
    sum_bits,
)
from orqa_jax.train.mesh import make_mesh, tree_shardings
from orqa_jax.train.state import TrainState, initial_state

PARAMS = {
    "tower": {
        "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bias": np.ones(3, np.float32),
    }
}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    description = {"config": {"steps": 3}, "size": 4}
    tokenizer = WordPiece.from_vocab(vocabulary())
    save_model(folder, kind="toy", description=description, params=PARAMS, tokenizer=tokenizer)
    return folder


def refused(folder, *words, kind="toy"):
    with pytest.raises(OrqaError) as raised:
        load_model(folder, kind=kind)
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_a_model_comes_back_as_it_was(model):
    about, params, tokenizer = load_model(model, kind="toy")
    equal_trees(params, PARAMS)
    assert about["size"] == 4
    assert tokenizer.fingerprint == WordPiece.from_vocab(vocabulary()).fingerprint
    assert sorted(path.name for path in model.parent.iterdir()) == ["model"]


def test_a_model_takes_the_place_of_an_older_one(model):
    changed = {"tower": {"kernel": np.zeros((1, 1), np.float32)}}
    tokenizer = WordPiece.from_vocab(vocabulary())
    save_model(model, kind="toy", description={}, params=changed, tokenizer=tokenizer)
    equal_trees(load_model(model, kind="toy")[1], changed)


def test_a_changed_weight_is_refused(model):
    tensors = load_file(model / "weights.safetensors")
    save_file(tensors | {"tower/bias": tensors["tower/bias"] + 1e-6}, model / "weights.safetensors")
    refused(model, "weights", str(model), "train the model again")


def test_a_changed_tokenizer_is_refused(model):
    WordPiece.from_vocab([*vocabulary(), "extra"]).save(model / "tokenizer")
    refused(model, "tokenizer", str(model), "train the model again")


def test_a_cut_weights_file_is_refused(model):
    path = model / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    refused(model, str(path))


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json", "tokenizer/tokenizer.json"])
def test_a_missing_file_is_named(model, name):
    (model / name).unlink()
    refused(model, str(model), "tokenizer" if "tokenizer" in name else name)


def test_another_kind_is_refused(model):
    refused(model, "toy", "dual encoder", "model.json", kind="dual encoder")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b'{"kind": "toy"}', b"\xff\xfe\x00"])
def test_a_broken_description_is_refused(model, content):
    (model / "model.json").write_bytes(content)
    refused(model, "model.json")


def test_a_description_without_fingerprints_is_refused(model):
    (model / "model.json").write_text(json.dumps({"schema": 1, "kind": "toy"}))
    refused(model, "model.json")


def test_finished_only_by_the_same_settings(model):
    assert not is_finished(model.parent / "other", kind="toy", config={"steps": 3})
    assert is_finished(model, kind="toy", config={"steps": 3})
    with pytest.raises(OrqaError, match="steps was 3 and is 5"):
        is_finished(model, kind="toy", config={"steps": 5})


def state_of(step, value):
    optimizer = optax.adam(1e-3)
    state = initial_state({"w": jnp.full((2, 3), value)}, optimizer)
    state = TrainState(jnp.int32(step), state.params, state.optimizer_state)
    return jax.device_put(state, tree_shardings(make_mesh(), state))


def test_the_newest_state_comes_back_where_it_was(tmp_path):
    checkpoints = Checkpoints(tmp_path, config={"steps": 9})
    empty = state_of(0, 0.0)
    assert checkpoints.restore(empty) is empty
    for step in (2, 4, 6):
        checkpoints.save(step, state_of(step, step / 2))
    checkpoints.close()

    again = Checkpoints(tmp_path, config={"steps": 9})
    found = again.restore(empty)
    again.close()
    equal_trees(found, state_of(6, 3.0))
    assert found.params["w"].sharding == empty.params["w"].sharding
    kept = sorted(path.name for path in (tmp_path / "steps").iterdir() if path.name.isdigit())
    assert kept == ["4", "6"]


def test_what_is_saved_is_the_state_at_that_moment(tmp_path):
    """The step that follows overwrites the state's memory, since it is donated."""
    checkpoints = Checkpoints(tmp_path, config={})
    state = state_of(1, 1.0)
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + jnp.ones_like(x), s), donate_argnums=0)
    expected = jax.device_get(state)
    checkpoints.save(1, state)
    for _ in range(5):
        state = step(state)
    checkpoints.close()
    again = Checkpoints(tmp_path, config={})
    equal_trees(again.restore(state), expected)
    again.close()


def test_other_settings_are_refused_by_name(tmp_path):
    # Until something is saved, a start that failed leaves the settings free.
    Checkpoints(tmp_path, config={"seed": 7}).close()
    first = Checkpoints(tmp_path, config={"seed": 0, "rate": 0.1, "out": "x"})
    first.save(1, state_of(1, 1.0))
    first.close()
    with pytest.raises(OrqaError) as raised:
        Checkpoints(tmp_path, config={"seed": 1, "rate": 0.1, "out": "x", "new": 3})
    assert "seed was 0 and is 1" in str(raised.value)
    assert "new was None and is 3" in str(raised.value)
    assert "rate" not in str(raised.value)
    # A run folder may be moved: where things lie is no setting.
    Checkpoints(tmp_path, config={"seed": 0, "rate": 0.1, "out": "elsewhere"}).close()


def large_state(step):
    """One whose numbers are most of what is on the disk."""
    values = np.random.default_rng(step).standard_normal((64, 64)).astype(np.float32)
    state = initial_state({"w": jnp.asarray(values)}, optax.sgd(0.1)).replace(step=jnp.int32(step))
    return jax.device_put(state, tree_shardings(make_mesh(), state))


def checkpointed(folder, *, losses=(3.0, 1.0, 2.0, 4.0)):
    checkpoints = Checkpoints(folder, config={})
    for number, loss in enumerate(losses, 1):
        step = 2 * number
        checkpoints.add_loss((jnp.float32(3 * loss), jnp.float32(4)))
        checkpoints.add_loss((jnp.float32(5 * loss), jnp.float32(4)))
        checkpoints.save(step, large_state(step))
    checkpoints.close()
    return sorted(int(path.name) for path in (folder / "steps").iterdir() if path.name.isdigit())


def test_the_best_is_kept_beside_the_newest(tmp_path):
    assert checkpointed(tmp_path) == [4, 6, 8]
    assert checkpointed(tmp_path / "n", losses=(3.0, float("nan"), 2.0, 4.0)) == [6, 8]


def damage_largest(folder, how):
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = largest.read_bytes()
    if how == "torn":
        largest.write_bytes(content[: len(content) // 2])
    elif how == "missing":
        largest.unlink()
    else:
        middle = len(content) // 2
        largest.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


# Orbax leaves the reads of the other arrays behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["torn", "missing", "one bit"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog, how):
    checkpointed(tmp_path)
    damage_largest(tmp_path / "steps" / "8", how)
    checkpoints = Checkpoints(tmp_path, config={})
    found = checkpoints.restore(large_state(0))
    equal_trees(found, large_state(6))
    (message,) = [m for m in caplog.messages if "is damaged" in m]
    assert "The checkpoint of step 8" in message
    assert len(message) < 400
    checkpoints.save(8, large_state(8))  # takes its place
    checkpoints.close()
    again = Checkpoints(tmp_path, config={})
    equal_trees(again.restore(large_state(0)), large_state(8))
    again.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_but_damaged_checkpoints_is_told(tmp_path):
    for step in checkpointed(tmp_path):
        damage_largest(tmp_path / "steps" / str(step), "torn")
    checkpoints = Checkpoints(tmp_path, config={})
    with pytest.raises(OrqaError, match=r"All checkpoints .* damaged"):
        checkpoints.restore(large_state(0))
    checkpoints.close()


def test_changed_bits_change_the_sum():
    values = {"a": jnp.arange(6.0).reshape(2, 3), "n": jnp.int32(-5)}
    expected = [
        int(np.asarray(x).ravel().view(np.uint32).sum(dtype=np.uint32)) for x in values.values()
    ]
    assert sum_bits(values).tolist() == expected
