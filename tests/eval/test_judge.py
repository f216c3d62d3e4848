import dataclasses

import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.eval.judge import (
    Evidence,
    answer_block,
    confidence_of,
    judge,
    read_details,
    write_details,
)
from orqa_jax.eval.questions import answer_counts
from orqa_jax.qa.examples import Example

BLOCKS = [
    ("Harrow Mill", "The mill was built in 1807 by Oda Lind."),
    ("Boats", "Oda Lind also sailed."),
    ("Salt", "Salt was sold in Dorn."),
    ("Mills", "Two other mills burned."),
]
QUESTION = Example("q", "Who built the mill at Harrow?", ("Oda Lind",))


def outcome(answer, retrieved, *, block=None, reference=QUESTION, **changes):
    prediction = {"id": "q", "answer": answer, "retrieved": retrieved}
    if block is not None:
        prediction["candidates"] = [{"answer": answer, "block": block}]
    evidence = Evidence(lambda i: BLOCKS[i][1], lambda i: BLOCKS[i][0], beam=2, **changes)
    return judge([prediction], [reference], evidence)[0]


@pytest.mark.parametrize(
    ("answer", "retrieved", "block", "changes", "expected"),
    [
        ("Oda Lind", [0, 1], 0, {}, "right"),
        # A block about boats shares no word with the question; that block 0 was there too is luck.
        ("Oda Lind", [1, 0], 1, {}, "spurious hit"),
        ("Oda Lind", [1, 0], None, {}, "right"),
        # The gold passage decides where it is known, the words where it is not.
        ("Oda Lind", [1, 0], 1, {"gold": {"q": {1}}}, "right"),
        ("Oda Lind", [0, 1], 0, {"gold": {"q": {1}}}, "spurious hit"),
        ("Oda Lind", [0, 1], 0, {"gold": {"other": {1}}}, "right"),
        ("Salt", [2, 1], 2, {}, "lost by the reader"),
        ("Salt", [2, 3, 1], 2, {}, "not in the beam"),
        ("Salt", [2, 3], 2, {}, "not in the beam"),
        ("Salt", [2, 3], 2, {"in_corpus": {"q": True}}, "not in the beam"),
        ("Salt", [2, 3], 2, {"in_corpus": {"q": False}}, "not in the corpus"),
        # What was retrieved is in the corpus, whatever another way of matching says.
        ("Salt", [2, 3, 1], 2, {"in_corpus": {"q": False}}, "not in the beam"),
        ("", [], None, {}, "not in the beam"),
    ],
)
def test_outcomes_by_hand(answer, retrieved, block, changes, expected):
    assert outcome(answer, retrieved, block=block, **changes).outcome == expected


def test_all_that_is_found_out():
    found = outcome("Oda", [2, 3, 1], block=2, gold={"q": {1, 0}})
    assert found.f1 == pytest.approx(2 / 3)
    assert (found.exact_match, found.oracle_exact, found.oracle_f1) == (False, False, 0.0)
    assert (found.rank_token, found.rank_substring, found.rank_gold) == (3, 3, 3)
    assert found.retrieved == 3
    assert found.kinds == {
        "question word": "who",
        "answer type": "person",
        "question length": "6-8 words",
    }


def test_patterns():
    reference = Example("q", "Who built it?", (r"O\w+ Lind",), match="regex")
    found = outcome("oda lind the elder", [2, 0], block=0, reference=reference)
    assert (found.exact_match, found.f1, found.rank_token, found.rank_substring) == (
        True,
        1.0,
        2,
        None,
    )
    assert (found.oracle_exact, found.oracle_f1) == (True, 1.0)
    assert outcome("Lind", [0], reference=reference).outcome == "lost by the reader"


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "modern"),
    [
        ("1914–18", "1914-18", False, True),
        ("A", "The", True, False),
        ("the mill", "Mill", True, True),
        ("mills", "Mill", False, False),
    ],
)
def test_both_matches(answer, reference, exact, modern):
    found = judge([{"id": "q", "answer": answer}], [Example("q", "?", (reference,))])[0]
    assert (found.exact_match, found.modern_match) == (exact, modern)


def test_a_pattern_has_to_match_the_whole_answer_for_the_modern_match():
    reference = Example("q", "Where?", ("paris",), match="regex")
    for answer, modern in (("Paris", True), ("Parisian fashion", False)):
        found = judge([{"id": "q", "answer": answer}], [reference])[0]
        assert (found.exact_match, found.modern_match) == (True, modern)


def test_without_blocks():
    found = judge([{"id": "q", "answer": "x"}], [QUESTION])[0]
    assert (found.outcome, found.retrieved, found.rank_token, found.oracle_exact) == (
        "",
        None,
        None,
        None,
    )
    assert judge([{"id": "q", "answer": "oda lind"}], [QUESTION])[0].outcome == "right"


def test_depth_and_frequency():
    prediction = {"id": "q", "answer": "Salt", "retrieved": [2, 3, 1]}
    evidence = Evidence(lambda i: BLOCKS[i][1])
    counts = answer_counts([["Oda Lind"], ["oda lind"]])
    found = judge([prediction], [QUESTION], evidence, depth=2, answer_counts=counts)[0]
    assert (found.retrieved, found.rank_token) == (2, None)
    assert found.kinds["answer in training"] == "2-9 times"


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ({}, None),
        ({"candidates": []}, None),
        ({"candidates": [{"reader_score": 2.0, "retrieval_score": -0.5}]}, 1.5),
        ({"candidates": [{"reader_score": 2.0, "probability": 0.25}]}, 0.25),
        ({"confidence": 3, "candidates": [{"probability": 0.25}]}, 3.0),
        ({"confidence": "high", "candidates": [{"probability": 0.25}]}, 0.25),
        ({"candidates": [{"answer": "x"}]}, None),
    ],
)
def test_confidence(prediction, expected):
    assert confidence_of(prediction) == expected


@pytest.mark.parametrize(
    "prediction",
    [
        {"confidence": float("nan")},
        {"candidates": [{"probability": float("inf")}]},
        {"candidates": [{"probability": "high"}]},
        {"candidates": [{"reader_score": 1.0, "retrieval_score": None}]},
    ],
)
def test_confidence_that_is_no_finite_number(prediction):
    with pytest.raises(OrqaError, match=r"question 'q' has a confidence, .* no finite number"):
        judge([{"id": "q", "answer": "x", **prediction}], [QUESTION])


def test_answer_block():
    assert answer_block({"candidates": [{"block": 4}, {"block": 5}]}) == 4
    assert answer_block({"candidates": []}) is None
    assert answer_block({}) is None


def test_details_are_read_back_equal(tmp_path):
    judged = [outcome("Oda Lind", [0]), dataclasses.replace(outcome("", []), answer="naïve\u2028")]
    path = tmp_path / "new" / "details.jsonl"
    write_details(path, judged)
    assert read_details(path) == judged
    assert [p.name for p in path.parent.iterdir()] == ["details.jsonl"]
    path.write_text('{"id": "q"}\n')
    with pytest.raises(OrqaError, match=r"details\.jsonl:1 is no line of"):
        read_details(path)
