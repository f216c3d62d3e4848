"""Tensors of a `pytorch_model.bin`, read without torch and without running what it holds.

Such a file is a zip archive of raw tensors and of one pickle, which names them. A pickle can call
any function when it is loaded; here it can reach the few that rebuild tensors, and nothing else.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from orqa_jax.errors import OrqaError

_DTYPES = {
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


def read_torch(path: str | Path) -> dict[str, np.ndarray]:
    """Reads the tensors of a state dict that `torch.save` wrote (torch 1.6 or later).

    Raises:
      OrqaError: the file is missing, damaged, of another form, or asks for anything but tensors.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("/data.pkl")]
            folder = name.removesuffix("data.pkl")
            order = f"{folder}byteorder"
            if order in archive.namelist() and archive.read(order) != b"little":
                raise ValueError("not little-endian")
            content = _read_stored(archive, name)
            _check_memo(content)
            found = _Unpickler(io.BytesIO(content), archive, folder).load()
    except FileNotFoundError:
        raise OrqaError(f"{path} does not exist; copy all files of the checkpoint.") from None
    except _RefusedError as error:
        raise OrqaError(
            f"{path} asks to run {error} when it is opened, which weights have no need of; "
            "do not trust it."
        ) from None
    # A damaged pickle can raise whatever the operation that it misspells raises.
    except Exception as error:
        raise OrqaError(
            f"{path} is no whole file of weights from torch 1.6 or later ({error}); save it again "
            "as safetensors with the library that made it."
        ) from error
    if not isinstance(found, dict):
        raise OrqaError(
            f"{path} holds a {type(found).__name__}, not weights by their names; save the "
            "`state_dict()` of the model."
        )
    return {str(name): value for name, value in found.items() if isinstance(value, np.ndarray)}


def _read_stored(archive: zipfile.ZipFile, name: str) -> bytes:
    """A member as torch writes them all, not compressed: a packed one could be of any size."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    return archive.read(name)


def _check_memo(content: bytes) -> None:
    """Refuses a pickle that asks for a table of billions of entries by naming the last of them."""
    for code, argument, _ in pickletools.genops(content):
        if "PUT" in code.name and isinstance(argument, int) and argument > len(content):
            raise ValueError("its memo has more entries than the file has bytes")


class _RefusedError(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _rebuild_parameter
        if module == "torch" and name in _DTYPES:
            return name
        raise _RefusedError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, storage, key, _, count = pid
        content = _read_stored(self._archive, f"{self._folder}data/{key}")
        return np.frombuffer(content, _DTYPES[storage], count=count)


def _rebuild_tensor(
    storage: np.ndarray, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *unused: Any
) -> np.ndarray:
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if min((offset, *shape, *stride)) < 0 or (0 not in shape and last >= len(storage)):
        raise ValueError("a tensor reaches beyond its storage")
    # A stride of 0 repeats a number without end.
    if math.prod(shape) > len(storage):
        raise ValueError("a tensor is larger than its storage")
    strides = [step * storage.itemsize for step in stride]
    tensor = np.lib.stride_tricks.as_strided(storage[offset:], shape, strides)
    # Most tensors fill their storage in order, and need no second copy of it.
    return np.asarray(tensor, order="C")


def _rebuild_parameter(value: np.ndarray, *unused: Any) -> np.ndarray:
    return value
