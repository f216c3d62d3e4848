"""How well the words of a question are matched in a text, by word vectors alone.

Yadav, Sharp and Surdeanu 2018 (arXiv:1807.01836), section 3. Each question term is aligned with
its K+ most and K- least similar terms of the text, the k-th of them with weight 1/k:

    score = sum over question terms of idf * (pos + lambda * neg)

Terms are different lemmas without stop words. A term that has no vector is similar to itself (1)
and to nothing else (0), so with no vectors at all the score is the idf-weighted word overlap.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from orqa_jax.baselines.alignment.terms import content_lemmas
from orqa_jax.text.word_vectors import WordVectors


@dataclasses.dataclass(frozen=True)
class AlignmentWeights:
    """The three tuned numbers.

    Attributes:
      most: K+, most similar terms that count; larger than any text counts them all.
      least: K-, least similar terms that count.
      negative_weight: lambda, of the least similar terms.
    """

    most: int
    least: int = 0
    negative_weight: float = 0.0


ONE_TO_ONE = AlignmentWeights(most=1)
ONE_TO_ALL = AlignmentWeights(most=1_000_000)


@dataclasses.dataclass(frozen=True)
class AlignmentSums:
    """What the score of each of C candidates is made of, for every K+ and K- at once.

    Attributes:
      positive_CM: Column k is the idf-weighted sum of pos over the question terms for K+ = k.
      negative_CM: The same of neg for K- = k. Beyond the terms of a candidate both stay constant.
    """

    positive_CM: npt.NDArray[np.float32]
    negative_CM: npt.NDArray[np.float32]

    def scores(self, weights: AlignmentWeights) -> npt.NDArray[np.float32]:
        """float32 [C]."""
        last = self.positive_CM.shape[1] - 1
        positive_C = self.positive_CM[:, min(weights.most, last)]
        negative_C = self.negative_CM[:, min(weights.least, last)]
        return positive_C + np.float32(weights.negative_weight) * negative_C


class Aligner:
    """Aligns questions with texts.

    Args:
      vectors: Of the lemmas.
      questions: Over which the inverse document frequencies are taken: log((N - n + 0.5) / (n +
        0.5)) for a term that stands in n of the N questions.
    """

    def __init__(self, vectors: WordVectors, questions: Iterable[str]) -> None:
        bags = [set(content_lemmas(question)) for question in questions]
        self._counts = Counter(term for bag in bags for term in bag)
        self._total = len(bags)
        self._vectors = vectors

    def idf(self, term: str) -> float:
        count = self._counts[term]
        return math.log((self._total - count + 0.5) / (count + 0.5))

    def sums(self, question: str, candidates: Sequence[str]) -> AlignmentSums:
        """Aligns one question with each of C candidate texts."""
        asked = list(dict.fromkeys(content_lemmas(question)))
        offered = [list(dict.fromkeys(content_lemmas(text))) for text in candidates]
        vocabulary = {t: i for i, t in enumerate(dict.fromkeys(t for c in offered for t in c))}
        longest = max(map(len, offered), default=0)
        shape = (len(candidates), longest + 1)
        if not asked or not vocabulary:
            return AlignmentSums(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        similarity_QT = self._similarities(asked, vocabulary)
        terms_CM = np.full((len(candidates), longest), -1)
        for row, terms in enumerate(offered):
            terms_CM[row, : len(terms)] = [vocabulary[term] for term in terms]
        missing_CM = terms_CM < 0
        aligned_QCM = similarity_QT[:, terms_CM]
        idf_Q = np.array([self.idf(term) for term in asked], np.float32)

        def total(aligned_QCM: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            """Sums over the largest k, each by its rank, for all k from 0 on."""
            ranked_QCM = -np.sort(-aligned_QCM, axis=2)
            ranked_QCM[~np.isfinite(ranked_QCM)] = 0.0
            weighted_CM = np.einsum("q,qcm->cm", idf_Q, ranked_QCM)
            weighted_CM /= np.arange(1, longest + 1, dtype=np.float32)
            sums_CM = np.zeros(shape, np.float32)
            np.cumsum(weighted_CM, axis=1, out=sums_CM[:, 1:])
            return sums_CM

        # What is not there must rank last in both orders.
        largest_CM = total(np.where(missing_CM, -np.inf, aligned_QCM))
        smallest_CM = -total(np.where(missing_CM, -np.inf, -aligned_QCM))
        return AlignmentSums(largest_CM, smallest_CM)

    def scores(
        self, question: str, candidates: Sequence[str], weights: AlignmentWeights
    ) -> npt.NDArray[np.float32]:
        """float32 [C], how well each candidate matches the question."""
        return self.sums(question, candidates).scores(weights)

    def _similarities(
        self, asked: Sequence[str], vocabulary: dict[str, int]
    ) -> npt.NDArray[np.float32]:
        """Cosines [question terms, vocabulary]; 1 and 0 where a term has no vector."""
        asked_QD, offered_TD = (
            _normalized(self._vectors.lookup(x)) for x in (asked, [*vocabulary])
        )
        similarity_QT: npt.NDArray[np.float32] = asked_QD @ offered_TD.T
        for row, term in enumerate(asked):
            if term in vocabulary:
                similarity_QT[row, vocabulary[term]] = 1.0
        return similarity_QT


def _normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
    norms[norms == 0] = 1.0
    return vectors / norms
