"""Our scores against the published scorers' definitions, on strings made to break them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import official

from orqa_jax.eval.scores import exact_match, regex_match, token_f1
from orqa_jax.text.match import has_answer, match_tokens
from orqa_jax.text.normalize import normalize_answer

ADVERSARIAL = [
    "",
    " \t\n",
    "?!",
    "-",
    "the",
    "The The",
    "A",
    "an a the",
    "the-cat",
    "theatre",
    "The  Hague ",
    "U.S.A.",
    "U. S. A.",
    "well-known",
    "rock 'n' roll",
    "Rock ’n’ Roll",
    "Malmö",
    "Malmo\u0308",
    "malmo",
    "ÅNGSTRÖM",
    "Å",
    "İstanbul",
    "STRASSE",
    "straße",
    "ﬁne",
    "fine",
    "Ⅷ",
    "VIII",
    "１９８４",
    "1984",
    "1914–18",
    "1914-18",
    "3,000",
    "3000",
    "$5",
    "東京",
    "東京都",
    "。",
    "नेपाल",
    "a\u200bb",
    "a b",
    "a_b",
    "café",
    "cafe\u0301",
    "ΟΔΟΣ",
    "οδος",
    "red red blue",
    "red blue blue",
]


@pytest.mark.parametrize("prediction", ADVERSARIAL)
def test_scores_on_adversarial_strings(prediction: str) -> None:
    for answer in ADVERSARIAL:
        for answers in ([answer], [answer, answer], ["zebra", answer]):
            # ORQA scored NQ-open with NFD; SQuAD's and DrQA's own differ where NFD matters only.
            assert exact_match(prediction, answers) == official.nq_open_exact(prediction, answers)
            decomposed = official.nfd(prediction), [official.nfd(a) for a in answers]
            assert exact_match(prediction, answers) == official.squad_exact(*decomposed)
            expected = official.squad_f1(*decomposed)
            assert token_f1(prediction, answers) == pytest.approx(expected, abs=1e-12)


def test_where_squad_itself_differs() -> None:
    differ = {
        (p, a)
        for p in ADVERSARIAL
        for a in ADVERSARIAL
        if exact_match(p, [a]) != official.squad_exact(p, [a])
    }
    composed = {("Malmö", "Malmo\u0308"), ("café", "cafe\u0301")}
    assert differ == composed | {(a, p) for p, a in composed}


TEXT = st.text(st.sampled_from("ab the-.,'éA\u0301 \u2013ß１"), max_size=12)


@given(TEXT, st.lists(TEXT, max_size=3))
def test_scores_on_random_strings(prediction: str, answers: list[str]) -> None:
    assert exact_match(prediction, answers) == official.nq_open_exact(prediction, answers)
    decomposed = official.nfd(prediction), [official.nfd(a) for a in answers]
    assert token_f1(prediction, answers) == pytest.approx(official.squad_f1(*decomposed), abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "patterns", "expected"),
    [
        ("Paris", ["paris"], True),
        ("in Paris", ["paris"], False),
        ("Parisian fashion", ["Paris"], True),
        ("Sept", ["Sept?(ember)?|Feb(ruary)?"], True),
        ("Sep", ["Sept?(ember)?|Feb(ruary)?"], True),
        ("5,778 K", [r"(5,?778|6,?[05]00)\s*K"], True),
        ("anything", [""], True),
        ("x", ["(", "["], False),
        ("x", ["(", "x"], True),
        ("", ["x*"], True),
        ("line\nsecond", ["^second"], False),
        ("ÉCOLE", ["école"], True),
        ("x", [], False),
    ],
)
def test_patterns_as_drqa_matches_them(
    prediction: str, patterns: list[str], expected: bool
) -> None:
    assert official.drqa_regex(prediction, patterns) is expected
    assert regex_match(prediction, patterns) is expected


@pytest.mark.parametrize("text", ADVERSARIAL)
def test_tokens_are_those_of_dpr(text: str) -> None:
    tokens = [token.replace("ς", "σ") for token in official.dpr_tokens(text)]
    # Here, unlike there, Chinese characters are tokens of their own.
    tokens = [part for token in tokens for part in (token if "東" in token else [token])]
    assert match_tokens(text) == tokens
    for answer in ADVERSARIAL:
        if "東" in text and "東" in answer:
            continue
        # DPR finds an answer of nothing but punctuation, or "the", in many texts; we find none.
        expected = bool(normalize_answer(answer)) and official.dpr_has_answer(
            f"So {text}, it said", [answer]
        )
        assert has_answer(f"So {text}, it said", [answer]) == expected
