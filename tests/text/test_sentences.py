import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orqa_jax.text.sentences import split_sentences


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


# Each list is joined with single spaces and has to come apart again at the same places.
PROSE = {
    "titles": ["Dr. Ibsen met Mrs. Falk in St. Malo.", "Lt. Gen. Orr and Prof. Li came later."],
    "initials": [
        "J. R. R. Tolkien taught there.",
        "So did C. S. Lewis, G.K. Chesterton and J.-P. Roy.",
    ],
    "countries": [
        "The U.S. Army built it.",
        "It left the U.S.",
        "Nobody knew.",
        "The U.N. Council met.",
    ],
    "capital": [
        "She moved to Washington, D.C. in 1990.",
        "He stayed in Washington, D.C.",
        "It grew.",
    ],
    "decimals": ["Pi is near 3.14 and e near 2.718.", "The lake covers 1,234.5 km2."],
    "latin": ["Use a fruit, e.g. Pinova apples, i.e. a sweet one.", "Compare cf. Smith.", "Go on."],
    "numbers": [
        "See No. 5, pp. 12-14, fig. 3.",
        "Symphony no. 9 is long.",
        "He said no.",
        "She left.",
    ],
    "answers": ["Is that all?", "No.", "It is not."],
    "quoted exclamation": ['"Go!" she said.', "“Why me?” he asked, and left."],
    "quoted end": ['He asked, "Why?"', 'She said, "Because."', "“It is over.”", "Nobody spoke."],
    "ellipses": ["Well... perhaps not.", "She left…", "Then it rained.", "If only . . . but no."],
    "approximately": ["It lies approx. 5 km away.", "Born c. 1450, he died in 1506.", "War came."],
    "companies": [
        "Foo Inc. President Ann Orr quit.",
        "It was sold to Bar Corp. in 1990.",
        "It grew.",
    ],
    "years": ["He lived from 44 B.C. to A.D. 12.", "Rome fell in 476.", "1,000 people fled."],
    "clock": ["At 5 p.m. the bell rang.", "It was closed by 6 a.m.", "The crowd left."],
    "degrees": ["She holds a Ph.D. from M.I.T. in physics.", "He does not."],
    "months": [
        "On Jan. 5 it snowed.",
        "By Dec. 31 the lake froze.",
        "It thawed in May.",
        "Ice is rare.",
    ],
    "dates": ["Bach (b. 21 March 1685, d. 1750) had 20 children.", "Some were musicians."],
    "names with marks": [
        "Yahoo! was founded in 1994.",
        "Mamma Mia! is a musical.",
        "It sold well.",
    ],
    "lower-case brands": ["Sales of phones fell.", "iPhone sales rose.", "eBay closed."],
    "regnal numbers": ["He served Louis XIV.", "He was poor.", "The king died."],
    "asides": ["(This is an aside.)", "This is not (as you see).", "[Neither is this.]", "Right."],
    "footnotes": ["It has three moons.[1]", "Two are ice.[2][13]", "One is rock."],
    "lists in a line": ["1. Wash the rice.", "2. Boil it.", "3. Eat."],
    "money": ["It costs $5.", "$6 would be too much.", "£7 is worse."],
    "units": ["The wall is 5 m.", "It is old.", "The rod weighs 10 g.", "Gold weighs more."],
    "addresses": ["See www.example.org/a.html for it.", "Write to a.b@example.org."],
    "letters": ["It has vitamin C.", "The peel has none.", "The best grade is A.", "It is rare."],
    "etc": ["Pears, plums, etc. are grown here.", "They sell apples, etc.", "Others are rare."],
    "German": [
        "Das ist z.B. gut.",
        "Am 3. Oktober feiern wir bzw. ruhen wir.",
        "„Wirklich?“",
        "Ja!",
    ],
    "Spanish": ["La Dra. García llegó a las 5.", "¿Cómo está?", "¡Muy bien!", "Y así terminó."],
    "French": ["M. Dupont est arrivé.", "« Bonjour ! » dit-il.", "Il dit : « Adieu. »", "Il part."],
    "Russian": [
        "А. С. Пушкин родился в 1799 г. в г. Москве.",
        "Умер он в 1837 г.",
        "Ему было 37 лет.",
    ],
    "Greek": ["Η Αθήνα είναι πόλη.", "Ο Πειραιάς είναι λιμάνι."],
    "Arabic": ["ما اسمك؟", "اسمي ليلى.", "أنا من دمشق."],
    "Hebrew": ["העיר גדולה מאוד.", "יש בה נמל."],
    "Urdu": ["یہ ایک شہر ہے۔", "یہ بڑا ہے۔"],
    "Hindi": ["यह एक नगर है।", "इसमें नदी बहती है॥", "क्या यह सच है?", "हाँ।"],
    "Armenian": ["Սա քաղաք է։", "Այն մեծ է։"],
}


@pytest.mark.parametrize("expected", PROSE.values(), ids=PROSE.keys())
def test_prose(expected: list[str]) -> None:
    assert sentences(" ".join(expected)) == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["東京は日本の首都です。", "人口は多い！", "本当ですか？", "はい。"],
        ["「行こう。」と彼は言った。", "雨が降った。"],
        ["北京是首都。", "它很大！", "“真的吗？”", "是的。"],
        ["यह नगर है।", "वह गाँव है।"],
    ],
)
def test_scripts_without_spaces_between_sentences(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected


def test_line_breaks_end_sentences() -> None:
    text = "  Rivers\n\n- the Po\n- the Adda\r\n* lakes, e.g.\n  Como \u2028 Then nothing.\n"
    assert sentences(text) == [
        *["Rivers", "- the Po", "- the Adda", "* lakes, e.g.", "Como", "Then nothing."]
    ]


def test_spans_index_the_original_text() -> None:
    assert split_sentences(" A cat.\x00 Two!\u00a0 ") == [(1, 13)]
    assert split_sentences(" A cat. Two!\u00a0 ") == [(1, 7), (8, 12)]
    assert split_sentences("") == split_sentences(" \n\t\u2003") == []


ALPHABET = st.sampled_from(
    [*"aAéİ1 \n.!?…\"'”»)[]。。と।\u00a0\x00\u2028\ud800-,$אن", "Dr", "U.S."]
)


@given(st.one_of(st.text(), st.lists(ALPHABET, max_size=40).map("".join)))
@example("\n.\n")
@example('. "')
def test_spans_tile_all_that_is_not_white_space(text: str) -> None:
    spans = split_sentences(text)
    assert spans == split_sentences(text)
    position = 0
    for start, end in spans:
        assert start < end
        assert text[position:start].strip() == ""
        assert text[start:end] == text[start:end].strip()
        position = end
    assert text[position:].strip() == ""


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "ab ",
        ".",
        ". ",
        "A. ",
        "U.S. ",
        "!?",
        '!" ',
        ".[1]",
        ".[12",
        "x)",
        " . »",
        "\n",
        " ",
        "。",
    ],
)
def test_time_is_linear(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    started = time.process_time()
    split_sentences(text)
    # Half a second in the worst of these; a quadratic rule would take minutes.
    assert time.process_time() - started < 10
