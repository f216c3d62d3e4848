from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from orqa_jax.cli import main
from orqa_jax.corpus import build
from orqa_jax.corpus.build import append_to_corpus, build_corpus
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.locks import hold
from orqa_jax.text.wordpiece import WordPiece

TOKENIZER = WordPiece.from_vocab(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "owl", "##s", "hunt", "at", "night", ".", "t"]
)
DOCUMENT = {"title": "t", "text": "Owls hunt at night. Owl."}


def write(path: Path, records: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "docs.jsonl", [DOCUMENT])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.arrow")}


def test_one_document(source, tmp_path):
    store = build_corpus([source], tmp_path / "a/b/out", TOKENIZER, workers=1)
    assert len(store) == 1
    assert store.text(0) == DOCUMENT["text"]
    assert store.sentence_starts(0).tolist() == [0, 6]
    assert store.document_id(0) == "docs.jsonl:1"
    assert store.manifest["sources"] == [str(source)]
    assert store.manifest["build"]["text_bytes"] == len(DOCUMENT["text"])
    assert not list(tmp_path.glob("**/*.partial"))


def test_any_number_of_workers_gives_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(build, "_SHARD_BYTES", 50_000)
    documents = [
        {"title": f"t{i}", "text": "Owls hunt at night. " * (1 + i * i % 50)} for i in range(200)
    ]
    source = write(tmp_path / "docs.jsonl", documents)
    one = build_corpus([source], tmp_path / "1", TOKENIZER, max_wordpieces=32, workers=1)
    three = build_corpus([source], tmp_path / "3", TOKENIZER, max_wordpieces=32, workers=3)
    assert len(one.shards) > 2
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert one.fingerprint == three.fingerprint


def test_the_fingerprint_changes_with_the_content(tmp_path):
    changes = [{}, {"title": "u"}, {"text": "Owls hunt at night. Owls"}, {"id": "x"}]
    fingerprints = set()
    for i, change in enumerate(changes):
        source = write(tmp_path / f"{i}/docs.jsonl", [DOCUMENT | change])
        fingerprints.add(
            build_corpus([source], tmp_path / f"s{i}", TOKENIZER, workers=1).fingerprint
        )
    assert len(fingerprints) == len(changes)


def test_hostile_documents(tmp_path):
    texts = [
        "",
        "\x00\x01\x02",
        "owl\x00 hunt\ud800 night",
        "ينام البوم. في الليل!",
        "owls" * 25_000,
        "owl " * 25_000,
        "[SEP] owl [CLS]",
    ]
    source = write(tmp_path / "docs.jsonl", [{"title": "same", "text": text} for text in texts])
    store = build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)
    assert store.manifest["documents"] == 5
    assert store.manifest["skipped"] == {"empty": 2}
    assert store.text(0) == "owl  hunt\ufffd night"
    assert {store.title(i) for i in range(len(store))} == {"same"}
    assert store.lengths.max() <= 284
    owls = [store.text(i) for i in range(len(store)) if store.document_id(i).endswith(":6")]
    assert " ".join(owls) == texts[5].strip()
    assert not {TOKENIZER.sep_id, TOKENIZER.cls_id} & set(
        store.block_tokens(len(store) - 1).tolist()
    )


def test_skipped_pages_are_counted(tmp_path):
    page = (
        "<page><title>{0}</title><ns>{1}</ns><id>1</id><revision><text>{2}</text></revision></page>"
    )
    pages = [("A", 0, "owl"), ("Talk:A", 1, "hunt"), ("B", 0, "#redirect [[A]]"), ("C", 0, "{{x}}")]
    (tmp_path / "w.xml").write_text(
        "<mediawiki>" + "".join(page.format(*fields) for fields in pages) + "</mediawiki>"
    )
    store = build_corpus([tmp_path / "w.xml"], tmp_path / "out", TOKENIZER, workers=1)
    assert store.manifest["documents"] == 1
    assert store.manifest["skipped"] == {"empty": 1, "other namespace": 1, "redirect": 1}


BROKEN = [
    b'{"title": "A", "text": "Owls hunt at night."}',
    b'{"title": "B"}',
    b"not JSON",
    b'{"title": "C", "text": "Owls \xff"}',
    b"[1]",
    b'{"title": "D", "text": "An owl is a bird."}',
]


