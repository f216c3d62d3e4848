import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.bundle import message, number, varint

from orqa_jax.text.protobuf import read_fields, read_varint, unpack_varints

NUMBERS = st.integers(0, 2**62)


@given(st.lists(NUMBERS))
def test_numbers_come_back(numbers) -> None:
    content = b"".join(map(varint, numbers))
    assert unpack_varints(content).tolist() == numbers
    place, found = 0, []
    while place < len(content):
        value, place = read_varint(content, place)
        found.append(value)
    assert found == numbers


def test_fields_by_number() -> None:
    content = number(1, 300) + message(2, b"ab") + number(1, 7) + varint(3 << 3 | 5) + b"1234"
    content += varint(4 << 3 | 1) + b"12345678"
    assert read_fields(content) == {1: [300, 7], 2: [b"ab"], 3: [b"1234"], 4: [b"12345678"]}
    assert read_fields(b"") == {}


@pytest.mark.parametrize("content", [b"\x0a\x05ab", b"\x08", b"\x08\xff", b"\x0b", b"\xff"])
def test_what_is_no_message_is_refused(content) -> None:
    with pytest.raises((ValueError, IndexError)):
        read_fields(content)
    with pytest.raises(ValueError, match="a number is cut short"):
        unpack_varints(b"\x01\x80")
    assert unpack_varints(b"").dtype == np.int64
