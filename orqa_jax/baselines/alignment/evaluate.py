"""Tunes alignment on development questions and measures it on others."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orqa_jax.baselines.alignment.align import (
    ONE_TO_ALL,
    ONE_TO_ONE,
    Aligner,
    AlignmentSums,
    AlignmentWeights,
)
from orqa_jax.baselines.alignment.datasets import (
    CHOICE_READERS,
    RANKING_READERS,
    ChoiceQuestion,
    RankingQuestion,
)
from orqa_jax.baselines.alignment.rerank import find_sentences
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import Interval, bootstrap_interval, one_tailed_bootstrap
from orqa_jax.eval.evaluate import format_table
from orqa_jax.eval.ranking import average_precision, precision_at_1
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.text.word_vectors import (
    WordVectors,
    load_word_vectors,
    without_common_directions,
)

_MOST = (1, 2, 3, 4, 5, 6, 8, 10, 15, ONE_TO_ALL.most)
_LEAST = (0, 1, 2, 3, 5, 8, 12)
_NEGATIVE_WEIGHTS = tuple(tenth / 10 for tenth in range(-10, 11))
_JUSTIFICATIONS = (1, 2, 3, 4, 5, 8, 10, 20)
WEIGHTS = tuple(
    AlignmentWeights(most, least, weight)
    for most, least, weight in itertools.product(_MOST[:-1], _LEAST, _NEGATIVE_WEIGHTS)
    if bool(least) == bool(weight)
)
"""All that tuning tries."""

FULL, ONE, ALL, OVERLAP = "alignment", "one-to-one", "one-to-all", "word overlap"

Scores = dict[str, npt.NDArray[np.float64]]
"""For each metric, one number a question."""


@dataclass(frozen=True)
class Comparison:
    """Alignment on test questions beside its ablations.

    Attributes:
      weights: What was tuned on the development questions.
      justifications: Sentences that count for a choice, tuned too; 0 where candidates are ranked.
      scores: From the name of a system to its scores.
      p_values: From "metric, other system" to the one-tailed p-value of the full model being no
        better.
    """

    weights: AlignmentWeights
    justifications: int
    scores: dict[str, Scores]
    p_values: dict[str, float]

    def intervals(self) -> dict[str, dict[str, Interval]]:
        """Means with 95% bootstrap intervals, as `format_table` wants them."""
        return {
            system: {metric: bootstrap_interval(values) for metric, values in scores.items()}
            for system, scores in self.scores.items()
        }


class _Stacked:
    """The sums of many rankings of at most C candidates, so that a weighting is one numpy line."""

    def __init__(self, rankings: Sequence[AlignmentSums]) -> None:
        longest = max(len(sums.positive_CM) for sums in rankings)
        shape = (len(rankings), longest)
        self.mask_RC = np.zeros(shape, bool)
        self._positive_KRC = np.zeros((len(_MOST), *shape), np.float32)
        self._negative_KRC = np.zeros((len(_LEAST), *shape), np.float32)
        for row, sums in enumerate(rankings):
            count, columns = sums.positive_CM.shape
            self.mask_RC[row, :count] = True
            most, least = (np.minimum(x, columns - 1) for x in (_MOST, _LEAST))
            self._positive_KRC[:, row, :count] = sums.positive_CM[:, most].T
            self._negative_KRC[:, row, :count] = sums.negative_CM[:, least].T

    def scores(self, weights: AlignmentWeights) -> npt.NDArray[np.float32]:
        """float32 [R, C], -inf where there is no candidate."""
        positive_RC = self._positive_KRC[_MOST.index(weights.most)]
        negative_RC = self._negative_KRC[_LEAST.index(weights.least)]
        scores_RC = positive_RC + np.float32(weights.negative_weight) * negative_RC
        return np.where(self.mask_RC, scores_RC, -np.inf)


def compare_files(
    kind: str,
    dev: Sequence[Path],
    test: Sequence[Path],
    *,
    vectors: str = "",
    remove_common: bool = True,
    run: Path | None = None,
) -> Comparison:
    """Tunes on the questions of some files and compares on those of others.

    Args:
      kind: Format, a key of `RANKING_READERS` or `CHOICE_READERS`.
      dev, test: Files of that format.
      vectors: As `load_word_vectors`.
      remove_common: Whether the vectors lose the directions that all words share; the paper's did
        not, but were of 300 dimensions, in which these weigh less.
      run: Run folder with ``corpus`` and ``bm25`` for choices that come without evidence.

    Raises:
      OrqaError: A file cannot be read, or evidence is needed and there is no run folder.
    """
    words = load_word_vectors(vectors)
    words = without_common_directions(words) if remove_common else words
    if kind in RANKING_READERS:
        rank = RANKING_READERS[kind]
        return compare_ranking(words, *([q for p in part for q in rank(p)] for part in (dev, test)))
    choose = CHOICE_READERS[kind]
    parts = [[q for path in part for q in choose(path)] for part in (dev, test)]
    for paths, part in zip((dev, test), parts, strict=True):
        if not part:
            raise OrqaError(f"{', '.join(map(str, paths))} holds no question; check the file.")
    if any(question.evidence is None for part in parts for question in part):
        if run is None:
            raise OrqaError(
                f"Questions of the format {kind} come without evidence; name a run folder with"
                " corpus/ and bm25/ by --run, to find some in."
            )
        store = BlockStore(run / "corpus")
        bm25 = BM25Index.open(run / "bm25", corpus_fingerprint=store.fingerprint)
        search = functools.partial(find_sentences, bm25, store)
        parts = [[find_evidence(question, search) for question in part] for part in parts]
    return compare_choice(words, *parts)


def format_comparison(found: Comparison) -> str:
    """The table of scores, what was tuned, and the p-values."""
    w = found.weights
    tuned = f"K+ {w.most}, K- {w.least}, lambda {w.negative_weight}"
    if found.justifications:
        tuned += f", {found.justifications} justification(s)"
    beats = "; ".join(f"{name}: {p:.4f}" for name, p in found.p_values.items())
    return "\n".join(
        [format_table(found.intervals()), f"tuned: {tuned}", f"p that {FULL} is no better: {beats}"]
    )


def compare_ranking(
    vectors: WordVectors, dev: Sequence[RankingQuestion], test: Sequence[RankingQuestion]
) -> Comparison:
    """Ranks the candidates of each test question directly; the weights maximise MAP on dev."""

    def stack(vectors: WordVectors, part: Sequence[RankingQuestion]) -> _Stacked:
        aligner = Aligner(vectors, [q.question for q in part])
        return _Stacked([aligner.sums(q.question, q.candidates) for q in part])

    def measure(relevant_RC: npt.NDArray[np.bool_], found: _Stacked, w: AlignmentWeights) -> Scores:
        scores_RC = found.scores(w)
        return {
            "MAP": average_precision(scores_RC, relevant_RC),
            "P@1": precision_at_1(scores_RC, relevant_RC),
        }

    right_dev, right_test = (_padded([q.relevant for q in part]) for part in (dev, test))
    dev_stack, test_stack = stack(vectors, dev), stack(vectors, test)
    weights = max(WEIGHTS, key=lambda w: measure(right_dev, dev_stack, w)["MAP"].mean())
    scores = {
        FULL: measure(right_test, test_stack, weights),
        ONE: measure(right_test, test_stack, ONE_TO_ONE),
        ALL: measure(right_test, test_stack, ONE_TO_ALL),
        OVERLAP: measure(right_test, stack(_NO_VECTORS, test), ONE_TO_ONE),
    }
    return Comparison(weights, 0, scores, _p_values(scores))


def compare_choice(
    vectors: WordVectors, dev: Sequence[ChoiceQuestion], test: Sequence[ChoiceQuestion]
) -> Comparison:
    """Chooses by the N sentences of evidence that align best with question and choice (P@1).

    Weights and N maximise P@1 on dev; N does so for each ablation by itself, so that none owes its
    place to another's. Every question needs evidence.
    """

    def stack(vectors: WordVectors, part: Sequence[ChoiceQuestion]) -> _Stacked:
        statements = [[f"{q.question} {choice}" for choice in q.choices] for q in part]
        aligner = Aligner(vectors, [s for group in statements for s in group])
        pairs = (
            pair
            for group, q in zip(statements, part, strict=True)
            for pair in zip(group, q.evidence or (), strict=True)
        )
        return _Stacked([aligner.sums(*pair) for pair in pairs])

    def masks(part: Sequence[ChoiceQuestion]) -> tuple[npt.NDArray[np.bool_], ...]:
        """bool [Q, C] twice: which choices there are, and which are right."""
        return _padded([[True] * len(q.choices) for q in part]), _padded([q.correct for q in part])

    def measure(
        choices: tuple[npt.NDArray[np.bool_], ...], found: _Stacked, w: AlignmentWeights, n: int
    ) -> Scores:
        there_QC, correct_QC = choices
        totals_QC = np.full(correct_QC.shape, -np.inf)
        totals_QC[there_QC] = sum_of_best(found.scores(w), n)
        return {"P@1": precision_at_1(totals_QC, correct_QC)}

    def tune(found: _Stacked, grid: Sequence[AlignmentWeights]) -> tuple[AlignmentWeights, int]:
        pairs = itertools.product(grid, _JUSTIFICATIONS)
        return max(pairs, key=lambda pair: measure(dev_choices, found, *pair)["P@1"].mean())

    dev_stack, test_stack = stack(vectors, dev), stack(vectors, test)
    dev_choices, test_choices = masks(dev), masks(test)
    weights, justifications = tune(dev_stack, WEIGHTS)
    scores = {FULL: measure(test_choices, test_stack, weights, justifications)}
    for name, fixed in ((ONE, ONE_TO_ONE), (ALL, ONE_TO_ALL)):
        scores[name] = measure(test_choices, test_stack, *tune(dev_stack, [fixed]))
    overlap = tune(stack(_NO_VECTORS, dev), [ONE_TO_ONE])
    scores[OVERLAP] = measure(test_choices, stack(_NO_VECTORS, test), *overlap)
    return Comparison(weights, justifications, scores, _p_values(scores))


def _padded(rows: Sequence[Sequence[bool]]) -> npt.NDArray[np.bool_]:
    """The rows as one array, False beyond their ends."""
    padded = np.zeros((len(rows), max(map(len, rows))), bool)
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
    return padded


def sum_of_best(scores_RC: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """Sum of the `count` highest scores of each row; -inf entries are none and add nothing."""
    best_RC = -np.sort(-scores_RC, axis=1)[:, :count]
    total_R: npt.NDArray[np.float32] = np.where(np.isfinite(best_RC), best_RC, 0.0).sum(axis=1)
    return total_R


def find_evidence(
    question: ChoiceQuestion, search: Callable[[Sequence[str]], Sequence[Sequence[str]]]
) -> ChoiceQuestion:
    """The question with the sentences that `search` finds for it together with each choice."""
    found = search([f"{question.question} {choice}" for choice in question.choices])
    return replace(question, evidence=tuple(tuple(sentences) for sentences in found))


_NO_VECTORS = WordVectors({}, np.zeros((0, 1), np.float32))


def _p_values(scores: dict[str, Scores]) -> dict[str, float]:
    return {
        f"{metric}, {other}": one_tailed_bootstrap(values, scores[other][metric])
        for metric, values in scores[FULL].items()
        for other in scores
        if other != FULL
    }