def test_broken_records_stop_the_build_or_are_named(tmp_path):
    source = tmp_path / "docs.jsonl"
    source.write_bytes(b"\n".join(BROKEN) + b"\n")
    with pytest.raises(OrqaError, match=r"docs\.jsonl:2: `text` is missing"):
        build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)
    assert not (tmp_path / "out").exists()

    store = build_corpus([source], tmp_path / "out", TOKENIZER, on_error="skip", workers=1)
    assert [store.title(i) for i in range(len(store))] == ["A", "D"]
    assert store.manifest["skipped"] == {"broken": 4, "empty": 0}
    lines = (tmp_path / "out" / "skipped.jsonl").read_text("utf-8").splitlines()
    named = [json.loads(line)["error"].split(" ")[0] for line in lines]
    assert named == [f"{source}:{n}" for n in ("2:", "3", "4", "5")]

    # What is appended later is named behind it; where nothing is broken, nothing is written.
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"id": "E", "title": "E", "text": "Owls."}\n' * 9)[:-6])
    wide = tmp_path / "wide.tsv"
    wide.write_text("id\ttext\ttitle\n1\tOwls.\tF\textra\n2\tOwls sleep.\tG\n")
    grown = append_to_corpus([cut, wide], tmp_path / "out", on_error="skip", workers=1)
    assert grown.manifest["skipped"]["broken"] == 6
    assert grown.title(len(grown) - 1) == "G"
    assert len((tmp_path / "out" / "skipped.jsonl").read_text("utf-8").splitlines()) == 6
    source.write_bytes(BROKEN[0])
    build_corpus([source], tmp_path / "clean", TOKENIZER, on_error="skip", workers=1)
    assert not (tmp_path / "clean" / "skipped.jsonl").exists()


def test_reports_without_a_terminal(source, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(build, "_SECONDS_BETWEEN_LOG_LINES", 0)
    with caplog.at_level("INFO"):
        build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)
    progress, summary = caplog.messages
    assert progress.startswith("corpus: 1 documents, ")
    assert progress.endswith("about 0 s left.")
    assert "1 blocks of 1 documents" in summary


# -- what is refused


def test_no_text_at_all(tmp_path):
    source = write(tmp_path / "docs.jsonl", [{"title": "t", "text": " "}] * 3)
    with pytest.raises(OrqaError, match=r"There is no text in .*docs.jsonl: 3 documents"):
        build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["docs.jsonl"]


def test_a_finished_store_is_not_overwritten(source, tmp_path):
    build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)
    with pytest.raises(OrqaError, match="out is a corpus already; remove it"):
        build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)


def test_out_is_taken(source, tmp_path):
    (tmp_path / "out").mkdir()
    build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)  # empty is fine
    write(tmp_path / "other/notes.txt", ["x"])
    for out in (tmp_path / "other", source):
        with pytest.raises(OrqaError, match="exists and is not an empty folder"):
            build_corpus([source], out, TOKENIZER, workers=1)
    with pytest.raises(OrqaError, match="lies in the source"):
        build_corpus([tmp_path], tmp_path / "new", TOKENIZER, workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"max_wordpieces": 15}, "max_wordpieces is 15"), ({"workers": 0}, "workers is 0")],
)
def test_arguments_out_of_range(source, tmp_path, arguments, message):
    with pytest.raises(OrqaError, match=message):
        build_corpus([source], tmp_path / "out", TOKENIZER, **arguments)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_defect_late_in_the_file_leaves_nothing(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(build, "_CHUNK_CHARACTERS", 10)
    source = write(tmp_path / "docs.jsonl", [DOCUMENT] * 20)
    source.write_text(source.read_text() + "{broken\n")
    with pytest.raises(OrqaError, match=r"docs.jsonl:21 is not valid JSON"):
        build_corpus([source], tmp_path / "out", TOKENIZER, workers=workers)
    assert [path.name for path in tmp_path.iterdir()] == ["docs.jsonl"]


def test_two_builds_of_one_folder(source, tmp_path):
    with (
        hold(tmp_path / "out"),
        pytest.raises(OrqaError, match=rf"out is being written by process {os.getpid()} on "),
    ):
        build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)
    build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)


# -- interruptions, in a process of their own

SCRIPT = """
import os
import signal
import sys
from pathlib import Path
from orqa_jax.cli import main
from orqa_jax.corpus import build
from orqa_jax.text.wordpiece import WordPiece

if __name__ == "__main__":
    # Jobs in the background of a shell start with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    build._SHARD_BYTES = 100_000
    build._CHUNK_CHARACTERS = 10_000
    folder = Path(sys.argv[1])
    build.build_corpus(
        [folder / "docs.jsonl"], folder / "out", WordPiece.load(folder / "tokenizer"), workers=2
    )
elif "crash" in sys.argv:  # a worker, which imports this file under another name
    build.pack_pages = lambda *arguments: os.abort()
"""


