import gzip
import json
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.cli import main
from orqa_jax.errors import OrqaError
from orqa_jax.qa import datasets
from orqa_jax.qa.datasets import DATASETS, Dataset, is_dev, load_dataset, read_gold_spans
from orqa_jax.qa.examples import Example, load_examples

DATA = Path(os.environ.get("ORQA_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def shared(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"no {name} under {DATA}; set ORQA_DATA")
    return DATA / name


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), "utf-8")
    return path


def write_lines(path: Path, *records: object) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return path


def answers(examples: list[Example]) -> list[tuple[str, ...]]:
    return [example.answers for example in examples]


HTML = "<P>Zoë &amp; Ida founded <B>Mirrowick Quay</B> in 1702 .</P>"


def original_record(*spans: tuple[str, int], id_: int = 7) -> dict[str, object]:
    """A record in which each span is (its HTML, its number of tokens)."""
    found = []
    for html, tokens in spans:
        start = HTML.encode().index(html.encode())
        end = start + len(html.encode())
        found.append(
            {"start_byte": start, "end_byte": end, "start_token": 3, "end_token": 3 + tokens}
        )
    return {
        "example_id": id_,
        "question_text": "who founded the quay",
        "document_html": HTML,
        "annotations": [{"short_answers": [span]} for span in found] or [{"short_answers": []}],
    }


def test_natural_questions_original(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "nq-train-00.jsonl.gz",
        original_record(("Zoë &amp; Ida", 3), ("<B>Mirrowick Quay</B>", 5), ("1702", 1)),
        original_record(id_=8),
        original_record(("founded <B>Mirrowick Quay</B> in", 6), id_=9),
        original_record(("1702", 1), ("1702", 1), id_=10),
    )
    assert load_dataset("natural_questions", None, [path]) == [
        Example("7", "who founded the quay", ("Zoë & Ida", "Mirrowick Quay", "1702")),
        Example("10", "who founded the quay", ("1702",)),
    ]


def test_natural_questions_simplified(tmp_path: Path) -> None:
    text = "<P> Zoë and Ida founded <B> Mirrowick Quay </B> in 1702 . </P>"
    words = text.split(" ")
    start = words.index("<B>")
    record = {
        "example_id": -3,
        "question_text": "what did they found",
        "document_text": text,
        "annotations": [
            {
                "short_answers": [
                    {"start_token": start, "end_token": start + 4},
                    {"start_token": 0, "end_token": 6},
                ]
            }
        ],
    }
    path = write_lines(tmp_path / "simplified.jsonl.gz", record)
    (example,) = load_dataset("natural_questions", None, [path])
    assert (example.id, example.answers) == ("-3", (" Mirrowick Quay ",))


def test_nq_open_and_defects(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "open.jsonl", {"question": "who", "answer": ["a", "a", " ", "b"]})
    assert load_dataset("natural_questions", None, [path]) == [Example("1", "who", ("a", "b"))]
    broken = original_record(("1702", 1))
    broken["annotations"] = [{"short_answers": [{"start_token": 1}]}]
    path = write_lines(tmp_path / "broken.jsonl", broken)
    with pytest.raises(OrqaError, match=r"broken.jsonl:1 is not a record .*'end_token'"):
        load_dataset("natural_questions", None, [path])
    path = write_lines(tmp_path / "none.jsonl", {"question": "who", "answer": [" "]})
    with pytest.raises(OrqaError, match=r"none.jsonl:1 has no answer"):
        load_dataset("natural_questions", None, [path])


def test_triviaqa(tmp_path: Path) -> None:
    answer = {"Value": "Ida Crake", "Aliases": ["Crake", "Ida Crake", "I. Crake"], "Type": "x"}
    record = {"QuestionId": "tc_1", "Question": "Who?", "Answer": answer}
    path = write_json(tmp_path / "unfiltered-web-train.json", {"Data": [record]})
    expected = [Example("tc_1", "Who?", ("Ida Crake", "Crake", "I. Crake"))]
    assert load_dataset("trivia_qa", None, [path]) == expected
    del record["Answer"]
    write_json(path, {"Data": [record]})
    with pytest.raises(OrqaError, match="question 1, has no 'Answer'"):
        load_dataset("trivia_qa", None, [path])
    with pytest.raises(OrqaError, match="has no 'Data'"):
        load_dataset("trivia_qa", None, [write_json(tmp_path / "x.json", {"data": []})])


def squad_file(path: Path, start: int = 4) -> Path:
    marked = [{"text": "salt market", "answer_start": start}] * 2
    questions = [
        {
            "id": "a",
            "question": "What burned?",
            "answers": [*marked, {"text": "", "answer_start": 0}],
        },
        {"id": "b", "question": "And?", "answers": []},
    ]
    paragraph = {"context": "The salt market burned.", "qas": questions}
    return write_json(path, {"data": [{"title": "Tarnholt", "paragraphs": [paragraph]}]})


