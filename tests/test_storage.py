"""Copies against the local disk and fsspec's store in memory, a stand-in for gs://."""

import os
import time
from pathlib import Path

import fsspec
import pytest

from orqa_jax import storage
from orqa_jax.errors import OrqaError
from orqa_jax.storage import copy, is_url


@pytest.fixture
def bucket():
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    return memory


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "corpus"
    (made / "tokenizer").mkdir(parents=True)
    (made / "manifest.json").write_text("{}")
    (made / "blocks.arrow").write_bytes(b"0123" * 1000)
    (made / "tokenizer" / "vocab.txt").write_text("owl\n")
    for path in made.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_urls_are_told_from_paths():
    assert is_url("gs://bucket/run")
    assert not is_url("/runs/wiki")
    assert not is_url("runs/a:b")


def test_there_and_back(bucket, folder, tmp_path):
    assert copy(str(folder), "memory://run/corpus") == 3
    assert bucket.cat("/run/corpus/tokenizer/vocab.txt") == b"owl\n"
    assert copy("memory://run/corpus", str(tmp_path / "new" / "copy")) == 3
    assert files(tmp_path / "new" / "copy") == files(folder)
    assert copy("memory://run/corpus", str(tmp_path / "new" / "copy")) == 0
    assert copy(str(tmp_path / "new" / "copy"), "memory://run/corpus") == 0


def test_one_file(bucket, folder, tmp_path):
    copy(str(folder / "manifest.json"), "memory://run/x.json")
    copy("memory://run/x.json", str(tmp_path / "y.json"))
    assert (tmp_path / "y.json").read_text() == "{}"


def test_what_is_newer_is_copied_and_what_is_older_stays(bucket, folder, tmp_path):
    copy(str(folder), "memory://run")
    os.utime(folder / "manifest.json", (time.time() + 60,) * 2)
    (folder / "manifest.json").write_text('{"a": 1}')
    os.utime(folder / "manifest.json", (time.time() + 60,) * 2)
    (folder / "blocks.arrow").write_bytes(b"older")
    os.utime(folder / "blocks.arrow", (1_600_000_000,) * 2)
    assert copy(str(folder), "memory://run") == 1
    assert bucket.cat("/run/manifest.json") == b'{"a": 1}'
    assert len(bucket.cat("/run/blocks.arrow")) == 4000


def test_a_host_that_copied_down_does_not_undo_what_another_copies_up(bucket, folder, tmp_path):
    """Every host of a pod has the metrics of an earlier start; one of them adds lines."""
    (folder / "metrics.jsonl").write_text("1\n")
    copy(str(folder), "memory://run")
    hosts = [tmp_path / "host0", tmp_path / "host1"]
    for host in hosts:
        copy("memory://run", str(host))
    (hosts[0] / "metrics.jsonl").write_text("1\n2\n")
    os.utime(hosts[0] / "metrics.jsonl", (time.time() + 5,) * 2)
    copied = [copy(str(host), "memory://run") for host in hosts]
    assert copied == [1, 0]
    assert bucket.cat("/run/metrics.jsonl") == b"1\n2\n"


def test_an_interrupted_copy_leaves_no_half_file(bucket, folder, tmp_path, monkeypatch):
    copy(str(folder), "memory://run")
    get_file = type(bucket).get_file

    def torn(self, source, target, **options):
        if source.endswith(".arrow"):
            Path(target).write_bytes(b"01")
            raise ConnectionError("reset")
        get_file(self, source, target, **options)

    monkeypatch.setattr(type(bucket), "get_file", torn)
    with pytest.raises(
        OrqaError, match=r"memory://run could not be copied .*ConnectionError: reset"
    ):
        copy("memory://run", str(tmp_path / "copy"))
    assert not list((tmp_path / "copy").glob("blocks.arrow*"))
    assert not (tmp_path / "copy" / "manifest.json").exists()  # what would call it finished
    monkeypatch.undo()
    assert copy("memory://run", str(tmp_path / "copy")) >= 2
    assert files(tmp_path / "copy")["blocks.arrow"] == b"0123" * 1000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("memory://nowhere", "There is nothing at memory://nowhere"),
        ("/no/such/folder", "There is nothing at /no/such/folder"),
        ("nosuch://bucket/x", "could not be copied"),
    ],
)
def test_what_cannot_be_copied_is_named(bucket, tmp_path, source, message):
    with pytest.raises(OrqaError, match=message):
        copy(source, str(tmp_path / "copy"))


def test_a_store_without_its_library(tmp_path, monkeypatch):
    def missing(_):
        raise ImportError("Please install gcsfs")

    monkeypatch.setattr(storage.fsspec.core, "url_to_fs", missing)
    with pytest.raises(OrqaError, match=r"gs:// needs `pip install orqa_jax\[gcs\]`"):
        copy("gs://bucket/x", str(tmp_path))
