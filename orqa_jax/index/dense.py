"""The ways to search block vectors, by name; what they need beside the vectors lies in folders
within the folder of the embeddings."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from orqa_jax.errors import OrqaError
from orqa_jax.index.compressed import compress, open_compressed
from orqa_jax.index.exact import ExactIndex
from orqa_jax.index.protocol import Index

Search = Literal["exact", "bfloat16", "int8", "scann"]
"""How to search: "exact" scans float32 vectors, "bfloat16" and "int8" find the same from a half and
a quarter of the memory, "scann" finds most of it much faster."""

log = logging.getLogger(__name__)


def prepare_search(
    folder: Path,
    embeddings_NP: npt.NDArray[np.float32],
    search: Search,
    *,
    corpus_fingerprint: str,
    weights_fingerprint: str,
    earlier: Mapping[str, int] | None = None,
) -> None:
    """Makes what a search needs in the folder of the embeddings; what is there already is kept.

    A ScaNN index of what the corpus was before it grew by a little is kept too.

    Args:
      folder: holds the embeddings.
      embeddings_NP: from `orqa_jax.index.embeddings.open_embeddings`.
      search: the way.
      corpus_fingerprint: of the blocks.
      weights_fingerprint: of the retriever.
      earlier: `BlockStore.earlier` of the corpus.

    Raises:
      OrqaError: there is no such way, or ScaNN is wanted and missing.
    """
    _check_known(search)
    fingerprints = {
        "corpus_fingerprint": corpus_fingerprint,
        "weights_fingerprint": weights_fingerprint,
    }
    if search == "exact":
        return
    if search == "scann":
        from orqa_jax.index.scann import ScannIndex, extend

        count = len(embeddings_NP)
        extend(folder / search, count=count, **fingerprints, earlier=earlier or {})
        if not _is_ready(folder, embeddings_NP, search, **fingerprints):
            ScannIndex.build(embeddings_NP, folder / search, **fingerprints)
    elif not _is_ready(folder, embeddings_NP, search, **fingerprints):
        compress(embeddings_NP, folder / search, search, **fingerprints)


def open_search(
    folder: Path,
    embeddings_NP: npt.NDArray[np.float32],
    search: Search,
    *,
    corpus_fingerprint: str,
    weights_fingerprint: str,
    mesh: Mesh | None = None,
) -> Index[npt.NDArray[np.float32]]:
    """The index over `embeddings_NP` that searches in the given way.

    Args:
      folder: holds the embeddings, and what `prepare_search` made.
      embeddings_NP: from `orqa_jax.index.embeddings.open_embeddings`.
      search: the way.
      corpus_fingerprint: of the blocks.
      weights_fingerprint: of the retriever.
      mesh: devices for an exact search; None for the host. ScaNN always runs on the host.

    Raises:
      OrqaError: there is no such way; what the search needs is missing, or was made from something
        else.
    """
    _check_known(search)
    fingerprints = {
        "corpus_fingerprint": corpus_fingerprint,
        "weights_fingerprint": weights_fingerprint,
    }
    if search == "scann":
        # Imported only here: the exact searches have to work where ScaNN breaks something.
        from orqa_jax.index.scann import ScannIndex

        return ScannIndex.open(folder / search, embeddings_NP, **fingerprints)
    if search == "exact":
        return ExactIndex(embeddings_NP, mesh=mesh)
    compressed = open_compressed(folder / search, **fingerprints)
    return ExactIndex(embeddings_NP, compressed=compressed, mesh=mesh)


def _check_known(search: str) -> None:
    if search not in get_args(Search):
        raise OrqaError(
            f'search is "{search}"; it can be {" or ".join(map(repr, get_args(Search)))}.'
        )


def _is_ready(
    folder: Path,
    embeddings_NP: npt.NDArray[np.float32],
    search: Search,
    *,
    corpus_fingerprint: str,
    weights_fingerprint: str,
) -> bool:
    if not (folder / search).exists():
        return False
    try:
        open_search(
            folder,
            embeddings_NP,
            search,
            corpus_fingerprint=corpus_fingerprint,
            weights_fingerprint=weights_fingerprint,
        )
    except OrqaError as error:
        log.warning("%s Making it again now.", error)
        return False
    return True
