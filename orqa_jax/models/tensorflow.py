"""TensorFlow checkpoints (`NAME.index`, `NAME.data-00000-of-00001`) without TensorFlow.

The format is TensorFlow's "tensor bundle": a LevelDB table of protocol buffers, one for each
tensor, that say where its bytes lie in the data files. TensorFlow itself is not used: it weighs
half a gigabyte, its last release breaks ScaNN, and the one other reader needs a protobuf of 2021.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from orqa_jax.errors import OrqaError
from orqa_jax.text.protobuf import read_fields, read_varint

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
# Of tensorflow/core/framework/types.proto; strings (7) and resources are no weights.
_DTYPES = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype(np.float16),
}


def read_tensorflow(prefix: str | Path) -> dict[str, np.ndarray]:
    """Reads all numeric tensors of a checkpoint, as memory-mapped arrays, by their names.

    Args:
      prefix: ``.../bert_model.ckpt``, with or without ".index"; or a folder with one checkpoint.

    Raises:
      OrqaError: there is none, it is damaged or cut short, or in a form that Saver does not write.
    """
    prefix = _prefix(Path(prefix))
    index = prefix.with_name(prefix.name + ".index")
    try:
        shards, entries = _read_index(index.read_bytes())
    except FileNotFoundError:
        raise OrqaError(
            f"{index} does not exist; give the checkpoint without its ending."
        ) from None
    except (OSError, ValueError, IndexError, TypeError, struct.error) as error:
        raise OrqaError(
            f"{index} is not the index of a TensorFlow checkpoint, or is damaged ({error}); "
            "copy it again."
        ) from error
    files: dict[int, np.ndarray] = {}
    tensors = {}
    for name, entry in entries.items():
        if entry.sliced:
            raise OrqaError(
                f"{prefix} holds {name} in slices; save it with an unpartitioned Saver."
            )
        if entry.shard not in files:
            path = prefix.with_name(f"{prefix.name}.data-{entry.shard:05}-of-{shards:05}")
            if not path.exists():
                raise OrqaError(f"{path} does not exist; copy all files of the checkpoint.")
            # An empty file cannot be mapped.
            whole = path.stat().st_size
            files[entry.shard] = np.memmap(path, np.uint8, "r") if whole else np.zeros(0, np.uint8)
        data, size = files[entry.shard], entry.dtype.itemsize * math.prod(entry.shape)
        if entry.offset + entry.size > len(data) or entry.size != size:
            raise OrqaError(f"{prefix} is cut short or damaged at {name}; copy it again.")
        try:
            tensors[name] = np.ndarray(entry.shape, entry.dtype, data, entry.offset)
        except (ValueError, TypeError, OverflowError) as error:
            raise OrqaError(f"{prefix} is damaged at {name} ({error}); copy it again.") from error
    return tensors


@dataclass(frozen=True)
class _Entry:
    """Where the bytes of a tensor lie, of BundleEntryProto."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    sliced: bool


def _read_index(content: bytes) -> tuple[int, dict[str, _Entry]]:
    """How many data files there are, and the numeric tensors by their names."""
    entries = dict(_read_table(content))
    shards = int(read_fields(entries.pop(b"", b"")).get(1, [0])[0])
    tensors = {}
    for name, entry in entries.items():
        fields = read_fields(entry)
        dtype = _DTYPES.get(int(fields.get(1, [0])[0]))
        if dtype is None:
            continue
        shape = tuple(
            int(read_fields(dimension).get(1, [0])[0])
            for value in fields.get(2, [b""])
            for dimension in read_fields(value).get(2, [])
        )
        shard, offset, size = (int(fields.get(key, [0])[0]) for key in (3, 4, 5))
        tensors[name.decode()] = _Entry(dtype, shape, shard, offset, size, sliced=7 in fields)
    return shards, tensors


def _prefix(path: Path) -> Path:
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            raise OrqaError(
                f"{path} holds {len(found)} TensorFlow checkpoints (*.index); name one."
            )
        path = found[0]
    return path.with_suffix("") if path.suffix == ".index" else path


def _read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table."""
    footer = content[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("no table")
    place = 0
    handle = []
    for _ in range(4):  # offset and size of the meta index, and then of the index
        value, place = read_varint(footer, place)
        handle.append(value)
    for _, block in _read_block(content, *handle[2:]):
        offset, place = read_varint(block, 0)
        size, _ = read_varint(block, place)
        yield from _read_block(content, offset, size)


def _read_block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    block = content[offset : offset + size]
    if len(block) != size or content[offset + size] != 0:
        raise ValueError("a block is cut short or compressed")
    restarts = struct.unpack("<I", block[-4:])[0]
    end, place, key = size - 4 - 4 * restarts, 0, b""
    while place < end:
        shared, place = read_varint(block, place)
        added, place = read_varint(block, place)
        length, place = read_varint(block, place)
        key = key[:shared] + block[place : place + added]
        yield key, block[place + added : place + added + length]
        place += added + length
