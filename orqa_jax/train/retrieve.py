"""Retrieval inside the training loop: from question vectors to everything a step needs.

``BeamSource.fetch`` is one numpy function: search, gather of block vectors, reader inputs, labels.
Two thin wrappers carry it. ``fetch_by_callback`` runs it from inside the jitted step, each device
serving its own rows; calling it between two jitted programs is the other ("two-phase"), for places
where a callback could stall the devices. Both give the same arrays, so the same gradients.

Nothing here may call jax from inside ``fetch``: a host callback that does never returns.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from orqa_jax.corpus.postings import answer_postings
from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.protocol import Index
from orqa_jax.models.reader import span_mask_BLW
from orqa_jax.qa.examples import Example
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.inputs import Inputs, pair_inputs, question_inputs, ragged
from orqa_jax.train.mesh import BATCH

Beam = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class BeamSizes:
    """Static sizes of a beam.

    Attributes:
      early: Blocks whose retrieval score is trained, C (5000 in the paper).
      read: Blocks that are read, K (5 in the paper).
      reader_length: Wordpieces of one reader sequence, L.
      span_width: Longest span in wordpieces, W.
    """

    early: int
    read: int
    reader_length: int
    span_width: int


class BeamSource:
    """Finds, gathers and labels the beam of any of ``examples``."""

    def __init__(
        self,
        store: BlockStore,
        index: Index,
        vectors_NP: np.ndarray,
        tokenizer: WordPiece,
        examples: Sequence[Example],
        sizes: BeamSizes,
    ) -> None:
        self._store, self._index, self._vectors_NP = store, index, vectors_NP
        self.tokenizer = tokenizer
        self.sizes = dataclasses.replace(sizes, early=min(sizes.early, len(store)))
        self.questions = [e.ids for e in tokenizer.encode([x.question for x in examples])]
        flat = tokenizer.encode([answer for x in examples for answer in x.answers])
        bounds = np.cumsum([0, *(len(x.answers) for x in examples)])
        self.answers = [
            [encoded.ids for encoded in flat[start:end]]
            for start, end in itertools.pairwise(bounds)
        ]
        self.postings = answer_postings(store, self.answers, tokenizer.continues_word)

    def fetch(self, rows_B: np.ndarray, question_BP: np.ndarray) -> Beam:
        """Retrieves for each question vector and returns numpy arrays of static shape.

        Args:
          rows_B: Place of each question in ``examples``.
          question_BP: float32 question vectors.

        Returns:
          ``block_ids_BC`` int32 and ``vectors_BCP`` float32 of the best blocks, best first;
          ``early_correct_BC`` bool, which of them hold an answer; for the first K of them
          ``token_ids``, ``mask``, ``segment_ids`` [B, K, L], and ``span_mask``, ``span_correct``
          bool [B, K, L, W]: the candidate spans, and those that spell an answer.
        """
        ids_BC, _ = self._index.search(np.asarray(question_BP), self.sizes.early)
        rows_B = np.asarray(rows_B)
        early_correct_BC = np.stack(
            [_is_in(ids_C, self.postings[row]) for ids_C, row in zip(ids_BC, rows_B, strict=True)]
        )
        beam: Beam = {
            "block_ids": ids_BC.astype(np.int32),
            "vectors": self._vectors_NP[ids_BC],
            "early_correct": early_correct_BC,
        }
        return beam | self.reader_inputs(rows_B, ids_BC[:, : self.sizes.read])

    def reader_inputs(self, rows_B: np.ndarray, ids_BK: np.ndarray) -> Inputs:
        """The reader's part of ``fetch``, for any beam of blocks."""
        questions = [self.questions[row] for row in rows_B]
        encoded = reader_inputs(self._store, self.tokenizer, questions, ids_BK, self.sizes)
        correct = [
            spans_equal(encoded["token_ids"][b], self.answers[row], self.sizes.span_width)
            for b, row in enumerate(rows_B)
        ]
        encoded["span_correct"] = np.stack(correct) & encoded["span_mask"]
        return encoded

    def shapes(self, batch_size: int, projection_size: int) -> Any:
        """Shapes and types of what ``fetch`` returns for ``batch_size`` questions."""
        return beam_shapes(self.sizes, batch_size, projection_size)


