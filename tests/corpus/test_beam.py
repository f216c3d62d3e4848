"""Beam's direct runner against the local build; skipped where apache-beam is not installed."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orqa_jax.corpus import beam, build
from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.postings import answer_postings
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.text.wordpiece import WordPiece

pytest.importorskip("apache_beam", reason="apache-beam needs an environment of its own")

from apache_beam.io.localfilesystem import LocalFileSystem

# Its own business; what we do wrong shows in what is written.
pytestmark = pytest.mark.filterwarnings("ignore")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["owl", "##s", "hunt", "at", "night", ".", "t"]
TOKENIZER = WordPiece.from_vocab(
    [*SPECIAL, *WORDS, *"0123456789", *(f"##{digit}" for digit in range(10))]
)
WIKITEXT = """<mediawiki><page><title>Owl</title><ns>0</ns><id>7</id><revision><text>'''Owls''' hunt
at [[night]].</text></revision></page><page><title>User:Owl</title><ns>2</ns><id>8</id><revision>
<text>t</text></revision></page></mediawiki>"""


def documents(count, first=0):
    return [
        {"id": f"d{i}", "title": f"t{i}", "text": f"Owl {i}. " + "Owls hunt at night. " * (i % 40)}
        for i in range(first, first + count)
    ]


def write(path: Path, records) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(build, "_CHUNK_CHARACTERS", 3000)
    monkeypatch.setattr(build, "_SHARD_BYTES", 60_000)


@pytest.fixture
def sources(tmp_path):
    """Files of several kinds; the second of the folder holds no words."""
    folder = tmp_path / "prose"
    folder.mkdir()
    (folder / "a.txt").write_text("Owls hunt at night. " * 30)
    (folder / "b.md").write_text("\n\n")
    (folder / "c.html").write_text("<title>t</title><p>Owls hunt.</p>")
    (tmp_path / "dump.xml").write_text(WIKITEXT)
    (tmp_path / "dpr.tsv").write_text("id\ttext\ttitle\n1\tOwls hunt.\tt\n")
    lines = write(tmp_path / "docs.jsonl.gz", [*documents(90), {"title": "t", "text": " "}])
    return [lines, tmp_path / "dump.xml", folder, tmp_path / "dpr.tsv"]


def same_stores(ours: Path, local: BlockStore) -> None:
    found = BlockStore(ours)
    assert found.fingerprint == local.fingerprint
    assert len(found) == len(local)
    for block in range(0, len(local), 7):
        assert found.text(block) == local.text(block)
        assert found.document_id(block) == local.document_id(block)
        np.testing.assert_array_equal(found.block_tokens(block), local.block_tokens(block))
    differing = {"build", "sources", "shards"}
    for key in local.manifest.keys() - differing:
        assert found.manifest[key] == local.manifest[key], key
    assert WordPiece.load(found.tokenizer_folder).fingerprint == local.tokenizer_fingerprint


def test_the_store_is_that_of_the_local_build(sources, tmp_path, small_pieces):
    local = build_corpus(sources, tmp_path / "local", TOKENIZER, max_wordpieces=32, workers=1)
    assert local.manifest["skipped"] == {"empty": 2, "other namespace": 1}
    assert len(local.shards) > 1
    out = tmp_path / "new" / "beam"
    beam.build_with_beam(list(map(str, sources)), str(out), TOKENIZER, max_wordpieces=32)
    same_stores(out, local)
    assert BlockStore(out).manifest["sources"] == list(map(str, sources))
    assert [path.name for path in out.parent.iterdir()] == ["beam"]


FILES = LocalFileSystem(None)


class Bucket(LocalFileSystem):
    """A local stand-in for an object store: the same files, under URLs alone, without folders."""

    root = Path()

    @classmethod
    def scheme(cls):
        return "bucket"

    def _path(self, url):
        assert url.startswith("bucket://"), url
        return str(self.root / url.removeprefix("bucket://"))

    def mkdirs(self, path):
        pass

    def match(self, patterns, limits=None):
        found = FILES.match([self._path(pattern) for pattern in patterns])
        for result in found:
            for each in result.metadata_list:
                each.path = "bucket://" + str(Path(each.path).relative_to(self.root))
        return found

    def create(self, path, *arguments, **options):
        Path(self._path(path)).parent.mkdir(parents=True, exist_ok=True)
        return FILES.create(self._path(path), *arguments, **options)

    def open(self, path, *arguments, **options):
        return FILES.open(self._path(path), *arguments, **options)

    def exists(self, path):
        return FILES.exists(self._path(path))

    def delete(self, paths):
        FILES.delete([self._path(path) for path in paths])


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(Bucket, "root", tmp_path / "bucket")
    return tmp_path / "bucket"


def test_everything_may_be_in_an_object_store(bucket, tmp_path, small_pieces):
    paths = [
        write(bucket / "in" / "2.jsonl", documents(40, first=60)),
        write(bucket / "in" / "1.jsonl.gz", documents(60)),
    ]
    local = build_corpus(sorted(paths), tmp_path / "local", TOKENIZER, workers=1)
    beam.build_with_beam(["bucket://in/*.jsonl*"], "bucket://out/corpus", TOKENIZER)
    same_stores(bucket / "out" / "corpus", local)
    assert [path.name for path in (bucket / "out").iterdir()] == ["corpus"]
    with pytest.raises(OrqaError, match="is a corpus already"):
        beam.build_with_beam(["bucket://in/*.jsonl*"], "bucket://out/corpus", TOKENIZER)

    beam.find_answers_with_beam("bucket://out/corpus", QUESTIONS, "bucket://out/answers.jsonl")
    check_answers(bucket / "out" / "answers.jsonl", local)


QUESTIONS = {"a": ["7", "Owl 31"], "b": ["Owls hunt at night"], "c": ["night owls"]}


def check_answers(path: Path, store: BlockStore) -> None:
    answers = [[e.ids for e in TOKENIZER.encode(texts)] for texts in QUESTIONS.values()]
    expected = answer_postings(store, answers, TOKENIZER.continues_word)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == ["a", "b", "c"]
    assert [line["blocks"] for line in lines] == [blocks.tolist() for blocks in expected]
    assert len(lines[0]["blocks"]) == 2
    assert not lines[2]["blocks"]


def test_answers_are_where_the_local_scan_finds_them(tmp_path, small_pieces):
    source = write(tmp_path / "docs.jsonl", documents(80))
    store = build_corpus([source], tmp_path / "corpus", TOKENIZER, max_wordpieces=64, workers=1)
    assert len(store.shards) > 1
    out = tmp_path / "answers.jsonl"
    beam.find_answers_with_beam(str(store.folder), QUESTIONS, str(out))
    check_answers(out, store)
    assert not list(tmp_path.glob("*.partial*"))


def test_a_source_without_documents_is_named(tmp_path):
    full = write(tmp_path / "docs.jsonl", documents(2))
    (tmp_path / "empty.jsonl").write_text("\n")
    out = tmp_path / "out"
    with pytest.raises(Exception, match=r"empty.jsonl holds no documents"):
        beam.build_with_beam([str(full), str(tmp_path / "empty.jsonl")], str(out), TOKENIZER)
    assert not out.exists()
    assert not list(tmp_path.glob("out*"))


def test_damage_is_named_with_its_line(tmp_path):
    source = write(tmp_path / "docs.jsonl", [*documents(2), {"title": "t"}])
    with pytest.raises(Exception, match=r"docs.jsonl:3: `text` is missing"):
        beam.build_with_beam([str(source)], str(tmp_path / "out"), TOKENIZER)


@pytest.mark.parametrize(
    ("sources", "out", "size", "message"),
    [
        (["missing.jsonl"], "new", 32, "There is no file or folder missing.jsonl"),
        (["bucket://missing*.jsonl"], "new", 32, "There is no file bucket://missing"),
        (["bucket://strange.pdf"], "new", 32, "of no known kind"),
        (["bucket://strange.pdf"], "taken", 32, "not an empty folder"),
        (["bucket://strange.pdf"], "new", 3, "at least"),
    ],
)
def test_what_is_wrong_from_the_start(bucket, tmp_path, sources, out, size, message):
    bucket.mkdir()
    (bucket / "strange.pdf").write_text("t")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(OrqaError, match=message):
        beam.build_with_beam(sources, str(tmp_path / out), TOKENIZER, max_wordpieces=size)


def test_the_command_line_with_workers_in_other_processes(tmp_path):
    source = write(tmp_path / "docs.jsonl", documents(50))
    TOKENIZER.save(tmp_path / "encoder")
    local = build_corpus([source], tmp_path / "local", TOKENIZER, max_wordpieces=32, workers=1)
    command = [sys.executable, "-m", "experiments.beam"]
    blocks = ["blocks", source, "--out", tmp_path / "out", "--encoder", tmp_path / "encoder"]
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    subprocess.run([*command, *blocks, "--max-wordpieces", "32", *options], check=True)
    same_stores(tmp_path / "out", local)

    lines = [{"id": k, "question": "Which?", "answer": v} for k, v in QUESTIONS.items()]
    questions, found = write(tmp_path / "questions.jsonl", lines), tmp_path / "answers.jsonl"
    answers = ["answers", tmp_path / "out", "--questions", questions, "--out", found]
    subprocess.run([*command, *answers], check=True)
    check_answers(found, local)
    again = subprocess.run([*command, *blocks], capture_output=True, text=True)
    assert again.returncode == 2
    assert "is a corpus already" in again.stderr
