"""BM25 (Robertson et al. 1994) over the titles and texts of the blocks, by the library bm25s.

Words are treated as Lucene's English analyzer does, the usual baseline of open-retrieval QA: lower
case, stop words dropped, Snowball stems; in other languages likewise, each with its own stop words
and stems. Accents are dropped too, as the encoders do. Scripts that are written without spaces are
cut into overlapping pairs of characters, as Lucene's analyzer for Chinese, Japanese and Korean
does.
"""

import functools
import itertools
import logging
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import regex
from tqdm import tqdm

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import read_manifest, write_manifest
from orqa_jax.index.protocol import Found, clip_k, top_k
from orqa_jax.locks import hold
from orqa_jax.qa.examples import Example
from orqa_jax.storage import replace_folder
from orqa_jax.text.languages import DEFAULT, UNSPACED, fold_accents, stemmer, stop_words
from orqa_jax.text.match import texts_with_answer

if TYPE_CHECKING:
    import bm25s

log = logging.getLogger(__name__)

SCHEMA = 2
# Lucene's defaults suit long documents; these are customary for passages.
K1, B = 0.9, 0.4
TUNED_K1 = (0.5, 0.7, 0.9, 1.2, 1.6, 2.0)
TUNED_B = (0.2, 0.3, 0.4, 0.5, 0.6, 0.75)
TUNED_RANKS = (1, 5, 20, 100)

_PAIRED = rf"{UNSPACED}\p{{Hangul}}"
_WORD = regex.compile(rf"[{_PAIRED}]+|(?:(?![{_PAIRED}])[\p{{L}}\p{{N}}\p{{M}}_])+")
_IS_PAIRED = regex.compile(rf"[{_PAIRED}]")


class BM25Index:
    """Finds blocks by their words; implements `orqa_jax.index.protocol.Index` for strings."""

    def __init__(self, scorer: "bm25s.BM25", language: str = DEFAULT) -> None:
        self._scorer = scorer
        self._language = language

    def __len__(self) -> int:
        return int(self._scorer.scores["num_docs"])

    @classmethod
    def of_texts(
        cls, texts: Iterable[str], language: str = DEFAULT, *, k1: float = K1, b: float = B
    ) -> "BM25Index":
        """An index in memory; text i has the id i. For `k1` and `b` see `build`."""
        return cls(count_words(texts, language).scorer(k1, b), language)

    @classmethod
    def build(cls, store: BlockStore, folder: Path, *, k1: float = K1, b: float = B) -> "BM25Index":
        """Indexes all blocks and saves the index in `folder`, in place of any other that is there.

        One of the same corpus and language, `k1` and `b` is kept.

        Args:
          store: the blocks.
          folder: holds the whole index, or what it held before.
          k1: how slowly repeated words saturate.
          b: how much long blocks are discounted, from 0 to 1.
        """
        try:
            manifest = _read_manifest(folder, store.fingerprint)
            made_with = manifest["k1"], manifest["b"], manifest.get("language", DEFAULT)
            if made_with == (k1, b, store.language):
                return cls.open(folder, corpus_fingerprint=store.fingerprint)
        except (OrqaError, KeyError):
            pass  # none is there, or one that cannot be used
        with hold(folder):
            words = count_words(block_texts(store), store.language)
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            words.scorer(k1, b).save(partial, show_progress=False)
            manifest = {
                "schema": SCHEMA,
                "corpus_fingerprint": store.fingerprint,
                "count": len(store),
                "language": store.language,
                "k1": k1,
                "b": b,
            }
            write_manifest(partial, manifest)
            replace_folder(partial, folder)
        log.info("%s: %d blocks, %d different words", folder, len(store), len(words.vocabulary) - 1)
        return cls.open(folder, corpus_fingerprint=store.fingerprint)

    @classmethod
    def open(cls, folder: Path, *, corpus_fingerprint: str) -> "BM25Index":
        """The finished index in `folder`, its scores memory-mapped.

        Raises:
          OrqaError: none is there, it is damaged, or it was built from another corpus.
        """
        manifest = _read_manifest(folder, corpus_fingerprint)
        try:
            scorer = _bm25s().BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError) as error:
            raise OrqaError(f"{folder} cannot be read ({error}): {_REMEDY}.") from error
        return cls(scorer, manifest.get("language", DEFAULT))

    def scores(self, question: str) -> npt.NDArray[np.float32]:
        """The score of every block for one question, float32 `[N]`."""
        known = self._scorer.get_tokens_ids(terms(question, self._language))
        scores_N: npt.NDArray[np.float32] = self._scorer.get_scores_from_ids(known)
        return scores_N

    def search(self, questions: Sequence[str], /, k: int) -> Found:
        """The `k` blocks of highest BM25 score for each question, ties by id.

        Blocks that share no word with a question have score 0 and come last, in order of id.

        Args:
          questions: raw text.
          k: clipped to the number of blocks, with a warning.

        Returns:
          ids, int32 `[B, k]`, and scores, float32 `[B, k]`, best first.

        Raises:
          OrqaError: `k` is less than 1.
        """
        k = clip_k(k, len(self))
        ids_BK = np.empty((len(questions), k), np.int32)
        scores_BK = np.empty((len(questions), k), np.float32)
        for row, question in enumerate(questions):
            ids_BK[row], scores_BK[row] = top_k(self.scores(question), k)
        return ids_BK, scores_BK


