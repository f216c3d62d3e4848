import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.models.torch_file import read_torch

GOLDEN = Path(__file__).parents[1] / "golden" / "realm"


def test_what_torch_wrote():
    found = read_torch(GOLDEN / "pytorch_model.bin")
    golden = np.load(GOLDEN / "golden.npz")
    np.testing.assert_array_equal(found["block_emb"], golden["block_emb"])
    assert found["embedder.cls.dense.weight"].shape == (6, 16)
    assert {value.dtype for value in found.values()} <= {np.dtype("f"), np.dtype("i8")}


class _Named:
    """Pickles as the name of something in another module, whether that is installed or not."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class _Storage:
    def __init__(self, kind, key, count):
        self.pid = ("storage", _Named("torch", kind), key, "cpu", count)


class _Tensor:
    def __init__(self, storage, offset, shape, stride):
        self.arguments = (storage, offset, shape, stride, False, OrderedDict())


class _Pickler(pickle._Pickler):
    """As torch pickles, in Python, without torch."""

    def persistent_id(self, value):
        return value.pid if isinstance(value, _Storage) else None

    def save(self, value, **options):
        if isinstance(value, _Named):
            self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        elif isinstance(value, _Tensor):
            self.save(_Named("torch._utils", "_rebuild_tensor_v2"))
            self.save(value.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, **options)


def write(path, value, storages=(), *, byteorder=b"little"):
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("archive/data.pkl", "w") as file:
            _Pickler(file, protocol=2).dump(value)
        archive.writestr("archive/byteorder", byteorder)
        for key, content in storages:
            archive.writestr(f"archive/data/{key}", content)
    return path


NUMBERS = np.arange(12, dtype=np.float32)


def tensor(offset=0, shape=(3, 4), stride=(4, 1), kind="FloatStorage", count=12):
    return _Tensor(_Storage(kind, "0", count), offset, shape, stride)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (tensor(), NUMBERS.reshape(3, 4)),
        (tensor(0, (4, 3), (1, 4)), NUMBERS.reshape(3, 4).T),
        (tensor(5, (2,), (3,)), [5.0, 8.0]),
        (tensor(2, (), ()), 2.0),
        (tensor(0, (2, 3), (0, 1)), [[0, 1, 2], [0, 1, 2]]),
        (tensor(0, (0, 3), (3, 1)), np.zeros((0, 3))),
        (tensor(0, (12,), (1,), "IntStorage"), NUMBERS.view(np.int32)),
    ],
)
def test_tensors_lie_in_storages(tmp_path, made, expected):
    path = write(tmp_path / "m.bin", OrderedDict(x=made, note="text"), [("0", NUMBERS.tobytes())])
    found = read_torch(path)
    assert list(found) == ["x"]
    np.testing.assert_array_equal(found["x"], expected)


@pytest.mark.parametrize(
    "made",
    [tensor(9, (4,), (1,)), tensor(-1, (1,), (1,)), tensor(0, (2,), (-1,)), tensor(count=13)],
)
def test_tensors_that_reach_beyond_are_refused(tmp_path, made):
    path = write(tmp_path / "m.bin", {"x": made}, [("0", NUMBERS.tobytes())])
    with pytest.raises(OrqaError, match=r"m.bin is no whole file of weights"):
        read_torch(path)


@pytest.mark.parametrize("target", [("os", "system"), ("builtins", "eval"), ("torch", "load")])
def test_nothing_is_run(tmp_path, target):

    path = write(tmp_path / "m.bin", {"x": _Named(*target)})
    with pytest.raises(OrqaError, match=f"asks to run {target[0]}.{target[1]} when it is opened"):
        read_torch(path)


def test_other_files_are_named(tmp_path):
    with pytest.raises(OrqaError, match=r"gone.bin does not exist"):
        read_torch(tmp_path / "gone.bin")
    whole = (GOLDEN / "pytorch_model.bin").read_bytes()
    for content in (b"", b"\x80\x02}q\x00.", whole[:-100], whole[:5000]):
        (tmp_path / "m.bin").write_bytes(content)
        with pytest.raises(OrqaError, match=r"m.bin is no whole file of weights"):
            read_torch(tmp_path / "m.bin")
    with pytest.raises(OrqaError, match="holds a list, not weights"):
        read_torch(write(tmp_path / "list.bin", [1]))
    with pytest.raises(OrqaError, match="not little-endian"):
        read_torch(write(tmp_path / "big.bin", {}, byteorder=b"big"))
