"""Encoding of the whole corpus into block embeddings, resumable, on all devices."""

import contextlib
import dataclasses
import functools
import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from tqdm import tqdm

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.dense import Search, prepare_search
from orqa_jax.index.embeddings import EmbeddingWriter, open_embeddings
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict, tower_names
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.exclusive import hold_together
from orqa_jax.train.inputs import block_inputs
from orqa_jax.train.mesh import make_mesh, place_batch
from orqa_jax.train.state import Params
from orqa_jax.train.stop import stop_request

# Blocks of one step of progress: what an interruption can lose.
_CHUNK_BLOCKS = 1024
# Wordpieces of one batch on one device, and of what a processor computes at a time: small enough
# for its caches.
_WORDPIECES_PER_BATCH = 8192
_WORDPIECES_IN_CACHE = 1024
# Batches are padded to a multiple of this, so that few shapes are compiled.
_LENGTH_STEP = 32
_SECONDS_BETWEEN_LOG_LINES = 10

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EncodeConfig:
    """What to encode, and by what.

    Attributes:
      corpus: Folder of the block store.
      retriever: Model folder that ICT wrote.
      out: Folder for the embeddings.
      search: What to prepare beside the vectors for a search other than the exact one; see
        ``orqa_jax.index.dense``.
      dtype: "float32", or "bfloat16" for accelerators and processors with AMX; vectors are
        stored in float32.
    """

    corpus: str
    retriever: str
    out: str
    search: Search = "exact"
    dtype: Literal["float32", "bfloat16"] = "float32"


@dataclasses.dataclass(frozen=True)
class BlockEncoder:
    """What makes vectors of blocks.

    Attributes:
      model: The dual encoder.
      params: Of its block tower, under the name of that.
      tokenizer: What made its vocabulary.
      block_length: Wordpieces of ``[CLS] title [SEP] block [SEP]`` at most.
      weights_fingerprint: Of the model folder that the parameters are from; embeddings carry it.
    """

    model: DualEncoder
    params: Params
    tokenizer: WordPiece
    block_length: int
    weights_fingerprint: str


def block_encoder(
    model: DualEncoder,
    params: Params,
    tokenizer: WordPiece,
    about: Mapping[str, Any],
    weights_fingerprint: str,
) -> BlockEncoder:
    """The block tower of a retriever, which ``about`` describes."""
    tower = tower_names(model.config)[-1]
    only = {tower: params[tower]}
    return BlockEncoder(model, only, tokenizer, about["block_length"], weights_fingerprint)


def encode_corpus(config: EncodeConfig) -> np.ndarray:
    """Writes the vector of every block, made by the block tower of the retriever.

    See `encode_store`.

    Returns:
      float32 [N, P], memory-mapped.

    Raises:
      OrqaError: An input is missing, or inputs do not belong together.
    """
    corpus, retriever = Path(config.corpus), Path(config.retriever)
    store = BlockStore(corpus)
    about, params, tokenizer = load_model(retriever, kind=ict.MODEL_KIND)
    if tokenizer.fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(
            f"The corpus {corpus} was built with another tokenizer than {retriever} uses; "
            "build the corpus again with the tokenizer of this model."
        )
    model = DualEncoder(retriever_config_from_dict(about["retriever"]), jnp.dtype(config.dtype))
    encoder = block_encoder(model, params, tokenizer, about, about["weights_fingerprint"])
    return encode_store(store, encoder, Path(config.out), config.search)


