"""BM25 in the training loop, alone or beside the dense retriever.

Lee et al. 2019 train their BM25 baseline with the loss of ORQA, "a weighted sum of the BM25 score
and the reader score" (section 8.1), and name the hybrid as future work (section 9.3). Here the BM25
score is one more coordinate of the block vector, and its learned weight one more coordinate of the
question vector: the retrieval score stays one inner product, and the loss stays as it is.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.hybrid import HybridIndex
from orqa_jax.index.protocol import Index
from orqa_jax.qa.examples import Example
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.retrieve import BeamSizes, BeamSource
from orqa_jax.train.state import Params

Evidence = Literal["dense", "bm25", "hybrid"]

# Adam moves a parameter by about the learning rate, however small its gradient. That suits weights
# of 0.02, not one factor of scores of 20: the parameter is the weight divided by this.
_GAIN = 20.0
_INITIAL_WEIGHT = 0.1


def initial_sparse_params() -> Params:
    """The weight of the BM25 score before training."""
    return {"weight": jnp.asarray(_INITIAL_WEIGHT / _GAIN, jnp.float32)}


def sparse_weight(params: Any) -> Any:
    """The factor of the BM25 score in the retrieval score."""
    return params["weight"] * _GAIN


def with_sparse_weight(question_BP: jax.Array, params: Any) -> jax.Array:
    """question_BP with the weight of the BM25 score as its last column, [B, P + 1]."""
    weight_B1 = jnp.broadcast_to(sparse_weight(params), (question_BP.shape[0], 1))
    return jnp.concatenate([question_BP, weight_B1], axis=1)


class SparseSource(BeamSource):
    """A `BeamSource` whose block vectors end in the BM25 score of the question."""

    def __init__(
        self,
        store: BlockStore,
        bm25: BM25Index,
        index: Index[np.ndarray] | None,
        vectors_NP: np.ndarray,
        tokenizer: WordPiece,
        examples: Sequence[Example],
        sizes: BeamSizes,
    ) -> None:
        """As `BeamSource`; without `index` BM25 alone finds the beam, and P is 0."""
        self._bm25 = bm25
        self._texts = [example.question for example in examples]
        super().__init__(store, index, vectors_NP, tokenizer, examples, sizes)

    def use(self, index: Index[np.ndarray] | None, vectors_NP: np.ndarray) -> None:
        self._hybrid = HybridIndex(self._bm25, index, vectors_NP)
        super().use(index, vectors_NP)

    def search(
        self, rows_B: np.ndarray, question_BP: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        questions = [self._texts[row] for row in rows_B]
        with self._timed("search_share"):
            return self._hybrid.search(questions, question_BP, count)
