"""Files made to break their reader: each has to be read, or refused in one sentence, in bounds.

Memory is bounded by the machine (RLIMIT_AS) in a process of its own. What benchmarks/fuzz.py found
stands here as one small case each.
"""

import gzip
import io
import json
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from orqa_jax.corpus.markup import html_to_text, markdown_title
from orqa_jax.corpus.readers import read_documents
from orqa_jax.corpus.release import read_tfrecords
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.predictions import read_predictions
from orqa_jax.models.tensorflow import read_tensorflow
from orqa_jax.models.torch_file import read_torch
from orqa_jax.qa.datasets import load_dataset
from orqa_jax.qa.examples import load_examples
from orqa_jax.qa.files import load_question_file
from orqa_jax.text.jsonl import read_json
from orqa_jax.text.protobuf import read_varint

ROOT = Path(__file__).parent.parent

_READ = """
import resource, sys
from pathlib import Path
from orqa_jax.corpus.readers import read_documents
from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import load_examples
from orqa_jax.qa.files import load_question_file
from orqa_jax.text.jsonl import read_json
kind, path, room = sys.argv[1:]
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + int(room), now + int(room)))
read = {
    "documents": lambda: sum(1 for _ in read_documents([path])),
    "examples": lambda: len(load_examples(path)),
    "table": lambda: len(load_question_file(path)),
    "json": lambda: len(read_json(path)),
}[kind]
try:
    print("read", read())
except OrqaError as error:
    print("refused", error)
"""