def start_long_build(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a build with two workers that would take minutes."""
    write(folder / "docs.jsonl", [{"title": "t", "text": "Owls hunt at night. " * 500}] * 3000)
    TOKENIZER.save(folder / "tokenizer")
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(folder / "script.py"), str(folder), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal sends Ctrl-C to a whole process group
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def wait_for_first_shard(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not (folder / "out.partial/blocks-00000.arrow").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def errors_once_all_are_gone(process: subprocess.Popen[str]) -> str:
    """Reads stderr, which ends when the last process that inherited it does."""
    return process.communicate(timeout=60)[1]


def test_ctrl_c_leaves_neither_files_nor_workers(tmp_path):
    process = start_long_build(tmp_path)
    wait_for_first_shard(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    assert errors_once_all_are_gone(process).rstrip().endswith("KeyboardInterrupt")
    assert process.returncode in (1, -signal.SIGINT)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_kill_9_leaves_nothing_that_looks_finished(tmp_path):
    process = start_long_build(tmp_path)
    wait_for_first_shard(tmp_path)
    process.kill()
    errors_once_all_are_gone(process)
    assert not (tmp_path / "out").exists()
    with pytest.raises(OrqaError, match="no finished corpus"):
        BlockStore(tmp_path / "out.partial")
    small = write(tmp_path / "small.jsonl", [DOCUMENT])
    assert len(build_corpus([small], tmp_path / "out", TOKENIZER, workers=1)) == 1
    assert not (tmp_path / "out.partial").exists()


def test_a_dying_worker_is_reported(tmp_path):
    process = start_long_build(tmp_path, "crash")
    assert "OrqaError: One of 2 worker processes died" in errors_once_all_are_gone(process)
    assert process.returncode == 1
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("shard_bytes", [10_000, 1 << 27])
def test_a_corpus_grown_in_steps_is_the_one_built_at_once(tmp_path, monkeypatch, shard_bytes):
    monkeypatch.setattr(build, "_SHARD_BYTES", shard_bytes)
    monkeypatch.setattr(build, "_CHUNK_CHARACTERS", 500)
    documents = [
        {"id": f"d{i}", "title": f"t{i}", "text": "Owls hunt at night. " * (1 + i * i % 9)}
        for i in range(60)
    ]
    parts = [
        write(tmp_path / f"{number}.jsonl", part)
        for number, part in enumerate([documents[:20], documents[20:23], documents[23:]])
    ]
    whole = build_corpus(parts, tmp_path / "whole", TOKENIZER, max_wordpieces=32, workers=1)
    grown = build_corpus(parts[:1], tmp_path / "grown", TOKENIZER, max_wordpieces=32, workers=1)
    states = []
    for part in parts[1:]:
        states.append((grown.fingerprint, len(grown)))
        grown = append_to_corpus([part], tmp_path / "grown", workers=1)
    assert grown.fingerprint == whole.fingerprint
    assert list(grown.earlier.items()) == states
    assert len(grown) == len(whole)
    for block in range(len(whole)):
        assert grown.text(block) == whole.text(block)
        assert grown.document_id(block) == whole.document_id(block)
        assert grown.block_tokens(block).tolist() == whole.block_tokens(block).tolist()
    for key in ("documents", "blocks", "wordpieces", "skipped", "sources", "max_wordpieces"):
        assert grown.manifest[key] == whole.manifest[key]
    assert not list(tmp_path.glob("*.partial"))


def test_a_document_that_is_there_already_is_not_appended(source, tmp_path):
    store = build_corpus([source], tmp_path / "out", TOKENIZER, workers=1)
    before = contents(tmp_path / "out")
    new = write(tmp_path / "new.jsonl", [DOCUMENT, DOCUMENT | {"id": "docs.jsonl:1"}])
    with pytest.raises(OrqaError, match=r"document docs\.jsonl:1 is in .*out already"):
        append_to_corpus([new], tmp_path / "out", workers=1)
    empty = write(tmp_path / "empty.jsonl", [{"title": "t", "text": " "}])
    with pytest.raises(OrqaError, match="no text in"):
        append_to_corpus([empty], tmp_path / "out", workers=1)
    assert contents(tmp_path / "out") == before
    assert BlockStore(tmp_path / "out").fingerprint == store.fingerprint
    with pytest.raises(OrqaError, match="no finished corpus"):
        append_to_corpus([new], tmp_path / "nothing", workers=1)
    with pytest.raises(OrqaError, match="workers is -1"):
        append_to_corpus([new], tmp_path / "out", workers=-1)
    assert not list(tmp_path.glob("*.partial"))


def test_appending_by_the_command(source, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["corpus", str(source), "--out", str(out), "--workers", "1"]) == 2
    assert "A new corpus needs --encoder" in capsys.readouterr().err
    build_corpus([source], out, TOKENIZER, workers=1)
    new = write(tmp_path / "new.jsonl", [DOCUMENT, DOCUMENT])
    append = ["corpus", str(new), "--out", str(out), "--append", "--workers", "1"]
    assert main(append) == 0
    store = BlockStore(out)
    assert [store.document_id(block) for block in range(3)] == [
        "docs.jsonl:1",
        "new.jsonl:1",
        "new.jsonl:2",
    ]
    assert main(append) == 2  # a second time, by mistake
    assert "is in" in capsys.readouterr().err
    assert BlockStore(out).fingerprint == store.fingerprint
