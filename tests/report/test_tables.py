import pytest

from orqa_jax.eval.judge import Judgement
from orqa_jax.report.tables import (
    Table,
    comparison_table,
    confidence_table,
    main_tables,
    metric_title,
    outcome_table,
    system_tables,
)


def judged(rights, **changes):
    given = {
        "question": "?", "answers": ("a",), "answer": "a", "rank_token": 1, "rank_substring": 2,
        "rank_gold": None, "retrieved": 9, "oracle_exact": True, "oracle_f1": 1.0,
        "kinds": {"question word": "who"},
    }  # fmt: skip
    return [
        Judgement(
            **{
                **given,
                "id": f"q{number}",
                "exact_match": right,
                "modern_match": right,
                "f1": float(right),
                "outcome": "right" if right else "lost by the reader",
                "confidence": 0.8 if right else 0.3,
                **changes,
            }
        )
        for number, right in enumerate(rights)
    ]


GOOD, BAD = judged([True] * 6 + [False] * 4), judged([True, *[False] * 9])


def test_main_tables():
    answers, retrieval = main_tables({"good": GOOD, "bad": BAD})
    head = ["system", "exact match", "modern match", "F1"]
    assert answers.cells[0] == [*head, "best span, exact match", "best span, F1"]
    assert [row[0] for row in answers.cells[1:]] == ["good", "bad"]
    assert answers.cells[1][1].startswith("60.0 [")
    assert answers.note.startswith("10 questions")
    by_metric = {row[0]: row[1] for row in retrieval.cells}
    assert by_metric["metric"] == "good"
    assert by_metric["recall@1"] == "100.0 [100.0, 100.0]"
    assert by_metric["substring recall@1"] == "0.0 [0.0, 0.0]"
    assert by_metric["MRR"] == "100.0 [100.0, 100.0]"
    assert len(main_tables({"good": judged([True], retrieved=None)})) == 1


def test_outcome_table():
    table = outcome_table({"good": GOOD, "blind": judged([True], retrieved=None)})
    assert [row[0] for row in table.cells] == ["system", "good"]
    assert table.cells[1][1].startswith("60.0 [")
    assert table.cells[1][3].startswith("40.0 [")
    assert outcome_table({"blind": judged([True], retrieved=None)}) is None


def test_confidence_table():
    table = confidence_table({"good": GOOD, "silent": judged([True], confidence=None)})
    assert [row[0] for row in table.cells] == ["system", "good"]
    # 6 answers at 0.8 are all right, 4 at 0.3 all wrong.
    assert table.cells[1][1] == f"{100 * (0.6 * 0.2 + 0.4 * 0.3):.1f}"
    assert "threshold" not in table.cells[0]
    table = confidence_table({"good": GOOD}, {"good": GOOD})
    answered = dict(zip(table.cells[0], table.cells[1], strict=True))
    assert answered["answered"].startswith("60.0 [")
    assert answered["EM if answered"] == "100.0 [100.0, 100.0]"
    assert confidence_table({"silent": judged([True], confidence=None)}) is None


def test_comparison_table():
    table = comparison_table("good", "bad", {"good": GOOD, "bad": BAD})
    row = dict(zip(table.cells[0], table.cells[1], strict=True))
    assert row["metric"] == "exact match"
    assert row["difference"].startswith("+50.0 [")
    assert (row["only first right"], row["only second"]) == ("5", "0")
    assert float(row["McNemar p"]) == pytest.approx(2 / 32, abs=0.001)
    f1 = next(row for row in table.cells if row[0] == "F1")
    assert f1[-3:] == ["–", "–", "–"]


def test_all_tables_of_a_system():
    titles = [table.title for table in system_tables("good", GOOD)]
    assert titles == [
        "Answers",
        "Retrieval",
        "What went wrong",
        "Confidence",
        "By question word: good",
    ]


def test_markdown():
    text = Table("T", [["a", "b"], ["x|y", "1"]], "Note.").to_markdown()
    assert text.split("\n") == [
        "### T",
        "",
        "Note.",
        "",
        "| a    | b |",
        "| ---- | - |",
        "| x\\|y | 1 |",
        "",
    ]


def test_metric_title():
    assert [metric_title(n) for n in ("f1", "gold_recall@5", "x")] == ["F1", "gold recall@5", "x"]
