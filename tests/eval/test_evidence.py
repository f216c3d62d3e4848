import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.eval.evidence import BlockTexts, Ranks, answer_ranks, best_span, token_line
from orqa_jax.eval.scores import exact_match, token_f1
from orqa_jax.text.match import has_answer
from orqa_jax.text.normalize import normalize_answer

BLOCKS = [
    "Jerome was a monk.",
    "Rome lies on the Tiber.",
    "He moved to ROME early.",
    "The well-known J. K. Marrow wrote it in 1914–18.",
    "J.K. Marrow, again.",
]


def texts(blocks=BLOCKS):
    return BlockTexts(blocks.__getitem__)


@pytest.mark.parametrize(
    ("retrieved", "answers", "token", "substring"),
    [
        ([0, 2, 1], ["Rome"], 2, 3),
        ([0, 2, 1], ["rome"], 2, 1),
        ([3, 4], ["J.K. Marrow"], 1, 2),
        ([0, 1], ["the"], None, 2),
        ([3], ["1914-18"], None, None),
        ([], ["Rome"], None, None),
        ([0, 1, 2], ["Tiber", "monk"], 1, 1),
    ],
)
def test_ranks_by_hand(retrieved, answers, token, substring):
    assert answer_ranks(retrieved, answers, texts()) == Ranks(token, substring, None)


def test_ranks_of_gold_passages_and_patterns():
    assert answer_ranks([4, 0, 3], ["x"], texts(), gold={3, 0}).gold == 2
    assert answer_ranks([4, 0, 3], ["x"], texts(), gold=set()).gold is None
    found = answer_ranks([0, 1, 3], [r"19\d\d", "tiber"], texts(), regex=True)
    assert found == Ranks(2, None, None)
    assert answer_ranks([0, 1, 3], ["(", r"19\d\d"], texts(), regex=True).token == 3


WORDS = st.sampled_from(["a", "the", "red", "Red", "co-op", "co", "op", "x.", "é", "e\u0301", "7"])
SENTENCE = st.lists(WORDS, max_size=9).map(" ".join)


@given(SENTENCE, st.lists(WORDS | SENTENCE, max_size=3))
def test_tokens_in_a_line_are_a_match(text, answers):
    line = texts([text]).tokens(0)
    real = [answer for answer in answers if normalize_answer(answer)]
    assert any(token_line(answer) in line for answer in real) == has_answer(text, answers)


def spans(text):
    """Every run of characters that starts and ends where a word or a mark does."""
    pieces = [m.span() for m in re.finditer(r"\w+|[^\w\s]", text)]
    return {text[a:d] for i, (a, _) in enumerate(pieces) for _, d in pieces[i:]}


@given(st.lists(SENTENCE, min_size=1, max_size=3), st.lists(WORDS | SENTENCE, max_size=2))
def test_best_span_is_the_best_of_all_spans(blocks, answers):
    exact, f1 = best_span(range(len(blocks)), answers, texts(blocks))
    real = [answer for answer in answers if normalize_answer(answer)]
    assert exact == any(exact_match(span, real) for block in blocks for span in spans(block))
    runs = [
        " ".join(w[a : b + 1])
        for w in map(str.split, blocks)
        for b in range(len(w))
        for a in range(b + 1)
    ]
    best = max((token_f1(run, real) for run in runs), default=0.0)
    assert f1 == pytest.approx(1.0 if exact else best)


@pytest.mark.parametrize(
    ("answers", "exact", "f1"),
    [
        (["well"], True, 1.0),
        (["wellknown"], True, 1.0),
        (["J. K. Marrow"], True, 1.0),
        # Equal tokens, but "jk marrow" is not "j k marrow".
        (["J.K. Marrow"], False, 2 / 3),
        (["Marrow wrote a book"], False, 4 / 5),
        (["the 1914"], True, 1.0),
        (["a known J. K. Marrow"], True, 1.0),
        (["1914 the"], True, 1.0),
        (["?"], False, 0.0),
        (["Tiber"], False, 0.0),
    ],
)
def test_best_span_by_hand(answers, exact, f1):
    found = best_span([3], answers, texts())
    assert found == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("text", "answer", "exact"),
    [
        ("co-op co-op", "a co-op co", True),
        ("co-op the co-op", "co-op co", True),
        ("well-co-op", "coop", True),
        ("x-y", "x y", False),
        ("x-y x-z y", "z y", True),
        ("x-a y", "x y", False),
        ("cafe\u0301-bar", "caf", False),
        ("caf\u00e9-bar", "cafe\u0301", True),
        ("ab-c", "b", False),
    ],
)
def test_a_span_may_begin_and_end_within_a_word(text, answer, exact):
    assert best_span([0], [answer], texts([text]))[0] is exact


def test_best_span_of_patterns_and_of_no_blocks():
    assert best_span([3], [r"19\d\d"], texts(), regex=True) == (True, 1.0)
    assert best_span([0], [r"19\d\d"], texts(), regex=True) == (False, 0.0)
    assert best_span([], ["Rome"], texts()) == (False, 0.0)