def beam_shapes(sizes: BeamSizes, batch_size: int, projection_size: int) -> Any:
    """Shapes and types of the beams of ``batch_size`` questions, see ``BeamSource.fetch``."""
    read = (batch_size, min(sizes.read, sizes.early), sizes.reader_length)
    early = (batch_size, sizes.early)
    shape = jax.ShapeDtypeStruct
    return {
        "block_ids": shape(early, np.int32),
        "vectors": shape((*early, projection_size), np.float32),
        "early_correct": shape(early, np.bool_),
        "token_ids": shape(read, np.int32),
        "mask": shape(read, np.bool_),
        "segment_ids": shape(read, np.int32),
        "span_mask": shape((*read, sizes.span_width), np.bool_),
        "span_correct": shape((*read, sizes.span_width), np.bool_),
    }


def reader_inputs(
    store: BlockStore,
    tokenizer: WordPiece,
    questions: Sequence[np.ndarray],
    ids_BK: np.ndarray,
    sizes: BeamSizes,
) -> Inputs:
    """``[CLS] question [SEP] block [SEP]`` for each block of each beam, and the candidate spans.

    A span lies in the block, starts where a word starts and ends where a word ends. A question
    takes at most half of the sequence, a block too long for the rest loses its end.
    """
    batch_size, read = ids_BK.shape
    longest = sizes.reader_length // 2
    repeated = ragged([ids[:longest] for ids in questions for _ in range(read)])
    blocks = store.tokens(ids_BK.reshape(-1))
    flat = pair_inputs(tokenizer, repeated, blocks, sizes.reader_length)
    block_mask_ML = flat.pop("second_mask")
    starts_word_ML = ~tokenizer.continues_word[flat["token_ids"]]
    # Whatever follows the last wordpiece of a whole block ([SEP]) starts a word; a block that was
    # cut may have been cut within one.
    ends_word_ML = np.roll(starts_word_ML, -1, axis=1)
    used_M = block_mask_ML.sum(axis=1)
    cut = np.flatnonzero(used_M < np.diff(blocks.offsets))
    following = blocks.values[blocks.offsets[cut] + used_M[cut]]
    within = cut[tokenizer.continues_word[following]]
    ends_word_ML[within, flat["mask"][within].sum(axis=1) - 2] = False
    flat["span_mask"] = span_mask_BLW(block_mask_ML, starts_word_ML, ends_word_ML, sizes.span_width)
    return {name: x.reshape(batch_size, read, *x.shape[1:]) for name, x in flat.items()}


def spans_equal(token_ids_KL: np.ndarray, answers: Sequence[np.ndarray], width: int) -> np.ndarray:
    """bool [K, L, W], True where the wordpieces of a span equal one of the answers."""
    correct_KLW = np.zeros((*token_ids_KL.shape, width), bool)
    length = token_ids_KL.shape[1]
    for ids in answers:
        if not 0 < len(ids) <= min(width, length):
            continue
        places = length - len(ids) + 1
        equal_KL = np.ones((len(token_ids_KL), places), bool)
        for offset, token in enumerate(ids):
            equal_KL &= token_ids_KL[:, offset : offset + places] == token
        correct_KLW[:, :places, len(ids) - 1] |= equal_KL
    return correct_KLW


def _is_in(ids: np.ndarray, postings: np.ndarray) -> np.ndarray:
    """Which of ``ids`` stand in the sorted array ``postings``."""
    if not len(postings):
        return np.zeros(ids.shape, bool)
    place = np.minimum(np.searchsorted(postings, ids), len(postings) - 1)
    return postings[place] == ids


def question_batch(source: BeamSource, rows_B: np.ndarray, length: int) -> Inputs:
    """Encoder inputs of the questions ``rows_B``, with ``rows`` int32 [B] itself."""
    encoded = question_inputs(source.tokenizer, [source.questions[row] for row in rows_B], length)
    return encoded | {"rows": np.asarray(rows_B, np.int32)}


def fetch_by_callback(
    source: BeamSource, mesh: Mesh, rows_B: jax.Array, question_BP: jax.Array
) -> Beam:
    """Calls ``source.fetch`` from inside a jitted program, once a device, on that device's rows.

    The result carries no gradient: scores that should are computed again from ``question_BP`` and
    the vectors that come back.
    """
    projection_size = question_BP.shape[1]

    def on_one_device(rows_b: jax.Array, question_bP: jax.Array) -> Beam:
        shapes = source.shapes(rows_b.shape[0], projection_size)
        return jax.pure_callback(source.fetch, shapes, rows_b, question_bP)

    mapped = jax.shard_map(on_one_device, mesh=mesh, in_specs=(BATCH, BATCH), out_specs=BATCH)
    return mapped(rows_B, jax.lax.stop_gradient(question_BP))
