import json
import lzma
import os
from pathlib import Path

import pytest

from orqa_jax.baselines.alignment.datasets import (
    read_arc,
    read_evidence,
    read_science,
    read_selqa,
    read_wikiqa,
    read_yahoo,
)
from orqa_jax.errors import OrqaError

DATA = Path(os.environ.get("ORQA_DATA", Path(__file__).parents[3].parent / "shared" / "data"))


def test_wikiqa(tmp_path):
    path = tmp_path / "WikiQA-dev.tsv"
    path.write_text(
        "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel\n"
        'Q1\thow are wells dug\tD1\tWell\tD1-0\tA "well is deep .\t0\n'
        "Q1\thow are wells dug\tD1\tWell\tD1-1\tThey are dug by hand .\t1\n"
        "Q2\twho digs\tD2\tDig\tD2-0\tNobody .\t0\n",
        "utf-8",
    )
    (question,) = read_wikiqa(path)
    assert (question.id, question.question) == ("Q1", "how are wells dug")
    assert question.candidates == ('A "well is deep .', "They are dug by hand .")
    assert question.relevant == (False, True)


def test_yahoo(tmp_path):
    path = tmp_path / "manner.xml"
    path.write_text(
        "<?xml version='1.0' encoding='UTF-8'?><ystfeed>"
        "<vespaadd><document type='wisdom'><uri>11</uri><subject>How to shear &amp; spin?</subject>"
        "<content>By hand.</content><bestanswer>Slowly.</bestanswer><nbestanswers>"
        "<answer_item>Quickly!</answer_item><answer_item>Slowly.</answer_item></nbestanswers>"
        "</document></vespaadd></ystfeed>",
        "utf-8",
    )
    (question,) = read_yahoo(path)
    assert question.question == "How to shear & spin? By hand."
    assert question.candidates == ("Quickly!", "Slowly.")
    assert question.relevant == (False, True)


def test_science(tmp_path):
    path = tmp_path / "exam.csv"
    header = (
        "questionID,originalQuestionID,totalPossiblePoint,AnswerKey,isMultipleChoiceQuestion,"
        "includesDiagram,examName,schoolGrade,year,question,subject,category\n"
    )
    path.write_text(
        header + 'E1,1,1,B,1,0,X,8,2011,"Which sinks, in water? (A) cork (B) iron bar",S,T\n'
        "E2,2,1,A,1,1,X,8,2011,Look at it. (A) a (B) b,S,T\n"
    )
    (question,) = read_science(path)
    assert question.question == "Which sinks, in water?"
    assert question.choices == ("cork", "iron bar")
    assert question.correct == (False, True)
    path.write_text(header + "E1,1,1,C,1,0,X,8,2011,Which? (A) cork (B) iron,S,T\n")
    with pytest.raises(OrqaError, match="has the key 'C', which is not one of its choices"):
        read_science(path)


def test_arc_in_both_forms(tmp_path):
    path = tmp_path / "arc.jsonl"
    published = {
        "id": "Mercury_1",
        "question": {
            "stem": "Which floats?",
            "choices": [{"text": "cork", "label": "A"}, {"text": "iron", "label": "B"}],
        },
        "answerKey": "A",
    }
    short = {"query": "Question: Which floats?", "choices": ["cork", "iron"], "gold": 0}
    path.write_text(json.dumps(published) + "\n" + json.dumps(short) + "\n")
    first, second = read_arc(path)
    assert first.id == "Mercury_1"
    for question in (first, second):
        assert question.question == "Which floats?"
        assert question.choices == ("cork", "iron")
        assert question.correct == (True, False)
    for wrong in ({**published, "answerKey": "E"}, {**short, "gold": 2}, {**short, "gold": "A"}):
        path.write_text(json.dumps(wrong) + "\n")
        with pytest.raises(OrqaError, match=r"arc.jsonl:1 is no ARC question"):
            read_arc(path)


def test_evidence(tmp_path):
    path = tmp_path / "enwv0-dev.csv.xz"
    rows = "label,qid,htext,mtext\n1,q,iron sinks,Iron is dense .\n0,q,cork sinks,Cork floats .\n"
    with lzma.open(path, "wt") as file:
        file.write(rows + "1,q,iron sinks,Ships are iron .\n")
    (question,) = read_evidence(path)
    assert question.choices == ("iron sinks", "cork sinks")
    assert question.correct == (True, False)
    assert question.evidence == (("Iron is dense .", "Ships are iron ."), ("Cork floats .",))


def test_selqa(tmp_path):
    path = tmp_path / "selqa.json"
    path.write_text(json.dumps([{"question": "q?", "candidates": ["a", "b"], "answers": [1]}]))
    (question,) = read_selqa(path)
    assert question.relevant == (False, True)
    path.write_text(json.dumps([{"question": "q?", "candidates": ["a", "b"], "answers": []}]))
    with pytest.raises(OrqaError, match="no question with a right answer"):
        read_selqa(path)
    path.write_text(json.dumps([{"question": "q?"}]))
    with pytest.raises(OrqaError, match="Question 0 of"):
        read_selqa(path)


@pytest.mark.parametrize("read", [read_wikiqa, read_yahoo, read_science, read_evidence, read_selqa])
def test_a_file_of_another_kind_is_refused(tmp_path, read):
    path = tmp_path / "other.txt"
    path.write_text("something else\n")
    with pytest.raises(OrqaError, match=r"other\.txt"):
        read(path)
    with pytest.raises(OrqaError, match="cannot be read"):
        read(tmp_path / "missing")
    path = path.rename(tmp_path / "not compressed.xz")
    with pytest.raises(OrqaError, match=r"not compressed\.xz cannot be read"):
        read(path)


def test_a_quotation_that_never_ends_is_told(tmp_path):
    path = tmp_path / "enwv0.csv"
    path.write_text('label,qid,htext,mtext\n1,q,iron sinks,"Iron\n' + "is dense .\n" * 20_000)
    with pytest.raises(OrqaError, match=r"enwv0\.csv:\d+ is no row of a table"):
        read_evidence(path)


def test_the_shared_sets_have_their_published_sizes():
    folder = DATA / "alignment"
    if not folder.is_dir():
        pytest.skip(f"no alignment sets under {DATA}; set ORQA_DATA")
    assert len(read_selqa(folder / "selqa-ass-dev.json.xz")) == 785
    assert len(read_selqa(folder / "selqa-ass-test.json.xz")) == 1590
    sizes = [len(read_evidence(folder / f"enwv0-{x}.csv.xz")) for x in ("train", "dev", "test")]
    assert sizes == [283, 64, 270]
    assert len(read_arc(folder / "arc_easy.jsonl.xz")) == 2376
    challenge = read_arc(folder / "arc_challenge.jsonl.xz")
    assert len(challenge) == 1172
    assert all(sum(question.correct) == 1 for question in challenge)
