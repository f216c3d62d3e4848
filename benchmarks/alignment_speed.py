"""Question-candidate pairs a second of word alignment, beside the formula pair by pair in numpy.

python -m benchmarks.alignment_speed selqa-ass-test.json.xz

Each timing includes cutting and lemmatising all texts with a cold cache.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from orqa_jax.baselines.alignment.align import Aligner, AlignmentWeights
from orqa_jax.baselines.alignment.datasets import RankingQuestion, read_selqa
from orqa_jax.baselines.alignment.terms import content_lemmas
from orqa_jax.text.lemmas import lemma
from orqa_jax.text.word_vectors import WordVectors, load_word_vectors

WEIGHTS = AlignmentWeights(most=5, least=2, negative_weight=0.4)


def plain(vectors: WordVectors, questions: list[RankingQuestion]) -> int:
    aligner = Aligner(vectors, [q.question for q in questions])
    pairs = 0
    for q in questions:
        for candidate in q.candidates:
            asked, offered = set(content_lemmas(q.question)), set(content_lemmas(candidate))
            matrix = vectors.lookup([*asked]), vectors.lookup([*offered])
            left, right = (m / np.maximum(np.linalg.norm(m, axis=1)[:, None], 1e-9) for m in matrix)
            for term, row in zip(asked, left @ right.T, strict=True):
                ranked = np.sort(row)
                most, least = ranked[::-1][: WEIGHTS.most], ranked[: WEIGHTS.least]
                pos = (most / np.arange(1, len(most) + 1)).sum()
                neg = (least / np.arange(1, len(least) + 1)).sum()
                aligner.idf(term) * (pos + WEIGHTS.negative_weight * neg)
            pairs += 1
    return pairs


def ours(vectors: WordVectors, questions: list[RankingQuestion]) -> int:
    aligner = Aligner(vectors, [q.question for q in questions])
    for q in questions:
        aligner.scores(q.question, q.candidates, WEIGHTS)
    return sum(len(q.candidates) for q in questions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("selqa", type=Path)
    questions = read_selqa(parser.parse_args().selqa)
    vectors = load_word_vectors()
    content_lemmas("the library loads its dictionary now")
    rates = {}
    for function in (plain, ours):
        lemma.cache_clear()
        start = time.perf_counter()
        pairs = function(vectors, questions)
        rates[function.__name__] = pairs / (time.perf_counter() - start)
        print(f"{function.__name__}: {rates[function.__name__]:.0f} pairs a second")
    print(f"ratio {rates['ours'] / rates['plain']:.1f}")


if __name__ == "__main__":
    main()