_REMEDY = "build the BM25 index of this corpus again"


def _read_manifest(folder: Path, corpus_fingerprint: str) -> dict[str, Any]:
    return read_manifest(
        folder,
        "a BM25 index",
        schema=SCHEMA,
        fingerprints={"corpus": corpus_fingerprint},
        remedy=_REMEDY,
    )


@dataclass(frozen=True)
class Words:
    """The words of all blocks, from which an index with any `k1` and `b` can be made.

    Attributes:
      ids: int32, the words of each block as numbers, in order.
      vocabulary: from a word to its number.
    """

    ids: list[npt.NDArray[np.int32]]
    vocabulary: dict[str, int]

    def scorer(self, k1: float, b: float) -> "bm25s.BM25":
        scorer = _bm25s().BM25(k1=k1, b=b, method="lucene")
        with np.errstate(invalid="ignore"):  # without any word the mean length is 0
            scorer.index((self.ids, self.vocabulary), show_progress=False)
        return scorer


def block_texts(store: BlockStore) -> Iterator[str]:
    """Title and text of every block, with progress."""
    numbers = tqdm(range(len(store)), desc="BM25", unit=" blocks", disable=None)
    return (f"{store.title(i)}\n{store.text(i)}" for i in numbers)


def count_words(texts: Iterable[str], language: str = DEFAULT) -> Words:
    """Reads all texts once."""
    # The empty word is in no text; bm25s needs a vocabulary even where no block has a word.
    vocabulary = {"": 0}
    ids = [
        np.array(
            [vocabulary.setdefault(t, len(vocabulary)) for t in terms(text, language)], np.int32
        )
        for text in texts
    ]
    return Words(ids, vocabulary)


def tune_bm25(store: BlockStore, examples: Sequence[Example]) -> tuple[float, float]:
    """The `k1` and `b` under which the answers of development questions are found best.

    That is the mean of the share of questions with an answer in the first 1, 5, 20 and 100 blocks,
    the first of equals in order of `TUNED_K1` and `TUNED_B`.
    """
    words = count_words(block_texts(store), store.language)
    holds: dict[tuple[int, int], bool] = {}
    best, chosen = -1.0, (K1, B)
    grid = itertools.product(TUNED_K1, TUNED_B)
    for k1, b in tqdm([*grid], desc="BM25 tuning", unit=" settings", disable=None):
        index = BM25Index(words.scorer(k1, b), store.language)
        ids_BK, _ = index.search([example.question for example in examples], max(TUNED_RANKS))
        reached = 0.0
        for row, (example, ids_K) in enumerate(zip(examples, ids_BK, strict=True)):
            rank = _first_with_answer(store, row, example, ids_K.tolist(), holds)
            reached += sum(rank < k for k in TUNED_RANKS)
        if reached > best:
            best, chosen = reached, (k1, b)
    shown = 100 * best / (len(TUNED_RANKS) * len(examples))
    log.info("BM25: k1 %.2f and b %.2f find %.1f%% of the answers, on average", *chosen, shown)
    return chosen


def _first_with_answer(
    store: BlockStore,
    row: int,
    example: Example,
    ids: Iterable[int],
    holds: dict[tuple[int, int], bool],
) -> float:
    """Rank of the first block that holds an answer, infinite if none; `holds` remembers texts."""
    for rank, block in enumerate(ids):
        if (row, block) not in holds:
            holds[row, block] = bool(texts_with_answer([store.text(block)], example.answers)[0])
        if holds[row, block]:
            return rank
    return float("inf")


def terms(text: str, language: str = DEFAULT) -> list[str]:
    """The words of `text` that BM25 counts, in order, with repetitions.

    Words are stems; where words are written without spaces they are pairs of characters.
    """
    text = text.lower()
    if text.isascii():
        words = _WORD.findall(text)
        return [term for word in words if (term := _term(word, language))]
    # English stems need no accents, so "beyonce" may find "Beyoncé"; others tell endings by them.
    text = fold_accents(text) if language == DEFAULT else unicodedata.normalize("NFKC", text)
    found: list[str] = []
    for word in _WORD.findall(text):
        if _IS_PAIRED.match(word):
            found.extend(map("".join, itertools.pairwise(word)) if len(word) > 1 else [word])
        elif term := _term(word, language):
            found.append(term)
    return found


@functools.lru_cache(maxsize=2**20)  # a corpus repeats its words: looking up beats stemming 5 to 1
def _term(word: str, language: str) -> str:
    return "" if word in stop_words(language) else fold_accents(stemmer(language)(word))


@functools.cache
def _bm25s() -> Any:
    """The library; its import starts jax, before which the processes of a run have to be joined."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it asks for DEBUG when imported
    return bm25s