def encode_store(
    store: BlockStore, encoder: BlockEncoder, out: Path, search: Search = "exact"
) -> np.ndarray:
    """Writes the vector of every block to ``out``, and what the search needs beside them.

    Ctrl-C and SIGTERM stop it between two batches (several processes after the same number of
    chunks in each), and an interrupted run goes on after its last whole chunk. Finished embeddings
    are kept as they are, and where the corpus has grown only its new blocks are encoded. Several
    processes share the work, each on its own devices, and need ``out`` on a file system that they
    share.

    Returns:
      float32 [N, P], memory-mapped.

    Raises:
      KeyboardInterrupt: After a SIGINT, with the whole chunks saved.
      SystemExit: After a SIGTERM, with the same saved and status 0.
      OrqaError: A vector is not finite, the disk is full, or the search is not installed.
    """
    with hold_together(out):
        writer = open_writer(store, encoder, out)
        if writer is not None:
            before_MP = _of_first_blocks(out, store, encoder.weights_fingerprint)
            before = sum(len(blocks) for blocks in writer.pending)
            rounds = 0
            with (
                stop_request() as stop,
                contextlib.closing(write_vectors(writer, store, encoder, before_MP)) as writing,
            ):
                for round_ends in writing:
                    rounds += round_ends
                    # Several processes can agree on a round of chunks, but not on a batch.
                    if (round_ends or jax.process_count() == 1) and stop.reached(rounds):
                        break
            done = before - sum(len(blocks) for blocks in writer.pending)
            stop.leave(f"the vectors of {done} blocks of this run are kept")
        return finish_embeddings(writer, store, encoder, out, search)


def open_writer(store: BlockStore, encoder: BlockEncoder, out: Path) -> EmbeddingWriter | None:
    """What writes the vectors that are missing in ``out``; None where none are.

    All processes call it.
    """
    fingerprints = embedding_fingerprints(store, encoder)
    if _are_finished(out, fingerprints):
        return None
    return EmbeddingWriter(
        out,
        count=len(store),
        projection_size=encoder.model.config.projection_size,
        chunk_size=_CHUNK_BLOCKS,
        process=jax.process_index(),
        processes=jax.process_count(),
        barrier=_barrier,
        **fingerprints,
    )


def finish_embeddings(
    writer: EmbeddingWriter | None,
    store: BlockStore,
    encoder: BlockEncoder,
    out: Path,
    search: Search,
) -> np.ndarray:
    """Puts what `write_vectors` wrote in its place, and what the search needs beside it.

    All processes call it. Returns float32 [N, P], memory-mapped.
    """
    fingerprints = embedding_fingerprints(store, encoder)
    vectors_NP = open_embeddings(out, **fingerprints) if writer is None else writer.finish()
    if jax.process_index() == 0:
        prepare_search(out, vectors_NP, search, **fingerprints, earlier=store.earlier)
    _barrier("search is prepared")
    return vectors_NP


def embedding_fingerprints(store: BlockStore, encoder: BlockEncoder) -> dict[str, str]:
    """What embeddings say about the corpus and the weights that made them."""
    return {
        "corpus_fingerprint": store.fingerprint,
        "weights_fingerprint": encoder.weights_fingerprint,
    }


def _are_finished(out: Path, fingerprints: dict[str, str]) -> bool:
    if not (out / "manifest.json").exists():
        return False
    try:
        open_embeddings(out, **fingerprints)
    except OrqaError as error:
        # They are derived from what is at hand, and stay until the new ones are complete.
        logger.warning("%s Encoding again now.", error)
        return False
    return True


def _of_first_blocks(out: Path, store: BlockStore, weights_fingerprint: str) -> np.ndarray | None:
    """The vectors of the blocks that the corpus had before it grew, if they are there."""
    for fingerprint, count in store.earlier.items():
        try:
            found = open_embeddings(
                out, corpus_fingerprint=fingerprint, weights_fingerprint=weights_fingerprint
            )
        except OrqaError:
            continue
        logger.info("%s: the vectors of the first %d blocks are kept.", out, count)
        return found
    return None


