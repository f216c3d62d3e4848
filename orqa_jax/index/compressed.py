"""Block vectors in fewer bits, for searches that stay exact.

A search scans the compressed vectors, keeps every block that could be among the best by a proved
bound on the error, and scores those again from the float32 vectors. So compression saves memory and
never changes a result, but on TPUs, whose scan itself is approximate (see `sharded.TPU_RECALL`).

A folder holds `codes.npy`, bfloat16 bits or int8 `[N, P]`, and `manifest.json`, written last.
"""

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import open_array, read_manifest, write_manifest
from orqa_jax.storage import replace_folder

log = logging.getLogger(__name__)

SCHEMA = 1
Precision = Literal["bfloat16", "int8"]

# bfloat16 is no type of its own in a .npy file: its bits are stored.
_STORED: dict[str, np.dtype[Any]] = {"bfloat16": np.dtype(np.uint16), "int8": np.dtype(np.int8)}
_CHUNK = 65_536  # vectors in memory at once while compressing
_AGAIN = "compress the vectors again with `orqa index`"


@dataclasses.dataclass(frozen=True)
class Compressed:
    """Vectors `codes_NP * scale_P`, close to the float32 ones.

    Attributes:
      codes_NP: bfloat16 or int8; may be a memory map.
      scale_P: float32; all ones for bfloat16.
      error: Largest distance, in the Euclidean norm, between a vector and its compressed form.
      longest: Largest norm of a float32 vector.
    """

    codes_NP: npt.NDArray[Any]
    scale_P: npt.NDArray[np.float32]
    error: float
    longest: float


def compress(
    embeddings_NP: npt.NDArray[np.float32],
    folder: Path,
    precision: Precision,
    *,
    corpus_fingerprint: str,
    weights_fingerprint: str,
) -> Compressed:
    """Writes the vectors in fewer bits to `folder`, in place of what is there, and opens them.

    int8 codes are multiples of the largest absolute value of their column over 127.

    Raises:
      OrqaError: a vector holds NaN or infinity.
    """
    count, projection_size = embeddings_NP.shape
    largest_P, longest = _sizes(embeddings_NP)
    scale_P = np.ones(projection_size, np.float32)
    if precision == "int8":
        scale_P = np.where(largest_P > 0, largest_P / 127, 1).astype(np.float32)

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shape = (count, projection_size)
    codes_NP = np.lib.format.open_memmap(
        partial / "codes.npy", mode="w+", dtype=_STORED[precision], shape=shape
    )
    error = 0.0
    for start in range(0, count, _CHUNK):
        chunk_MP = np.asarray(embeddings_NP[start : start + _CHUNK])
        if precision == "int8":
            codes_MP = np.rint(chunk_MP / scale_P).astype(np.int8)
            codes_NP[start : start + _CHUNK] = codes_MP
        else:
            codes_MP = chunk_MP.astype(ml_dtypes.bfloat16)
            codes_NP[start : start + _CHUNK] = codes_MP.view(np.uint16)
        difference_MP = chunk_MP - codes_MP.astype(np.float32) * scale_P
        error = max(error, float(np.linalg.norm(difference_MP, axis=1).max()))
    codes_NP.flush()
    del codes_NP
    write_manifest(
        partial,
        {
            "schema": SCHEMA,
            "corpus_fingerprint": corpus_fingerprint,
            "weights_fingerprint": weights_fingerprint,
            "count": count,
            "projection_size": projection_size,
            "precision": precision,
            "scale": scale_P.tolist(),
            # Both were rounded themselves; they are to be upper bounds.
            "error": 1.0001 * error,
            "longest": 1.0001 * longest,
        },
    )
    replace_folder(partial, folder)
    log.info(
        "%s: %d vectors in %s, at most %.2g off where the longest is %.2g",
        folder,
        count,
        precision,
        error,
        longest,
    )
    return open_compressed(
        folder, corpus_fingerprint=corpus_fingerprint, weights_fingerprint=weights_fingerprint
    )


def _sizes(embeddings_NP: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], float]:
    """The largest absolute value of each column, and the largest norm of a row."""
    largest_P = np.zeros(embeddings_NP.shape[1], np.float32)
    longest = 0.0
    for start in range(0, len(embeddings_NP), _CHUNK):
        chunk_MP = embeddings_NP[start : start + _CHUNK]
        largest_P = np.maximum(largest_P, np.abs(chunk_MP).max(axis=0))
        longest = max(longest, float(np.linalg.norm(chunk_MP, axis=1).max()))
        if not np.isfinite(largest_P).all():
            raise OrqaError(
                f"A vector among blocks {start} to {start + len(chunk_MP) - 1} holds NaN or "
                "infinity: encode the blocks again with `orqa index`."
            )
    return largest_P, longest


def open_compressed(
    folder: Path, *, corpus_fingerprint: str, weights_fingerprint: str
) -> Compressed:
    """The finished compressed vectors in `folder`, memory-mapped.

    Raises:
      OrqaError: none are there, they are damaged, or they were made from another corpus or by other
        weights.
    """
    manifest = read_manifest(
        folder,
        "compressed vectors",
        schema=SCHEMA,
        fingerprints={"corpus": corpus_fingerprint, "weights": weights_fingerprint},
        remedy=_AGAIN,
    )
    shape = (manifest["count"], manifest["projection_size"])
    codes_NP = open_array(
        folder / "codes.npy", shape, _STORED[manifest["precision"]], remedy=_AGAIN
    )
    if manifest["precision"] == "bfloat16":
        codes_NP = codes_NP.view(ml_dtypes.bfloat16)
    return Compressed(
        codes_NP,
        np.array(manifest["scale"], np.float32),
        manifest["error"],
        manifest["longest"],
    )
