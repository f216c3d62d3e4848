import json
from pathlib import Path

import numpy as np
import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import Interval, bootstrap_interval
from orqa_jax.eval.evaluate import evaluate, format_table, load_predictions

BLOCKS = ["Rome lies on the Tiber.", "Jerome was a monk.", "Ada wrote notes.", "Nothing here."]
REFERENCES = {"q1": ["Rome"], "q2": ["Ada", "Ada Lovelace"], "q3": ["1815"]}
PREDICTIONS = [
    {"id": "q3", "answer": "in 1815", "retrieved": []},
    {"id": "q1", "answer": "the ROME", "retrieved": [1, 3, 0]},
    {"id": "q2", "answer": "Lovelace", "retrieved": [2, 2]},
]


def test_scores_by_hand() -> None:
    found = evaluate(PREDICTIONS, REFERENCES, BLOCKS.__getitem__, recall_at=(1, 2, 3))
    expected = {
        "exact_match": [1, 0, 0],
        "f1": [1, 2 / 3, 2 / 3],
        "recall@1": [0, 1, 0],
        "recall@2": [0, 1, 0],
        "recall@3": [1, 1, 0],
    }
    assert found.per_question.keys() == found.intervals.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found.per_question[name], values)
        assert found.intervals[name] == bootstrap_interval(found.per_question[name])


def test_without_blocks_there_is_no_recall() -> None:
    predictions = [{"id": i, "answer": ""} for i in REFERENCES]
    assert list(evaluate(predictions, REFERENCES).intervals) == ["exact_match", "f1"]
    with pytest.raises(OrqaError, match=r"3 question id\(s\) predicted without 'retrieved'"):
        evaluate(predictions, REFERENCES, BLOCKS.__getitem__)


def test_only_the_blocks_asked_for_are_read() -> None:
    read: list[int] = []
    evaluate(PREDICTIONS, REFERENCES, lambda i: read.append(i) or BLOCKS[i], recall_at=(1, 2))
    assert read == [1, 3, 2, 2]


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


def test_load_predictions(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    lines = [
        {"id": "q1", "question": "Where?", "answer": "Rome", "retrieved": [3, 1], "score": 0.5},
        {"id": 2, "answer": ""},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    assert load_predictions(path) == [lines[0], {"id": "2", "answer": ""}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("oops", "not JSON"),
        ('{"answer": "a"}', "needs an 'id'"),
        ('{"id": "q"}', "needs an 'answer'"),
        ('{"id": "q", "answer": null}', "needs an 'answer'"),
        ('{"id": "q", "answer": "a", "retrieved": 3}', "list of block numbers"),
        ('{"id": "q", "answer": "a", "retrieved": [1.0]}', "list of block numbers"),
        ('{"id": "q", "answer": "a", "retrieved": [true]}', "list of block numbers"),
        ('{"id": "q", "answer": "a", "retrieved": [-1]}', "list of block numbers"),
    ],
)
def test_defective_predictions_name_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_text('{"id": "q1", "answer": "a"}\n' + line)
    with pytest.raises(OrqaError, match=rf"predictions\.jsonl:2 .*{message}"):
        load_predictions(path)


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
