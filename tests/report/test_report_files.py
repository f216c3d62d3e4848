import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import Example
from orqa_jax.report.files import (
    about_path,
    answers_in_corpus,
    evaluate_file,
    gold_blocks,
    judge_file,
    open_source,
    read_calibration,
    save_calibration,
)
from orqa_jax.text.wordpiece import WordPiece

DOCUMENTS = [
    {"id": "mill", "title": "Mill", "text": "Oda built the mill. It burned in 1807. It is gone."},
    {"id": "salt", "title": "Salt", "text": "Salt came from Dorn. Oda sold it."},
]
LINES = [
    {
        "id": "q1",
        "question": "Who built the mill?",
        "answer": "Oda",
        "document_id": "mill",
        "answer_start": 0,
    },
    {
        "id": "q2",
        "question": "When did it burn?",
        "answer": "1807",
        "document_id": "mill",
        "answer_start": 32,
    },
    {"id": "q3", "question": "Who knows?", "answer": "Nobody"},
]


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789")
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{c}" for c in letters),
        ".",
        "?",
    ]
    tokenizer = WordPiece.from_vocab(vocabulary)
    source = jsonl(folder / "documents.jsonl", DOCUMENTS)
    # One sentence or two a block.
    return build_corpus([source], folder / "corpus", tokenizer, max_wordpieces=36, workers=1)


@pytest.fixture
def references(tmp_path):
    return jsonl(tmp_path / "references.jsonl", LINES)


def block_with(store, text):
    (found,) = [i for i in range(len(store)) if text in store.text(i)]
    return found


def predictions(path, store, **about):
    mill, fire, salt = (block_with(store, text) for text in ("built", "1807", "Salt"))
    records = [
        {"id": "q1", "answer": "Oda", "retrieved": [salt, mill], "candidates": [{"block": salt}]},
        {"id": "q2", "answer": "Oda", "retrieved": [mill, fire]},
        {"id": "q3", "answer": "Salt", "retrieved": [salt]},
    ]
    jsonl(path, records)
    if about:
        about_path(path).write_text(json.dumps(about))
    return path


def about_of(store):
    return {"corpus": str(store.folder), "corpus_fingerprint": store.fingerprint}


def test_everything_about_a_file(tmp_path, store, references):
    path = predictions(tmp_path / "p.jsonl", store, **about_of(store), reader_beam=1)
    train = jsonl(tmp_path / "train.jsonl", [{"question": "Who?", "answer": "oda"}])
    judged = judge_file(path, references, train=train)
    assert [one.outcome for one in judged] == [
        "spurious hit",
        "not in the beam",
        "not in the corpus",
    ]
    assert [one.rank_gold for one in judged] == [2, 2, None]
    assert [one.kinds["answer in training"] for one in judged] == [
        "once",
        "never in training",
        "never in training",
    ]
    wider = judge_file(path, references, beam=2)
    assert [one.outcome for one in wider][1] == "lost by the reader"


def test_gold_blocks(tmp_path, store, references):
    source = open_source(predictions(tmp_path / "p.jsonl", store), references, corpus=store.folder)
    mill, fire = block_with(store, "built"), block_with(store, "1807")
    assert mill != fire
    assert gold_blocks(source) == {"q1": {mill}, "q2": {fire}}
    whole = [{k: v for k, v in line.items() if k != "answer_start"} for line in LINES]
    source = open_source(
        source.references.with_name("p.jsonl"), jsonl(references, whole), corpus=store.folder
    )
    every = {i for i in range(len(store)) if store.document_id(i) == "mill"}
    assert gold_blocks(source) == {"q1": every, "q2": every}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("document_id", "mull", r"references\.jsonl:1 was written from document 'mull'"),
        ("document_id", 7, r"references\.jsonl:1 needs a 'document_id' that is a string"),
        ("answer_start", 1.5, r"references\.jsonl:1 needs a 'document_id' that is a string"),
    ],
)
def test_defects_of_gold(tmp_path, store, references, key, value, message):
    jsonl(references, [{**LINES[0], key: value}, *LINES[1:]])
    path = predictions(tmp_path / "p.jsonl", store)
    with pytest.raises(OrqaError, match=message):
        judge_file(path, references, corpus=store.folder)


def test_answers_in_corpus(store):
    examples = [
        Example("a", "?", ("Nobody", "dorn")),
        Example("b", "?", ("od",)),
        Example("c", "?", ("1807.",)),
        Example("d", "?", (r"\d+",), match="regex"),
    ]
    assert answers_in_corpus(store, examples) == {"a": True, "b": False, "c": True}


def test_without_a_corpus_there_are_only_answers(tmp_path, store, references, caplog):
    path = predictions(tmp_path / "p.jsonl", store)
    found = evaluate_file(path, references)
    assert list(found.intervals) == ["exact_match", "modern_match", "f1"]
    assert "No recall" in caplog.text
    assert judge_file(path, references)[0].retrieved is None


