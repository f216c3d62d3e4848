from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.corpus import build
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.text.wordpiece import WordPiece

WORDS = ["owl", "hunts", "night", "the", "a", "mouse", "##s", "in", "forest", "."]
TOKENIZER = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
DOCUMENTS = [
    {
        "id": f"d{i}",
        "title": " ".join(WORDS[(i * 3 + j) % 6] for j in range(i % 4)),
        "text": " ".join(
            " ".join(WORDS[(i + j * k) % 9] for k in range(1 + (i * j) % 13)).capitalize() + "."
            for j in range(1 + i % 7)
        ),
    }
    for i in range(120)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same corpus in one shard and in many."""
    folder = tmp_path_factory.mktemp("stores")
    source = folder / "docs.jsonl"
    source.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    build.build_corpus([source], folder / "one", TOKENIZER, max_wordpieces=32, workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_CHUNK_CHARACTERS", 700)
        patch.setattr(build, "_SHARD_BYTES", 8000)
        build.build_corpus([source], folder / "many", TOKENIZER, max_wordpieces=32, workers=1)
    return folder / "one", folder / "many"


@pytest.fixture(params=["one", "many"])
def store(folders: tuple[Path, Path], request: pytest.FixtureRequest) -> BlockStore:
    return BlockStore(folders[request.param == "many"])


def rows(store: BlockStore) -> list[dict[str, object]]:
    return [row for shard in store.shards for row in shard.batch.to_pylist()]


def test_shards_do_not_show(folders):
    one, many = map(BlockStore, folders)
    assert len(one.shards) == 1
    assert len(many.shards) > 3
    assert rows(one) == rows(many)
    assert one.fingerprint == many.fingerprint
    assert [len(shard) for shard in many.shards] == [s["blocks"] for s in many.manifest["shards"]]
    firsts = np.cumsum([0, *(len(shard) for shard in many.shards)])
    assert [shard.first_block for shard in many.shards] == firsts[:-1].tolist()


def test_every_accessor_gives_the_row(store):
    expected = rows(store)
    assert len(store) == len(expected) == store.manifest["blocks"]
    documents = {document["id"]: document for document in DOCUMENTS}
    for i, row in enumerate(expected):
        assert store.title(i) == row["title"] == documents[row["document_id"]]["title"]
        assert store.text(i) == row["text"]
        assert store.document_id(i) == row["document_id"]
        start = store.document_start(i)
        text = documents[row["document_id"]]["text"]
        assert text[start : start + len(row["text"])] == row["text"]
        assert store.block_tokens(i).tolist() == row["token_ids"]
        assert store.title_tokens(i).tolist() == row["title_ids"]
        assert store.sentence_starts(i).tolist() == row["sentence_starts"]
        assert store.block_tokens(i).tolist() == TOKENIZER.encode([store.text(i)])[0].ids.tolist()
    assert store.lengths.tolist() == [len(row["token_ids"]) for row in expected]
    assert store.title_lengths.tolist() == [len(row["title_ids"]) for row in expected]
    assert store.lengths.dtype == store.title_lengths.dtype == np.int32
    assert store.manifest["wordpieces"] == store.lengths.sum()


def test_arrays_are_views_of_the_files(store):
    for shard in store.shards:
        assert np.shares_memory(store.block_tokens(shard.first_block), shard.token_values)
        assert not shard.token_values.flags.owndata
        assert not shard.token_values.flags.writeable


@given(st.booleans(), st.lists(st.integers(0, 10**6), max_size=30))
def test_gather(folders, many, numbers):
    store = BlockStore(folders[many])
    ids = [number % len(store) for number in numbers]
    for ragged, one in (
        (store.tokens(ids), store.block_tokens),
        (store.titles(np.array(ids, np.int32)), store.title_tokens),
    ):
        assert ragged.values.dtype == np.int32
        assert ragged.offsets.dtype == np.int64
        assert len(ragged.offsets) == len(ids) + 1
        assert len(ragged.values) == ragged.offsets[-1]
        pairs = zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)
        assert [ragged.values[a:b].tolist() for a, b in pairs] == [one(i).tolist() for i in ids]


def test_gather_flattens_and_takes_any_integers(store):
    ids = np.array([[5, 0, 3], [len(store) - 1, 5, 5]], np.uint32)
    flat = store.tokens(ids.ravel())
    assert store.tokens(ids).values.tolist() == flat.values.tolist()
    assert store.tokens(ids).offsets.tolist() == flat.offsets.tolist()


@pytest.mark.parametrize("block", [-1, 10**6])
def test_numbers_out_of_range(store, block):
    for read in (store.text, store.block_tokens, store.sentence_starts):
        with pytest.raises(IndexError, match=f"block {block} asked for"):
            read(block)
    for gather in (store.tokens, store.titles):
        with pytest.raises(IndexError, match="asked for, of a corpus of"):
            gather([0, block])


def test_anyone_can_read_the_files(folders):
    path = folders[0] / "blocks-00000.arrow"
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.column_names == [
        "title",
        "text",
        "title_ids",
        "token_ids",
        "sentence_starts",
        "document_id",
        "document_start",
    ]
    assert table.num_rows == len(BlockStore(folders[0]))


def test_the_manifest_tells_what_was_built(store):
    manifest = store.manifest
    assert manifest["documents"] == len(DOCUMENTS)
    assert manifest["max_wordpieces"] == store.max_wordpieces == 32
    assert manifest["tokenizer_fingerprint"] == TOKENIZER.fingerprint
    assert WordPiece.load(store.tokenizer_folder).fingerprint == TOKENIZER.fingerprint


def test_fingerprint_by_hand(folders):
    """The definition again, over rows: a hash for each column of lengths and of values."""
    parts: list[bytes] = []
    table = rows(BlockStore(folders[1]))
    for column in ("title", "text", "title_ids", "token_ids", "sentence_starts", "document_id"):
        values = [
            row[column].encode()
            if isinstance(row[column], str)
            else np.array(row[column], "<i4").tobytes()
            for row in table
        ]
        width = 1 if isinstance(table[0][column], str) else 4
        lengths = np.array([len(value) // width for value in values], "<i4")
        parts += [lengths.tobytes(), b"".join(values)]
    parts.append(np.array([row["document_start"] for row in table], "<i8").tobytes())
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    assert BlockStore(folders[0]).fingerprint == hashlib.sha256(digests).hexdigest()


# -- stores that cannot be opened


@pytest.fixture
def broken(folders: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy to break."""
    for path in folders[0].iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def edit(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_nothing_there(tmp_path):
    with pytest.raises(OrqaError, match=r"no finished corpus in .*nowhere; build one with"):
        BlockStore(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OrqaError, match="no finished corpus in"):
        BlockStore(tmp_path / "file")


def test_another_schema(broken):
    edit(broken, schema_version=99)
    with pytest.raises(OrqaError, match="schema version 99 where version 1 is needed"):
        BlockStore(broken)


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_damaged_manifest(broken, content):
    (broken / "manifest.json").write_text(content, "latin-1")
    with pytest.raises(OrqaError, match=str(broken)):
        BlockStore(broken)


def test_truncated_shard(broken):
    shard = broken / "blocks-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(OrqaError, match=r"blocks-00000.arrow has \d+ bytes where the manifest"):
        BlockStore(broken)


def test_missing_shard(broken):
    (broken / "blocks-00000.arrow").unlink()
    with pytest.raises(OrqaError, match=r"blocks-00000.arrow cannot be read"):
        BlockStore(broken)


def test_overwritten_shard(broken):
    shard = broken / "blocks-00000.arrow"
    shard.write_bytes(b"\0" * shard.stat().st_size)
    with pytest.raises(OrqaError, match=r"blocks-00000.arrow cannot be read"):
        BlockStore(broken)


def test_another_number_of_rows(broken):
    (entry,) = json.loads((broken / "manifest.json").read_text())["shards"]
    edit(broken, shards=[entry | {"blocks": 7}])
    with pytest.raises(OrqaError, match="does not hold the 7 blocks"):
        BlockStore(broken)