def read_in_bounds(kind: str, path: Path, *, room: int) -> str:
    """What comes of a file in a process that may take ``room`` bytes more than it starts with."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, kind, str(path), str(room)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def packed(path: Path, begin: bytes, part: bytes, size: int) -> Path:
    """A small .gz that unpacks to ``size`` bytes; its middle is one packed part, repeated."""
    with path.open("wb") as file:
        file.write(gzip.compress(begin))
        # A .gz may be several, one after the other.
        unit = part * max(1, (1 << 24) // len(part))
        member = gzip.compress(unit)
        for _ in range(size // len(unit)):
            file.write(member)
    return path


LINE = b"a" * 10_000 + b"\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "begin", "part", "told"),
    [
        ("documents", "d.jsonl.gz", b'{"title": "t", "text": "', b"a", "line of more than"),
        ("documents", "d.tsv.gz", b"id\ttext\ttitle\n1\t", b"a", "line of more than"),
        ("documents", "d.tsv.gz", b'id\ttext\ttitle\n1\t"', LINE, "field larger than"),
        ("documents", "wiki_00.gz", b'<doc id="1" title="t">\n', LINE, "a <doc> of more than"),
        ("documents", "d.xml.gz", b"<mediawiki><page><title>", b"a", "page of more than"),
        ("documents", "d.xml.gz", b'<mediawiki a="', b"a", "begins a tag of more than"),
        ("documents", "d.xml.gz", b"<mediawiki>", b"<a>", "in 100 elements at once"),
        ("documents", "d.txt.gz", b"", b"a ", "document of more than"),
        ("examples", "q.jsonl.gz", b'{"question": "', b"a", "line of more than"),
        ("table", "q.csv.gz", b"question,answer\n", b"a", "line of more than"),
    ],
)
def test_a_file_of_half_a_megabyte_that_unpacks_to_gigabytes(
    tmp_path, kind, name, begin, part, told
):
    path = packed(tmp_path / name, begin, part, 2 << 30)
    assert path.stat().st_size < 5e6
    found = read_in_bounds(kind, path, room=1 << 30)
    assert found.startswith("refused")
    assert told in found


def test_a_line_of_gigabytes(tmp_path):
    path = packed(tmp_path / "q.jsonl.gz", b'{"question": "', b"a", 2 << 30)
    found = read_in_bounds("examples", path, room=1 << 30)
    assert f"{path}:1 is a line of more than 100,000,000 bytes" in found


@pytest.mark.slow
def test_gigabytes_of_short_lines_are_read_in_flat_memory(tmp_path):
    line = json.dumps({"title": "t", "text": "a" * 2_000_000}).encode() + b"\n"
    path = packed(tmp_path / "d.jsonl.gz", b"", line, 1 << 30)
    assert read_in_bounds("documents", path, room=300 << 20) == f"read {(1 << 30) // len(line)}\n"


def test_entities_that_expand_without_end(tmp_path):
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(10))
    path = tmp_path / "d.xml"
    path.write_text(
        f"<!DOCTYPE m [{laughs}]><mediawiki><page><title>&l9;</title></page></mediawiki>"
    )
    with pytest.raises(OrqaError, match="declares a document type"):
        list(read_documents([path]))


@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ('{"a":', "}")])
def test_json_of_a_hundred_thousand_levels(tmp_path, open_, close):
    deep = open_ * 100_000 + "1" + close * 100_000
    path = tmp_path / "deep.jsonl"
    path.write_text(f'{{"question": "q", "answer": "a", "more": {deep}}}\n')
    for read in (load_examples, lambda p: list(read_documents([p])), read_json):
        with pytest.raises(OrqaError, match=r"JSON"):
            read(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"title": "t", "text": "Owls."}\n'.encode("utf-16"), "is not UTF-8"),
        (b'{"title": "t", "text": "\xff"}\n', "is not UTF-8"),
        (b"\x00\x00\x00\n", "not valid JSON"),
        (b'{"title": "t", "text": ' + b"9" * 5000 + b"}\n", "not valid JSON"),
    ],
)
def test_text_that_is_none(tmp_path, content, told):
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(OrqaError, match=told):
        list(read_documents([path]))


def test_marks_line_ends_and_halves_of_characters(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"title": "t\\u0000", "text": "a\\ud800b\\u0000c"}\r\n\r\n'
        b'{"title": "u", "text": "d"}'
    )
    assert [(d.title, d.text) for d in read_documents([path])] == [("t", "a\ufffdb c"), ("u", "d")]


def test_patterns_that_took_cubic_time():
    started = time.perf_counter()
    assert markdown_title("# a" + " " * 100_000 + "x") == "a" + " " * 100_000 + "x"
    assert html_to_text("<a href='" * 20_000 + "<![") == (None, "")
    assert time.perf_counter() - started < 10


def test_a_doc_line_of_many_titles(tmp_path):
    path = tmp_path / "wiki_00"
    path.write_text('<doc id="1"' + ' title="' * 100_000 + "\n</doc>\n")
    started = time.perf_counter()
    with pytest.raises(OrqaError, match="outside of <doc"):
        list(read_documents([path]))
    assert time.perf_counter() - started < 10


def test_an_encoding_nobody_knows(tmp_path):
    path = tmp_path / "d.xml"
    path.write_text('<?xml version="1.0" encoding="EBCDIC-XYZ"?><mediawiki></mediawiki>')
    with pytest.raises(OrqaError, match=r"d.xml"):
        list(read_documents([path]))


# --- Questions and predictions --------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell", ['"[{[]: 1}]"', r'"[""\ud800""]"', '"' + "[" * 5000 + '"', '"[1e999]"', '"[-"']
)
def test_cells_that_are_no_lists(tmp_path, cell):
    path = tmp_path / "q.csv"
    path.write_text(f"question,answer\nWho?,{cell}\n")
    with pytest.raises(OrqaError, match=r"q\.csv:2 has an answer that starts with a bracket"):
        load_question_file(path)


def test_a_damaged_packed_table(tmp_path):
    path = tmp_path / "q.csv.gz"
    content = bytearray(gzip.compress(os.urandom(3000)))
    content[40] ^= 255
    path.write_bytes(content)
    with pytest.raises(OrqaError, match="cannot be read as a table"):
        load_question_file(path)


def test_half_a_character_in_a_dataset(tmp_path):
    path = tmp_path / "squad.json"
    question = {"id": "\ud800", "question": "Who?", "answers": [{"text": "a", "answer_start": 0}]}
    paragraphs = [{"context": "a", "qas": [question]}]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    with pytest.raises(OrqaError, match="surrogates not allowed"):
        load_dataset("squad", None, [path])


@pytest.mark.parametrize("score", ["1" + "0" * 400, "null", '"x"', "[]"])
@pytest.mark.parametrize("top_k", ["Infinity", "NaN", "1" * 400, "{}"])
def test_numbers_that_are_none(tmp_path, score, top_k):
    path = tmp_path / "dpr.json"
    prediction = f'{{"text": "a", "score": {score}}}'
    path.write_text(
        f'[{{"question": "q", "predictions": [{{"top_k": {top_k}, "prediction": {prediction}}}]}}]'
    )
    with pytest.raises(OrqaError, match="needs 'predictions' with 'top_k'"):
        read_predictions(path, [])


# --- Checkpoints of others, manifests -------------------------------------------------------------


def test_a_number_of_a_million_bytes():
    with pytest.raises(ValueError, match="more than 64 bits"):
        read_varint(b"\x80" * 1_000_000 + b"\x01", 0)
    assert read_varint(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)


def test_a_tensorflow_index_of_noise(tmp_path):
    rng = np.random.default_rng(0)
    for size in (0, 47, 48, 500):
        noise = rng.bytes(size)[:-8] + struct.pack("<Q", 0xDB4775248B80FB57)
        (tmp_path / "m.index").write_bytes(noise[-size:] if size else b"")
        with pytest.raises(OrqaError, match="not the index of a TensorFlow checkpoint"):
            read_tensorflow(tmp_path / "m")


def torch_file(path: Path, pickled: bytes, *, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("model/data.pkl", pickled)
        archive.writestr("model/data/0", bytes(16))
    return path


def tensor_pickle(shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """A state dict of one tensor, as torch pickles it."""

    class Storage:
        pass

    class Tensor:
        def __reduce__(self):
            return (_named("torch._utils", "_rebuild_tensor_v2"), (Storage(), 0, shape, stride))

    class Pickler(pickle._Pickler):
        def persistent_id(self, value):
            storage = _named("torch", "FloatStorage")
            return ("storage", storage, "0", "cpu", 4) if isinstance(value, Storage) else None

        def save_global(self, value, name=None):
            self.write(pickle.GLOBAL + f"{value.__module__}\n{value.__name__}\n".encode())

        dispatch = pickle._Pickler.dispatch | {type(lambda: 0): save_global}

    written = io.BytesIO()
    Pickler(written, 2).dump({"weight": Tensor()})
    return written.getvalue()


def _named(module: str, name: str):
    def function():
        raise AssertionError

    function.__module__, function.__name__ = module, name
    return function


def test_tensors_larger_than_their_file(tmp_path):
    whole = torch_file(tmp_path / "whole.bin", tensor_pickle((2, 2), (2, 1)))
    assert read_torch(whole)["weight"].shape == (2, 2)
    # 40 GB of one number, by a stride of 0.
    repeated = torch_file(tmp_path / "repeated.bin", tensor_pickle((100_000, 100_000), (0, 0)))
    with pytest.raises(OrqaError, match="larger than its storage"):
        read_torch(repeated)
    packed_file = torch_file(
        tmp_path / "packed.bin", tensor_pickle((2, 2), (2, 1)), compression=zipfile.ZIP_DEFLATED
    )
    with pytest.raises(OrqaError, match="is compressed"):
        read_torch(packed_file)


def test_a_pickle_with_a_table_of_billions(tmp_path):
    pickled = pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.LONG_BINPUT
    pickled += struct.pack("<I", 2**32 - 1) + pickle.STOP
    assert len(list(pickletools.genops(pickled))) == 4
    with pytest.raises(OrqaError, match="memo has more entries"):
        read_torch(torch_file(tmp_path / "m.bin", pickled))


@pytest.mark.parametrize(
    "manifest",
    ["{}", '{"schema_version": 1}', '{"schema_version": 1, "fingerprint": 1, "shards": 3}', "[]"],
)
def test_manifests_without_what_they_need(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(OrqaError, match=r"build .* again"):
        BlockStore(tmp_path)


def test_a_manifest_of_many_levels(tmp_path):
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(OrqaError, match="build the corpus again"):
        BlockStore(tmp_path)


def test_a_small_file_takes_little_memory_to_read(tmp_path):
    """Found by benchmarks/fuzz.py: room for the largest file was taken before reading any."""
    path = tmp_path / "small.json"
    path.write_text("[1, 2]")
    assert read_in_bounds("json", path, room=100 << 20) == "read 2\n"
    records = tmp_path / "blocks.tfr"
    records.write_bytes(struct.pack("<Q", 1 << 29) + b"crc_" + b"short")
    with pytest.raises(OrqaError, match="ends within record 1"):
        list(read_tfrecords(records))
