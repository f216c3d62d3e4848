import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from orqa_jax.errors import OrqaError
from orqa_jax.text.wordpiece import WordPiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnopqrstuvwxyz")
VOCAB = [
    *SPECIAL,
    *LETTERS,
    *["##" + letter for letter in LETTERS],
    *list("0123456789.,!?-'\"[]()"),
    *["##" + digit for digit in "0123456789"],
    *["cafe", "##strom", "ang", "[sep", "sep", "日", "本", "ᄒ", "##ᅡ", "##ᆫ", "ß", "ا", "##ب"],
]
TOKENIZER = WordPiece.from_vocab(VOCAB)


def pieces(text: str, tokenizer: WordPiece = TOKENIZER) -> list[tuple[str, str]]:
    """(vocabulary entry, substring of the original text) of each wordpiece."""
    [encoded] = tokenizer.encode([text])
    return [
        (VOCAB[i], text[start:end])
        for i, start, end in zip(encoded.ids, encoded.starts, encoded.ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n", []),
        ("Café, Ab", [("cafe", "Café"), (",", ","), ("a", "A"), ("##b", "b")]),
        ("x Cafe\u0301!", [("x", "x"), ("cafe", "Cafe\u0301"), ("!", "!")]),
        ("q\u0302\u0323r", [("q", "q\u0302\u0323"), ("##r", "r")]),
        ("ÅNGSTRÖM", [("ang", "ÅNG"), ("##strom", "STRÖM")]),
        ("😀 a", [("[UNK]", "😀"), ("a", "a")]),
        ("日本a", [("日", "日"), ("本", "本"), ("a", "a")]),
        ("한", [("ᄒ", "한"), ("##ᅡ", "한"), ("##ᆫ", "한")]),
        ("a\x00 \x07b", [("a", "a"), ("b", "b")]),
        ("a\u200eb", [("a", "a\u200eb"[:1]), ("##b", "b")]),
        ("اب", [("ا", "ا"), ("##ب", "ب")]),
        ("a\ud800 b", [("a", "a"), ("b", "b")]),
        ("a [SEP]", [("a", "a"), ("[", "["), ("sep", "SEP"), ("]", "]")]),
        ("z" * 101, [("[UNK]", "z" * 101)]),
    ],
)
def test_pieces_spell_the_original_text(text: str, expected: list[tuple[str, str]]) -> None:
    assert pieces(text) == expected


def test_an_answer_that_is_partly_unknown_has_no_wordpieces() -> None:
    found = TOKENIZER.encode_answers([["Café, Ab", "😀"], [], ["a 😀 b", ""], ["日"]])
    words = [[[VOCAB[i] for i in ids] for ids in of_question] for of_question in found]
    assert words == [[["cafe", ",", "a", "##b"], []], [], [[], []], [["日"]]]
    assert all(ids.dtype == np.int32 for of_question in found for ids in of_question)
    assert TOKENIZER.encode_answers([]) == []


def test_cased_tokenizer_keeps_case_and_accents() -> None:
    cased = WordPiece.from_vocab([*VOCAB, "Paris", "é"], lowercase=False)
    [encoded] = cased.encode(["Paris é A"])
    assert encoded.ids.tolist() == [len(VOCAB), len(VOCAB) + 1, 1]
    assert encoded.ids.dtype == encoded.starts.dtype == encoded.ends.dtype == np.int32


@given(st.lists(st.text(max_size=60), max_size=4))
def test_offsets_are_ordered_and_ids_are_those_of_the_library(texts: list[str]) -> None:
    plain = Tokenizer.from_str(TOKENIZER.__reduce__()[1][0])
    plain.encode_special_tokens = True
    encoded = TOKENIZER.encode(texts)
    assert len(encoded) == len(texts)
    for text, e in zip(texts, encoded, strict=True):
        assert e.ids.tolist() == plain.encode(text, add_special_tokens=False).ids
        assert np.all(e.starts < e.ends)
        assert np.all(np.diff(e.starts) >= 0)
        assert np.all(np.diff(e.ends) >= 0)
        assert np.all(e.ends <= len(text))


