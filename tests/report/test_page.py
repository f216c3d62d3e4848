import html.parser
import json
import re
import xml.etree.ElementTree as ET

import pytest

from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.report.files import about_path
from orqa_jax.report.page import sweep_section, to_html, to_markdown, write_report
from orqa_jax.text.wordpiece import WordPiece

HOSTILE = '<script src="https://evil.example/x.js">alert("1")</script> & *bold* [a](b)'
TEXTS = [
    f"Oda Lind built the mill {HOSTILE}.",
    "Salt came from Dorn over the old road in winter.",
    "The mill burned in 1807.",
]
QUESTIONS = [
    {"id": "q1", "question": f"Who built the mill? {HOSTILE}", "answer": "Oda Lind"},
    {"id": "q2", "question": "Where did salt come from?", "answer": "Dorn"},
    {"id": "q3", "question": "When did the mill burn?", "answer": "1807"},
]


def jsonl(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two systems of which each is right where the other is not, a training, and a sweep."""
    run = tmp_path_factory.mktemp("reports") / "run"
    marks = list('<>/=":&*[]().?') + [chr(code) for code in range(ord("a"), ord("z") + 1)]
    letters = [*marks, *"0123456789"]
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{c}" for c in letters),
    ]
    documents = [{"id": str(i), "title": f"T{i} {HOSTILE}", "text": t} for i, t in enumerate(TEXTS)]
    source = jsonl(run / "documents.jsonl", documents)
    store = build_corpus([source], run / "corpus", WordPiece.from_vocab(vocabulary), workers=1)
    assert [store.text(i) for i in range(len(store))] == TEXTS
    asked = jsonl(run / "test.jsonl", QUESTIONS)
    about = {"corpus": str(store.folder), "corpus_fingerprint": store.fingerprint}
    about |= {"questions": str(asked), "reader_beam": 1}

    def candidate(block, answer):
        start = TEXTS[block].index(answer)
        return {
            "answer": answer, "block": block, "title": store.title(block), "start": start,
            "end": start + len(answer), "block_start": 0, "block_text": TEXTS[block],
            "probability": 0.25 + 0.25 * block,
        }  # fmt: skip

    chosen = {
        "orqa": [(0, "Oda Lind"), (1, "winter"), (2, "1807")],
        "bm25": [(0, "alert"), (1, "Dorn"), (2, "1807")],
    }
    for system, picked in chosen.items():
        records = [
            {
                "id": q["id"],
                "answer": answer,
                "retrieved": [block],
                "candidates": [candidate(block, answer)],
            }
            for q, (block, answer) in zip(QUESTIONS, picked, strict=True)
        ]
        path = jsonl(run / "predictions" / f"{system}.jsonl", records)
        about_path(path).write_text(json.dumps(about))
    steps = [
        {"step": 2 * i, "loss": 3.0 / i, "recall@5": None if i == 2 else i / 9} for i in range(1, 5)
    ]
    jsonl(run / "finetune" / "metrics.jsonl", steps)
    interval = {"mean": 0.4, "low": 0.3, "high": 0.5}
    against = [{}, {"recall@20": {"mean": -0.05, "p": 0.25}}]
    rows = [
        {"name": name, "metrics": {"recall@20": interval}, "against_first": difference}
        for name, difference in zip(("baseline", "mask <0>"), against, strict=True)
    ]
    (run / "sweep.json").write_text(json.dumps({"name": "S", "note": "N.", "rows": rows}))
    return run


class Checker(html.parser.HTMLParser):
    """Collects tags and text, and checks that what is opened is closed in order."""

    def __init__(self):
        super().__init__()
        self.stack, self.tags, self.links, self.ids, self.text = [], [], [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("href", "src", "xlink:href", "action", "srcset", "data"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)
        if tag not in ("meta", "br"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    page, text = write_report([run], tmp_path_factory.mktemp("out") / "report")
    checker = Checker()
    checker.feed(page.read_text("utf-8"))
    return checker, text.read_text("utf-8"), page


def test_the_page_is_whole_and_calls_nobody(report):
    checker, _, page = report
    assert checker.stack == []
    assert not {"script", "iframe", "img", "link", "object", "form"} & set(checker.tags)
    assert all(link.startswith("#") for link in checker.links)
    content = page.read_text("utf-8")
    assert not re.search(r"@import|url\((?!#)", content)
    assert "default-src 'none'" in content
    assert "prefers-color-scheme: dark" in content


def test_ids_are_unique_and_links_lead_somewhere(report):
    checker, _, page = report
    assert len(checker.ids) == len(set(checker.ids))
    wanted = re.findall(r"url\(#([^)]+)\)", page.read_text("utf-8"))
    wanted += [link[1:] for link in checker.links]
    assert set(wanted) <= set(checker.ids)


def test_text_is_shown_as_it_is(report):
    checker, markdown, _ = report
    assert f"Who built the mill? {HOSTILE}" in checker.text
    assert "<script" not in markdown
    assert r"\*bold\* [a]\(b)" in markdown


def test_what_is_on_the_page(report):
    checker, markdown, _ = report
    for text in (checker.text, markdown):
        for title in (
            "Questions of test.jsonl",
            "Recall over depth",
            "What went wrong",
            "Risk and coverage",
            "Only orqa is right, not bm25",
            "Only bm25 is right, not orqa",
            "Wrong, and surest of it: ",
            "Learning curves",
            "Ablations: S",
            "By question word: ",
        ):
            assert title in text
    assert "66.7 [0.0, 100.0]" in checker.text
    assert "40.0 [30.0, 50.0] (-5.0, p 0.25)" in checker.text
    assert checker.tags.count("svg") == 5
    assert checker.tags.count("mark") == 2 * 3


def test_evidence_is_marked(report):
    _, _, page = report
    content = page.read_text("utf-8")
    assert "Salt came from Dorn over the old road in <mark>winter</mark>." in content
    assert "Salt came from <mark>Dorn</mark> over" in content
    assert "right, confidence 0.50, answer in block 1" in content
    assert "wrong, lost by the reader, confidence 0.50, answer in block 1" in content


def test_plots_are_svg_files_too(report):
    _, markdown, page = report
    files = sorted((page.parent / "plots").iterdir())
    assert [f"plots/{file.name}" for file in files] == re.findall(r"\((plots/[^)]+)\)", markdown)
    for file in files:
        root = ET.parse(file).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "viewBox" in root.attrib
        assert "currentColor" in file.read_text()


def test_the_same_runs_make_the_same_page(run, report, tmp_path):
    page, text = write_report([run], tmp_path)
    assert page.read_bytes() == report[2].read_bytes()
    assert text.read_text("utf-8") == report[1]
    assert not list(tmp_path.rglob("*.partial"))


def test_two_runs_are_told_apart(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "predictions").symlink_to(run / "predictions")
    page, _ = write_report([run, other], tmp_path / "report")
    content = page.read_text("utf-8")
    assert "run: orqa" in content
    assert "other: bm25" in content


def test_questions_can_be_named(run, tmp_path, caplog):
    bare = tmp_path / "bare"
    records = [{"id": q["id"], "answer": "Dorn"} for q in QUESTIONS]
    jsonl(bare / "predictions" / "x.jsonl", records)
    with pytest.raises(OrqaError, match="nothing to report"):
        write_report([bare], tmp_path / "report")
    assert "is left out" in caplog.text
    page, _ = write_report([bare], tmp_path / "report", references=run / "test.jsonl")
    assert "33.3 [0.0, 100.0]" in page.read_text("utf-8")
    with pytest.raises(OrqaError, match="There is no run folder"):
        write_report([tmp_path / "none"], tmp_path / "report")


def test_a_broken_sweep_is_named(run, tmp_path):
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(OrqaError, match=r"sweep\.json is not JSON"):
        write_report([tmp_path], tmp_path / "report")


def test_a_sweep_by_itself():
    interval = {"mean": 0.5, "low": 0.25, "high": 0.75}
    rows = [{"name": "a", "metrics": {"x": interval}, "against_first": {}}]
    section = sweep_section({"name": "S", "note": "N.", "rows": rows}, "s")
    assert "50.0 [25.0, 75.0]" in to_markdown("T", [section])
    assert "<svg" in to_html("T", [section])
