import dataclasses
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_world import documents, indexed_run, vocabulary, world, write_jsonl

from orqa_jax.cli import main
from orqa_jax.corpus.build import append_to_corpus, build_corpus
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.embeddings import EmbeddingWriter
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import encode
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.encode import EncodeConfig, encode_corpus, length_batches
from orqa_jax.train.mesh import make_mesh


def config(**changes):
    run = indexed_run()
    made = EncodeConfig(str(run / "corpus"), str(run / "ict" / "model"), str(run / "index"))
    return dataclasses.replace(made, **{name: str(value) for name, value in changes.items()})


@pytest.fixture
def batches_encoded(monkeypatch):
    """Numbers of rows of the batches that go to the devices."""
    seen = []
    place = encode.place_batch

    def place_and_count(mesh, batch):
        seen.append(len(batch["token_ids"]))
        return place(mesh, batch)

    monkeypatch.setattr(encode, "place_batch", place_and_count)
    return seen


def test_vectors_are_those_of_each_block_alone():
    """Whatever the blocks beside it, the padding, and the number of devices."""
    about, params, tokenizer = load_model(indexed_run() / "ict" / "model", kind="dual encoder")
    model, store = DualEncoder(retriever_config_from_dict(about["retriever"])), world().store
    embeddings_NP = encode_corpus(config())
    assert embeddings_NP.shape == (len(store), 16)
    by_length = np.argsort(store.lengths + store.title_lengths)
    encode_blocks = jax.jit(functools.partial(model.apply, method="encode_blocks"))
    for block in (int(by_length[0]), int(by_length[-1]), 17):
        title, text = store.title_tokens(block).tolist(), store.block_tokens(block).tolist()
        tokens = [tokenizer.cls_id, *title, tokenizer.sep_id, *text, tokenizer.sep_id]
        segments = [0] * (len(title) + 2) + [1] * (len(text) + 1)
        assert len(tokens) <= 48
        token_ids, segment_ids = np.array([tokens], np.int32), np.array([segments], np.int32)
        mask = np.ones_like(token_ids, bool)
        vector_BP = encode_blocks({"params": params}, token_ids, mask, segment_ids)
        np.testing.assert_allclose(embeddings_NP[block], vector_BP[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "length"), [(1, 16), (7, 48), (64, 32), (72, 48)])
def test_one_processor_encodes_in_parts_what_it_would_encode_at_once(rows, length):
    about, params, _ = load_model(indexed_run() / "ict" / "model", kind="dual encoder")
    model = DualEncoder(retriever_config_from_dict(about["retriever"]))
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1, model.config.bert.vocab_size, (rows, length)).astype(np.int32)
    mask = np.arange(length) < rng.integers(1, length + 1, (rows, 1))
    arrays = ({"params": params}, token_ids, mask, np.zeros_like(token_ids))
    in_parts = encode.encode_program(model, make_mesh(jax.devices()[:1]))
    at_once = jax.jit(functools.partial(model.apply, method="encode_blocks"))
    # A processor's products of more rows may add up in another order.
    np.testing.assert_allclose(in_parts(*arrays), at_once(*arrays), rtol=1e-5, atol=1e-5)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    title=st.integers(0, 20),
    start=st.integers(0, 40),
    longest=st.sampled_from([48, 288]),
    devices=st.sampled_from([1, 8]),
)
def test_length_batches_hold_every_row(lengths, title, start, longest, devices):
    store = SimpleNamespace(
        lengths=np.array([1] * start + lengths, np.int32),
        title_lengths=np.full(start + len(lengths), title, np.int32),
    )
    blocks = range(start, start + len(lengths))
    seen, sizes = [], {}
    for rows, length in length_batches(store, blocks, longest, devices):
        used = np.minimum(store.lengths[start + rows] + title + 3, longest)
        assert used.max() <= length <= longest
        assert length % 32 == 0 or length == longest
        assert len(rows) % devices == 0
        assert sizes.setdefault(length, len(rows)) == len(rows)
        seen += dict.fromkeys(rows.tolist())  # the last batch may repeat its rows
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [(signal.SIGINT, 130, "Stopped by Ctrl-C"), (signal.SIGTERM, 0, "Stopped by SIGTERM")],
)
def test_an_encoding_that_is_asked_to_stop_keeps_its_chunks(
    tmp_path, monkeypatch, caplog, batches_encoded, number, status, line
):
    monkeypatch.setattr(encode, "_CHUNK_BLOCKS", 32)
    monkeypatch.setattr(
        encode, "_WORDPIECES_PER_BATCH", 1
    )  # one row a device, four batches a chunk
    run, before = indexed_run(), signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("corpus", "ict"):
        (tmp_path / name).symlink_to(run / name)
    place = encode.place_batch

    def place_and_signal(mesh, batch):
        if len(batches_encoded) == 9:
            os.kill(os.getpid(), number)
        return place(mesh, batch)

    monkeypatch.setattr(encode, "place_batch", place_and_signal)
    try:
        ended = main(["index", "--run", str(tmp_path)])
    except SystemExit as stopped:
        ended = stopped.code
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == status
    assert len(batches_encoded) == 10
    assert f"{line}; the vectors of 64 blocks of this run are kept" in caplog.text
    assert not (tmp_path / "index" / "manifest.json").exists()

    write, written = EmbeddingWriter.write, []

    def write_and_note(writer, blocks, vectors):
        written.append(blocks)
        write(writer, blocks, vectors)

    monkeypatch.setattr(EmbeddingWriter, "write", write_and_note)
    found = encode_corpus(config(out=tmp_path / "index"))
    assert written == [range(64, len(world().store))]
    np.testing.assert_allclose(found, encode_corpus(config()), rtol=1e-5, atol=1e-5)


