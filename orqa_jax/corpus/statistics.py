"""How many questions a corpus can answer at all: the ceiling of any system on it."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from orqa_jax.corpus.postings import answer_postings
from orqa_jax.corpus.store import BlockStore
from orqa_jax.text.wordpiece import WordPiece

# Least numbers of blocks of the rows of the histogram.
_FROM = (0, 1, 2, 10, 100, 1000, 10_000)


@dataclasses.dataclass(frozen=True)
class AnswerStatistics:
    """Where the answers of a set of questions stand in a corpus.

    Attributes:
      questions: Number of questions.
      answerable: Questions of which at least one answer stands in at least one block.
      blocks: Blocks of the corpus.
      median_blocks: Median number of blocks that hold an answer, of the answerable questions; 0.0
        where there are none. An answer that stands in very many is seldom meant by all of them.
      histogram: (least number of blocks, number of questions) in steps: how ambiguous a match is.
    """

    questions: int
    answerable: int
    blocks: int
    median_blocks: float
    histogram: tuple[tuple[int, int], ...]


def answer_statistics(store: BlockStore, answers: Sequence[Sequence[str]]) -> AnswerStatistics:
    """Looks for the answers of every question in all blocks, in one pass over the corpus.

    An answer matches a run of whole words, in the normal form of the corpus's tokenizer, as the
    labels of fine-tuning do (`orqa_jax.corpus.postings`).

    Args:
      store: The blocks.
      answers: For each question its answers.
    """
    tokenizer = WordPiece.load(store.tokenizer_folder)
    wordpieces = tokenizer.encode_answers(answers)
    postings = answer_postings(store, wordpieces, tokenizer.continues_word)
    counts = np.array([len(blocks) for blocks in postings], np.int64)
    found = counts[counts > 0]
    step = np.searchsorted(_FROM, counts, side="right") - 1
    histogram = np.bincount(step, minlength=len(_FROM)).tolist()
    return AnswerStatistics(
        questions=len(counts),
        answerable=len(found),
        blocks=len(store),
        median_blocks=float(np.median(found)) if len(found) else 0.0,
        histogram=tuple(zip(_FROM, histogram, strict=True)),
    )


def format_statistics(statistics: AnswerStatistics) -> str:
    """The statistics for people, a few lines of text."""
    count = statistics.questions
    lines = [
        f"{statistics.answerable:,} of {count:,} questions "
        f"({statistics.answerable / max(count, 1):.1%}) have an answer in {statistics.blocks:,} "
        f"blocks, in {statistics.median_blocks:,.0f} of them (median).",
        "",
        "| blocks with an answer | questions | share |",
        "|---|---|---|",
    ]
    ends = [*(least for least, _ in statistics.histogram[1:]), None]
    for (least, questions), end in zip(statistics.histogram, ends, strict=True):
        name = f"{least:,} or more" if end is None else f"{least:,} to {end - 1:,}"
        name = f"{least:,}" if end == least + 1 else name
        lines.append(f"| {name} | {questions:,} | {questions / max(count, 1):.1%} |")
    return "\n".join(lines)
