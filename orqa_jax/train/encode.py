"""Encoding of the whole corpus into block embeddings, resumable, on all devices."""

import dataclasses
import functools
import logging
import sys
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.embeddings import EmbeddingWriter, open_embeddings
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import load_model
from orqa_jax.train.inputs import pair_inputs
from orqa_jax.train.mesh import make_mesh, place_batch

# Blocks of one step of progress: what an interruption can lose.
_CHUNK_BLOCKS = 1024
# Wordpieces of one batch on one device: enough to keep it busy, small enough for its caches.
_WORDPIECES_PER_BATCH = 4096
# Batches are padded to a multiple of this, so that few shapes are compiled.
_LENGTH_STEP = 32

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EncodeConfig:
    """What to encode, and by what.

    Attributes:
      corpus: Folder of the block store.
      retriever: Model folder that ICT wrote.
      out: Folder for the embeddings.
      dtype: "float32", or "bfloat16" for accelerators; vectors are stored in float32.
    """

    corpus: str
    retriever: str
    out: str
    dtype: Literal["float32", "bfloat16"] = "float32"


def encode_corpus(config: EncodeConfig) -> np.ndarray:
    """Writes the vector of every block, made by the block tower of the retriever.

    An interrupted run goes on where it stopped; finished embeddings are kept as they are.

    Returns:
      float32 [N, P], memory-mapped.

    Raises:
      OrqaError: An input is missing, or inputs do not belong together.
    """
    corpus, retriever, out = Path(config.corpus), Path(config.retriever), Path(config.out)
    store = BlockStore(corpus)
    about, params, tokenizer = load_model(retriever, kind=ict.MODEL_KIND)
    if tokenizer.fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(
            f"The corpus {corpus} was built with another tokenizer than {retriever} uses; "
            "build the corpus again with the tokenizer of this model."
        )
    fingerprints = {
        "corpus_fingerprint": store.fingerprint,
        "weights_fingerprint": about["weights_fingerprint"],
    }
    if (out / "manifest.json").exists():
        try:
            return open_embeddings(out, **fingerprints)
        except OrqaError as error:
            # They are derived from what is at hand, and stay until the new ones are complete.
            logger.warning("%s Encoding again now.", error)
    shape = retriever_config_from_dict(about["retriever"])
    model = DualEncoder(shape, jnp.dtype(config.dtype))
    mesh = make_mesh()
    if jax.process_count() > 1:
        raise OrqaError("Encoding runs in one process; start it on one host with all its devices.")
    tower = "encoder" if shape.shared_towers else "block_encoder"
    variables = jax.device_put({"params": {tower: params[tower]}})
    encode = jax.jit(functools.partial(model.apply, method="encode_blocks"))

    writer = EmbeddingWriter(
        out,
        count=len(store),
        projection_size=shape.projection_size,
        chunk_size=_CHUNK_BLOCKS,
        **fingerprints,
    )
    quiet = not sys.stderr.isatty()
    done = len(store) - sum(len(blocks) for blocks in writer.pending)
    with tqdm(total=len(store), initial=done, desc="encode", unit="block", disable=quiet) as bar:
        for blocks in writer.pending:
            vectors = np.zeros((len(blocks), shape.projection_size), np.float32)
            for rows, length in length_batches(store, blocks, about["block_length"], mesh.size):
                ids = blocks.start + rows
                batch: dict[str, Any] = pair_inputs(
                    tokenizer, store.titles(ids), store.tokens(ids), length
                )
                placed = place_batch(mesh, batch)
                arguments = (placed[name] for name in ("token_ids", "mask", "segment_ids"))
                vectors[rows] = np.asarray(encode(variables, *arguments))
                bar.update(len(np.unique(rows)))
            writer.write(blocks, vectors)
            if quiet:
                logger.info("encode: %d of %d blocks", blocks.stop, len(store))
    return writer.finish()


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
        size = max(_WORDPIECES_PER_BATCH // length, 1) * devices
        found.append((np.resize(rows[:size], size), length))
        rows = rows[size:]
    return found