@functools.cache
def encode_program(model: DualEncoder, mesh: Mesh) -> Callable[..., jax.Array]:
    """Compiled ``(variables, token_ids_BL, mask_BL, segment_ids_BL) -> block_BP``, of all B rows.

    A processor encodes a few rows after the other, so that what a layer makes stays in its caches.
    """
    encode = functools.partial(model.apply, method="encode_blocks")
    if mesh.size > 1 or mesh.devices.flat[0].platform != "cpu":
        return jax.jit(encode)

    def encode_in_parts(variables: Params, *arrays_BL: jax.Array) -> jax.Array:
        rows, length = arrays_BL[0].shape
        size = math.gcd(rows, _rows_in_cache(length))
        parts = [array.reshape(rows // size, size, length) for array in arrays_BL]
        encoded = jax.lax.map(lambda part: encode(variables, *part), parts)
        return encoded.reshape(rows, -1)

    return jax.jit(encode_in_parts)


def write_vectors(
    writer: EmbeddingWriter,
    store: BlockStore,
    encoder: BlockEncoder,
    before_MP: np.ndarray | None = None,
) -> Generator[bool]:
    """Writes what is missing, and yields after each batch, where the caller may leave it.

    The vectors of the first blocks, ``before_MP``, are copied. No process waits here for another.

    Yields:
      Whether a round ends here: in each process one chunk, if it has one left.
    """
    # Each process has blocks of its own, so its devices need not wait for those of others.
    mesh = make_mesh(jax.local_devices())
    variables = jax.device_put({"params": encoder.params})
    encode = functools.partial(encode_program(encoder.model, mesh), variables)
    if before_MP is None:
        before_MP = np.empty((0, writer.projection_size), np.float32)
    total = sum(len(blocks) for blocks in writer.pending)
    quiet = not sys.stderr.isatty()
    started = said = time.monotonic()
    with tqdm(total=total, desc="encode", unit="block", disable=quiet) as bar:
        done = 0
        for _, blocks in zip_longest(range(writer.rounds), writer.pending):
            if blocks is None:
                yield True
                continue
            vectors = np.zeros((len(blocks), writer.projection_size), np.float32)
            copied = min(max(len(before_MP) - blocks.start, 0), len(blocks))
            vectors[:copied] = before_MP[blocks.start : blocks.start + copied]
            new = blocks[copied:]
            for rows, length in length_batches(store, new, encoder.block_length, mesh.size):
                batch = block_inputs(store, encoder.tokenizer, new.start + rows, length)
                placed = place_batch(mesh, batch)
                arguments = (placed[name] for name in ("token_ids", "mask", "segment_ids"))
                vectors[copied + rows] = np.asarray(encode(*arguments))
                bar.update(len(np.unique(rows)))
                yield False
            bar.update(copied)
            writer.write(blocks, vectors)
            done += len(blocks)
            now = time.monotonic()
            if quiet and (now - said >= _SECONDS_BETWEEN_LOG_LINES or done == total):
                said, rate = now, done / (now - started)
                left = (total - done) / rate
                logger.info(
                    "encode: %d of %d blocks, %.0f a second, %.0f s left", done, total, rate, left
                )
            yield True


def rows_of_batch(length: int, devices: int) -> int:
    """Blocks of this padded length that are encoded at once: whole parts on each device."""
    rows = max(_WORDPIECES_PER_BATCH // length, 1)
    return (rows - rows % min(rows, _rows_in_cache(length))) * devices


def _rows_in_cache(length: int) -> int:
    """Rows of a part, see `encode_program`."""
    return max(_WORDPIECES_IN_CACHE // length, 1)


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def length_batches(
    store: BlockStore, blocks: range, longest: int, devices: int
) -> list[tuple[np.ndarray, int]]:
    """Groups blocks of like length: (rows within ``blocks``, padded length) of each batch.

    Every batch of one padded length has the same number of rows, a multiple of ``devices``, so that
    a shape is compiled once; the last batch repeats rows to get there.
    """
    ids = np.arange(blocks.start, blocks.stop)
    used = np.minimum(store.lengths[ids] + store.title_lengths[ids] + 3, longest)
    rows = np.argsort(-used, kind="stable")
    found = []
    while len(rows):
        length = min(-(-int(used[rows[0]]) // _LENGTH_STEP) * _LENGTH_STEP, longest)
        size = rows_of_batch(length, devices)
        found.append((np.resize(rows[:size], size), length))
        rows = rows[size:]
    return found
