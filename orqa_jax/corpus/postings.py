"""In which blocks an answer stands: computed once for all training answers, then only looked up.

A match is a run of wordpieces equal to the answer's, from the start of a word to the end of one.
"""

from collections.abc import Sequence

import numpy as np

from orqa_jax.corpus.store import BlockStore, Shard


def answer_postings(
    store: BlockStore,
    answers: Sequence[Sequence[np.ndarray]],
    continues_word: np.ndarray,
) -> list[np.ndarray]:
    """Returns, for each question, the sorted numbers of the blocks that hold one of its answers.

    One pass over the corpus. An answer is searched from its rarest wordpiece, so that the work is
    a small multiple of reading the tokens.

    Args:
      store: The blocks.
      answers: For each question the wordpiece ids of each of its answers, as
        `WordPiece.encode_answers` makes them; empty ones never match.
      continues_word: bool [V], True for wordpieces that continue a word.
    """
    return shard_postings(store.shards, answers, continues_word)


def shard_postings(
    shards: Sequence[Shard],
    answers: Sequence[Sequence[np.ndarray]],
    continues_word: np.ndarray,
) -> list[np.ndarray]:
    """`answer_postings` of some shards alone; of all of them together it is the union."""
    vocabulary_size = len(continues_word)
    counts = np.zeros(vocabulary_size, np.int64)
    for shard in shards:
        counts += np.bincount(shard.token_values, minlength=vocabulary_size)

    # anchor wordpiece -> {(answer ids, place of the anchor)} and who asked for it
    wanted: dict[int, dict[tuple[bytes, int], list[int]]] = {}
    for question, question_answers in enumerate(answers):
        for ids in question_answers:
            if len(ids) and counts[ids].min() > 0:
                place = int(np.argmin(counts[ids]))
                key = (np.asarray(ids, np.int32).tobytes(), place)
                wanted.setdefault(int(ids[place]), {}).setdefault(key, []).append(question)

    found: list[list[np.ndarray]] = [[] for _ in answers]
    is_anchor = np.zeros(vocabulary_size, bool)
    is_anchor[list(wanted)] = True
    for shard in shards:
        tokens, offsets = shard.token_values, shard.token_offsets
        positions = np.flatnonzero(is_anchor[tokens])
        anchors = tokens[positions]
        order = np.argsort(anchors, kind="stable")
        anchors, positions = anchors[order], positions[order]
        group_starts = np.flatnonzero(np.r_[True, anchors[1:] != anchors[:-1]])
        for start, end in zip(group_starts, np.r_[group_starts[1:], len(anchors)], strict=True):
            if start == end:
                continue
            at = positions[start:end]
            block = np.searchsorted(offsets, at, side="right") - 1
            for (spelled, place), questions in wanted[int(anchors[start])].items():
                ids = np.frombuffer(spelled, np.int32)
                first, last = at - place, at - place + len(ids)
                inside = (first >= offsets[block]) & (last <= offsets[block + 1])
                first, last, owner = first[inside], last[inside], block[inside]
                equal = ~continues_word[tokens[first]]
                for step, token in enumerate(ids):
                    equal &= tokens[first + step] == token
                # The word ends where the block ends, or where the next wordpiece starts a word.
                block_end = last == offsets[owner + 1]
                following = tokens[np.where(block_end, first, last)]
                equal &= block_end | ~continues_word[following]
                blocks = np.unique(owner[equal]) + shard.first_block
                for question in questions:
                    found[question].append(blocks)
    empty = np.zeros(0, np.int64)
    return [np.unique(np.concatenate(parts)) if parts else empty for parts in found]