def test_squad(tmp_path: Path) -> None:
    path = squad_file(tmp_path / "squad.json")
    assert load_dataset("squad", None, [path]) == [Example("a", "What burned?", ("salt market",))]
    (gold,) = read_gold_spans([path])
    assert gold.starts == (4, 4)
    assert (gold.title, gold.context) == ("Tarnholt", "The salt market burned.")
    with pytest.raises(OrqaError, match="question a, has the answer 'salt market' where"):
        load_dataset("squad", None, [squad_file(tmp_path / "shifted.json", start=5)])


def test_wikimovies(tmp_path: Path) -> None:
    entities = tmp_path / "entities.txt"
    entities.write_text("Me, Myself\nMe\nMyself & Irene\nMe, Myself & Irene\nUmber, The\n", "utf-8")
    questions = tmp_path / "wiki-entities_qa_test.txt"
    questions.write_text(
        "1 what did Ida write?\tMe, Myself & Irene\n1 which films?\tUmber, The, Me\n", "utf-8"
    )
    found = load_dataset("wiki_movies", None, [questions, entities])
    assert found == [
        Example("1", "what did Ida write?", ("Me, Myself & Irene",)),
        Example("2", "which films?", ("Umber, The", "Me")),
    ]
    with pytest.raises(OrqaError, match="needs its entity list"):
        load_dataset("wiki_movies", None, [questions])
    questions.write_text("1 which?\tUnknown Film\n", "utf-8")
    with pytest.raises(OrqaError, match=r"qa_test.txt:1 has answers that are not in"):
        load_dataset("wiki_movies", None, [questions, entities])
    questions.write_text("which?\tMe\n", "utf-8")
    with pytest.raises(OrqaError, match="is no line of WikiMovies"):
        load_dataset("wiki_movies", None, [questions, entities])


NAMES = st.lists(st.sampled_from(["A", "B", "A, B", "C", "B, C, A"]), min_size=1, max_size=8)


@given(NAMES)
def test_answers_are_cut_into_entities(names: list[str]) -> None:
    entities = frozenset(["A", "B", "A, B", "C", "B, C, A"])
    cut = datasets._cut_at_commas(", ".join(names), entities)
    assert cut is not None
    assert set(cut) <= entities
    assert ", ".join(cut) == ", ".join(names)


def test_a_long_list_of_answers_is_cut() -> None:
    names = [f"Film {number}" for number in range(700)]
    assert datasets._cut_at_commas(", ".join(names), frozenset(names)) == tuple(names)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("trivia_qa", {"Data": [3]}, "question 1, is no JSON object"),
        (
            "trivia_qa",
            {"Data": [{"Answer": {"Value": "a", "Aliases": [1]}}]},
            "question 1, needs 'Aliases' to be a list of strings",
        ),
        ("entity_questions", ["q"], "question 1, is no JSON object"),
        (
            "squad",
            {"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "x"}]}]}]},
            "question x, has no 'answers'",
        ),
        (
            "squad",
            {"data": [{"paragraphs": [{"context": "c", "qas": [3]}]}]},
            "a question needs a 'id'",
        ),
    ],
)
def test_records_of_another_form_are_named(tmp_path, name, content, message) -> None:
    with pytest.raises(OrqaError, match=rf"file\.json, {message}"):
        load_dataset(name, None, [write_json(tmp_path / "file.json", content)])


def test_records_without_an_id_are_numbered(tmp_path: Path) -> None:
    records = [{"id": i, "question": "w", "answer": "a"} for i in (None, 0)]
    path = write_lines(tmp_path / "q.jsonl", *records)
    assert [example.id for example in load_dataset("web_questions", None, [path])] == ["1", "0"]


