"""BM25 (Robertson et al. 1994) over the titles and texts of the blocks, by the library bm25s.

Words are treated as Lucene's English analyzer does, the usual baseline of open-retrieval QA: lower
case, 33 stop words dropped, Snowball stems. Accents are dropped too, as the encoders do.
"""

import functools
import logging
import re
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import bm25s
import numpy as np
import Stemmer
from bm25s.stopwords import STOPWORDS_EN
from tqdm import tqdm

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.manifest import NAME, read_manifest, write_json
from orqa_jax.index.protocol import Found, clip_k, top_k

log = logging.getLogger(__name__)
logging.getLogger("bm25s").setLevel(logging.WARNING)  # it asks for DEBUG when imported

SCHEMA = 1
_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(STOPWORDS_EN)
_STEMMER = Stemmer.Stemmer("english")


class BM25Index:
    """Finds blocks by their words; implements `orqa_jax.index.protocol.Index` for strings."""

    def __init__(self, scorer: bm25s.BM25) -> None:
        self._scorer = scorer

    def __len__(self) -> int:
        return int(self._scorer.scores["num_docs"])

    @classmethod
    def of_texts(cls, texts: Iterable[str], *, k1: float = 0.9, b: float = 0.4) -> "BM25Index":
        """An index in memory; text i has the id i. For `k1` and `b` see `build`."""
        # The empty word is in no text; bm25s needs a vocabulary even where no block has a word.
        vocabulary = {"": 0}
        ids = [
            [vocabulary.setdefault(term, len(vocabulary)) for term in terms(text)] for text in texts
        ]
        scorer = bm25s.BM25(k1=k1, b=b, method="lucene")
        with np.errstate(invalid="ignore"):  # without any word the mean length is 0
            scorer.index((ids, vocabulary), show_progress=False)
        return cls(scorer)

    @classmethod
    def build(
        cls, store: BlockStore, folder: Path, *, k1: float = 0.9, b: float = 0.4
    ) -> "BM25Index":
        """Indexes all blocks and saves the index in `folder`, in place of any that is there.

        Args:
          store: the blocks.
          folder: holds the whole index, or what it held before.
          k1: how slowly repeated words saturate; 0.9 is customary for passages.
          b: how much long blocks are discounted, from 0 to 1.
        """
        texts = (f"{store.title(i)}\n{store.text(i)}" for i in range(len(store)))
        shown = tqdm(texts, total=len(store), desc="BM25", unit=" blocks", disable=None)
        scorer = cls.of_texts(shown, k1=k1, b=b)._scorer
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        scorer.save(partial, show_progress=False)
        manifest = {
            "schema": SCHEMA,
            "corpus_fingerprint": store.fingerprint,
            "count": len(store),
            "k1": k1,
            "b": b,
        }
        write_json(partial / NAME, manifest)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        words = len(scorer.vocab_dict) - 1
        log.info("%s: %d blocks, %d different words", folder, len(store), words)
        return cls.open(folder, corpus_fingerprint=store.fingerprint)

    @classmethod
    def open(cls, folder: Path, *, corpus_fingerprint: str) -> "BM25Index":
        """The finished index in `folder`, its scores memory-mapped.

        Raises:
          OrqaError: none is there, it is damaged, or it was built from another corpus.
        """
        remedy = "build the BM25 index of this corpus again"
        read_manifest(
            folder,
            "a BM25 index",
            schema=SCHEMA,
            fingerprints={"corpus": corpus_fingerprint},
            remedy=remedy,
        )
        try:
            scorer = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError) as error:
            raise OrqaError(f"{folder} cannot be read ({error}): {remedy}.") from error
        return cls(scorer)

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
            known = self._scorer.get_tokens_ids(terms(question))
            ids_BK[row], scores_BK[row] = top_k(self._scorer.get_scores_from_ids(known), k)
        return ids_BK, scores_BK


def terms(text: str) -> list[str]:
    """The stems of the words of `text` that BM25 counts, in order, with repetitions."""
    text = text.lower()
    if not text.isascii():
        text = "".join(
            c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)
        )
    return [term for term in map(_term, _WORD.findall(text)) if term]


@functools.lru_cache(maxsize=2**20)  # a corpus repeats its words: looking up beats stemming 5 to 1
def _term(word: str) -> str:
    return "" if word in _STOP_WORDS else _STEMMER.stemWord(word)
