import json
import logging
import resource

import numpy as np
import pytest

from orqa_jax.checksums import describe_files
from orqa_jax.errors import OrqaError
from orqa_jax.index.embeddings import EmbeddingWriter, open_embeddings

CORPUS, WEIGHTS = "c" * 64, "a" * 64
VECTORS_NP = np.random.default_rng(0).standard_normal((10, 3), dtype=np.float32)


def writer_in(folder, **changes):
    made_from = {
        "count": 10,
        "projection_size": 3,
        "corpus_fingerprint": CORPUS,
        "weights_fingerprint": WEIGHTS,
        "chunk_size": 4,
    }
    return EmbeddingWriter(folder, **(made_from | changes))


def write_all(writer):
    for blocks in writer.pending:
        writer.write(blocks, VECTORS_NP[blocks.start : blocks.stop])


def open_in(folder, corpus=CORPUS, weights=WEIGHTS):
    return open_embeddings(folder, corpus_fingerprint=corpus, weights_fingerprint=weights)


def test_chunks_written_in_any_order_are_the_vectors(tmp_path):
    writer = writer_in(tmp_path / "new" / "folder")
    assert writer.pending == [range(0, 4), range(4, 8), range(8, 10)]
    for blocks in reversed(writer.pending):
        writer.write(blocks, VECTORS_NP[blocks.start : blocks.stop])
    finished_NP = writer.finish()

    np.testing.assert_array_equal(finished_NP, VECTORS_NP)
    reopened_NP = open_in(tmp_path / "new" / "folder")
    assert isinstance(reopened_NP, np.memmap)
    np.testing.assert_array_equal(reopened_NP, VECTORS_NP)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "embeddings.npy",
        "manifest.json",
    ]
    folder = tmp_path / "new" / "folder"
    assert json.loads((folder / "manifest.json").read_text()) == {
        "files": describe_files(folder, ["embeddings.npy"]),
        "schema": 1,
        "corpus_fingerprint": CORPUS,
        "weights_fingerprint": WEIGHTS,
        "count": 10,
        "projection_size": 3,
        "dtype": "float32",
    }


def test_an_interrupted_encoding_goes_on_and_looks_unfinished_until_the_end(tmp_path):
    writer_in(tmp_path).write(range(4, 8), VECTORS_NP[4:8])
    with pytest.raises(
        OrqaError, match=r"no manifest.json of block embeddings \(missing or unfinished\)"
    ):
        open_in(tmp_path)

    writer = writer_in(tmp_path)
    assert writer.pending == [range(0, 4), range(8, 10)]
    write_all(writer)
    np.testing.assert_array_equal(writer.finish(), VECTORS_NP)


@pytest.mark.parametrize(
    "change",
    [
        {"corpus_fingerprint": "d" * 64},
        {"weights_fingerprint": "b" * 64},
        {"chunk_size": 5},
        {"count": 11},
    ],
)
def test_an_encoding_of_something_else_starts_anew_and_says_so(tmp_path, caplog, change):
    writer_in(tmp_path).write(range(0, 4), VECTORS_NP[:4])
    with caplog.at_level(logging.WARNING):
        writer = writer_in(tmp_path, **change)
    assert writer.pending[0].start == 0
    assert len(caplog.records) == 1
    assert "starting anew" in caplog.text
    assert CORPUS[:16] in caplog.text
    assert WEIGHTS[:16] in caplog.text


def test_finish_refuses_while_chunks_are_missing(tmp_path):
    writer = writer_in(tmp_path)
    writer.write(range(0, 4), VECTORS_NP[:4])
    with pytest.raises(ValueError, match="2 chunks are not written yet"):
        writer.finish()


