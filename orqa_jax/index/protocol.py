"""What every index promises, and the two rules all of them share."""

import functools
import logging
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from orqa_jax.errors import OrqaError

log = logging.getLogger(__name__)

Queries_contra = TypeVar("Queries_contra", contravariant=True)

Found = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Block numbers and their scores, both `[B, k]`."""


class Index(Protocol[Queries_contra]):
    """Finds blocks for queries: vectors for a dense index, strings for a sparse one."""

    def search(self, queries: Queries_contra, /, k: int) -> Found:
        """The `k` best blocks of each query, best first.

        Args:
          queries: one query a row.
          k: blocks wanted. More than the corpus has are clipped to its size, with a warning.

        Returns:
          ids, int32 `[B, k]`, and scores, float32 `[B, k]`. Equal scores stand in order of id.

        Raises:
          OrqaError: `k` is less than 1.
        """
        ...


def clip_k(k: int, count: int) -> int:
    """`k`, or `count` with a warning in the log where the corpus has fewer blocks than that.

    Raises:
      OrqaError: `k` is less than 1.
    """
    if k < 1:
        raise OrqaError(f"A search must ask for at least one block, but k is {k}.")
    if k > count:
        _warn_clipped(k, count)
    return min(k, count)


@functools.cache  # a training loop clips on every step: say it once
def _warn_clipped(k: int, count: int) -> None:
    log.warning(
        "asked for %d blocks of a corpus of %d: each search returns all %d", k, count, count
    )


def top_k(
    scores_N: npt.NDArray[np.float32], k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Positions and values, `[k]` each, of the `k <= N` highest scores; ties by position."""
    if k == 0:
        return np.empty(0, np.int32), np.empty(0, np.float32)
    kth = np.partition(scores_N, -k)[-k]
    above = np.flatnonzero(scores_N > kth)
    equal = np.flatnonzero(scores_N == kth)[: k - len(above)]
    ids = np.concatenate([above[np.argsort(-scores_N[above], kind="stable")], equal])
    return ids.astype(np.int32), scores_N[ids]
