import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import Example, load_examples, save_examples


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_questions_without_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", '{"question": "Who?"}', '{"id": 5, "question": "Why?"}')
    assert load_examples(path, answers_needed=False) == [
        Example("1", "Who?", ()),
        Example("5", "Why?", ()),
    ]
    with pytest.raises(OrqaError, match=r"q.jsonl:1 needs one of 'answer' and 'answers'"):
        load_examples(path)


def test_load(tmp_path: Path) -> None:
    path = write(
        tmp_path / "qa.jsonl",
        '{"question": "Who?", "answer": "Ada"}',
        "",
        '{"question": "Where? ", "answer": ["Köln", " ", "Cologne"], "note": 1}',
        '{"id": "q7", "question": "When?", "answers": ["1815"]}',
        '{"id": 8, "question": "Why?", "answers": "so"}',
    )
    assert load_examples(path) == [
        Example("1", "Who?", ("Ada",)),
        Example("3", "Where? ", ("Köln", "Cologne")),
        Example("q7", "When?", ("1815",)),
        Example("8", "Why?", ("so",)),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ('["q", "a"]', "JSON list"),
        ('{"answer": "a"}', "'question' that is a string"),
        ('{"question": " ", "answer": "a"}', "'question' that is a string and not blank"),
        ('{"question": 3, "answer": "a"}', "'question' that is a string"),
        ('{"question": "q"}', "not neither"),
        ('{"question": "q", "answer": "a", "answers": ["a"]}', "not both"),
        ('{"question": "q", "answer": ["a", 1]}', "'answer' to be a string or a list"),
        ('{"question": "q", "answers": {"a": 1}}', "'answers' to be a string or a list"),
        ('{"question": "q", "answer": null}', "'answer' to be a string or a list"),
        ('{"question": "q", "answer": []}', "at least one answer"),
        ('{"question": "q", "answer": ["", " "]}', "at least one answer"),
        ('{"question": "q", "answer": "a", "match": "glob"}', "'match' to be .* not 'glob'"),
        ('{"question": "q", "answer": "a", "taken_from": 3}', "'taken_from' to be an object"),
        ('{"question": "q", "answer": "a", "taken_from": {"start": 3}}', "'taken_from' to be"),
        (
            '{"question": "q", "answer": "a", "taken_from": {"document_id": 1, "start": 3}}',
            "'taken_from' to be",
        ),
        ('{"question": "q", "answer": "a", "id": ""}', "'id'"),
        ('{"question": "q", "answer": "a", "id": "1"}', r"repeats the id '1' of .*qa\.jsonl:1;"),
    ],
)
def test_defects_name_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "qa.jsonl", '{"question": "Who?", "answer": "Ada"}', line)
    with pytest.raises(OrqaError, match=rf"qa\.jsonl:2 .*{message}") as caught:
        load_examples(path)
    assert "\n" not in str(caught.value)


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OrqaError, match="holds no questions"):
        load_examples(write(tmp_path / "empty.jsonl"))


VISIBLE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(VISIBLE, st.lists(VISIBLE, min_size=1, max_size=3)), min_size=1))
def test_saved_examples_come_back(tmp_path_factory, pairs) -> None:
    folder = tmp_path_factory.mktemp("qa")
    examples = [
        Example(f"q{i}", q, tuple(answers), "regex" if i % 2 else "string")
        for i, (q, answers) in enumerate(pairs)
    ]
    save_examples(folder / "saved.jsonl", examples)
    assert load_examples(folder / "saved.jsonl") == examples


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    save_examples(path, [Example("1", "Who?", ("Ada",))])
    before = path.read_bytes()

    def interrupted():
        yield Example("2", "Where?", ("Köln",))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_examples(path, interrupted())
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved.jsonl"]
    assert json.loads(before) == {"id": "1", "question": "Who?", "answer": ["Ada"]}
