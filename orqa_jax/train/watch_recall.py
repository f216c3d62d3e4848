"""Zero-shot retrieval during ICT, beside BM25 on the same blocks: is the pre-training worth it?

The whole corpus would have to be encoded again for every look, so a fixed sample stands for it:
some questions, for each of them one block that holds an answer, and other blocks at random. Recall
in so small a pool is higher than in the corpus; it is there to be compared, from look to look and
with BM25.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.corpus.postings import answer_postings
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.exact import ExactIndex
from orqa_jax.models.retriever import DualEncoder
from orqa_jax.qa.examples import Example
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.inputs import Inputs, pair_inputs, question_inputs
from orqa_jax.train.mesh import place_batch
from orqa_jax.train.state import Params

RANKS = (1, 5, 20)

# Rows of one batch on one device.
_ROWS = 32

Recall = dict[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class RecallSample:
    """Questions over a pool of M blocks.

    Attributes:
      questions: Encoder inputs [Q, L].
      blocks: Encoder inputs [M, L].
      correct_QM: bool, which blocks hold an answer to which question.
      bm25: Hits and questions, by "bm25_recall@k".
    """

    questions: Inputs
    blocks: Inputs
    correct_QM: np.ndarray
    bm25: Recall


def sample_recall(
    store: BlockStore,
    tokenizer: WordPiece,
    examples: Sequence[Example],
    *,
    question_length: int,
    block_length: int,
    questions: int = 256,
    blocks: int = 2048,
    seed: int = 0,
) -> RecallSample:
    """Draws the sample, the same for the same seed, and asks BM25.

    Reads the wordpieces of the corpus once, to find where the answers of the questions stand.

    Args:
      store: The blocks.
      tokenizer: Of the store.
      examples: Questions with answers; those whose answer is in no block are not drawn. A regular
        expression counts as the string that it is.
      question_length: Wordpieces of a question.
      block_length: Wordpieces of a block with its title.
      questions: At most so many are drawn.
      blocks: Size of the pool, at most the whole corpus.
      seed: Of the draw.

    Raises:
      OrqaError: No block holds an answer to any of the questions.
    """
    rng = np.random.default_rng(seed)
    # More than are wanted, as the answers of some are in no block.
    drawn = rng.permutation(len(examples))[: 4 * questions]
    answers = tokenizer.encode_answers([examples[i].answers for i in drawn])
    postings = answer_postings(store, answers, tokenizer.continues_word)
    kept = [place for place, found in enumerate(postings) if len(found)][:questions]
    if not kept:
        raise OrqaError(
            "None of the watched questions has its answer in the corpus; "
            "check that questions and documents belong together."
        )
    gold = {int(rng.choice(postings[place])) for place in kept}
    random = rng.choice(len(store), min(blocks, len(store)), replace=False).tolist()
    others = [block for block in random if block not in gold][: max(blocks - len(gold), 0)]
    pool = np.array(sorted([*gold, *others]))
    texts = [examples[drawn[place]].question for place in kept]
    correct_QM = np.stack([np.isin(pool, postings[place]) for place in kept])
    pool_texts = (f"{store.title(i)}\n{store.text(i)}" for i in pool.tolist())
    bm25 = BM25Index.of_texts(pool_texts, store.language)
    ids_QK, _ = bm25.search(texts, min(RANKS[-1], len(pool)))
    encoded = [found.ids for found in tokenizer.encode(texts)]
    return RecallSample(
        questions=question_inputs(tokenizer, encoded, question_length),
        blocks=pair_inputs(tokenizer, store.titles(pool), store.tokens(pool), block_length),
        correct_QM=correct_QM,
        bm25=_recall(ids_QK, correct_QM, "bm25"),
    )


def watch_recall(params: Params, model: DualEncoder, mesh: Mesh, sample: RecallSample) -> Recall:
    """Recall of the retriever on the sample, as (hits, questions), with BM25's beside it.

    Returns:
      "zero_shot_recall@k" and "bm25_recall@k" for k in ``RANKS``: questions with a block that holds
      an answer among the first k.
    """
    question_QP = _encode(params, model, mesh, sample.questions, "encode_questions")
    block_MP = _encode(params, model, mesh, sample.blocks, "encode_blocks")
    ids_QK, _ = ExactIndex(block_MP).search(question_QP, min(RANKS[-1], len(block_MP)))
    return _recall(ids_QK, sample.correct_QM, "zero_shot") | sample.bm25


def _recall(ids_QK: np.ndarray, correct_QM: np.ndarray, name: str) -> Recall:
    correct_QK = np.take_along_axis(correct_QM, ids_QK, axis=1)
    hits = {k: float(correct_QK[:, :k].any(axis=1).sum()) for k in RANKS}
    return {f"{name}_recall@{k}": (hit, float(len(ids_QK))) for k, hit in hits.items()}


Tower = Literal["encode_questions", "encode_blocks"]


def _encode(
    params: Params, model: DualEncoder, mesh: Mesh, inputs: Inputs, method: Tower
) -> np.ndarray:
    """The vectors of all rows, on every process; each device encodes its share of a batch."""
    names = ["token_ids", "mask"] + ["segment_ids"] * (method == "encode_blocks")
    rows = _ROWS * mesh.size
    mine = rows // jax.process_count()
    count = len(inputs["mask"])
    vectors = []
    for start in range(0, count, rows):
        first = start + jax.process_index() * mine
        # The last batch repeats the last row, so that one shape is compiled.
        taken = np.minimum(np.arange(first, first + mine), count - 1)
        placed = place_batch(mesh, [inputs[name][taken] for name in names])
        vectors.append(np.asarray(_encode_batch(params, placed, model, mesh, method)))
    return np.concatenate(vectors)[:count]


@functools.partial(jax.jit, static_argnames=("model", "mesh", "method"))
def _encode_batch(
    params: Params, batch: list[jax.Array], model: DualEncoder, mesh: Mesh, method: Tower
) -> jax.Array:
    vectors: Any = model.apply({"params": params}, *batch, method=method)
    # Whole on every device, so that every process can read it.
    return jax.lax.with_sharding_constraint(vectors, NamedSharding(mesh, PartitionSpec()))
