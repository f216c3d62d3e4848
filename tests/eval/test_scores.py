import json
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from orqa_jax.eval.scores import exact_match, regex_fullmatch, regex_match, token_f1
from orqa_jax.text.normalize import normalize_answer_modern

DATA = Path(os.environ.get("ORQA_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.mark.parametrize(
    ("prediction", "answers", "equal", "f1"),
    [
        ("The Nile", ["nile"], True, 1.0),
        ("Nile", ["Amazon", "the Nile."], True, 1.0),
        ("the river Nile", ["Nile"], False, 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("red red blue", ["red blue blue"], False, 2 / 3),
        ("red green", ["blue", "green tea leaf"], False, 2 * 1 / (2 + 3)),
        ("Malmö", ["Malmo\u0308"], True, 1.0),
        ("", ["Nile"], False, 0.0),
        ("Nile", [], False, 0.0),
    ],
)
def test_by_hand(prediction: str, answers: list[str], equal: bool, f1: float) -> None:
    assert exact_match(prediction, answers) is equal
    assert token_f1(prediction, answers) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("system", "exact", "f1"),
    [
        ("bert_ensemble", 86.2062, 92.1956),
        ("match_lstm", 67.6348, 76.7556),
        ("logistic_regression", 40.1419, 50.9815),
    ],
)
def test_agrees_with_the_official_squad_scorer(system: str, exact: float, f1: float) -> None:
    files = sorted((DATA / "squad_predictions").glob(f"*{system}*"))
    if not files:
        pytest.skip(f"no SQuAD predictions under {DATA}; set ORQA_DATA")
    opener = lzma.open if files[0].suffix == ".xz" else open
    with opener(files[0], "rt") as file:
        predictions = json.load(file)
    with lzma.open(DATA / "squad_v1.1_dev.json.xz", "rt") as file:
        articles = json.load(file)["data"]
    questions = [q for a in articles for p in a["paragraphs"] for q in p["qas"]]
    scores = []
    for question in questions:
        answers = [answer["text"] for answer in question["answers"]]
        # The official scorer gives a missing prediction 0.
        if prediction := predictions.get(question["id"]):
            scores.append((exact_match(prediction, answers), token_f1(prediction, answers)))
        else:
            scores.append((False, 0.0))
    assert np.mean(scores, axis=0) * 100 == pytest.approx([exact, f1], abs=5.1e-5)


@pytest.mark.parametrize(
    ("prediction", "patterns", "matches", "fully"),
    [
        ("september 9", ["Sept(ember)?"], True, False),
        ("in September", ["Sept(ember)?"], False, False),
        ("September", ["x", "Sept(ember)?"], True, True),
        ("Parisian", ["Paris"], True, False),
        ("(", ["("], False, False),
        ("x", [], False, False),
    ],
)
def test_regular_expressions(prediction, patterns, matches, fully) -> None:
    assert regex_match(prediction, patterns) is matches
    assert regex_fullmatch(prediction, patterns) is fully


def test_modern_normalisation_mends_what_the_standard_one_gets_wrong() -> None:
    cases = [
        ("1914–18", "1914-18", False, True),
        ("the", "a", True, False),
        ("?", "!", True, False),
    ]
    for prediction, answer, faithful, modern in cases:
        assert exact_match(prediction, [answer]) is faithful
        assert exact_match(prediction, [answer], normalize_answer_modern) is modern
    assert token_f1("“Ida” Crake", ["Ida"], normalize_answer_modern) == pytest.approx(2 / 3)
    assert token_f1("“Ida” Crake", ["Ida"]) == 0.0
