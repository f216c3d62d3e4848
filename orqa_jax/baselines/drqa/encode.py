"""From questions and paragraphs to the padded arrays that the reader takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orqa_jax.baselines.drqa.tokens import (
    ENTITY_TYPES,
    PARTS_OF_SPEECH,
    Tokens,
    exact_match_features,
    tag_features,
    term_frequency,
    tokenize,
)
from orqa_jax.text.word_vectors import WordVectors

# Paragraphs are padded to a multiple of the one, questions to the other: compiling a shape takes as
# long as tens of steps.
PARAGRAPH_STEP = 64
QUESTION_LENGTH = 40
# Tokens of a paragraph beyond these are cut off.
PARAGRAPH_LENGTH = 400


@dataclass(frozen=True)
class Encoded:
    """A question and a paragraph as numbers.

    Attributes:
      words: int32 [L], rows of the word vectors, -1 for a word that has none.
      tuned: int32 [L], slots of the words whose vectors are trained, 0 for the others.
      features: float32 [L, F].
      question_words, question_tuned: int32 [Q].
    """

    words: np.ndarray
    tuned: np.ndarray
    features: np.ndarray
    question_words: np.ndarray
    question_tuned: np.ndarray


@dataclass(frozen=True)
class Encoder:
    """Looks up words and computes features.

    Attributes:
      vectors: Of all words that have one.
      tuned: From a word, in lower case, to its slot, from 1.
      exact_match: Whether paragraph words know if they are in the question.
      tagger: A spaCy pipeline for parts of speech and named entities, or None.
    """

    vectors: WordVectors
    tuned: dict[str, int]
    exact_match: bool = True
    tagger: Any = None

    @property
    def features(self) -> int:
        """F, the number of features of a word."""
        tags = len(PARTS_OF_SPEECH) + len(ENTITY_TYPES) if self.tagger else 0
        return 1 + 3 * self.exact_match + tags

    def encode(self, question: str, paragraph: str) -> Encoded:
        """The first tokens of the paragraph, and those of the question."""
        tokens = tokenize(paragraph)
        words = tokens.words[:PARAGRAPH_LENGTH]
        asked = tokenize(question).words[:QUESTION_LENGTH]
        columns = [term_frequency(words)[:, None]]
        if self.exact_match:
            columns.append(exact_match_features(words, asked))
        if self.tagger:
            starts, ends = (x[:PARAGRAPH_LENGTH] for x in (tokens.starts, tokens.ends))
            kept = Tokens(words, starts, ends)
            columns.append(tag_features(self.tagger, paragraph, kept))
        return Encoded(*self._rows(words), np.concatenate(columns, axis=1), *self._rows(asked))

    def _rows(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        lower = [word.lower() for word in words]
        rows = np.array([self.vectors.rows.get(word, -1) for word in lower], np.int32)
        return rows, np.array([self.tuned.get(word, 0) for word in lower], np.int32)

    def batch(self, encoded: Sequence[Encoded]) -> dict[str, np.ndarray]:
        """Padded inputs of `DrqaReader`."""
        length = max(len(e.words) for e in encoded)
        length = -(-max(length, 1) // PARAGRAPH_STEP) * PARAGRAPH_STEP
        words_BL, mask_BL = _padded([e.words for e in encoded], length, -1)
        question_BQ, question_mask_BQ = _padded(
            [e.question_words for e in encoded], QUESTION_LENGTH, -1
        )
        features_BLF = np.zeros((len(encoded), length, self.features), np.float32)
        for row, e in enumerate(encoded):
            features_BLF[row, : len(e.words)] = e.features
        return {
            "vectors": self._vectors(words_BL),
            "tuned": _padded([e.tuned for e in encoded], length, 0)[0],
            "features": features_BLF,
            "mask": mask_BL,
            "question_vectors": self._vectors(question_BQ),
            "question_tuned": _padded([e.question_tuned for e in encoded], QUESTION_LENGTH, 0)[0],
            "question_mask": question_mask_BQ,
        }

    def _vectors(self, rows: np.ndarray) -> np.ndarray:
        found = self.vectors.matrix_VD[rows.ravel()].reshape(*rows.shape, -1)
        return np.where(rows[..., None] >= 0, found, np.float32(0.0))


def frequent_question_words(
    questions: Iterable[str], vectors: WordVectors, count: int
) -> dict[str, int]:
    """Slots, from 1, of the most frequent words of the questions that have a vector."""
    counts = Counter(word.lower() for q in questions for word in tokenize(q).words)
    known = [word for word, _ in counts.most_common() if word in vectors.rows]
    return {word: slot for slot, word in enumerate(known[:count], 1)}


def token_span(tokens: Tokens, start: int, end: int, longest: int) -> tuple[int, int] | None:
    """First and last of the tokens that are characters `start` to `end`; None if they are cut."""
    first = int(np.searchsorted(tokens.starts, start))
    last = int(np.searchsorted(tokens.ends, end))
    if not first <= last < min(len(tokens), longest) or tokens.starts[first] != start:
        return None
    return (first, last) if tokens.ends[last] == end else None


def _padded(rows: Sequence[np.ndarray], length: int, fill: int) -> tuple[np.ndarray, np.ndarray]:
    """int32 [B, length] and the mask of what is real."""
    padded = np.full((len(rows), length), fill, np.int32)
    mask = np.zeros(padded.shape, bool)
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
        mask[row, : len(values)] = True
    return padded, mask
