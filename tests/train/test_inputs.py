import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.inputs import pair_inputs, question_inputs, ragged

CLS, SEP, PAD = 10, 11, 0
VOCABULARY = ["[PAD]", *"abcdefgh", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

wordpieces = st.lists(st.integers(1, 8), max_size=9).map(lambda ids: np.array(ids, np.int32))


@pytest.fixture(scope="module")
def tokenizer():
    made = WordPiece.from_vocab(VOCABULARY)
    assert (made.cls_id, made.sep_id, made.pad_id) == (CLS, SEP, PAD)
    return made


def padded(tokens, length, fill):
    return tokens + [fill] * (length - len(tokens))


@given(questions=st.lists(wordpieces, min_size=1, max_size=4), length=st.integers(3, 12))
def test_question_inputs_match_lists(tokenizer, questions, length):
    got = question_inputs(tokenizer, questions, length)
    expected = [[CLS, *ids.tolist()[: length - 2], SEP] for ids in questions]
    assert got["token_ids"].tolist() == [padded(tokens, length, PAD) for tokens in expected]
    assert got["mask"].tolist() == [padded([True] * len(t), length, False) for t in expected]
    assert got["token_ids"].dtype == np.int32


@given(
    pairs=st.lists(st.tuples(wordpieces, wordpieces), min_size=1, max_size=4),
    length=st.integers(4, 24),
)
def test_pair_inputs_match_lists(tokenizer, pairs, length):
    firsts, seconds = (ragged(part) for part in zip(*pairs, strict=True))
    got = pair_inputs(tokenizer, firsts, seconds, length)
    for row, (first, second) in enumerate(pairs):
        kept_first = first.tolist()[: length - 3]
        kept_second = second.tolist()[: length - 3 - len(kept_first)]
        tokens = [CLS, *kept_first, SEP, *kept_second, SEP]
        before = len(kept_first) + 2
        segments = [0] * before + [1] * (len(kept_second) + 1)
        inside = [False] * before + [True] * len(kept_second)
        assert got["token_ids"][row].tolist() == padded(tokens, length, PAD)
        assert got["mask"][row].tolist() == padded([True] * len(tokens), length, False)
        assert got["segment_ids"][row].tolist() == padded(segments, length, 0)
        assert got["second_mask"][row].tolist() == padded(inside, length, False)


def test_a_second_part_without_room_or_without_wordpieces(tokenizer):
    first = ragged([np.array([1, 2, 3], np.int32)] * 2)
    second = ragged([np.array([4, 5], np.int32), np.array([], np.int32)])
    got = pair_inputs(tokenizer, first, second, 6)
    assert got["token_ids"].tolist() == [[CLS, 1, 2, 3, SEP, SEP]] * 2
    assert not got["second_mask"].any()


def test_a_first_part_that_fills_the_sequence_is_cut(tokenizer):
    first, second = ragged([np.arange(1, 9)]), ragged([np.array([7])])
    got = pair_inputs(tokenizer, first, second, 5)
    assert got["token_ids"].tolist() == [[CLS, 1, 2, SEP, SEP]]
    assert got["mask"].all()


@given(rows=st.lists(wordpieces, max_size=5))
def test_ragged_keeps_every_row(rows):
    packed = ragged(rows)
    assert (packed.values.dtype, packed.offsets.dtype) == (np.int32, np.int64)
    back = [
        packed.values[start:end].tolist()
        for start, end in zip(packed.offsets[:-1], packed.offsets[1:], strict=True)
    ]
    assert back == [row.tolist() for row in rows]
