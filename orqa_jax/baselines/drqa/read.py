"""Answers from paragraphs, by a trained reader."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from orqa_jax.baselines.drqa.encode import Encoder
from orqa_jax.baselines.drqa.reader import DrqaReader
from orqa_jax.baselines.drqa.tokens import tokenize
from orqa_jax.baselines.drqa.train import ReaderFolder

_LONGEST_SPAN = 15
_ROWS = 32


@dataclass(frozen=True)
class ReadSpan:
    """An answer: characters `start` to `end` of the paragraph at place `paragraph`."""

    text: str
    paragraph: int
    start: int
    end: int
    score: float


class DocumentReader:
    """Scores spans of paragraphs.

    Scores are sums of two logits that are not normalised within a paragraph, so that they compare
    across the paragraphs of a question (Chen et al. 2017, section 3.2).
    """

    def __init__(self, folder: ReaderFolder) -> None:
        self._encoder: Encoder = folder.encoder
        self._params = jax.tree.map(jnp.asarray, folder.params)
        self._logits = jax.jit(DrqaReader(folder.config).apply)

    def read(
        self,
        questions: Sequence[str],
        paragraphs: Sequence[Sequence[str]],
        candidates: Collection[str] | None = None,
    ) -> list[ReadSpan | None]:
        """The best span of at most 15 tokens in the paragraphs of each question.

        Args:
          questions: B texts.
          paragraphs: For each question those to read; first tokens only, where very long.
          candidates: Accept only these strings, whatever their case: the closed answer list of a
            data set such as WikiMovies.

        Returns:
          None for a question whose paragraphs hold no token, or no candidate.
        """
        allowed = None if candidates is None else {_folded(text) for text in candidates}
        pairs = [(row, place) for row, part in enumerate(paragraphs) for place in range(len(part))]
        pairs = [(row, place) for row, place in pairs if tokenize(paragraphs[row][place]).words]
        encoded = [self._encoder.encode(questions[r], paragraphs[r][p]) for r, p in pairs]
        best: list[ReadSpan | None] = [None] * len(questions)
        order = sorted(range(len(pairs)), key=lambda i: len(encoded[i].words))
        for begin in range(0, len(order), _ROWS):
            chunk = order[begin : begin + _ROWS]
            padded = [encoded[i] for i in np.resize(chunk, _ROWS)]
            start_BL, end_BL = self._logits({"params": self._params}, self._encoder.batch(padded))
            for i, start_L, end_L in zip(
                chunk, np.asarray(start_BL), np.asarray(end_BL), strict=False
            ):
                row, place = pairs[i]
                count = len(encoded[i].words)
                text = paragraphs[row][place]
                span = best_span(start_L[:count], end_L[:count], text, allowed)
                if span is None:
                    continue
                score, begins, ends = span
                known = best[row]
                # Equal scores: the earlier paragraph, in whatever order they were read.
                if known is None or (score, -place) > (known.score, -known.paragraph):
                    best[row] = ReadSpan(text[begins:ends], place, begins, ends, score)
        return best


def best_span(
    start_L: np.ndarray, end_L: np.ndarray, text: str, allowed: Collection[str] | None = None
) -> tuple[float, int, int] | None:
    """Score, first character and end of the best span of the first L tokens of a text.

    Where `allowed` is given, in lower case, only those strings are answers; None if none is there.
    """
    tokens = tokenize(text)
    scores_LL = start_L[:, None] + end_L[None, :]
    inside = np.triu(np.ones(scores_LL.shape, bool)) & np.tril(
        np.ones(scores_LL.shape, bool), _LONGEST_SPAN - 1
    )
    scores_LL = np.where(inside, scores_LL, -np.inf)
    if allowed is None:
        flats = [int(np.argmax(scores_LL))]
    else:
        order = np.argsort(-scores_LL, axis=None, kind="stable")
        flats = order[: int(inside.sum())].tolist()
    for flat in flats:
        first, last = divmod(flat, scores_LL.shape[1])
        start, end = int(tokens.starts[first]), int(tokens.ends[last])
        if allowed is None or _folded(text[start:end]) in allowed:
            return float(scores_LL[first, last]), start, end
    return None


def _folded(text: str) -> str:
    return " ".join(text.lower().split())