@given(st.text(alphabet="aé e\u0301\u0302Ö,日", max_size=40))
def test_no_mark_is_lost_between_the_pieces_of_a_word(text: str) -> None:
    [e] = TOKENIZER.encode([text])
    covered = set()
    for start, end in zip(e.starts, e.ends, strict=True):
        covered.update(range(start, end))
    for i, character in enumerate(text):
        after_a_word = i > 0 and i - 1 in covered
        if character in "\u0301\u0302" and after_a_word:
            assert i in covered


def test_special_ids_and_continuations() -> None:
    assert (TOKENIZER.pad_id, TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.mask_id) == (0, 2, 3, 4)
    assert TOKENIZER.vocab_size == len(VOCAB)
    assert TOKENIZER.continues_word.tolist() == [entry.startswith("##") for entry in VOCAB]


def test_nothing_continues_a_word_where_there_are_no_spaces() -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["カナ", "##ダ", "##に", "##京", "##ing", "##은", "##กิน"]
    tokenizer = WordPiece.from_vocab(special + pieces)
    assert tokenizer.continues_word[5:].tolist() == [False] * 4 + [True, True, False]


def test_a_learned_vocabulary(tmp_path: Path) -> None:
    texts = ["The tall tower stood taller than the talltale towers.", "東京タワーは赤い。"] * 3
    tokenizer = WordPiece.learn(texts, 1000, lowercase=False)
    spelled = [
        [text[a:b] for a, b in zip(e.starts, e.ends, strict=True)]
        for text, e in zip(texts[:2], tokenizer.encode(texts[:2]), strict=True)
    ]
    assert "".join(spelled[0]) == texts[0].replace(" ", "")
    assert spelled[1] == list(texts[1])
    (answer,), (around,) = (
        [e.ids.tolist() for e in tokenizer.encode([t])] for t in ("タワー", texts[1])
    )
    assert around[2:5] == answer
    assert tokenizer.vocab_size < 1000
    tokenizer.save(tmp_path)
    assert WordPiece.load(tmp_path).fingerprint == tokenizer.fingerprint
    for wrong, size in (([""], 1000), (texts, 10)):
        with pytest.raises(OrqaError, match="vocabulary"):
            WordPiece.learn(wrong, size)


def test_save_load_and_pickle_keep_everything(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "deep" / "folder")
    assert [path.name for path in (tmp_path / "deep" / "folder").iterdir()] == ["tokenizer.json"]
    for copy in (
        WordPiece.load(tmp_path / "deep" / "folder"),
        pickle.loads(pickle.dumps(TOKENIZER)),
    ):
        assert copy.fingerprint == TOKENIZER.fingerprint
        assert copy.encode(["Café [SEP]"])[0].ids.tolist() == [
            VOCAB.index(piece) for piece in ("cafe", "[", "sep", "]")
        ]


def test_vocab_txt_equals_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n", "utf-8")
    assert WordPiece.load(tmp_path).fingerprint == TOKENIZER.fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased = WordPiece.load(tmp_path)
    assert cased.fingerprint == WordPiece.from_vocab(VOCAB, lowercase=False).fingerprint
    assert cased.fingerprint != TOKENIZER.fingerprint
    assert cased.encode(["A"])[0].ids.tolist() == [1]


def test_fingerprint_sees_the_vocabulary() -> None:
    swapped = [*VOCAB[:5], VOCAB[6], VOCAB[5], *VOCAB[7:]]
    assert WordPiece.from_vocab(swapped).fingerprint != TOKENIZER.fingerprint


def test_padding_and_truncation_of_a_file_are_switched_off(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(TOKENIZER.__reduce__()[1][0])
    tokenizer.enable_truncation(max_length=3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = WordPiece.load(tmp_path)
    assert [len(e.ids) for e in loaded.encode(["a", "a b c d e f"])] == [1, 6]
    assert loaded.fingerprint == TOKENIZER.fingerprint


def test_a_folder_without_a_usable_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(OrqaError, match=r"no tokenizer in .*needs a tokenizer\.json or a vocab"):
        WordPiece.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("only\nwords\n")
    with pytest.raises(OrqaError, match=rf"{tmp_path}.*lacks \[PAD\]"):
        WordPiece.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Wo')
    with pytest.raises(OrqaError, match=f"{tmp_path} cannot be used"):
        WordPiece.load(tmp_path)
    bpe = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(bpe))
    with pytest.raises(OrqaError, match="BPE, not WordPiece"):
        WordPiece.load(tmp_path)
