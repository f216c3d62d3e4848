"""Retrieval inside the training loop: from question vectors to everything a step needs.

``BeamSource.fetch`` is one numpy function: search, gather of block vectors, reader inputs, labels.
Two thin wrappers carry it. ``fetch_by_callback`` runs it from inside the jitted step, each device
serving its own rows; calling it between two jitted programs is the other ("two-phase"), for places
where a callback could stall the devices. Both give the same arrays, so the same gradients.

Nothing here may call jax from inside ``fetch``: a host callback that does never returns.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from orqa_jax.corpus.places import block_at, blocks_of_documents
from orqa_jax.corpus.postings import answer_postings
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.protocol import Index
from orqa_jax.models.reader import span_mask_BLW
from orqa_jax.qa.examples import Example
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.inputs import Inputs, block_inputs, pair_inputs, question_inputs, ragged
from orqa_jax.train.labels import blocks_with_answer, spans_matching
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
      reading_share: Share of the questions whose blocks are read.
      whole_words: Spans neither start nor end within a word; in the 2019 release they may.
      substring_labels: A block is right where an answer is a substring of its characters, as in
        the 2019 release, and not where its wordpieces spell one from word to word.
      block_length: Wordpieces of a block as the block tower reads it; 0 where it reads none.
    """

    early: int
    read: int
    reader_length: int
    span_width: int
    reading_share: float = 1.0
    whole_words: bool = True
    substring_labels: bool = False
    block_length: int = 0

    def questions_read(self, batch_size: int) -> int:
        """Of ``batch_size`` questions, how many are read, R."""
        return max(1, round(self.reading_share * batch_size))


