"""Alignment over a corpus: re-ranked beams, and sentences as evidence."""

from collections.abc import Sequence

import numpy as np

from orqa_jax.baselines.alignment.align import Aligner, AlignmentWeights
from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.protocol import Found, Index, clip_k
from orqa_jax.text.sentences import split_sentences


class AlignmentReranker:
    """Orders the first blocks of any retriever of questions by how well they align.

    Args:
      first: Finds the blocks.
      store: Holds them.
      aligner: Aligns question and text of a block (with its title).
      weights: Of the alignment.
      depth: Blocks that are re-ranked; what comes after them keeps its order.
    """

    def __init__(
        self,
        first: Index[Sequence[str]],
        store: BlockStore,
        aligner: Aligner,
        weights: AlignmentWeights,
        *,
        depth: int = 100,
    ) -> None:
        self._first, self._store, self._aligner = first, store, aligner
        self._weights, self._depth = weights, depth

    def search(self, questions: Sequence[str], /, k: int) -> Found:
        """As `orqa_jax.index.protocol.Index`; equal scores keep the order of the first retriever.

        Scores are alignments; those of blocks beyond the depth follow below in steps of 1.

        Raises:
          OrqaError: `k` is less than 1.
        """
        k = clip_k(k, len(self._store))
        found = max(k, min(self._depth, len(self._store)))
        ids_BC = self._first.search(questions, found)[0].copy()
        scores_BC = np.empty(ids_BC.shape, np.float32)
        for row, question in enumerate(questions):
            beam = ids_BC[row, : self._depth].copy()
            texts = [f"{self._store.title(int(i))}\n{self._store.text(int(i))}" for i in beam]
            scores = self._aligner.scores(question, texts, self._weights)
            order = np.argsort(-scores, kind="stable")
            ids_BC[row, : len(beam)] = beam[order]
            scores_BC[row, : len(beam)] = scores[order]
            behind = found - len(beam)
            scores_BC[row, len(beam) :] = scores.min() - np.arange(1, behind + 1)
        return ids_BC[:, :k], scores_BC[:, :k]


def find_sentences(
    retriever: Index[Sequence[str]], store: BlockStore, texts: Sequence[str], *, blocks: int = 5
) -> list[list[str]]:
    """For each text the sentences of the first `blocks` blocks that the retriever finds for it."""
    ids_BK, _ = retriever.search(texts, min(blocks, len(store)))
    return [
        [
            block[start:end]
            for block in map(store.text, ids)
            for start, end in split_sentences(block)
        ]
        for ids in ids_BK.tolist()
    ]
