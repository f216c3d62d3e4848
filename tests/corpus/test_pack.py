from __future__ import annotations

import itertools
import string
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orqa_jax.corpus.pack import Packed, pack, title_limit
from orqa_jax.corpus.readers import Document, clean
from orqa_jax.text import wordpiece
from orqa_jax.text.sentences import split_sentences
from orqa_jax.text.wordpiece import WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list(string.ascii_lowercase)
# One wordpiece a letter, so that lengths can be counted by eye.
TOKENIZER = WordPiece.from_vocab(
    [
        *SPECIALS,
        *LETTERS,
        *[f"##{letter}" for letter in LETTERS],
        *".,;!?'\"()-",
        "。",
        "中",
        "文",
        "the",
        "##ing",
    ]
)


def packed(
    *documents: tuple[str, str], max_wordpieces: int = 16
) -> tuple[Packed, list[dict[str, object]]]:
    result = pack(
        [Document(str(i), title, text) for i, (title, text) in enumerate(documents)],
        TOKENIZER,
        max_wordpieces,
        defaultdict(float),
    )
    result.batch.validate(full=True)
    return result, result.batch.to_pylist()


def test_packs_whole_sentences_greedily():
    # room: 16 - 3 special - 1 title = 12; sentences of 4, 6, 7 and 3 wordpieces
    _, blocks = packed(("t", "Abc. Defgh.  Jklmno.\nPq!"))
    assert [block["text"] for block in blocks] == ["Abc. Defgh.", "Jklmno.\nPq!"]
    assert [block["document_start"] for block in blocks] == [0, 13]
    assert [block["sentence_starts"] for block in blocks] == [[0, 4], [0, 7]]
    assert [len(block["token_ids"]) for block in blocks] == [10, 10]
    assert [block["title"] for block in blocks] == ["t", "t"]
    assert [block["document_id"] for block in blocks] == ["0", "0"]


def test_a_block_may_be_exactly_full():
    _, blocks = packed(("t", "Abcde. Fghij. K."))
    assert [block["text"] for block in blocks] == ["Abcde. Fghij.", "K."]
    assert len(blocks[0]["token_ids"]) == 12


def test_splits_a_long_sentence_between_words():
    _, blocks = packed(("t", "Abcde fghij klmno pqrst. Uv."))
    assert [block["text"] for block in blocks] == ["Abcde fghij", "klmno pqrst.", "Uv."]
    assert [block["document_start"] for block in blocks] == [0, 12, 25]
    assert [block["sentence_starts"] for block in blocks] == [[0], [0], [0]]


def test_the_rest_of_a_long_sentence_shares_its_block():
    _, blocks = packed(("t", "Abcde fghij klm. Uv. Wx."))
    assert [block["text"] for block in blocks] == ["Abcde fghij", "klm. Uv. Wx."]
    assert blocks[1]["sentence_starts"] == [0, 4, 7]


def test_splits_a_word_longer_than_a_block():
    _, blocks = packed(("t", "ab " + "c" * 30 + " d."))
    assert [block["text"] for block in blocks] == ["ab", "c" * 12, "c" * 12, "c" * 6 + " d."]
    assert [len(block["token_ids"]) for block in blocks] == [2, 12, 12, 8]


def test_a_title_gets_a_quarter():
    assert title_limit(16) == 4
    _, blocks = packed(("abcdefgh", "Abcdefgh. Ij."))
    letters = TOKENIZER.encode(["abcd"])[0].ids.tolist()
    assert [block["title_ids"] for block in blocks] == [letters, letters]
    assert [block["title"] for block in blocks] == ["abcdefgh"] * 2
    assert [len(block["token_ids"]) for block in blocks] == [9, 3]


def test_counts_documents_without_wordpieces():
    result, blocks = packed(("a", ""), ("b", " \n\t"), ("", "x."), ("c", "\u200b"))
    assert (result.documents, result.empty) == (1, 3)
    assert [block["document_id"] for block in blocks] == ["2"]
    assert blocks[0]["title_ids"] == []


def test_no_documents_give_an_empty_batch():
    result, blocks = packed()
    assert (result.documents, result.empty, blocks) == (0, 0, [])


def test_a_sentence_that_begins_within_a_word_is_not_cut_off():
    # To the splitter U+0085 breaks a line; the tokenizer drops it and reads one word. `clean`
    # keeps such text out.
    text = "ab\x85cd. Ef."
    _, blocks = packed(("t", text))
    assert [block["sentence_starts"] for block in blocks] == [[0, 5]]
    assert blocks[0]["token_ids"] == TOKENIZER.encode([text])[0].ids.tolist()


