"""Documents to blocks: whole sentences, packed greedily into a number of wordpieces.

Section 5.1 of the ORQA paper packs sentences into blocks of at most 288 wordpieces; here the limit
counts everything the block encoder sees, ``[CLS] title [SEP] block [SEP]``.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orqa_jax.corpus.readers import Document
from orqa_jax.corpus.store import SCHEMA
from orqa_jax.text.sentences import split_sentences
from orqa_jax.text.wordpiece import Encoded, WordPiece

MIN_WORDPIECES = 16
"""Smallest limit that leaves a title and a block some room."""

_SPECIAL_TOKENS = 3
# An encoding in the Rust library takes some 200 bytes a wordpiece, so a long document goes through
# it in parts.
_SEGMENT_CHARACTERS = 200_000


Seconds: TypeAlias = defaultdict[str, float]
Spans: TypeAlias = list[tuple[int, int]]
Wordpieces: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Packed:
    """Blocks of some documents.

    Attributes:
        batch: the blocks, with the columns of `SCHEMA`.
        documents: documents with at least one block.
        empty: documents without a single wordpiece, which have no block.
        seconds: CPU time by stage.
    """

    batch: pa.RecordBatch
    documents: int
    empty: int
    seconds: Seconds


@dataclass(frozen=True)
class _Pieces:
    """Texts as the smallest parts that a block is made of: sentences, or parts of long ones.

    Piece i has the wordpieces ``bounds[i]`` to ``bounds[i + 1]``, counted over all documents, and
    the characters ``starts[i]`` to ``ends[i]`` of document ``documents[i]``.
    """

    bounds: list[int]
    starts: list[int]
    ends: list[int]
    documents: list[int]


@contextmanager
def timed(seconds: Seconds, stage: str) -> Iterator[None]:
    """Adds the CPU time of a `with` block, all threads of the process together."""
    start = time.process_time()
    try:
        yield
    finally:
        seconds[stage] += time.process_time() - start


def title_limit(max_wordpieces: int) -> int:
    """Wordpieces of a title that are kept: a quarter of the limit, so a block always has room."""
    return max_wordpieces // 4


def pack(
    documents: Sequence[Document], tokenizer: WordPiece, max_wordpieces: int, seconds: Seconds
) -> Packed:
    """Cuts documents into blocks, in order.

    A block is the exact substring of its document from the start of its first sentence to the end
    of its last. A sentence longer than a block is split between words, a word longer than a block
    between wordpieces. Encoding a block's text again gives its `token_ids`, unless it begins or
    ends within a word.

    Args:
        documents: their texts must be clean, see `readers.clean`.
        max_wordpieces: limit on ``[CLS] title [SEP] block [SEP]``, at least `MIN_WORDPIECES`.
        seconds: CPU time by stage, added to.
    """
    texts = [document.text for document in documents]
    with timed(seconds, "sentences"):
        sentences = [split_sentences(text) for text in texts]
    with timed(seconds, "tokenizer"):
        titles = tokenizer.encode([document.title for document in documents])
        encoded = _encode(tokenizer, texts, sentences)
    with timed(seconds, "packing"):
        title_ids = [title.ids[: title_limit(max_wordpieces)] for title in titles]
        rooms = [max_wordpieces - _SPECIAL_TOKENS - len(ids) for ids in title_ids]
        pieces = _cut(texts, sentences, encoded, tokenizer.continues_word, rooms)
        batch = _blocks(documents, title_ids, encoded, pieces, rooms)
    empty = sum(len(text.ids) == 0 for text in encoded)
    return Packed(batch, documents=len(documents) - empty, empty=empty, seconds=seconds)


def _blocks(
    documents: Sequence[Document],
    title_ids: Sequence[Wordpieces],
    encoded: Sequence[Encoded],
    pieces: _Pieces,
    rooms: Sequence[int],
) -> pa.RecordBatch:
    """Packs pieces greedily into blocks of at most ``rooms[d]`` wordpieces of document d."""
    bounds = pieces.bounds
    firsts: list[int] = []  # the first piece of each block
    first = 0
    while first < len(pieces.documents):
        firsts.append(first)
        document = pieces.documents[first]
        fitting = bisect_right(bounds, bounds[first] + rooms[document], lo=first + 1) - 1
        first = bisect_right(pieces.documents, document, lo=first, hi=fitting)

    lasts = [after - 1 for after in [*firsts[1:], first]] if firsts else []
    owners = [pieces.documents[first] for first in firsts]
    starts = [pieces.starts[first] for first in firsts]
    ends = [pieces.ends[last] for last in lasts]
    piece_counts = np.diff([*firsts, first]) if firsts else np.zeros(0, np.int64)
    token_bounds = np.array([bounds[i] for i in [*firsts, first]])
    sentence_starts = np.array(bounds[:-1], np.int64) - np.repeat(token_bounds[:-1], piece_counts)
    columns = [
        pa.array([documents[d].title for d in owners], pa.string()),
        pa.array(
            [documents[d].text[a:b] for d, a, b in zip(owners, starts, ends, strict=True)],
            pa.string(),
        ),
        _list_column([title_ids[d] for d in owners], [len(title_ids[d]) for d in owners]),
        # The blocks share out the wordpieces of all documents, so these need no cutting.
        _list_column([text.ids for text in encoded], np.diff(token_bounds)),
        _list_column([sentence_starts], piece_counts),
        pa.array([documents[d].id for d in owners], pa.string()),
        pa.array(starts, pa.int64()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _list_column(
    values: Sequence[npt.NDArray[np.integer]], counts: Sequence[int] | npt.NDArray[np.integer]
) -> pa.ListArray:
    flat = np.concatenate([np.zeros(0, np.int32), *values]).astype(np.int32, copy=False)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def _encode(
    tokenizer: WordPiece, texts: Sequence[str], sentences: Sequence[Spans]
) -> list[Encoded]:
    """`tokenizer.encode`, in memory that does not depend on the longest text."""
    starts_of_text = [
        _segment_starts(text, spans) for text, spans in zip(texts, sentences, strict=True)
    ]
    segments = [
        text[begin:end]
        for text, starts in zip(texts, starts_of_text, strict=True)
        for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)
    ]
    encoded = iter(tokenizer.encode(segments))
    return [_join([(start, next(encoded)) for start in starts]) for starts in starts_of_text]


def _segment_starts(text: str, spans: Spans) -> list[int]:
    """Where to cut a long text: at sentences after white space, which no wordpiece spans."""
    starts = [0]
    if len(text) > _SEGMENT_CHARACTERS:
        for start, _ in spans:
            if start - starts[-1] >= _SEGMENT_CHARACTERS and text[start - 1].isspace():
                starts.append(start)
    return starts


def _join(parts: Sequence[tuple[int, Encoded]]) -> Encoded:
    if len(parts) == 1:
        return parts[0][1]
    return Encoded(
        ids=np.concatenate([part.ids for _, part in parts]),
        starts=np.concatenate([part.starts + np.int32(start) for start, part in parts]),
        ends=np.concatenate([part.ends + np.int32(start) for start, part in parts]),
    )


def _cut(
    texts: Sequence[str],
    sentences: Sequence[Spans],
    encoded: Sequence[Encoded],
    continues_word: npt.NDArray[np.bool_],
    rooms: Sequence[int],
) -> _Pieces:
    """Finds the wordpieces of every sentence, and splits those longer than their `rooms`."""
    # All documents are laid end to end: numpy costs as much for a short one as for a thousand.
    offsets = np.cumsum([0, *map(len, texts)])
    token_counts = np.array([len(text.ids) for text in encoded], np.int64)
    token_offsets = np.repeat(offsets[:-1], token_counts)
    ids = _end_to_end([text.ids for text in encoded])
    token_starts = _end_to_end([text.starts for text in encoded]) + token_offsets
    token_ends = _end_to_end([text.ends for text in encoded]) + token_offsets
    spans = np.array([span for text in sentences for span in text], np.int64).reshape(-1, 2)
    sentence_counts = np.array([len(text) for text in sentences], np.int64)
    owners = np.repeat(np.arange(len(texts)), sentence_counts)

    # Two neighbours of which one ends before the other starts come from different characters.
    character_start = np.ones(len(ids), np.bool_)
    character_start[1:] = token_ends[:-1] <= token_starts[1:]
    word_start = character_start & ~continues_word[ids]

    # A sentence that begins within a word, or has no wordpiece, belongs to the one before it:
    # encoding a block again must give the same wordpieces.
    first = np.searchsorted(token_starts, spans[:, 0] + offsets[owners])
    begins = np.flatnonzero(first < np.cumsum(token_counts)[owners])
    begins = begins[word_start[first[begins]]]
    begins = begins[np.diff(first[begins], prepend=-1) > 0]
    owners_of_pieces = owners[begins]
    last_of_document = np.cumsum(sentence_counts)[owners_of_pieces] - 1
    lasts = np.minimum(np.append(begins[1:], len(spans)) - 1, last_of_document)
    bounds = np.append(first[begins], len(ids))
    pieces = _Pieces(
        bounds=bounds.tolist(),
        starts=spans[begins, 0].tolist(),
        ends=spans[lasts, 1].tolist(),
        documents=owners_of_pieces.tolist(),
    )
    long = np.flatnonzero(np.diff(bounds) > np.array(rooms, np.int64)[owners_of_pieces])
    # Backwards, so that the numbers of pieces yet to be split stay true.
    for piece in long[::-1].tolist():
        document = pieces.documents[piece]
        cuts = _cuts_within(
            pieces.bounds[piece], pieces.bounds[piece + 1], word_start, character_start,
            rooms[document],
        )  # fmt: skip
        starts = (token_starts[cuts] - offsets[document]).tolist()
        # Up to the next part, for what lies between may have no wordpiece.
        ends = [
            start + len(texts[document][start:after].rstrip())
            for start, after in pairwise([pieces.starts[piece], *starts])
        ]
        pieces.bounds[piece + 1 : piece + 1] = cuts
        pieces.starts[piece + 1 : piece + 1] = starts
        pieces.ends[piece:piece] = ends
        pieces.documents[piece:piece] = [document] * len(cuts)
    return pieces


def _cuts_within(
    begin: int,
    end: int,
    word_start: npt.NDArray[np.bool_],
    character_start: npt.NDArray[np.bool_],
    room: int,
) -> list[int]:
    """Where to cut wordpieces `begin` to `end` into parts of at most `room`.

    The last start of a word that still fits; within a long word the last start of a character.
    """
    cuts: list[int] = []
    while end - begin > room:
        for allowed in (word_start, character_start):
            fitting = np.flatnonzero(allowed[begin + 1 : begin + room + 1])
            if len(fitting):
                break
        begin += 1 + int(fitting[-1]) if len(fitting) else room
        cuts.append(begin)
    return cuts


def _end_to_end(arrays: Sequence[Wordpieces]) -> Wordpieces:
    return np.concatenate([np.zeros(0, np.int32), *arrays])
