import time
import unicodedata

import numpy as np
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from orqa_jax.text import match
from orqa_jax.text.match import (
    all_matches,
    find_answer,
    first_match,
    has_answer,
    texts_with_answer,
)
from orqa_jax.text.normalize import normalize_answer

UNSPACED = ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar")


def oracle_tokens(text: str) -> list[str]:
    """Character by character: runs of letters, numbers and marks; any other visible character.

    A letter of a script without spaces is a token with its marks.
    """
    tokens: list[str] = []
    inside_word = after_unspaced = False
    for character in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(character)[0]
        scripts = (regex.match(rf"\p{{Script={script}}}", character) for script in UNSPACED)
        unspaced = kind not in "ZC" and (character == "ー" or any(scripts))
        word = kind in "LNM" and not unspaced
        if (word and inside_word) or (kind == "M" and after_unspaced):
            tokens[-1] += character
            continue
        if kind not in "ZC":
            tokens.append(character)
        inside_word, after_unspaced = word, unspaced
    return [token.lower().replace("ς", "σ") for token in tokens]


def oracle_has_answer(text: str, answers: list[str]) -> bool:
    tokens = oracle_tokens(text)
    for answer in answers:
        row = oracle_tokens(answer)
        if not row or not normalize_answer(answer):
            continue
        if any(tokens[i : i + len(row)] == row for i in range(len(tokens) - len(row) + 1)):
            return True
    return False


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("He was born in Rome.", "rome", (15, 19)),
        ("Jerome left.", "Rome", None),
        ("Romeo left Rome", "Rome", (11, 15)),
        ("J. K. Rowling", "J.K. Rowling", (0, 13)),
        ("It fell by 1,000 m.", "1,000", (11, 16)),
        ("It fell by 11,000 m.", "1,000", None),
        ("Malmo\u0308 is south.", "Malmö", (0, 6)),
        ("In Malmö, yes", "malmo\u0308", (3, 8)),
        ("In Malmö, yes", "malmo", None),
        ("ÅÄÖ then İzmir!", "izmir", None),
        ("首都は東京都です", "東京", (3, 5)),
        ("カナダへ行った", "カナタ", None),
        ("ガス", "カ", None),
        ("ラーメンを3杯食べた", "3", (5, 6)),
        ("ไปกรุงเทพมหานคร", "กรุงเทพ", (2, 9)),
        ("서울에서 왔다", "서울", None),
        ("iPhoneを買う", "iphone", (0, 6)),
        ("ÅÄÖ then İzmir!", "i\u0307zmir", (9, 14)),
        ("rock-and-roll", "rock and roll", None),
        ("rock - and-roll", "rock-and-roll", (0, 15)),
        ("New\n  York", "new york", (0, 10)),
        ("NewYork", "new york", None),
        ("The end", "the", None),
        ("What?", "?", None),
        ("x", "", None),
        ("", "x", None),
        ("C++ and C", "C++", (0, 3)),
        ("ΟΔΟΣ.", "οδός", None),
        ("ΟΔΟΣ.Α", "Οδος", (0, 4)),
        ("a ≠ b", "=", None),
    ],
)
def test_token_mode(text: str, answer: str, expected: tuple[int, int] | None) -> None:
    assert find_answer(text, [answer]) == expected
    assert has_answer(text, [answer]) == (expected is not None)


def test_the_first_and_then_the_longest_answer_is_found() -> None:
    assert find_answer("in New York City", ["City", "New York", "New York City"]) == (3, 16)
    assert find_answer("in New York City", []) is None


def test_substring_mode_is_raw() -> None:
    assert has_answer("Jerome", ["rome"], "substring")
    assert not has_answer("Jerome", ["Rome"], "substring")
    assert not has_answer("Jerome", ["", " "], "substring")
    assert not has_answer("Malmö", ["Malmo\u0308"], "substring")
    # A wart of 2019: an answer that says nothing is found as well.
    assert has_answer("The end", ["The"], "substring")
    with pytest.raises(ValueError, match="mode is 'fuzzy'"):
        has_answer("Jerome", ["rome"], "fuzzy")  # type: ignore[arg-type]


SNIPPETS = st.lists(
    st.sampled_from([*"aAbé.,-'’ \n\u0301\u0323ÖİΣσς≠1日한\x00\u200d", "ab", "the "]), max_size=12
).map("".join)


@given(SNIPPETS, st.lists(SNIPPETS, max_size=3))
@example("Σ.a", ["σ"])
def test_agrees_with_the_oracle(text: str, answers: list[str]) -> None:
    assert has_answer(text, answers) == oracle_has_answer(text, answers)


@given(SNIPPETS, SNIPPETS, SNIPPETS)
def test_found_span_spells_the_answer(before: str, answer: str, after: str) -> None:
    text = f"{before} {answer} {after}"
    found = find_answer(text, [answer])
    if oracle_has_answer(text, [answer]) and "≠" not in text:
        assert found is not None
        assert oracle_tokens(text[found[0] : found[1]]) == oracle_tokens(answer)
        assert text[found[0] : found[1]].strip() == text[found[0] : found[1]]
    elif found is None:
        assert not oracle_has_answer(text, [answer])


def test_many_texts_at_once_are_fast() -> None:
    texts = [f"Block {i} tells of the river Adda, which is long. " * 12 for i in range(100)]
    started = time.process_time()
    for question in range(240):
        found = texts_with_answer(texts, [f"block {question}", "nowhere"])
        assert np.flatnonzero(found).tolist() == ([question] if question < 100 else [])
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("pattern", "text", "anywhere", "start", "whole"),
    [
        ("sept?(ember)?", "In SEPTEMBER it was", (3, 12), None, None),
        ("sept?(ember)?", "September", (0, 9), (0, 9), (0, 9)),
        ("sept?(ember)?", "September 9", (0, 9), (0, 9), None),
        ("New\\s?York|Keth", "newyork", (0, 7), (0, 7), (0, 7)),
        ("a|ab", "ab", (0, 1), (0, 1), (0, 2)),
        ("^keth$", "in\nKeth", (3, 7), None, None),
        ("ÖRE", "öre", (0, 3), (0, 3), (0, 3)),
        ("(", "(", None, None, None),
        ("a{99999999999}", "a", None, None, None),
        ("x*", "ax", (0, 0), (0, 0), None),
    ],
)
def test_regular_expressions(pattern, text, anywhere, start, whole) -> None:
    assert first_match(pattern, text) == anywhere
    assert first_match(pattern, text, "start") == start
    assert first_match(pattern, text, "whole") == whole
    assert has_answer(text, ["nothing", pattern], "regex") is (anywhere is not None)


def test_all_matches_leaves_out_empty_and_broken_ones() -> None:
    assert list(all_matches("b*", "abba b")) == [(1, 3), (5, 6)]
    assert list(all_matches("[", "[")) == []
    assert list(all_matches("(" * 5000 + ")" * 5000, "a")) == []


HOSTILE = "(?:a|aa)+$"


def test_a_hostile_pattern_costs_its_limit_once_a_call(monkeypatch, caplog) -> None:
    monkeypatch.setattr(match, "REGEX_SECONDS", 0.2)
    hard = "a" * 60 + "b"
    started = time.monotonic()
    found = texts_with_answer([hard] * 50 + ["keth"], [HOSTILE, "keth"], "regex")
    assert found.tolist() == [False] * 50 + [True]
    assert first_match(HOSTILE, hard, "start") is None
    assert list(all_matches(HOSTILE, hard)) == []
    assert time.monotonic() - started < 10
    assert sum("takes longer than 0.2 s" in message for message in caplog.messages) == 3
