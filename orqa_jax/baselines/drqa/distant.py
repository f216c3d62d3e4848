"""Distant supervision: paragraphs to learn from, for questions that come with answers only.

Chen et al. 2017 (arXiv:1704.00051), section 4.3.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import regex
from tqdm import tqdm

from orqa_jax.baselines.drqa.examples import ReadingExample, save_reading
from orqa_jax.baselines.drqa.retrieve import ARTICLES, TfIdfIndex, paragraph_places
from orqa_jax.baselines.drqa.tokens import (
    Tokens,
    capitalized_names,
    load_tagger,
    tagged_entities,
    tokenize,
)
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.match import all_matches

_LEAST_CHARACTERS, _MOST_CHARACTERS = 25, 1500
_WINDOW = 20
_KEPT = 5

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class DropCounts:
    """What became of the paragraphs, in the order of the filters, and of the questions.

    Attributes:
      paragraphs: All of the retrieved articles.
      without_answer: Hold none of the answers.
      wrong_length: Have fewer than 25 or more than 1500 characters.
      without_name: Lack a named entity of the question.
      no_overlap: Share no word with the question near an answer.
      beyond_best: Come after the five with the largest overlap.
      kept: The rest: training examples.
      questions: All questions.
      questions_lost: Questions with no example.
    """

    paragraphs: int = 0
    without_answer: int = 0
    wrong_length: int = 0
    without_name: int = 0
    no_overlap: int = 0
    beyond_best: int = 0
    kept: int = 0
    questions: int = 0
    questions_lost: int = 0

    def describe(self) -> str:
        return ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in dataclasses.asdict(self).items())


def supervise(
    index: TfIdfIndex,
    store: BlockStore,
    examples: Sequence[Example],
    *,
    names_of: Callable[[str], list[str]],
) -> tuple[list[ReadingExample], DropCounts]:
    """Reading examples from the articles that are retrieved for each question.

    Args:
      index: Over the articles of `store`.
      store: The corpus.
      examples: Questions with answers.
      names_of: The named entities of a question.
    """
    counts = DropCounts()
    found: list[ReadingExample] = []
    for example in tqdm(examples, desc="distant supervision", unit=" questions", disable=None):
        patterns = answer_patterns(example)
        names = names_of(example.question)
        ids, _ = index.search([example.question], min(ARTICLES, len(index)))
        paragraphs = (
            (store.title(block), paragraph)
            for article in ids[0].tolist()
            for block in index.blocks(article)
            for _, paragraph in paragraph_places(store.text(block))
        )
        kept = supervise_one(example, paragraphs, patterns, names, counts)
        counts.questions += 1
        counts.questions_lost += not kept
        found.extend(kept)
    logger.info("distant supervision: %s", counts.describe())
    return found, counts


def supervise_file(
    run: Path, questions: Path, out: Path, *, regex_answers: bool = False, tagger: str = ""
) -> DropCounts:
    """Writes the examples for a file of questions, from the corpus and TF-IDF index of a run.

    With `regex_answers` all answers are regular expressions, whatever the file says.

    Raises:
      OrqaError: A part is missing, or parts do not belong together, or no example is found.
    """
    store = BlockStore(run / "corpus")
    index = TfIdfIndex.open(run / "tfidf", corpus_fingerprint=store.fingerprint)
    names_of: Callable[[str], list[str]] = capitalized_names
    if tagger:
        names_of = functools.partial(tagged_entities, load_tagger(tagger))
    examples = load_examples(questions)
    if regex_answers:
        examples = [dataclasses.replace(example, match="regex") for example in examples]
    found, counts = supervise(index, store, examples, names_of=names_of)
    if not found:
        raise OrqaError(
            f"No paragraph of {run} teaches an answer of {questions} ({counts.describe()}); check "
            "that questions and documents belong together."
        )
    save_reading(out, found)
    return counts


def supervise_one(
    example: Example,
    paragraphs: Iterator[tuple[str, str]],
    patterns: Sequence[str],
    names: Sequence[str],
    counts: DropCounts,
) -> list[ReadingExample]:
    """The at most five best of the (title, text) paragraphs; adds to `counts`."""
    question = tokenize(example.question)
    found: list[tuple[int, ReadingExample]] = []
    for title, text in paragraphs:
        counts.paragraphs += 1
        spans = answer_spans(text, patterns)
        if not spans:
            counts.without_answer += 1
        elif not _LEAST_CHARACTERS <= len(text) <= _MOST_CHARACTERS:
            counts.wrong_length += 1
        elif not all(name.lower() in text.lower() for name in names):
            counts.without_name += 1
        else:
            tokens = tokenize(text)
            overlaps = [window_overlap(question, tokens, *span) for span in spans]
            best = max(range(len(spans)), key=overlaps.__getitem__)
            if not overlaps[best]:
                counts.no_overlap += 1
                continue
            first, last = spans[best]
            characters = (int(tokens.starts[first]), int(tokens.ends[last]))
            reading = ReadingExample(
                example.id, example.question, text, (characters,), example.answers, title
            )
            found.append((overlaps[best], reading))
    counts.beyond_best += max(len(found) - _KEPT, 0)
    # Equal ones stay in the order of their articles.
    kept = [reading for _, reading in sorted(found, key=lambda pair: -pair[0])[:_KEPT]]
    counts.kept += len(kept)
    return kept


def answer_patterns(example: Example) -> list[str]:
    """Regular expressions that find the answers, for `all_matches`."""
    if example.match == "regex":
        return list(example.answers)
    return [regex.escape(answer.strip()) for answer in example.answers]


def answer_spans(text: str, patterns: Sequence[str]) -> list[tuple[int, int]]:
    """First and last token of each match that consists of whole tokens, in order."""
    matches = {span for pattern in patterns for span in all_matches(pattern, text)}
    if not matches:  # so with nearly all paragraphs: they need not be cut into tokens
        return []
    tokens = tokenize(text)
    first_at = {int(start): i for i, start in enumerate(tokens.starts)}
    last_at = {int(end): i for i, end in enumerate(tokens.ends)}
    found = ((first_at.get(start), last_at.get(end)) for start, end in matches)
    return sorted(
        (first, last)
        for first, last in found
        if first is not None and last is not None and first <= last
    )


def window_overlap(question: Tokens, paragraph: Tokens, first: int, last: int) -> int:
    """Unigrams and bigrams of the question within 20 tokens of the answer, on either side."""
    near = paragraph.words[max(first - _WINDOW, 0) : last + 1 + _WINDOW]
    return (_ngrams(question.words) & _ngrams(near)).total()


def _ngrams(words: Sequence[str]) -> Counter[str]:
    lower = [word.lower() for word in words]
    return Counter([*lower, *(f"{a} {b}" for a, b in itertools.pairwise(lower))])
