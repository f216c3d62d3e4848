"""Dense and sparse retrieval together, without training and with a learned weight."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.exact import check_questions
from orqa_jax.index.protocol import Found, Index, clip_k, top_k

# The constant of Cormack et al. 2009, which nobody has found reason to change.
_RANK_OFFSET = 60


class FusedRetriever:
    """Reciprocal rank fusion (Cormack et al. 2009): needs no training and no common scale.

    A block's score is the sum of 1 / (60 + rank), ranks from 1, over the retrievers that find it.

    Args:
      retrievers: Asked for the same questions.
      count: Number of blocks of the corpus.
      depth: Blocks that each of them contributes, or `k` where that is more.
    """

    def __init__(
        self, retrievers: Sequence[Index[Sequence[str]]], *, count: int, depth: int = 100
    ) -> None:
        self.retrievers, self._count, self._depth = retrievers, count, depth

    def search(self, questions: Sequence[str], /, k: int) -> Found:
        """As `orqa_jax.index.protocol.Index`; ties by id."""
        k = clip_k(k, self._count)
        depth = min(max(self._depth, k), self._count)
        rankings = [retriever.search(questions, depth)[0] for retriever in self.retrievers]
        return fuse_rankings(rankings, k)


def fuse_rankings(rankings: Sequence[npt.NDArray[np.int32]], k: int) -> Found:
    """The `k` best blocks by the sum of 1 / (60 + rank) over rankings [B, depth], best first."""
    batch_size = len(rankings[0])
    ids_BK = np.empty((batch_size, k), np.int32)
    scores_BK = np.empty((batch_size, k), np.float32)
    for row in range(batch_size):
        ids = np.concatenate([ranking[row] for ranking in rankings])
        gains = np.concatenate([1.0 / (_RANK_OFFSET + 1 + np.arange(r.shape[1])) for r in rankings])
        union, place = np.unique(ids, return_inverse=True)
        # In float64 and by a fixed order, so that swapped ranks give equal sums.
        total = np.bincount(place, weights=gains).astype(np.float32)
        best, scores_BK[row] = top_k(total, k)
        ids_BK[row] = union[best]
    return ids_BK, scores_BK


class HybridIndex:
    """Maximum inner product search where one coordinate is the BM25 score.

    Both scores of a block are one inner product, `[question; w] . [block; BM25]`, so that a
    loss over inner products trains the weight `w` like the question itself.

    Args:
      bm25: Of the same blocks.
      dense: Search over `vectors_NP`, or None for BM25 alone.
      vectors_NP: float32 block vectors, `[N, 0]` for BM25 alone.
    """

    def __init__(
        self,
        bm25: BM25Index,
        dense: Index[npt.NDArray[np.float32]] | None,
        vectors_NP: npt.NDArray[np.float32],
    ) -> None:
        self._bm25, self._dense, self._vectors_NP = bm25, dense, vectors_NP

    def search(
        self, questions: Sequence[str], vectors_BX: npt.NDArray[np.float32], k: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The best of the union of the `k` best dense and the `k` best sparse blocks.

        Args:
          questions: Raw text.
          vectors_BX: float32 `[B, P + 1]`, the last column the weight of the sparse score.
          k: Clipped to the number of blocks.

        Returns:
          ids, int32 `[B, k]`, best first, and the vectors of these blocks, float32 `[B, k, P + 1]`.

        Raises:
          OrqaError: a vector is not finite or of another size, or `k` is less than 1.
        """
        check_questions(vectors_BX, self._vectors_NP.shape[1] + 1)
        k = clip_k(k, len(self._bm25))
        dense_BK = None
        if self._dense is not None:
            dense_BK, _ = self._dense.search(np.ascontiguousarray(vectors_BX[:, :-1]), k)
        ids_BK = np.empty((len(questions), k), np.int32)
        blocks_BKX = np.empty((*ids_BK.shape, vectors_BX.shape[1]), np.float32)
        for row, question in enumerate(questions):
            sparse_N = self._bm25.scores(question)
            union, _ = top_k(sparse_N, k)
            if dense_BK is not None:
                union = np.union1d(union, dense_BK[row]).astype(np.int32)
            blocks = np.concatenate([self._vectors_NP[union], sparse_N[union, None]], axis=1)
            best, _ = top_k(blocks @ vectors_BX[row], k)
            ids_BK[row], blocks_BKX[row] = union[best], blocks[best]
        return ids_BK, blocks_BKX
