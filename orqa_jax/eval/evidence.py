"""Where the answer stands in what was retrieved, and the best answer that could be read from it."""

from __future__ import annotations

import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex

from orqa_jax.text.languages import LETTER
from orqa_jax.text.match import has_answer, match_tokens
from orqa_jax.text.normalize import normalize_answer

# Blocks are retrieved for many questions: what was made of the last ones is kept.
_BLOCKS_KEPT = 1 << 16
# No reader of this package answers in more words.
_LONGEST_SPAN_WORDS = 30
# What `normalize_answer` drops within words, and between them.
_MARKS = regex.escape(string.punctuation)
_GAP = rf"(?:[\s{_MARKS}]|(?<!{LETTER})(?:a|an|the)(?!{LETTER}))+"
_IS_LETTER = regex.compile(LETTER, regex.V1)


@dataclass(frozen=True)
class Ranks:
    """Rank, from 1, of the first retrieved block that holds an answer; None where none does.

    Attributes:
        token: by tokens, as DPR counts (`has_answer` in mode "token"), so that "Rome" is not in
            "Jerome"; by regular expression where the answers are such.
        substring: by raw characters, as the labels of the ORQA release.
        gold: the first block of the passage that the question was written from; None also where
            that is unknown.
    """

    token: int | None
    substring: int | None
    gold: int | None


class BlockTexts:
    """Texts of blocks by number, in the forms that answers are looked for in.

    Args:
        text: text of a block number, which may raise IndexError.
    """

    def __init__(self, text: Callable[[int], str]) -> None:
        self.text = lru_cache(_BLOCKS_KEPT)(text)
        self.tokens = lru_cache(_BLOCKS_KEPT)(lambda block: token_line(self.text(block)))
        self.words = lru_cache(_BLOCKS_KEPT)(
            lambda block: f" {normalize_answer(self.text(block))} "
        )


def token_line(text: str) -> str:
    """The tokens of a text between single spaces, so that a run of whole tokens is a substring."""
    return f" {' '.join(match_tokens(text))} "


def answer_ranks(
    retrieved: Sequence[int],
    answers: Sequence[str],
    texts: BlockTexts,
    *,
    regex: bool = False,
    gold: Collection[int] | None = None,
) -> Ranks:
    """Looks for the answers in the retrieved blocks, best first.

    Args:
        retrieved: block numbers.
        answers: strings, or regular expressions where `regex` is True (then there is no rank by
            raw characters).
        gold: blocks of the passage that the question was written from, where known.
    """
    in_gold = None
    if gold is not None:
        in_gold = next((rank for rank, block in enumerate(retrieved, 1) if block in gold), None)
    if regex:
        hits = (has_answer(texts.text(block), answers, "regex") for block in retrieved)
        return Ranks(next((rank for rank, hit in enumerate(hits, 1) if hit), None), None, in_gold)
    # An answer that normalises to nothing is in no text by tokens.
    lines = [token_line(answer) for answer in answers if normalize_answer(answer)]
    raw = [answer for answer in answers if answer.strip()]
    return Ranks(
        _first_with(lines, retrieved, texts.tokens),
        _first_with(raw, retrieved, texts.text),
        in_gold,
    )


def _first_with(
    needles: Sequence[str], blocks: Sequence[int], form: Callable[[int], str]
) -> int | None:
    # Plain loops: this is where an evaluation spends its time.
    for rank, block in enumerate(blocks, 1):
        text = form(block)
        for needle in needles:
            if needle in text:
                return rank
    return None


def best_span(
    blocks: Sequence[int], answers: Sequence[str], texts: BlockTexts, *, regex: bool = False
) -> tuple[bool, float]:
    """What a perfect reader of these blocks would score: (exact match, F1).

    A span is any run of at most 30 words between white space; an exact match may also begin or end
    within one that punctuation joins ("well" of "well-known"), as wordpieces can. With regular
    expressions the span is whatever one matches, and F1 is as for `exact_match`.
    """
    if regex:
        found = any(has_answer(texts.text(block), answers, "regex") for block in blocks)
        return found, float(found)
    normalized = {words for answer in answers if (words := normalize_answer(answer))}
    padded = [f" {answer} " for answer in normalized]
    squeezed = {answer.replace(" ", ""): answer for answer in normalized}
    bags = [Counter(answer.split()) for answer in normalized]
    best = 0.0
    for block in blocks:
        words = texts.words(block)
        if any(answer in words for answer in padded):
            return True, 1.0
        letters = words.replace(" ", "")
        for wanted, answer in squeezed.items():
            # Few blocks pass the first test, which costs little.
            if wanted in letters and _stands_within_words(texts.text(block), answer):
                return True, 1.0
        split = words.split()
        distinct = set(split)
        for bag in bags:
            if not distinct.isdisjoint(bag):
                best = max(best, _best_f1(split, bag))
    return False, best


def _stands_within_words(text: str, normalized: str) -> bool:
    """Whether a run of characters, from letter or mark to the like, normalises to this answer."""
    folded = unicodedata.normalize("NFD", text).lower()
    found = _span_pattern(normalized).finditer(folded)
    return any(normalize_answer(match[0]) == normalized for match in found)


@lru_cache(maxsize=8192)
def _span_pattern(normalized: str) -> regex.Pattern[str]:
    """Matches all that normalises to these words where it begins and ends, and a little more."""
    words = [f"[{_MARKS}]*".join(map(regex.escape, word)) for word in normalized.split()]
    before = f"(?<!{LETTER})" if _IS_LETTER.match(normalized[0]) else ""
    after = f"(?!{LETTER})" if _IS_LETTER.match(normalized[-1]) else ""
    return regex.compile(before + _GAP.join(words) + after, regex.V1)


def _best_f1(words: Sequence[str], wanted: Counter[str]) -> float:
    """Best F1 of a run of `words` with a bag of words."""
    # A best run begins and ends with a word of the answer: any other end only costs precision.
    places = [place for place, word in enumerate(words) if word in wanted]
    size, best = wanted.total(), 0.0
    for first, start in enumerate(places):
        found: Counter[str] = Counter()
        common = 0
        for end in places[first:]:
            if end - start >= _LONGEST_SPAN_WORDS:
                break
            word = words[end]
            found[word] += 1
            common += found[word] <= wanted[word]
            best = max(best, 2 * common / (end - start + 1 + size))
    return best
