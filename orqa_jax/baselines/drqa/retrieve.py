"""The document retriever of DrQA: TF-IDF over hashed unigrams and bigrams, articles as units.

Chen et al. 2017 (arXiv:1704.00051), section 3.1, with the weighting of their release: log(tf + 1)
in article and question, times log((N - n + 0.5) / (n + 0.5)), at least 0, for an n-gram that stands
in n of the N articles; and n-grams with a stop word in them do not count.
"""

from __future__ import annotations

import functools
import itertools
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import mmh3
import numpy as np
import numpy.typing as npt
import regex
import scipy.sparse
from bm25s.stopwords import STOPWORDS_EN_PLUS
from tqdm import tqdm

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import read_manifest, write_manifest
from orqa_jax.index.protocol import Found, clip_k, top_k
from orqa_jax.locks import hold
from orqa_jax.storage import replace_folder
from orqa_jax.text.match import match_tokens

log = logging.getLogger(__name__)

SCHEMA = 1
BINS = 2**24
ARTICLES = 5
"""Read for each question, in training and in answering."""

_IS_WORD = regex.compile(r"[\p{L}\p{N}]")
_STOP_WORDS = frozenset(STOPWORDS_EN_PLUS)
_ARRAYS = ("bins", "indptr", "indices", "data", "first_blocks")


