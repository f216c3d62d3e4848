"""Which blocks and which spans of a beam answer a question: what weak supervision learns from.

Labels of strings compare wordpieces, and are looked up (`corpus.postings`) or compared in arrays.
Labels of raw characters (the 2019 release) and of regular expressions (CuratedTREC) need the text
of the beam's blocks, and are made for each beam anew.
"""

from collections.abc import Sequence

import numpy as np

from orqa_jax.corpus.store import BlockStore
from orqa_jax.text.match import Mode, all_matches, texts_with_answer
from orqa_jax.text.wordpiece import WordPiece


def blocks_with_answer(
    store: BlockStore, ids_C: np.ndarray, answers: Sequence[str], mode: Mode
) -> np.ndarray:
    """bool [C], True where the text of a block holds an answer, see `texts_with_answer`."""
    return texts_with_answer([store.text(int(block)) for block in ids_C], answers, mode)


def spans_matching(
    store: BlockStore,
    tokenizer: WordPiece,
    ids_K: np.ndarray,
    block_starts_K: np.ndarray,
    patterns: Sequence[str],
    shape_LW: tuple[int, int],
) -> np.ndarray:
    """bool [K, L, W], True where a match of a regular expression begins and ends with a span.

    Args:
      store: The blocks.
      tokenizer: What made the wordpieces of the store.
      ids_K: Blocks of the beam.
      block_starts_K: Where the block's first wordpiece stands in each reader sequence.
      patterns: Regular expressions.
      shape_LW: Length of a reader sequence, and the longest span.
    """
    length, width = shape_LW
    correct_KLW = np.zeros((len(ids_K), length, width), bool)
    texts = [store.text(int(block)) for block in ids_K]
    for k, (text, encoded) in enumerate(zip(texts, tokenizer.encode(texts), strict=True)):
        if not np.array_equal(encoded.ids, store.block_tokens(int(ids_K[k]))):
            continue  # cut within a word, so that its wordpieces on their own are others
        for pattern in patterns:
            for start, end in all_matches(pattern, text):
                first = int(np.searchsorted(encoded.starts, start))
                last = int(np.searchsorted(encoded.ends, end))
                if last == len(encoded.ends) or first > last:
                    continue
                exact = encoded.starts[first] == start and encoded.ends[last] == end
                place = first + int(block_starts_K[k])
                if exact and last - first < width and place < length:
                    correct_KLW[k, place, last - first] = True
    return correct_KLW
