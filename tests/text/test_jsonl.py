import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.text.jsonl import read_jsonl, record_id


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_reads_every_compression(tmp_path: Path, suffix: str, compress) -> None:
    path = tmp_path / f"some.jsonl{suffix}"
    path.write_bytes(compress('\ufeff{"a": "é\u2028x"}\n\n  \r\n{"a": "\\ud83d\\ude00"}'.encode()))
    assert list(read_jsonl(path)) == [
        (f"{path}:1", {"a": "é\u2028x"}),
        (f"{path}:4", {"a": "😀"}),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": ', "not JSON in UTF-8"),
        (b"\xff\xfe", "not JSON in UTF-8"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b"[" * 100_000, "not JSON in UTF-8"),
        (b"[1]", "holds a JSON list"),
        (b"null", "holds a JSON NoneType"),
    ],
)
def test_defects_name_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"{}\n{}\n" + line + b"\n")
    with pytest.raises(OrqaError, match=rf"some\.jsonl:3 .*{message}"):
        list(read_jsonl(path))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(OrqaError, match=r"absent\.jsonl cannot be read"):
        list(read_jsonl(tmp_path / "absent.jsonl"))
    with pytest.raises(OrqaError, match="cannot be read"):
        list(read_jsonl(tmp_path))
    for suffix, damaged in [
        (".gz", gzip.compress(b"{}\n" * 999)[:-9]),
        (".bz2", bz2.compress(b"{}\n")[:-3]),
        (".xz", b"no xz"),
    ]:
        path = tmp_path / f"damaged.jsonl{suffix}"
        path.write_bytes(damaged)
        with pytest.raises(OrqaError, match=f"damaged.jsonl{suffix} cannot be read"):
            list(read_jsonl(path))


def test_record_id() -> None:
    assert record_id("f:1", {"id": "x"}) == "x"
    assert record_id("f:1", {"id": 7}) == "7"
    assert record_id("f:1", {"id": None}, default="1") == "1"
    for wrong in ({}, {"id": ""}, {"id": True}, {"id": 1.5}):
        with pytest.raises(OrqaError, match="f:1 needs an 'id'"):
            record_id("f:1", wrong)
