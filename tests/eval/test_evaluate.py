import numpy as np
import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import Interval, bootstrap_interval
from orqa_jax.eval.evaluate import Evaluation, format_table, metric, summarize
from orqa_jax.eval.judge import Evidence, Judgement, judge
from orqa_jax.qa.examples import Example

BLOCKS = ["Rome lies on the Tiber.", "Jerome was a monk.", "Ada wrote notes.", "Nothing here."]
REFERENCES = {"q1": ["Rome"], "q2": ["Ada", "Ada Lovelace"], "q3": ["1815"]}
PREDICTIONS = [
    {"id": "q3", "answer": "in 1815", "retrieved": []},
    {"id": "q1", "answer": "the ROME", "retrieved": [1, 3, 0]},
    {"id": "q2", "answer": "Lovelace", "retrieved": [2, 2]},
]


def evaluate(predictions, references, text=None, depth=None) -> Evaluation:
    examples = [Example(i, "?", tuple(answers)) for i, answers in references.items()]
    return summarize(judge(predictions, examples, Evidence(text) if text else None, depth=depth))


def test_scores_by_hand() -> None:
    found = evaluate(PREDICTIONS, REFERENCES, BLOCKS.__getitem__)
    expected = {
        "exact_match": [1, 0, 0],
        "modern_match": [1, 0, 0],
        "f1": [1, 2 / 3, 2 / 3],
        "recall@1": [0, 1, 0],
        "recall@5": [1, 1, 0],
        "recall@20": [1, 1, 0],
        "recall@100": [1, 1, 0],
    }
    assert found.per_question.keys() == found.intervals.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found.per_question[name], values)
        assert found.intervals[name] == bootstrap_interval(found.per_question[name])


def test_without_blocks_there_is_no_recall() -> None:
    predictions = [{"id": i, "answer": ""} for i in REFERENCES]
    found = evaluate(predictions, REFERENCES)
    assert list(found.intervals) == ["exact_match", "modern_match", "f1"]
    with pytest.raises(OrqaError, match=r"3 question id\(s\) predicted without 'retrieved'"):
        evaluate(predictions, REFERENCES, BLOCKS.__getitem__)


def test_blocks_are_read_once_and_only_as_deep_as_asked_for() -> None:
    read: list[int] = []
    evaluate(PREDICTIONS, REFERENCES, lambda i: read.append(i) or BLOCKS[i], depth=2)
    assert sorted(read) == [1, 2, 3]


def test_ids_must_agree() -> None:
    with pytest.raises(OrqaError, match=r"1 question id\(s\) without a prediction: 'q2'"):
        evaluate(PREDICTIONS[:2], REFERENCES)
    with pytest.raises(OrqaError, match=r"1 question id\(s\) predicted but not .*: 'q2'"):
        evaluate(PREDICTIONS, {"q1": ["x"], "q3": ["y"]})
    with pytest.raises(OrqaError, match=r"1 question id\(s\) predicted more than once: 'q3'"):
        evaluate([*PREDICTIONS, PREDICTIONS[0]], REFERENCES)
    many = {f"x{i}": ["a"] for i in range(9)}
    with pytest.raises(OrqaError, match=r"9 question id.*: 'x0', 'x1', 'x2', \.\.\.;"):
        evaluate([], many)
    with pytest.raises(OrqaError, match="no reference questions"):
        evaluate([], {})


def test_a_block_outside_the_corpus_is_named() -> None:
    predictions = [{"id": "q", "answer": "", "retrieved": [0, 99]}]
    with pytest.raises(OrqaError, match="question 'q' retrieves a block that the corpus"):
        evaluate(predictions, {"q": ["x"]}, BLOCKS.__getitem__)


def judgement(**changes) -> Judgement:
    given = {
        "id": "q", "question": "Who?", "answers": ("a",), "answer": "a", "exact_match": True,
        "modern_match": False, "f1": 1.0, "rank_token": 4, "rank_substring": None,
        "rank_gold": 5, "retrieved": 9, "oracle_exact": True, "oracle_f1": 0.75,
        "outcome": "right", "confidence": None, "kinds": {},
    }  # fmt: skip
    return Judgement(**{**given, **changes})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact_match", [1, 0]),
        ("modern_match", [0, 1]),
        ("f1", [1, 0.5]),
        ("recall@3", [0, 0]),
        ("recall@4", [1, 0]),
        ("substring_recall@100", [0, 1]),
        ("gold_recall@5", [1, 0]),
        ("gold_recall@4", [0, 0]),
        ("mrr", [0.25, 0]),
        ("oracle_exact", [1, 0]),
        ("oracle_f1", [0.75, 0.2]),
    ],
)
def test_metrics_by_hand(name: str, expected: list[float]) -> None:
    wrong = {"exact_match": False, "f1": 0.5, "rank_token": None, "rank_substring": 100}
    wrong |= {"modern_match": True}
    wrong |= {"rank_gold": None, "oracle_exact": False, "oracle_f1": 0.2}
    np.testing.assert_allclose(metric([judgement(), judgement(**wrong)], name), expected)


def test_metrics_that_are_not_there() -> None:
    with pytest.raises(KeyError):
        metric([judgement()], "bleu")
    with pytest.raises(ValueError, match="recall@5 needs the texts"):
        metric([judgement(retrieved=None)], "recall@5")


def test_format_table() -> None:
    table = format_table(
        {
            "BM25": {"recall@5": Interval(0.4321, 0.3814, 0.48)},
            "fine-tuned": {"recall@5": Interval(1, 1, 1), "f1": Interval(0.056, 0.0449, 0.0951)},
        }
    )
    assert table.split("\n") == [
        "| system     | recall@5             | f1             |",
        "| ---------- | -------------------- | -------------- |",
        "| BM25       | 43.2 [38.1, 48.0]    | –              |",
        "| fine-tuned | 100.0 [100.0, 100.0] | 5.6 [4.5, 9.5] |",
    ]