def test_finished_embeddings_are_kept(batches_encoded):
    encode_corpus(config())
    assert batches_encoded == []


def test_another_tokenizer_is_refused(tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", documents()[:4])
    tokenizer = WordPiece.from_vocab([*vocabulary(), "more"])
    other = build_corpus([source], tmp_path / "words", tokenizer, max_wordpieces=48, workers=1)
    with pytest.raises(OrqaError, match="another tokenizer"):
        encode_corpus(config(corpus=other.folder, out=tmp_path / "new"))


def test_vectors_of_something_else_are_made_again(tmp_path, caplog):
    index = tmp_path / "index"
    shutil.copytree(indexed_run() / "index", index)
    manifest = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps(manifest | {"weights_fingerprint": "0" * 64}))
    again = encode_corpus(config(out=index))
    assert "weights 0000000000000000" in caplog.text
    np.testing.assert_allclose(
        again, np.load(indexed_run() / "index" / "embeddings.npy"), atol=1e-5
    )
    written = json.loads((index / "manifest.json").read_text())
    # The checksum knows the last bits too.
    assert written | {"files": manifest["files"]} == manifest

    source = write_jsonl(tmp_path / "d.jsonl", documents()[:4])
    tokenizer = world().tokenizer
    other = build_corpus([source], tmp_path / "other", tokenizer, max_wordpieces=48, workers=1)
    assert len(encode_corpus(config(corpus=other.folder, out=index))) == len(other)
    assert other.fingerprint[:16] in caplog.text


def test_a_grown_corpus_keeps_the_vectors_of_its_first_blocks(tmp_path, batches_encoded):
    corpus, index = tmp_path / "corpus", tmp_path / "index"
    shutil.copytree(indexed_run() / "corpus", corpus)
    shutil.copytree(indexed_run() / "index", index)
    first_NP = np.load(index / "embeddings.npy")
    # Marked, so that it shows whether they were copied or made again.
    first_NP[5] += 1
    np.save(index / "embeddings.npy", first_NP)
    new = [line | {"id": f"new {number}"} for number, line in enumerate(documents()[:3])]
    append_to_corpus([write_jsonl(tmp_path / "new.jsonl", new)], corpus, workers=1)
    store = BlockStore(corpus)
    found_NP = encode_corpus(config(corpus=corpus, out=index))
    count = len(first_NP)
    assert len(found_NP) == len(store) > count
    np.testing.assert_array_equal(found_NP[:count], first_NP)
    assert sum(batches_encoded) <= 2 * 8 * 128  # a batch of new blocks at each length
    first_NP[5] -= 1
    for block in range(count, len(store)):
        same = next(b for b in range(count) if store.text(b) == store.text(block))
        np.testing.assert_allclose(found_NP[block], first_NP[same], rtol=1e-5, atol=1e-5)


_ENCODE = """
import os, signal, sys
import jax
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
from orqa_jax.train import encode
encode._CHUNK_BLOCKS = 16
stopping, corpus, retriever, out = sys.argv[3:]
place = encode.place_batch

def place_and_signal(mesh, batch):
    if stopping == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGTERM)
    return place(mesh, batch)

encode.place_batch = place_and_signal
print(encode.encode_corpus(encode.EncodeConfig(corpus, retriever, out)).sum())
"""


def encode_in_two_processes(out, stopping=""):
    """What each printed; the one named in ``stopping`` gets SIGTERM at its first batch."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    run = indexed_run()
    places = [stopping, str(run / "corpus"), str(run / "ict" / "model"), str(out)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _ENCODE, str(port), str(number), *places],
            env=os.environ
            | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    ended = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    return [printed for printed, _ in ended]


@pytest.mark.timeout(220)
def test_two_processes_share_the_work(tmp_path):
    first, second = encode_in_two_processes(tmp_path / "index")
    # Gloo prints lines of its own before.
    assert first.splitlines()[-1] == second.splitlines()[-1]
    found_NP = np.load(tmp_path / "index" / "embeddings.npy")
    np.testing.assert_allclose(found_NP, encode_corpus(config()), rtol=1e-5, atol=1e-5)
    assert sorted(p.name for p in (tmp_path / "index").iterdir()) == [
        "embeddings.npy",
        "manifest.json",
    ]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_signal_to_one_of_two_processes_stops_both(tmp_path):
    index = tmp_path / "index"
    encode_in_two_processes(index, stopping="1")
    assert not (index / "manifest.json").exists()
    kept = [json.loads((index / f"progress-{n}.json").read_text())["finished"] for n in range(2)]
    assert len(kept[0]) == len(kept[1]) > 0
    assert 16 * len(kept[0] + kept[1]) < len(world().store)
    encode_in_two_processes(index)
    found_NP = np.load(index / "embeddings.npy")
    np.testing.assert_allclose(found_NP, encode_corpus(config()), rtol=1e-5, atol=1e-5)