def test_a_long_sentence_may_be_split_at_punctuation():
    _, blocks = packed(("t", "Abcdefgh,ijklmno"))
    assert [block["text"] for block in blocks] == ["Abcdefgh,", "ijklmno"]


def test_long_texts_go_through_the_tokenizer_in_parts(monkeypatch):
    text = " ".join(f"{a}{b} the {c}ing." for a, b, c in itertools.product("abcde", repeat=3))
    _, whole = packed(("t", text), max_wordpieces=32)
    monkeypatch.setattr(wordpiece, "_CHARACTERS_AT_ONCE", 50)
    _, segmented = packed(("t", text), max_wordpieces=32)
    assert segmented == whole


def test_right_to_left_text_keeps_its_characters():
    text = "שלום עולם. מה שלומך? مرحبا بالعالم. كيف حالك؟"
    _, blocks = packed(("t", text), max_wordpieces=16)
    assert " ".join(block["text"] for block in blocks) == text


def check_invariants(text: str, title: str, max_wordpieces: int) -> None:
    result, blocks = packed((title, text), max_wordpieces=max_wordpieces)
    (encoded,) = TOKENIZER.encode([text])
    (title_encoded,) = TOKENIZER.encode([title])
    title_ids = title_encoded.ids[: max_wordpieces // 4].tolist()
    room = max_wordpieces - 3 - len(title_ids)
    assert result.empty == (len(encoded.ids) == 0)
    # every wordpiece is in one block, in order
    ids = [token for block in blocks for token in block["token_ids"]]
    assert ids == encoded.ids.tolist()
    end = 0
    sentence_offsets = {start for start, _ in split_sentences(text)}
    for i, block in enumerate(blocks):
        start = block["document_start"]
        assert block["title_ids"] == title_ids
        assert 0 < len(block["token_ids"]) <= room
        assert text[start : start + len(block["text"])] == block["text"]
        assert not text[end:start].strip() or start < end
        end = start + len(block["text"])
        starts = block["sentence_starts"]
        assert starts[0] == 0
        assert np.all(np.diff(starts) > 0)
        assert starts[-1] < len(block["token_ids"])
        within_word = TOKENIZER.continues_word[block["token_ids"][0]] or (
            i + 1 < len(blocks) and TOKENIZER.continues_word[blocks[i + 1]["token_ids"][0]]
        )
        if not within_word:
            assert TOKENIZER.encode([block["text"]])[0].ids.tolist() == block["token_ids"]
        if i + 1 < len(blocks):
            # greedy: the first sentence of the next block would not have fitted
            following = [*blocks[i + 1]["sentence_starts"][1:], len(blocks[i + 1]["token_ids"])]
            is_whole_sentence = blocks[i + 1]["document_start"] in sentence_offsets
            if is_whole_sentence:
                assert len(block["token_ids"]) + following[0] > room


WORDS = st.sampled_from(
    [
        *"abcdefgh",
        "the",
        "going",
        "e.g.",
        "A.",
        "Mr.",
        "don't",
        "3.5",
        "中文",
        "中文。",
        "U.S.",
        "x" * 20,
    ]
)
PROSE = st.lists(st.tuples(WORDS, st.sampled_from([" ", ". ", "! ", "\n", "", "。", ", "]))).map(
    lambda parts: "".join(word + separator for word, separator in parts)
)


@settings(deadline=None, max_examples=150)
@given(PROSE, st.sampled_from(["", "t", "a long title here"]), st.integers(16, 40))
def test_invariants_on_prose(text, title, max_wordpieces):
    check_invariants(text, title, max_wordpieces)


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=300), st.integers(16, 40))
def test_invariants_on_any_text(text, max_wordpieces):
    check_invariants(clean(text), "t", max_wordpieces)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(PROSE, st.sampled_from(["", " ", "\u200b", "\u0300"])), max_size=6))
def test_documents_do_not_touch_each_other(texts):
    _, together = packed(*(("a title"[:i], text) for i, text in enumerate(texts)))
    alone = []
    for i, text in enumerate(texts):
        for block in packed(("a title"[:i], text))[1]:
            alone.append(block | {"document_id": str(i)})
    assert together == alone


def test_a_sentence_of_a_megabyte_is_split_not_dropped():
    text = "the " * 262_144
    _, blocks = packed(("t", text), max_wordpieces=288)
    assert len(blocks) == 924
    assert " ".join(block["text"] for block in blocks) == text.strip()
    assert max(len(block["token_ids"]) for block in blocks) <= 284


@pytest.mark.parametrize("text", ["가나다라마바사아자차카타파하 " * 4, "e\u0301" * 50])
def test_characters_that_decompose(text):
    check_invariants(text, "t", 16)
