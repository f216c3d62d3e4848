"""Just enough of protocol buffers to read what TensorFlow wrote, without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def read_varint(content: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, and the place after it.

    Raises:
        IndexError: the bytes end within it.
        ValueError: it has more than 64 bits.
    """
    value = shift = 0
    while True:
        byte = content[place]
        # Without a limit, millions of bytes would be one number, made in quadratic time.
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place


def read_fields(message: bytes) -> dict[int, list[Any]]:
    """The values of each field by its number: integers, and bytes for whatever has a length.

    Raises:
        ValueError, IndexError: the bytes are no message.
    """
    fields: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        tag, place = read_varint(message, place)
        value: Any
        match tag & 7:
            case 0:
                value, place = read_varint(message, place)
            case 1:
                value, place = message[place : place + 8], place + 8
            case 2:
                length, place = read_varint(message, place)
                value, place = message[place : place + length], place + length
                if len(value) != length:
                    raise ValueError("a field is cut short")
            case 5:
                value, place = message[place : place + 4], place + 4
            case kind:
                raise ValueError(f"a field is of kind {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def unpack_varints(content: bytes) -> npt.NDArray[np.int64]:
    """Numbers written one after the other, int64."""
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise ValueError("a number is cut short")
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    shift = 7 * (np.arange(len(data)) - np.repeat(starts, ends - starts + 1))
    parts = (data & 0x7F).astype(np.uint64) << shift.astype(np.uint64)
    return np.add.reduceat(parts, starts).astype(np.int64) if len(data) else np.zeros(0, np.int64)
