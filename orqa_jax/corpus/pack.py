"""Documents to blocks: whole sentences, packed greedily into a number of wordpieces.

Section 5.1 of the ORQA paper packs sentences into blocks of at most 288 wordpieces; here the limit
counts everything the block encoder sees, ``[CLS] title [SEP] block [SEP]``.
"""

from __future__ import annotations

import time
import unicodedata
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
from orqa_jax.errors import OrqaError
from orqa_jax.text.sentences import split_sentences
from orqa_jax.text.wordpiece import WordPiece

MIN_WORDPIECES = 16
"""Smallest limit that leaves a title and a block some room."""

_SPECIAL_TOKENS = 3

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


def check_limit(max_wordpieces: int) -> None:
    """Raises `OrqaError` for a limit below `MIN_WORDPIECES`."""
    if max_wordpieces < MIN_WORDPIECES:
        raise OrqaError(
            f"max_wordpieces is {max_wordpieces} and has to be at least {MIN_WORDPIECES}."
        )


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
        units = [_units(text, split_sentences(text)) for text in texts]
    with timed(seconds, "tokenizer"):
        titles, title_counts = tokenizer.encode_ids([document.title for document in documents])
        token_ids, counts = tokenizer.encode_ids(
            [text[a:b] for text, spans in zip(texts, units, strict=True) for a, b in spans]
        )
    with timed(seconds, "packing"):
        limit = title_limit(max_wordpieces)
        title_ids = [ids[:limit] for ids in np.split(titles, np.cumsum(title_counts)[:-1])]
        rooms = [max_wordpieces - _SPECIAL_TOKENS - len(ids) for ids in title_ids]
        pieces = _pieces(texts, units, counts.tolist(), rooms, tokenizer)
        batch = _blocks(documents, title_ids, token_ids, pieces, rooms)
    empty = len(documents) - len(set(pieces.documents))
    return Packed(batch, documents=len(documents) - empty, empty=empty, seconds=seconds)


def _blocks(
    documents: Sequence[Document],
    title_ids: Sequence[Wordpieces],
    token_ids: Wordpieces,
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
        _list_column([token_ids], np.diff(token_bounds)),
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


def _units(text: str, spans: Spans) -> Spans:
    """Joins each sentence that may begin within a word to the one before it.

    What is left can be encoded one by one, and gives the wordpieces of the whole text.
    """
    units: Spans = []
    for start, end in spans:
        if units and not _ends_word(text[start - 1]):
            units[-1] = (units[-1][0], end)
        else:
            units.append((start, end))
    return units


def _ends_word(character: str) -> bool:
    """Whether no word of a BERT tokenizer reaches beyond this white space or punctuation."""
    # The tokenizer drops control characters, some of which Python takes for white space.
    return character in " \t\n\r" or unicodedata.category(character)[0] in "ZP"


def _pieces(
    texts: Sequence[str],
    units: Sequence[Spans],
    counts: Sequence[int],
    rooms: Sequence[int],
    tokenizer: WordPiece,
) -> _Pieces:
    """Gives every unit its place among the wordpieces, and splits those longer than their `rooms`.

    Args:
        counts: wordpieces of each unit, of all texts one after the other.
    """
    pieces = _Pieces([0], [], [], [])
    numbered = iter(counts)
    for document, (text, spans) in enumerate(zip(texts, units, strict=True)):
        waiting: int | None = None  # start of what has no wordpiece and joins what follows
        for start, end in spans:
            count = next(numbered)
            if not count:
                if waiting is None:
                    waiting = start
                continue
            begin = start if waiting is None else waiting
            waiting = None
            bound = pieces.bounds[-1]
            if count > rooms[document]:
                cuts, characters = _split(text[start:end], rooms[document], tokenizer)
                starts = [start + character for character in characters]
                # Up to the next part, for what lies between may have no wordpiece.
                ends = [
                    first + len(text[first:after].rstrip())
                    for first, after in pairwise([begin, *starts])
                ]
            else:
                cuts, starts, ends = [], [], []
            pieces.bounds.extend([*(bound + cut for cut in cuts), bound + count])
            pieces.starts.extend([begin, *starts])
            pieces.ends.extend([*ends, end])
            pieces.documents.extend([document] * (len(cuts) + 1))
        if waiting is not None and pieces.documents and pieces.documents[-1] == document:
            pieces.ends[-1] = spans[-1][1]
    return pieces


def _split(text: str, room: int, tokenizer: WordPiece) -> tuple[list[int], list[int]]:
    """Wordpieces and characters at which to cut a text into parts of at most `room` wordpieces."""
    encoded = tokenizer.encode([text])[0]
    # Two neighbours of which one ends before the other starts come from different characters.
    character_start = np.ones(len(encoded.ids), np.bool_)
    character_start[1:] = encoded.ends[:-1] <= encoded.starts[1:]
    word_start = character_start & ~tokenizer.continues_word[encoded.ids]
    cuts = _cuts_within(0, len(encoded.ids), word_start, character_start, room)
    return cuts, encoded.starts[cuts].tolist()


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
