import bz2
import json

import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import Example
from orqa_jax.qa.files import load_question_file


def load(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_question_file(path)


def test_a_table_with_a_header(tmp_path):
    content = (
        '\ufeffAnswer,id,Question\r\n1226,a,"When, then?"\r\n\r\n"[""x"", ""y"", ""x""]",,Who?\r\n'
    )
    assert load(tmp_path, "q.csv", content) == [
        Example("a", "When, then?", ("1226",)),
        Example("4", "Who?", ("x", "y")),
    ]


@pytest.mark.parametrize("name", ["q.csv", "q.tsv"])
def test_a_table_as_dpr_has_it(tmp_path, name):
    content = 'who is "old" ned\t[\'Ned\', "O\'Neil"]\nwhere, then\tKeth, Uln\n'
    assert load(tmp_path, name, content) == [
        Example("1", 'who is "old" ned', ("Ned", "O'Neil")),
        Example("2", "where, then", ("Keth, Uln",)),
    ]


def test_compressed_and_other_formats(tmp_path):
    packed = bz2.compress(b"question,answers\nWho?,Ida\n")
    assert load(tmp_path, "q.csv.bz2", packed) == [Example("2", "Who?", ("Ida",))]
    line = json.dumps({"question": "Who?", "answer": "Ida"})
    assert load(tmp_path, "q.jsonl", line) == [Example("1", "Who?", ("Ida",))]
    answer = {"text": "Ida", "answer_start": 0}
    asked = {"id": "s1", "question": "Who?", "answers": [answer]}
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "Ida sang.", "qas": [asked]}]}]}
    assert load(tmp_path, "q.json", json.dumps(squad)) == [Example("s1", "Who?", ("Ida",))]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.txt", "Who?", "no file of questions by its name"),
        ("q.csv", "", "holds no questions"),
        ("q.csv", "question,answer\n", "holds no questions"),
        ("q.csv", "who,what,where\na,b,c\n", "starts with the columns who, what, where"),
        ("q.csv", "question,answer\nWho?\n", "q.csv:2 has 1 columns, too few"),
        ("q.csv", "question,answer\nWho?,\n", "q.csv:2 has an empty answer"),
        ("q.csv", "question,answer\n ,Ida\n", "q.csv:2 has an empty question"),
        (
            "q.csv",
            "question,answer\nWho?,[Ida\n",
            "q.csv:2 has an answer that starts with a bracket",
        ),
        (
            "q.csv",
            "question,answer\nWho?,[3]\n",
            "q.csv:2 has an answer that starts with a bracket",
        ),
        ("q.csv", "question,answer,id\na,b,1\nc,d,1\n", "q.csv:3 has the id '1', as a question"),
        ("q.csv", 'question,answer\n"Who?,Ida\n', "cannot be read as a table"),
        ("q.csv", b"question,answer\n\xff,Ida\n", "cannot be read as a table"),
        ("q.csv.gz", b"no gzip", "cannot be read as a table"),
    ],
)
def test_defects_are_named(tmp_path, name, content, message):
    with pytest.raises(OrqaError, match=message.replace("[", r"\[")):
        load(tmp_path, name, content)


def test_a_missing_file(tmp_path):
    with pytest.raises(OrqaError, match="cannot be read"):
        load_question_file(tmp_path / "none.csv")
