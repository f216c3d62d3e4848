"""Training of the block tower, with the corpus encoded anew in the background.

Lee et al. 2019 keep the block tower as ICT left it, since each of its updates makes the vectors of
all blocks stale. Guu et al. 2020 (REALM, section 3.3) train it all the same: blocks that are read
get their vectors from the tower as it is, the index from the tower as it was some steps ago. They
encode in jobs of their own and take up an index whenever it is ready. Here the processes that train
also encode, and which index a step searches follows from its number alone: what is begun after step
n R serves the steps from (n + 1) R to (n + 2) R, however long it takes, and a step that comes too
early waits. So a run that was interrupted ends as one that was not.
"""

import dataclasses
import logging
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.dense import Search
from orqa_jax.index.embeddings import EmbeddingWriter
from orqa_jax.models.weights import fingerprint_params
from orqa_jax.train.encode import (
    BlockEncoder,
    encode_store,
    finish_embeddings,
    open_writer,
    write_vectors,
)
from orqa_jax.train.mesh import fetch_tree
from orqa_jax.train.state import CarryingState, Params

logger = logging.getLogger(__name__)

# Takes the folder of the embeddings, and the fingerprint of the weights that made them.
Use = Callable[[Path, str], None]


def generations(step: int, every: int) -> tuple[int, int]:
    """Which generation serves after ``step`` steps, and which one is being encoded.

    Generation n is made by the block tower after ``n * every`` steps; 0 is that of pre-training.
    """
    coming = step // every
    return max(coming - 1, 0), coming


def staleness(step: int, every: int) -> int:
    """How many steps older than the others the parameters are that made the index of a step.

    ``step`` is counted from 0.
    """
    return step - generations(step, every)[0] * every


def initial_towers(tower: Params) -> dict[str, Params]:
    """What a `CarryingState` carries as "towers" before the first step."""
    return {name: jax.tree.map(jnp.copy, tower) for name in ("serving", "coming")}


@dataclasses.dataclass
class _Encoding:
    """A generation that is being encoded; ``writer`` is None where its vectors were there."""

    folder: Path
    encoder: BlockEncoder
    writer: EmbeddingWriter | None
    written: Future[None]


class IndexRefresh:
    """Encodes the corpus every ``every`` steps beside the training, and changes the index.

    A `CarryingState` carries the block towers of two generations as "towers": "serving", and
    "coming". So a checkpoint has what made the index that its next step needs, and embeddings that
    are lost or unfinished are made again.

    Args:
      every: Steps between two generations, R.
      steps: Of the whole training; what none of them would search is not encoded.
      store: The blocks.
      encoder: With the parameters of generation 0.
      folder: For the embeddings of the two generations at hand, each in a folder named by the step
        after which it was begun. Several processes have to share it.
      search: How the vectors are searched.
      mesh: Where the state lies.
      use: Changes the index.
    """

    def __init__(
        self,
        *,
        every: int,
        steps: int,
        store: BlockStore,
        encoder: BlockEncoder,
        folder: Path,
        search: Search,
        mesh: Mesh,
        use: Use,
    ) -> None:
        self._every, self._steps = every, steps
        self._store, self._encoder, self._folder, self._search = store, encoder, folder, search
        self._mesh, self._use = mesh, use
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="refresh")
        self._stopping = threading.Event()
        self._encoding: _Encoding | None = None
        self._at_start = True

    def before_step(self, step: int, state: Any) -> Any:
        """To be called before each step, with the number of steps done; returns the state for it.

        Raises:
          OrqaError: A vector is not finite, or the disk is full.
        """
        turning = step > 0 and step % self._every == 0
        if turning:
            # A step that retrieves for itself may still be at it, in the index that it began with.
            jax.block_until_ready(state)
            state = self._with_new_tower(state)
        if turning or self._at_start:
            serving, coming = generations(step, self._every)
            towers = state.carried["towers"]
            if serving:
                if self._encoding is None:  # a run that continues
                    self._begin(serving, towers["serving"])
                self._change(step)
            self._remove_all_but(serving, coming)
            if serving < coming and (coming + 1) * self._every < self._steps:
                self._begin(coming, towers["coming"])
        self._at_start = False
        return state

    def close(self) -> None:
        """Stops encoding; what is written stays, for a run that continues."""
        self._stopping.set()
        self._thread.shutdown()

    def finish(self, params: Params, out: Path) -> str:
        """Encodes the corpus by the trained tower into ``out``, and removes the generations.

        Returns the fingerprint of the tower, which the embeddings carry.
        """
        encoder = self._with_tower(params["retriever"])
        encode_store(self._store, encoder, out, self._search)
        if jax.process_index() == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        return encoder.weights_fingerprint

    def _with_new_tower(self, state: CarryingState) -> CarryingState:
        # The parameters themselves are used up by the next step.
        tower = jax.tree.map(jnp.copy, self._tower(state.params["retriever"]))
        towers = {"serving": state.carried["towers"]["coming"], "coming": tower}
        return dataclasses.replace(state, carried=state.carried | {"towers": towers})

    def _begin(self, generation: int, tower: Params) -> None:
        encoder = self._with_tower(fetch_tree(self._mesh, tower))
        folder = self._folder / str(generation * self._every)
        writer = open_writer(self._store, encoder, folder)
        written = self._thread.submit(self._write, writer, encoder)
        self._encoding = _Encoding(folder, encoder, writer, written)

    def _write(self, writer: EmbeddingWriter | None, encoder: BlockEncoder) -> None:
        if writer is None:
            return
        for _ in write_vectors(writer, self._store, encoder):
            if self._stopping.is_set():
                return

    def _change(self, step: int) -> None:
        encoding, self._encoding = self._encoding, None
        assert encoding is not None
        started = time.monotonic()
        encoding.written.result()
        finish_embeddings(
            encoding.writer, self._store, encoding.encoder, encoding.folder, self._search
        )
        logger.info(
            "The index is from now, step %d, that of step %s; it was waited for %.1f s.",
            *(step, encoding.folder.name, time.monotonic() - started),
        )
        self._use(encoding.folder, encoding.encoder.weights_fingerprint)

    def _remove_all_but(self, *generations: int) -> None:
        if jax.process_index() == 0 and self._folder.exists():
            kept = {str(generation * self._every) for generation in generations}
            for folder in self._folder.iterdir():
                if folder.name not in kept:
                    shutil.rmtree(folder)

    def _tower(self, retriever: Params) -> Params:
        return {name: retriever[name] for name in self._encoder.params}

    def _with_tower(self, retriever: Params) -> BlockEncoder:
        tower = self._tower(retriever)
        fingerprint = fingerprint_params(tower)
        return dataclasses.replace(self._encoder, params=tower, weights_fingerprint=fingerprint)