class BeamSource:
    """Finds, gathers and labels the beam of any of ``examples``."""

    def __init__(
        self,
        store: BlockStore,
        index: Index[np.ndarray] | None,
        vectors_NP: np.ndarray,
        tokenizer: WordPiece,
        examples: Sequence[Example],
        sizes: BeamSizes,
    ) -> None:
        self._store = store
        self.use(index, vectors_NP)
        self._spent: collections.deque[tuple[str, float]] = collections.deque()
        self.tokenizer = tokenizer
        self._own_block = own_blocks(store, examples)
        # One block fewer can be retrieved where a question's own is left out.
        most = len(store) - bool((self._own_block >= 0).any())
        self.sizes = dataclasses.replace(sizes, early=min(sizes.early, most))
        self.questions = [e.ids for e in tokenizer.encode([x.question for x in examples])]
        self._examples = examples
        # Regular expressions have no wordpieces; they are matched in the text of each beam.
        self.answers = tokenizer.encode_answers(
            [x.answers if x.match == "string" else () for x in examples]
        )
        self.postings = answer_postings(store, self.answers, tokenizer.continues_word)

    def use(self, index: Index[np.ndarray] | None, vectors_NP: np.ndarray) -> None:
        """Searches here from now on; a search that has begun ends where it began."""
        # A plain view: np.memmap slows indexing.
        self.searched: tuple[Any, np.ndarray] = index, np.asarray(vectors_NP)

    def fetch(self, rows_B: np.ndarray, question_BP: np.ndarray) -> Beam:
        """Retrieves for each question vector and returns numpy arrays of static shape.

        Where only R of the B questions are read, those with the answer in their first K blocks
        come first: the others have nothing to teach the reader.

        Args:
          rows_B: Place of each question in ``examples``.
          question_BP: float32 question vectors.

        Returns:
          ``block_ids_BC`` int32 and ``vectors_BCP`` float32 of the best blocks, best first;
          ``early_correct_BC`` bool, which of them hold an answer; ``readable_B`` bool, whether a
          candidate span of the first K spells one; ``read_R`` int32, which questions are read;
          for their first K blocks ``token_ids``, ``mask``, ``segment_ids`` [R, K, L], and
          ``span_mask``, ``span_correct`` bool [R, K, L, W]: the candidate spans, and those that
          spell an answer. Where the block tower is trained, ``block_token_ids``, ``block_mask``,
          ``block_segment_ids`` are its inputs of the same blocks.
        """
        rows_B = np.asarray(rows_B)
        ids_BC, vectors_BCP = self._without_own(rows_B, np.asarray(question_BP))
        with self._timed("labels_share"):
            early_correct_BC = np.stack(
                [
                    self._early_correct(int(row), ids_C)
                    for ids_C, row in zip(ids_BC, rows_B, strict=True)
                ]
            )
            encoded = self.reader_inputs(rows_B, ids_BC[:, : self.sizes.read])
        readable_B = encoded["span_correct"].any(axis=(1, 2, 3))
        read_R = np.argsort(~readable_B, kind="stable")[: self.sizes.questions_read(len(rows_B))]
        read_R.sort()
        read = {name: x_B[read_R] for name, x_B in encoded.items()}
        if self.sizes.block_length:
            read |= self._block_inputs(ids_BC[read_R, : self.sizes.read])
        return {
            "block_ids": ids_BC.astype(np.int32),
            "vectors": vectors_BCP,
            "early_correct": early_correct_BC,
            "readable": readable_B,
            "read": read_R.astype(np.int32),
        } | read

    def take_seconds(self) -> dict[str, float]:
        """Seconds that calls of ``fetch`` took since this was last asked, by what they were for.

        ``search_share``, ``gather_share`` (of block vectors) and ``labels_share`` (with the
        reader's inputs), as a line of metrics has them: there, divided by all the time. Each device
        of a process calls ``fetch`` for itself, so together they may exceed the time that passed.
        """
        seconds: dict[str, float] = {}
        while self._spent:
            name, spent = self._spent.popleft()
            seconds[name] = seconds.get(name, 0.0) + spent
        return seconds

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._spent.append((name, time.perf_counter() - started))

    def _early_correct(self, row: int, ids_C: np.ndarray) -> np.ndarray:
        example = self._examples[row]
        if example.match == "regex":
            return blocks_with_answer(self._store, ids_C, example.answers, "regex")
        if self.sizes.substring_labels:
            return blocks_with_answer(self._store, ids_C, example.answers, "substring")
        return is_in(ids_C, self.postings[row])

    def _span_correct(self, row: int, ids_K: np.ndarray, token_ids_KL: np.ndarray) -> np.ndarray:
        example, width = self._examples[row], self.sizes.span_width
        if example.match == "string":
            return spans_equal(token_ids_KL, self.answers[row], width)
        first_sep_K = np.argmax(token_ids_KL == self.tokenizer.sep_id, axis=1)
        shape = (self.sizes.reader_length, width)
        return spans_matching(
            self._store, self.tokenizer, ids_K, first_sep_K + 1, example.answers, shape
        )

    def _without_own(
        self, rows_B: np.ndarray, question_BP: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The beams, without the block that a question was taken from."""
        own_B = self._own_block[rows_B]
        if (own_B < 0).all():
            return self.search(rows_B, question_BP, self.sizes.early)
        ids_BC, vectors_BCP = self.search(rows_B, question_BP, self.sizes.early + 1)
        # Where its own block is not among them, a question loses the last.
        own_last = np.argsort(ids_BC == own_B[:, None], axis=1, kind="stable")
        kept_BC = own_last[:, : self.sizes.early]
        return (
            np.take_along_axis(ids_BC, kept_BC, axis=1),
            np.take_along_axis(vectors_BCP, kept_BC[:, :, None], axis=1),
        )

    def search(
        self, rows_B: np.ndarray, question_BP: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """``count`` blocks for each question, best first, and their vectors [B, count, P]."""
        index, vectors_NP = self.searched
        with self._timed("search_share"):
            ids_BC, _ = index.search(question_BP, count)
        with self._timed("gather_share"):
            return ids_BC, vectors_NP.take(ids_BC, axis=0)

    def reader_inputs(self, rows_B: np.ndarray, ids_BK: np.ndarray) -> Inputs:
        """The reader's part of ``fetch``, for any beam of blocks."""
        questions = [self.questions[row] for row in rows_B]
        encoded = reader_inputs(self._store, self.tokenizer, questions, ids_BK, self.sizes)
        correct = [
            self._span_correct(int(row), ids_BK[b], encoded["token_ids"][b])
            for b, row in enumerate(rows_B)
        ]
        encoded["span_correct"] = np.stack(correct) & encoded["span_mask"]
        return encoded

    def _block_inputs(self, ids_RK: np.ndarray) -> Inputs:
        length = self.sizes.block_length
        flat = block_inputs(self._store, self.tokenizer, ids_RK.reshape(-1), length)
        return {f"block_{name}": x.reshape(*ids_RK.shape, length) for name, x in flat.items()}


def beam_shapes(
    sizes: BeamSizes, batch_size: int, projection_size: int, *, devices: int = 1
) -> Any:
    """Shapes and types of the beams of ``batch_size`` questions, see ``BeamSource.fetch``.

    Of several ``devices`` each chooses among its own questions which ones are read.
    """
    questions_read = devices * sizes.questions_read(batch_size // devices)
    read = (questions_read, min(sizes.read, sizes.early), sizes.reader_length)
    early = (batch_size, sizes.early)
    shape = jax.ShapeDtypeStruct
    blocks = {}
    if sizes.block_length:
        block = (*read[:2], sizes.block_length)
        types = {"token_ids": np.int32, "mask": np.bool_, "segment_ids": np.int32}
        blocks = {f"block_{name}": shape(block, dtype) for name, dtype in types.items()}
    return blocks | {
        "block_ids": shape(early, np.int32),
        "vectors": shape((*early, projection_size), np.float32),
        "early_correct": shape(early, np.bool_),
        "readable": shape((batch_size,), np.bool_),
        "read": shape((questions_read,), np.int32),
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

    A span lies in the block; with ``sizes.whole_words`` it starts where a word starts and ends
    where a word ends. A question takes at most half of the sequence, a block too long for the rest
    loses its end.
    """
    batch_size, read = ids_BK.shape
    longest = sizes.reader_length // 2
    repeated = ragged([ids[:longest] for ids in questions for _ in range(read)])
    blocks = store.tokens(ids_BK.reshape(-1))
    flat = pair_inputs(tokenizer, repeated, blocks, sizes.reader_length)
    block_mask_ML = flat.pop("second_mask")
    if not sizes.whole_words:
        anywhere_ML = np.ones_like(block_mask_ML)
        flat["span_mask"] = span_mask_BLW(block_mask_ML, anywhere_ML, anywhere_ML, sizes.span_width)
        return {name: x.reshape(batch_size, read, *x.shape[1:]) for name, x in flat.items()}
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


def own_blocks(store: BlockStore, examples: Sequence[Example]) -> np.ndarray:
    """The block that each question was taken from, int32 [examples], -1 for none.

    Raises:
      OrqaError: A question was taken from a document that the corpus does not have there.
    """
    places = {row: e.taken_from for row, e in enumerate(examples) if e.taken_from}
    blocks_of = blocks_of_documents(store, {place.document_id for place in places.values()})
    found = np.full(len(examples), -1, np.int32)
    for row, place in places.items():
        block = block_at(store, blocks_of.get(place.document_id, ()), place.start)
        if block is None:
            raise OrqaError(
                f"Question {examples[row].id!r} was taken from document {place.document_id!r}, of "
                f"which the corpus has no block at character {place.start}; make the cloze pairs "
                "from the corpus that they train on."
            )
        found[row] = block
    return found


def is_in(ids: np.ndarray, postings: np.ndarray) -> np.ndarray:
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
        shapes = beam_shapes(source.sizes, rows_b.shape[0], projection_size)
        beam = jax.pure_callback(source.fetch, shapes, rows_b, question_bP)
        # From the rows of this device to those of the whole batch.
        beam["read"] += jax.lax.axis_index(*BATCH) * rows_b.shape[0]
        return beam

    mapped = jax.shard_map(on_one_device, mesh=mesh, in_specs=(BATCH, BATCH), out_specs=BATCH)
    return mapped(rows_B, jax.lax.stop_gradient(question_BP))


def fetch_by_device(source: BeamSource, rows_B: jax.Array, question_BP: jax.Array) -> Beam:
    """The beam of the rows of this process, device by device as ``fetch_by_callback`` has it."""
    parts = []
    for start, (rows_b, question_bP) in sorted(_shards(rows_B, question_BP).items()):
        beam = source.fetch(rows_b, question_bP)
        beam["read"] += np.int32(start)
        parts.append(beam)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _shards(rows_B: jax.Array, question_BP: jax.Array) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """What each device of this process holds of both, by its first row in the batch."""
    vectors = {shard.index[0].start or 0: shard.data for shard in question_BP.addressable_shards}
    return {
        shard.index[0].start or 0: (
            np.asarray(shard.data),
            np.asarray(vectors[shard.index[0].start or 0]),
        )
        for shard in rows_B.addressable_shards
    }
