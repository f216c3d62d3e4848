import json
import lzma

import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.eval.predictions import Passage, load_predictions, read_predictions
from orqa_jax.qa.examples import Example

REFERENCES = [
    Example("q1", "where is it", ("Oslo",)),
    Example("q2", "who was it", ("Ada",)),
    Example("q3", "where is it", ("Bern",)),
]


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "predictions.jsonl"


def test_load_predictions(path):
    kept = [
        {"id": "q1", "question": "Where?", "answer": "Rome", "retrieved": [3, 1], "score": 0.5},
        {"id": 2, "answer": ""},
    ]
    write(path, lines(*kept))
    assert load_predictions(path) == [kept[0], {"id": "2", "answer": ""}]
    assert read_predictions(path, REFERENCES).records == load_predictions(path)
    assert read_predictions(path, REFERENCES).passages is None


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
        ('{"id": "q", "answer": "a", "candidates": ["b"]}', "list of objects"),
    ],
)
def test_defective_predictions_name_file_and_line(path, line, message):
    write(path, '{"id": "q1", "answer": "a"}\n' + line)
    for read in (load_predictions, lambda p: read_predictions(p, REFERENCES)):
        with pytest.raises(OrqaError, match=rf"predictions\.jsonl:2 .*{message}"):
            read(path)


# --- NQ-open ---


def test_nq_open_goes_by_question(path):
    write(
        path,
        lines(
            {"question": "who was it", "prediction": "Ada"},
            {"question": "where is it", "prediction": "Oslo"},
        ),
    )
    assert read_predictions(path, REFERENCES).records == [
        {"question": "who was it", "answer": "Ada", "id": "q2"},
        {"question": "where is it", "answer": "Oslo", "id": "q1"},
        {"question": "where is it", "answer": "Oslo", "id": "q3"},
    ]


def test_nq_open_with_one_prediction_for_each_of_equal_questions(path):
    asked = {"question": "where is it"}
    write(
        path,
        lines(
            {**asked, "prediction": "a"},
            {"question": "who was it", "prediction": ""},
            {**asked, "prediction": "b", "confidence": 0.5},
        ),
    )
    found = {record["id"]: record for record in read_predictions(path, REFERENCES).records}
    assert {i: record["answer"] for i, record in found.items()} == {"q1": "a", "q2": "", "q3": "b"}
    assert found["q3"]["confidence"] == 0.5


def test_nq_open_with_ids(path):
    write(path, lines({"id": 7, "prediction": "x"}))
    assert read_predictions(path, REFERENCES).records == [{"id": "7", "answer": "x"}]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"question": "who was it", "prediction": 3}], ":1 needs a 'prediction'"),
        ([{"prediction": "x"}], ":1 needs the 'question'"),
        ([{"question": "who else", "prediction": "x"}], "'who else', which the references do not"),
        (
            [{"question": "who else", "prediction": "x"}] * 2,
            "'who else', which the references do not",
        ),
        ([{"question": "who was it", "prediction": "x"}] * 2, "2 predictions .* ask 1 times"),
        ([{"guess": 1}], ":1 needs an 'answer'"),
        ([], "holds no predictions"),
    ],
)
def test_defects_of_nq_open(path, records, message):
    write(path, lines(*records))
    with pytest.raises(OrqaError, match=message):
        read_predictions(path, REFERENCES)


# --- SQuAD ---


@pytest.mark.parametrize("indent", [None, 2])
def test_squad(path, indent):
    write(path, json.dumps({"q1": "Oslo", "q2": ""}, indent=indent))
    expected = [{"id": "q1", "answer": "Oslo"}, {"id": "q2", "answer": ""}]
    assert read_predictions(path, REFERENCES).records == expected


def test_squad_compressed(tmp_path):
    packed = tmp_path / "p.json.xz"
    packed.write_bytes(lzma.compress(b'{"q1":\n "Oslo"}'))
    assert read_predictions(packed, REFERENCES).records == [{"id": "q1", "answer": "Oslo"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"q1":\n 3}', "a string as the answer to question 'q1'"),
        ("{\n}", "no file of predictions"),
        ('{"q1":\n', "not JSON"),
        ('"just text"', "holds a JSON str|no file of predictions"),
    ],
)
def test_defects_of_squad(path, content, message):
    write(path, content)
    with pytest.raises(OrqaError, match=message):
        read_predictions(path, REFERENCES)


# --- DPR ---

RETRIEVED = [
    {
        "question": "who was it",
        "answers": ["Ada"],
        "ctxs": [
            {
                "id": "wiki:7",
                "title": "A",
                "text": "Ada was it.",
                "score": "80.1",
                "has_answer": True,
            },
            {"id": "wiki:9", "title": "B", "text": "Not so.", "score": "79.3", "has_answer": False},
        ],
    },
    {
        "question": "where is it",
        "answers": ["Oslo"],
        "ctxs": [
            {"id": "wiki:7", "title": "A", "text": "Ada was it.", "score": "1", "has_answer": False}
        ],
    },
]


def test_dpr_retriever(path):
    found = read_predictions(write(path, RETRIEVED), REFERENCES)
    assert found.passages == [
        Passage("wiki:7", "A", "Ada was it."),
        Passage("wiki:9", "B", "Not so."),
    ]
    by_id = {record["id"]: record for record in found.records}
    assert {i: record["retrieved"] for i, record in by_id.items()} == {
        "q1": [0],
        "q2": [0, 1],
        "q3": [0],
    }
    assert {record["answer"] for record in found.records} == {""}


def test_dpr_reader(path):
    def guess(text, score, passage="Ada was it."):
        return {
            "text": text,
            "score": score,
            "relevance_score": 2.0,
            "passage_idx": 4,
            "passage": passage,
        }

    guesses = [
        {"top_k": 10, "prediction": guess("Eve", 9.0)},
        {"top_k": 50, "prediction": guess("Ada", 8.5)},
    ]
    write(path, [{"question": "who was it", "gold_answers": ["Ada"], "predictions": guesses}])
    found = read_predictions(path, REFERENCES)
    assert found.passages == [Passage("", "", "Ada was it.")]
    assert found.records == [
        {
            "id": "q2",
            "question": "who was it",
            "answer": "Ada",
            "confidence": 8.5,
            "candidates": [{"answer": "Ada", "block": 0}],
        }
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds no predictions"),
        ("[3]", "question 1, needs a 'question'"),
        ('[{"question": "who was it"}]', "question 1, needs 'ctxs'"),
        ('[{"question": "who was it", "ctxs": [{"id": 3}]}]', "a passage without 'text'"),
        ('[{"question": "who was it", "predictions": [{"top_k": 1}]}]', "needs 'predictions' with"),
        ('[{"question": "nobody asks", "ctxs": []}]', "'nobody asks', which the references do not"),
    ],
)
def test_defects_of_dpr(path, content, message):
    write(path, content)
    with pytest.raises(OrqaError, match=message):
        read_predictions(path, REFERENCES)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(OrqaError, match=r"none\.json cannot be read"):
        read_predictions(tmp_path / "none.json", REFERENCES)