def test_entity_questions(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    write_json(folder / "P17.test.json", [{"question": "Where is Keth?", "answers": ["Solvane"]}])
    write_json(folder / "P106.test.json", [{"question": "What is Ida?", "answers": ["a", "b"]}])
    assert load_dataset("entity_questions", None, [folder]) == [
        Example("P106.test-1", "What is Ida?", ("a", "b")),
        Example("P17.test-1", "Where is Keth?", ("Solvane",)),
    ]


def test_curated_trec_is_of_regular_expressions(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trec.txt", {"question": "When?", "answer": ["Sept?(ember)?"]})
    assert load_dataset("curated_trec", None, [path]) == [
        Example("1", "When?", ("Sept?(ember)?",), "regex")
    ]


def test_wrong_counts_and_double_ids_are_refused(tmp_path: Path, monkeypatch) -> None:
    path = write_lines(tmp_path / "q.jsonl", {"question": "who", "answer": "a"})
    with pytest.raises(OrqaError, match=r"test split of web_questions has 2,032 .* 1 come from"):
        load_dataset("web_questions", "test", [path])
    twice = write_lines(tmp_path / "t.jsonl", *[{"id": "x", "question": "w", "answer": "a"}] * 2)
    with pytest.raises(OrqaError, match="holds the id 'x' 2 times"):
        load_dataset("web_questions", None, [twice])
    empty = write_lines(tmp_path / "e.jsonl")
    with pytest.raises(OrqaError, match="holds nothing"):
        load_dataset("web_questions", None, [empty])
    with pytest.raises(OrqaError, match="There is no dataset 'webquestions'; known are natural_q"):
        load_dataset("webquestions", None, [path])

    one = Dataset(datasets.read_pairs, {"train": 9, "dev": 0, "test": 1})
    monkeypatch.setitem(DATASETS, "web_questions", one)
    assert load_dataset("web_questions", "test", [path]) == [Example("1", "who", ("a",))]


@pytest.mark.parametrize(
    ("name", "split", "file"),
    [
        ("web_questions", "train", "webquestions_train.jsonl"),
        ("web_questions", "dev", "webquestions_train.jsonl"),
        ("web_questions", "test", "webquestions_test.jsonl"),
        ("curated_trec", "train", "curatedtrec_train.jsonl"),
        ("curated_trec", "dev", "curatedtrec_train.jsonl"),
        ("squad", "test", "squad_v1.1_dev.json.xz"),
    ],
)
def test_published_counts_on_the_real_files(name: str, split: str, file: str) -> None:
    examples = load_dataset(name, split, [shared(file)])  # type: ignore[arg-type]
    expected = {"train": {"web_questions": 3417, "curated_trec": 1353}}
    expected |= {"dev": {"web_questions": 361, "curated_trec": 133}}
    expected |= {"test": {"web_questions": 2032, "squad": 10570}}
    assert len(examples) == expected[split][name]


def test_the_re_split_by_known_hashes() -> None:
    # FarmHash is fixed for ever: these questions of our own are on these sides.
    questions = [f"who built the quay of Palvene number {i}" for i in range(40)]
    dev = [i for i, question in enumerate(questions) if is_dev(question)]
    assert dev == KNOWN_DEV
    assert not is_dev("")


KNOWN_DEV = [2, 14, 29]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "t.txt", {"question": "When?", "answer": ["19(1|2)0"]})
    out = tmp_path / "new" / "out.jsonl"
    assert main(["data", "curated_trec", str(path), "--out", str(out)]) == 0
    assert load_examples(out) == [Example("1", "When?", ("19(1|2)0",), "regex")]
    assert main(["data", "curated_trec", "--split", "dev", "--out", str(out)]) == 2
    assert "curated_trec is not in TFDS" in capsys.readouterr().err


# --- TFDS -----------------------------------------------------------------------------------------


def test_from_tfds(tmp_path: Path, monkeypatch) -> None:
    tfds = pytest.importorskip("tensorflow_datasets", reason="the tfds extra is not installed")
    records = [
        {"question": "who", "url": "u", "answers": ["Ida", "Ida", "Zoë"]},
        {"question": "where", "url": "u", "answers": ["Keth"]},
    ]

    class WebQuestions(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = "web_questions"
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            text = tfds.features.Text()
            features = {"question": text, "url": text, "answers": tfds.features.Sequence(text)}
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, unused):
            return {"test": self._generate_examples()}

        def _generate_examples(self):
            yield from enumerate(records)

    WebQuestions(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    two = Dataset(
        datasets.read_pairs, {"test": 2}, tfds=("web_questions", {"test": "test"}), resplit=True
    )
    monkeypatch.setitem(DATASETS, "web_questions", two)
    found = load_dataset("web_questions", "test", tfds_dir=tmp_path)
    assert sorted((e.question, e.answers) for e in found) == [
        ("where", ("Keth",)),
        ("who", ("Ida", "Zoë")),
    ]
    with pytest.raises(OrqaError, match="Name the split"):
        load_dataset("web_questions", None, tfds_dir=tmp_path)
    with pytest.raises(OrqaError, match="TFDS does not open web_questions"):
        load_dataset("web_questions", "test", tfds_dir=tmp_path / "nowhere")


def test_tfds_records_of_the_other_datasets() -> None:
    """As `as_data_source` gives them, without TensorFlow: bytes, and lists a field."""
    start = HTML.encode().index(b"1702")
    spans = {
        "start_token": [[0], [], [3, 4]],
        "end_token": [[2], [], [12, 5]],
        "start_byte": [[3], [], [0, start]],
        "end_byte": [[start], [], [9, start + 4]],
    }
    record = {
        "id": b"77",
        "question": {"text": b"when"},
        "document": {"html": HTML.encode()},
        "annotations": {"short_answers": spans},
    }
    assert datasets._tfds_natural_questions(record) == Example(
        "77", "when", ("Zoë & Ida founded Mirrowick Quay in ", "1702")
    )
    answer = {"value": b"Ida", "aliases": [b"Ida", b"I."]}
    record = {"question_id": b"tc_1", "question": b"who", "answer": answer}
    assert datasets._tfds_triviaqa(record) == Example("tc_1", "who", ("Ida", "I."))
    record = {"id": b"5", "question": b"who", "answers": {"text": [b"Ida", b"Ida"]}}
    assert datasets._tfds_squad(record) == Example("5", "who", ("Ida",))


def test_compressed_files(tmp_path: Path) -> None:
    path = tmp_path / "squad.json.xz"
    with lzma.open(path, "wt") as file:
        file.write(squad_file(tmp_path / "plain.json").read_text())
    assert len(load_dataset("squad", None, [path])) == 1
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(OrqaError, match=r"bad.json is not JSON"):
        load_dataset("squad", None, [tmp_path / "bad.json"])
