import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.text.normalize import normalize_answer, normalize_answer_modern


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Nile", "nile"),
        ("  an  Apple,\n a\tPear ", "apple pear"),
        ("Theodore Anand", "theodore anand"),
        ("U.S.A.", "usa"),
        ("rock 'n' roll", "rock n roll"),
        ("well-known", "wellknown"),
        ("$1,000.50", "100050"),
        ("the", ""),
        ("?!", ""),
        ("", ""),
        ("“Curly”", "“curly”"),
        ("Malmö", "malmo\u0308"),
        ("Malmo\u0308", "malmo\u0308"),
        ("a_the_b", "atheb"),
        ("東京。", "東京。"),
    ],
)
def test_normalize_answer(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@given(st.text())
def test_composition_of_accents_does_not_matter(text: str) -> None:
    normalized = normalize_answer(text)
    assert normalized == normalize_answer(unicodedata.normalize("NFC", text))
    assert normalized == " ".join(normalized.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Nile", "nile"),
        ("1914–18", "191418"),
        ("“Curly”", "curly"),
        ("東京。", "東京"),
        ("the", "the"),
        ("The  A", "the a"),
        ("?", "?"),
        (" ?! ", "?!"),
        ("–", "–"),
        ("$5", "5"),
        ("€5", "€5"),
        ("", ""),
        ("Malmö", "malmo\u0308"),
    ],
)
def test_normalize_answer_modern(text: str, expected: str) -> None:
    assert normalize_answer_modern(text) == expected


@given(st.text())
def test_modern_normalisation_leaves_something_of_anything(text: str) -> None:
    normalized = normalize_answer_modern(text)
    assert bool(normalized) == bool(text.strip())
    assert normalized == normalize_answer_modern(unicodedata.normalize("NFC", text))
    if text.isascii() and normalize_answer(text):
        assert normalized == normalize_answer(text)
