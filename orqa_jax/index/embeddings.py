"""Block embeddings on disk: a folder with `embeddings.npy`, float32 `[N, P]`, and `manifest.json`.

The manifest is written last and carries the fingerprints of the corpus and of the weights that made
the vectors. While an encoding runs the folder holds `embeddings.npy.partial`, and from each process
that encodes a `progress-<number>.json`, from which a second start goes on.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orqa_jax.checksums import describe_files
from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import NAME, open_array, read_manifest, write_json

log = logging.getLogger(__name__)

SCHEMA = 1
ENCODE_AGAIN = "encode the blocks with `orqa index`"


class EmbeddingWriter:
    """Writes the vectors of a corpus chunk by chunk, in any order, over as many starts as it takes.

    A chunk is a range of `chunk_size` consecutive blocks. Several processes may write to one
    folder, on a file system that they share: each writes its part of the pending chunks at their
    place in one file.

        writer = EmbeddingWriter(folder, count=len(store), ...)
        for blocks in writer.pending:
            writer.write(blocks, encode(blocks))
        embeddings_NP = writer.finish()
    """

    def __init__(
        self,
        folder: Path,
        *,
        count: int,
        projection_size: int,
        corpus_fingerprint: str,
        weights_fingerprint: str,
        chunk_size: int = 8192,
        process: int = 0,
        processes: int = 1,
        barrier: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Goes on with an interrupted encoding of the same corpus by the same weights, or begins.

        Finished embeddings in the folder stay as they are until `finish`.

        Args:
          folder: for the embeddings.
          count: blocks, N.
          projection_size: P.
          corpus_fingerprint: of the blocks.
          weights_fingerprint: of what makes the vectors.
          chunk_size: what an interruption can lose.
          process: number of this process, from 0.
          processes: how many write together; another number may go on with what these leave.
          barrier: waits until all processes have called it with the same name.

        Raises:
          OrqaError: the disk has no room for the vectors.
        """
        self._folder = folder
        self._partial = folder / "embeddings.npy.partial"
        self._progress = folder / f"progress-{process}.json"
        self._process, self._barrier = process, barrier
        self.projection_size = projection_size
        self._chunk_size = chunk_size
        self._made_from: dict[str, Any] = {
            "schema": SCHEMA,
            "corpus_fingerprint": corpus_fingerprint,
            "weights_fingerprint": weights_fingerprint,
            "count": count,
            "projection_size": projection_size,
            "dtype": "float32",
        }
        self._chunks = [
            range(start, min(start + chunk_size, count)) for start in range(0, count, chunk_size)
        ]
        if process == 0:
            folder.mkdir(parents=True, exist_ok=True)
            self._finished = self._finished_before()
            if self._finished:
                done, of = len(self._finished), len(self._chunks)
                log.info("%s: going on after %d of %d chunks", folder, done, of)
            else:
                _preallocate(self._partial, (count, projection_size))
            self._save_progress()
            for path in folder.glob("progress-*.json"):
                if path != self._progress:
                    path.unlink()
        barrier("embeddings are there")
        unfinished = self._unfinished()
        self._mine = unfinished[process::processes]
        # Chunks of the process that has most.
        self.rounds = -(-len(unfinished) // processes)
        barrier("progress is known")
        if process:
            self._finished = set()
        self._first_byte = np.load(self._partial, mmap_mode="r").offset

    @property
    def pending(self) -> list[range]:
        """The blocks of each chunk that is still to be written by this process, in order."""
        return [chunk for chunk in self._mine if chunk.start not in self._finished]

    def write(self, blocks: range, embeddings_MP: npt.NDArray[np.float32]) -> None:
        """Stores the vectors, float32 `[len(blocks), P]`, of a chunk from `pending`.

        Raises:
          ValueError: `blocks` is no chunk, or the vectors have another shape.
          OrqaError: a vector holds NaN or infinity.
        """
        shape = (len(blocks), self._made_from["projection_size"])
        if blocks not in self._mine or embeddings_MP.shape != shape:
            raise ValueError(
                f"vectors {embeddings_MP.shape} for blocks {blocks}, a chunk is {shape}"
            )
        finite_M = np.isfinite(embeddings_MP).all(axis=1)
        if not finite_M.all():
            raise OrqaError(
                f"The vector of block {blocks[int(np.argmin(finite_M))]} holds NaN or infinity: the"
                " weights are damaged or training diverged, so encode with an earlier checkpoint."
            )
        # Through a memory map, two hosts could undo each other's writes to one page.
        with self._partial.open("r+b") as file:
            file.seek(self._first_byte + blocks.start * embeddings_MP[:1].nbytes)
            file.write(np.ascontiguousarray(embeddings_MP, np.float32).data)
            file.flush()
            os.fsync(file.fileno())
        self._finished.add(blocks.start)
        self._save_progress()

    def finish(self) -> npt.NDArray[np.float32]:
        """Puts the finished vectors in place of any older ones; returns them as `open_embeddings`.

        All processes call it.

        Raises:
          ValueError: chunks are not written yet.
        """
        self._barrier("all is written")
        if self._process == 0:
            if unfinished := self._unfinished():
                raise ValueError(f"{len(unfinished)} chunks are not written yet")
            (self._folder / NAME).unlink(missing_ok=True)  # it would vouch for the wrong vectors
            self._partial.replace(self._folder / "embeddings.npy")
            files = describe_files(self._folder, ["embeddings.npy"])
            write_json(self._folder / NAME, self._made_from | {"files": files})
            for progress in self._folder.glob("progress-*.json"):
                progress.unlink()
        self._barrier("embeddings are in place")
        return open_embeddings(
            self._folder,
            corpus_fingerprint=self._made_from["corpus_fingerprint"],
            weights_fingerprint=self._made_from["weights_fingerprint"],
        )

    def _save_progress(self) -> None:
        write_json(
            self._progress,
            self._made_from | {"chunk_size": self._chunk_size, "finished": sorted(self._finished)},
        )

    def _unfinished(self) -> list[range]:
        finished = self._finished_before()
        return [chunk for chunk in self._chunks if chunk.start not in finished]

    def _finished_before(self) -> set[int]:
        """First blocks of the chunks that all processes have written, if of the same thing."""
        finished: set[int] = set()
        if not self._partial.exists():
            return finished
        for path in self._folder.glob("progress-*.json"):
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
                starts = set(before.pop("finished"))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("%s is damaged (%r): its chunks are encoded again.", path, error)
                continue
            if before != self._made_from | {"chunk_size": self._chunk_size}:
                log.warning(
                    "%s: starting anew, as the unfinished embeddings there are of corpus %s and"
                    " weights %s in chunks of %s; now these are %s, %s and %d",
                    self._folder,
                    before["corpus_fingerprint"][:16],
                    before["weights_fingerprint"][:16],
                    before["chunk_size"],
                    self._made_from["corpus_fingerprint"][:16],
                    self._made_from["weights_fingerprint"][:16],
                    self._chunk_size,
                )
                return set()
            finished.update(starts)
        return finished


def open_embeddings(
    folder: Path, *, corpus_fingerprint: str, weights_fingerprint: str
) -> npt.NDArray[np.float32]:
    """The finished vectors in `folder`, float32 `[N, P]`, as a read-only memory map.

    Raises:
      OrqaError: none are there, they are damaged, or they were made from another corpus or by other
        weights.
    """
    manifest = read_manifest(
        folder,
        "block embeddings",
        schema=SCHEMA,
        fingerprints={"corpus": corpus_fingerprint, "weights": weights_fingerprint},
        remedy=ENCODE_AGAIN,
    )
    shape = (manifest["count"], manifest["projection_size"])
    return open_array(folder / "embeddings.npy", shape, np.float32, remedy=ENCODE_AGAIN)


def _preallocate(path: Path, shape: tuple[int, int]) -> None:
    try:
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        # Without reserved space, a disk that fills up later would kill the process by SIGBUS.
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OrqaError(
            f"{path} needs {4e-9 * shape[0] * shape[1]:.1f} GB, which cannot be reserved"
            f" ({error.strerror}): free some space or choose another folder."
        ) from error
