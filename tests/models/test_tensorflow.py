from pathlib import Path

import numpy as np
import pytest
from oracles.bundle import message, number, write_bundle

from orqa_jax.errors import OrqaError
from orqa_jax.models.tensorflow import read_tensorflow

GOLDEN = Path(__file__).parents[1] / "golden" / "release"


def tensors():
    rng = np.random.default_rng(0)
    made = {f"layer_{i}/kernel": rng.normal(size=(3, i + 1)).astype("f") for i in range(40)}
    return made | {
        "global_step": np.int64(7),
        "half": rng.normal(size=5).astype(np.float16),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 4), np.float32),
        "double": rng.normal(size=(1, 2, 3)),
    }


def test_everything_that_was_written_is_read(tmp_path):
    expected = tensors()
    prefix = write_bundle(tmp_path / "model.ckpt-12", expected)
    for name in (prefix, tmp_path, tmp_path / "model.ckpt-12.index"):
        found = read_tensorflow(name)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value)
            assert found[key].dtype == np.asarray(value).dtype
            assert found[key].shape == np.shape(value)


def test_what_tensorflow_wrote():
    found = read_tensorflow(GOLDEN)
    golden = np.load(GOLDEN / "golden.npz")
    assert found["global_step"] == 68_340
    for name in ("reader/dense_1/kernel", "reader/dense_1/bias"):
        np.testing.assert_array_equal(found[name], golden[name])


def test_strings_are_left_out_and_slices_refused(tmp_path):
    text = (b"vocabulary", number(1, 7))
    prefix = write_bundle(tmp_path / "a", {"x": np.ones(2, "f")}, extra=[text])
    assert list(read_tensorflow(prefix)) == ["x"]
    sliced = (b"word", number(1, 1) + message(7, b""))
    prefix = write_bundle(tmp_path / "b", {"x": np.ones(2, "f")}, extra=[sliced])
    with pytest.raises(OrqaError, match="holds word in slices"):
        read_tensorflow(prefix)


def test_damage_is_named(tmp_path):
    prefix = write_bundle(tmp_path / "m.ckpt", tensors())
    index = tmp_path / "m.ckpt.index"
    data = tmp_path / "m.ckpt.data-00000-of-00001"
    whole, content = index.read_bytes(), data.read_bytes()
    data.write_bytes(content[:-8])
    with pytest.raises(OrqaError, match="is cut short or damaged at "):
        read_tensorflow(prefix)
    data.write_bytes(b"")
    with pytest.raises(OrqaError, match="is cut short or damaged at "):
        read_tensorflow(prefix)
    data.unlink()
    with pytest.raises(OrqaError, match=r"data-00000-of-00001 does not exist; copy all files"):
        read_tensorflow(prefix)
    data.write_bytes(content)
    for damaged in (b"", b"x" * 100, whole[:-1], whole[200:], whole[:-48] + whole[-8:] * 6):
        index.write_bytes(damaged)
        with pytest.raises(OrqaError, match=r"m.ckpt.index is not the index of a TensorFlow"):
            read_tensorflow(prefix)
    with pytest.raises(OrqaError, match=r"gone.index does not exist"):
        read_tensorflow(tmp_path / "gone")
    write_bundle(tmp_path / "other", {})
    with pytest.raises(OrqaError, match=r"holds 2 .*checkpoints"):
        read_tensorflow(tmp_path)


@pytest.mark.parametrize("entry", [b"\x0a\x05ab", message(1, b"x"), number(1, 1) + number(2, 3)])
def test_a_damaged_entry_is_noticed(tmp_path, entry):
    prefix = write_bundle(tmp_path / "m", {"x": np.ones(4, "f")}, extra=[(b"y", entry)])
    with pytest.raises(OrqaError, match=r"m.index is not the index .* or is damaged"):
        read_tensorflow(prefix)


def test_a_wrong_size_is_noticed(tmp_path):
    shape = message(2, message(2, number(1, 3)))
    entry = (b"y", number(1, 1) + shape + number(5, 8))
    prefix = write_bundle(tmp_path / "m", {"x": np.ones(4, "f")}, extra=[entry])
    with pytest.raises(OrqaError, match="cut short or damaged at y"):
        read_tensorflow(prefix)