def test_old_vectors_serve_until_new_ones_are_finished(tmp_path):
    first = writer_in(tmp_path)
    write_all(first)
    old_NP = first.finish()

    second = writer_in(tmp_path, weights_fingerprint="b" * 64)
    second.write(range(0, 4), VECTORS_NP[:4] + 1)
    np.testing.assert_array_equal(open_in(tmp_path), VECTORS_NP)
    for blocks in second.pending:
        second.write(blocks, VECTORS_NP[blocks.start : blocks.stop] + 1)
    second.finish()

    np.testing.assert_array_equal(open_in(tmp_path, weights="b" * 64), VECTORS_NP + 1)
    np.testing.assert_array_equal(old_NP, VECTORS_NP)  # a reader of the old file keeps it


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused_by_block_number(tmp_path, bad):
    damaged_NP = VECTORS_NP.copy()
    damaged_NP[6, 1] = bad
    writer = writer_in(tmp_path)
    with pytest.raises(OrqaError, match="vector of block 6 holds NaN or infinity"):
        writer.write(range(4, 8), damaged_NP[4:8])
    assert range(4, 8) in writer.pending


def test_only_whole_chunks_of_the_right_shape_are_taken(tmp_path):
    writer = writer_in(tmp_path)
    with pytest.raises(ValueError, match="for blocks range"):
        writer.write(range(1, 5), VECTORS_NP[1:5])
    with pytest.raises(ValueError, match="for blocks range"):
        writer.write(range(0, 4), VECTORS_NP[:4, :2])


def test_a_mismatch_names_both_fingerprints_and_the_way_out(tmp_path):
    writer = writer_in(tmp_path)
    write_all(writer)
    writer.finish()
    with pytest.raises(OrqaError) as corpus:
        open_in(tmp_path, corpus="d" * 64)
    assert str(corpus.value) == (
        f"{tmp_path} holds block embeddings made from corpus {'c' * 16}, not from corpus"
        f" {'d' * 16} as now in use: encode the blocks with `orqa index`, or use the earlier"
        " corpus."
    )
    with pytest.raises(OrqaError, match=f"weights {'a' * 16}, not from weights {'b' * 16}"):
        open_in(tmp_path, weights="b" * 64)


def test_damaged_folders_are_refused(tmp_path):
    writer = writer_in(tmp_path)
    write_all(writer)
    writer.finish()
    manifest = tmp_path / "manifest.json"
    good = manifest.read_text()

    manifest.write_text(good.replace('"schema": 1', '"schema": 2'))
    with pytest.raises(OrqaError, match="schema 2, but this version of orqa_jax reads schema 1"):
        open_in(tmp_path)
    manifest.write_text(good[:40])
    with pytest.raises(OrqaError, match=r"manifest.json is not a manifest"):
        open_in(tmp_path)
    manifest.write_text(good.replace('"count": 10', '"count": 9'))
    with pytest.raises(OrqaError, match=r"float32 \(10, 3\), but its manifest says"):
        open_in(tmp_path)
    manifest.write_text(good)
    with (tmp_path / "embeddings.npy").open("r+b") as file:
        file.truncate(150)
    with pytest.raises(OrqaError, match=r"embeddings.npy cannot be read"):
        open_in(tmp_path)


@pytest.fixture
def files_of_a_megabyte_at_most():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("files_of_a_megabyte_at_most")
def test_a_disk_without_room_is_noticed_at_the_start(tmp_path):
    with pytest.raises(OrqaError, match=r"needs 1.2 GB, which cannot be reserved"):
        writer_in(tmp_path, count=10**8, chunk_size=10**7)
    assert list(tmp_path.iterdir()) == []


def test_several_processes_write_one_file_and_another_number_goes_on(tmp_path):
    """Two processes take turns here, in the order that a barrier allows."""
    first = writer_in(tmp_path, process=0, processes=2)
    second = writer_in(tmp_path, process=1, processes=2)
    assert first.pending == [range(0, 4), range(8, 10)]
    assert second.pending == [range(4, 8)]
    write_all(second)
    first.write(range(8, 10), VECTORS_NP[8:10])
    assert first.pending == [range(0, 4)]
    with pytest.raises(ValueError, match="1 chunks are not written yet"):
        first.finish()

    alone = writer_in(tmp_path)
    assert alone.pending == [range(0, 4)]
    write_all(alone)
    np.testing.assert_array_equal(alone.finish(), VECTORS_NP)
    assert len(list(tmp_path.iterdir())) == 2