class TfIdfIndex:
    """Finds articles by their words.

    Args:
      bins_T: int32, the hash bins that occur, in order.
      weights_TD: Weights of T bins in D articles.
      first_blocks: int64 [D + 1], article `d` is the blocks from `first_blocks[d]` to before
        `first_blocks[d + 1]`.
    """

    def __init__(
        self,
        bins_T: npt.NDArray[np.int32],
        weights_TD: scipy.sparse.csr_array,
        first_blocks: npt.NDArray[np.int64],
    ) -> None:
        self._bins_T, self._weights_TD = bins_T, weights_TD
        self._first_blocks = first_blocks
        self._idf_T = _idf(np.diff(weights_TD.indptr), weights_TD.shape[1])

    def __len__(self) -> int:
        """Number of articles, D."""
        return int(self._weights_TD.shape[1])

    @classmethod
    def build(cls, store: BlockStore, folder: Path) -> TfIdfIndex:
        """Indexes the articles of `store`, titles included, and saves the index in `folder`."""
        first_blocks = article_bounds(store)
        count = len(first_blocks) - 1
        bins, tfs, lengths = [], [], np.zeros(count, np.int64)
        for article in tqdm(range(count), desc="TF-IDF", unit=" articles", disable=None):
            blocks = range(first_blocks[article], first_blocks[article + 1])
            text = "\n".join([store.title(blocks.start), *map(store.text, blocks)])
            found, counts = np.unique(hashed_ngrams(text), return_counts=True)
            bins.append(found)
            tfs.append(np.log1p(counts).astype(np.float32))
            lengths[article] = len(found)
        bins_T, row = np.unique(np.concatenate([*bins, np.zeros(0, np.int32)]), return_inverse=True)
        column = np.repeat(np.arange(count, dtype=np.int32), lengths)
        entries = (np.concatenate([*tfs, np.zeros(0, np.float32)]), (row.astype(np.int32), column))
        weights_TD = scipy.sparse.csr_array(entries, shape=(len(bins_T), count))
        frequencies = np.diff(weights_TD.indptr)
        weights_TD.data *= np.repeat(_idf(frequencies, count), frequencies)

        parts = (bins_T, weights_TD.indptr, weights_TD.indices, weights_TD.data, first_blocks)
        manifest = {"schema": SCHEMA, "corpus_fingerprint": store.fingerprint, "articles": count}
        partial = folder.with_name(folder.name + ".partial")
        with hold(folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for name, array in zip(_ARRAYS, parts, strict=True):
                np.save(partial / f"{name}.npy", array)
            write_manifest(partial, manifest)
            replace_folder(partial, folder)
        log.info("%s: %d articles, %d bins of n-grams", folder, count, len(bins_T))
        return cls.open(folder, corpus_fingerprint=store.fingerprint)

    @classmethod
    def open(cls, folder: Path, *, corpus_fingerprint: str) -> TfIdfIndex:
        """The finished index in `folder`, memory-mapped.

        Raises:
          OrqaError: none is there, it is damaged, or it was built from another corpus.
        """
        remedy = "build the TF-IDF index of this corpus again with `orqa drqa-index`"
        manifest = read_manifest(
            folder,
            "a TF-IDF index",
            schema=SCHEMA,
            fingerprints={"corpus": corpus_fingerprint},
            remedy=remedy,
        )
        try:
            bins_T, indptr, indices, data, first_blocks = (
                np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS
            )
        except (OSError, ValueError) as error:
            raise OrqaError(f"{folder} cannot be read ({error}): {remedy}.") from error
        shape = (len(bins_T), manifest["articles"])
        weights_TD = scipy.sparse.csr_array((data, indices, indptr), shape=shape, copy=False)
        return cls(bins_T, weights_TD, first_blocks)

    def search(self, questions: Sequence[str], /, k: int) -> Found:
        """Numbers and scores, [B, k] each, of the best articles of each question; ties by number.

        Raises:
          OrqaError: `k` is less than 1.
        """
        k = clip_k(k, len(self))
        ids_BK = np.empty((len(questions), k), np.int32)
        scores_BK = np.empty((len(questions), k), np.float32)
        for row, question in enumerate(questions):
            bins, counts = np.unique(hashed_ngrams(question), return_counts=True)
            place = np.minimum(np.searchsorted(self._bins_T, bins), max(len(self._bins_T) - 1, 0))
            known = self._bins_T[place] == bins if len(self._bins_T) else np.zeros(len(bins), bool)
            rows = place[known]
            weights = np.log1p(counts[known]).astype(np.float32) * self._idf_T[rows]
            scores_D = np.asarray(weights @ self._weights_TD[rows], np.float32)
            ids_BK[row], scores_BK[row] = top_k(scores_D, k)
        return ids_BK, scores_BK

    def blocks(self, article: int) -> range:
        """The blocks of an article."""
        return range(int(self._first_blocks[article]), int(self._first_blocks[article + 1]))


def article_bounds(store: BlockStore) -> npt.NDArray[np.int64]:
    """First block of each article, then the number of blocks: int64 [D + 1]."""
    bounds = []
    last = None
    for block in range(len(store)):
        if (document := store.document_id(block)) != last:
            bounds.append(block)
            last = document
    return np.array([*bounds, len(store)], np.int64)


def paragraph_places(text: str) -> list[tuple[int, str]]:
    """The lines of a text that hold something, each with the place of its first character."""
    places, start = [], 0
    for line in text.split("\n"):
        if line.strip():
            places.append((start, line))
        start += len(line) + 1
    return places


def hashed_ngrams(text: str) -> npt.NDArray[np.int32]:
    """Hash bins of the unigrams and bigrams of a text, in order, with repetitions."""
    counts = [word if _counts(word) else "" for word in match_tokens(text)]
    bins = [_bin(word) for word in counts if word]
    bins += [_bin(f"{a} {b}") for a, b in itertools.pairwise(counts) if a and b]
    return np.array(bins, np.int32)


@functools.lru_cache(maxsize=2**18)
def _counts(word: str) -> bool:
    return word not in _STOP_WORDS and bool(_IS_WORD.search(word))


@functools.lru_cache(maxsize=2**20)
def _bin(ngram: str) -> int:
    return mmh3.hash(ngram, signed=False) % BINS


def _idf(frequencies: npt.NDArray[np.integer], count: int) -> npt.NDArray[np.float32]:
    idf = np.log((count - frequencies + 0.5) / (frequencies + 0.5))
    return np.maximum(idf, 0.0).astype(np.float32)
