import dataclasses
import json
import re

import pytest

from orqa_jax.cli import main
from orqa_jax.corpus import statistics
from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.statistics import answer_statistics, format_statistics
from orqa_jax.text.wordpiece import WordPiece

TEXTS = [
    "The heron nests in reeds.",
    "A heron and an otter.",
    "Otters swim at dusk.",
    "Reeds bend. The heron waits, and the heron strikes.",
    "Nothing here.",
]
QUESTIONS = [
    (("heron",), 3),
    (("otter", "dusk"), 2),  # "Otters" is another word
    (("the heron",), 2),
    (("HERON", "heron"), 3),
    (("kingfisher",), 0),
    (("reeds bend",), 1),
]


@pytest.fixture
def store(tmp_path):
    words = sorted({word for text in TEXTS for word in re.findall(r"\w+|\.|,", text.lower())})
    words = [word for word in words if word != "otters"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s", "king", "##fisher"]
    documents = tmp_path / "documents.jsonl"
    lines = [json.dumps({"title": "", "text": text}) + "\n" for text in TEXTS]
    documents.write_text("".join(lines))
    tokenizer = WordPiece.from_vocab([*special, *words])
    return build_corpus([documents], tmp_path / "corpus", tokenizer, workers=1)


def test_counts_are_those_of_a_search_through_the_texts(store, monkeypatch):
    monkeypatch.setattr(statistics, "_FROM", (0, 1, 2, 3))
    found = answer_statistics(store, [answers for answers, _ in QUESTIONS])
    for answers, count in QUESTIONS:
        pattern = re.compile("|".join(rf"\b{answer}\b" for answer in answers), re.IGNORECASE)
        assert sum(bool(pattern.search(text)) for text in TEXTS) == count
    assert dataclasses.asdict(found) == {
        "questions": 6,
        "answerable": 5,
        "blocks": 5,
        "median_blocks": 2.0,
        "histogram": ((0, 1), (1, 1), (2, 2), (3, 2)),
    }


def test_text_for_people(store):
    found = answer_statistics(store, [answers for answers, _ in QUESTIONS])
    assert format_statistics(found).splitlines() == [
        "5 of 6 questions (83.3%) have an answer in 5 blocks, in 2 of them (median).",
        "",
        "| blocks with an answer | questions | share |",
        "|---|---|---|",
        "| 0 | 1 | 16.7% |",
        "| 1 | 1 | 16.7% |",
        "| 2 to 9 | 4 | 66.7% |",
        "| 10 to 99 | 0 | 0.0% |",
        "| 100 to 999 | 0 | 0.0% |",
        "| 1,000 to 9,999 | 0 | 0.0% |",
        "| 10,000 or more | 0 | 0.0% |",
    ]
    nothing = answer_statistics(store, [("kingfisher",)])
    assert (nothing.answerable, nothing.median_blocks) == (0, 0.0)
    assert format_statistics(nothing).startswith("0 of 1 questions (0.0%)")


def test_the_command(store, tmp_path, capsys):
    questions = tmp_path / "questions.jsonl"
    lines = [json.dumps({"question": "Who?", "answer": answers}) for answers, _ in QUESTIONS]
    questions.write_text("\n".join(lines))
    assert main(["answers", str(store.folder), str(questions), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["answerable"] == 5
    assert printed["histogram"][:3] == [[0, 1], [1, 1], [2, 4]]
    assert main(["answers", str(store.folder), str(questions)]) == 0
    assert capsys.readouterr().out.startswith("5 of 6 questions")

    questions.write_text('{"question": "Who?", "answer": []}')
    assert main(["answers", str(store.folder), str(questions)]) == 2
    assert "questions.jsonl:1 needs at least one answer" in capsys.readouterr().err
    assert main(["answers", str(tmp_path), str(questions)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