def test_the_corpus_must_be_the_right_one(tmp_path, store, references):
    about = about_of(store) | {"corpus_fingerprint": "f" * 64}
    path = predictions(tmp_path / "p.jsonl", store, **about)
    with pytest.raises(OrqaError, match="was made on corpus ffff"):
        judge_file(path, references)
    about_path(path).write_text("{}")
    with pytest.raises(OrqaError, match="is broken"):
        judge_file(path, references)


def test_passages_that_predictions_bring_along(tmp_path, references):
    def context(identifier, text):
        return {"id": identifier, "title": "T", "text": text, "score": "1.0", "has_answer": True}

    contexts = [context("salt", "Oda sold it."), context("mill", "Oda built the mill.")]
    items = [{"question": line["question"], "answers": [], "ctxs": contexts} for line in LINES]
    path = tmp_path / "dpr.json"
    path.write_text(json.dumps(items))
    judged = judge_file(path, references)
    assert [one.rank_token for one in judged] == [1, None, None]
    assert [one.rank_gold for one in judged] == [2, 2, None]
    assert evaluate_file(path, references).intervals["recall@1"].mean == pytest.approx(1 / 3)


def test_a_reader_of_others_that_ranks_no_blocks(tmp_path, references, caplog):
    best = {"text": "Oda", "score": 1.0, "passage": "Oda built the mill."}
    items = [
        {"question": line["question"], "predictions": [{"top_k": 5, "prediction": best}]}
        for line in LINES
    ]
    path = tmp_path / "reader.json"
    path.write_text(json.dumps(items))
    found = evaluate_file(path, references).intervals
    assert list(found) == ["exact_match", "modern_match", "f1"]
    assert found["exact_match"].mean == pytest.approx(1 / 3)
    assert "names no retrieved blocks" in caplog.text
    assert [one.confidence for one in judge_file(path, references)] == [1.0] * 3


def test_the_beam_is_not_empty(tmp_path, store, references):
    path = predictions(tmp_path / "p.jsonl", store, **about_of(store))
    for beam in (0, -1):
        with pytest.raises(OrqaError, match=f"The beam is {beam}; at least 1"):
            open_source(path, references, beam=beam)


def test_this_floor_needs_no_jax():
    code = (
        "import sys, orqa_jax.report.files, orqa_jax.report.tables, orqa_jax.report.page;"
        "sys.exit('jax' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(root)}
    )


# --- Calibration ----------------------------------------------------------------------------------

MODEL = {"system": "orqa", "weights_fingerprint": "f" * 64}


def calibrated(tmp_path, answers, about=MODEL):
    """What the predictions of these answers, all with some confidence, are calibrated to."""
    lines = [
        {"id": line["id"], "answer": answer, "confidence": 0.2 + 0.3 * number}
        for number, (line, answer) in enumerate(zip(LINES, answers, strict=True))
    ]
    predictions = jsonl(tmp_path / "p.jsonl", lines)
    corpus = {"corpus": str(tmp_path / "gone"), "corpus_fingerprint": "c" * 64}
    about_path(predictions).write_text(json.dumps(corpus | about))
    judged = judge_file(predictions, jsonl(tmp_path / "q.jsonl", LINES))
    return save_calibration(tmp_path, predictions, judged)


@pytest.mark.parametrize("answers", [("Dorn", "1807", "Nobody"), ("a", "b", "c")])
def test_a_calibration_is_read_as_it_was_saved(tmp_path, answers):
    saved = calibrated(tmp_path, answers)
    assert saved.threshold == (float("inf") if answers[0] == "a" else saved.probability(0.5))
    assert read_calibration(tmp_path, **MODEL) == saved
    written = (tmp_path / "calibration.json").read_text()
    assert "Infinity" not in written
    assert json.loads(written)["questions"] == 3


def test_a_calibration_of_another_model_is_not_used(tmp_path, caplog):
    calibrated(tmp_path, ("Oda", "1807", "Dorn"))
    assert read_calibration(tmp_path, system="bm25", weights_fingerprint="f" * 64) is None
    assert "is of system orqa" in caplog.text
    assert read_calibration(tmp_path, system="orqa", weights_fingerprint="e" * 64) is None
    assert read_calibration(tmp_path / "none", **MODEL) is None


@pytest.mark.parametrize("content", ["{", "[]", '{"system": "orqa"}'])
def test_a_broken_calibration_is_named(tmp_path, content):
    (tmp_path / "calibration.json").write_text(content)
    with pytest.raises(OrqaError, match=r"calibration\.json"):
        read_calibration(tmp_path, **MODEL)


def test_predictions_that_cannot_be_calibrated_are_named(tmp_path):
    with pytest.raises(OrqaError, match=r"p\.jsonl\.about\.json does not say which model"):
        calibrated(tmp_path, ("Oda", "1807", "Dorn"), about={})
    predictions = jsonl(tmp_path / "p.jsonl", [{"id": q["id"], "answer": "x"} for q in LINES])
    about_path(predictions).write_text(
        json.dumps({"corpus": "gone", "corpus_fingerprint": "c" * 64} | MODEL)
    )
    judged = judge_file(predictions, tmp_path / "q.jsonl")
    with pytest.raises(OrqaError, match="has a confidence to calibrate"):
        save_calibration(tmp_path, predictions, judged)
