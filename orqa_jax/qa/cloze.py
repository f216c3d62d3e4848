"""Question-answer pairs from the corpus itself, for those who have few (Guu et al. 2020, REALM).

A sentence with a salient span taken out (a name, a number, a date) is the question, and the span
its answer; "what", "how many" or "when" stands in the gap (in the language of the corpus: English,
French or Spanish), so that the words that ask are learned.

The block that the sentence stands in would give every such question away: it matches word by word,
and spells the answer in the gap. So it is marked in each pair, and fine-tuning leaves it out of
what it retrieves (REALM, section 3.3), and spans that no other block holds make no question.

Salient spans are found by rule, without a server or a download. A run of capitalised words is a
name; whether the first word of a sentence belongs to it, the rest of the corpus tells: it does if
it is capitalised within sentences too, and more often so than not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import regex
from tqdm import tqdm

from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import Example, Place
from orqa_jax.text.match import match_tokens
from orqa_jax.text.normalize import normalize_answer
from orqa_jax.text.sentences import split_sentences

Kind = Literal["name", "number", "date"]

MIN_SENTENCE_WORDS = 6
MAX_SENTENCE_WORDS = 40
LONGEST_NAME_WORDS = 6


@dataclass(frozen=True)
class Grammar:
    """What the rules know of one language.

    Attributes:
        gap_words: what stands in the gap of each kind.
        date: matches a date.
        number: matches a number, in the way that the language writes it.
        no_name: what is capitalised and no name.
    """

    gap_words: dict[Kind, str]
    date: regex.Pattern[str]
    number: regex.Pattern[str]
    no_name: regex.Pattern[str]


def _number(thousands: str, decimal: str, words: str) -> regex.Pattern[str]:
    return regex.compile(
        rf"(?<![\w.,/:\-–−×^=])\d+(?:{thousands}\d{{3}})*(?:{decimal}\d+)?(?: (?:{words})|%)?"
        r"(?![\w/:\-–]|[.,]\d)"
    )


_YEAR = r"(?:1\d{3}|20\d{2})"


def _english() -> Grammar:
    month = (
        "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
    )
    weekday = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
    era = r"(?:B\.C\.(?:E\.)?|A\.D\.|C\.E\.|BCE?|AD|CE)"
    day = r"\d{1,2}(?:st|nd|rd|th)?"
    return Grammar(
        {"name": "what", "number": "how many", "date": "when"},
        regex.compile(
            rf"\b(?:{day} {month}(?:,? {_YEAR})?|{month} {day}(?:, {_YEAR})?(?!\d)"
            rf"|{month},? {_YEAR}|\d{{1,4}} {era}|{_YEAR}s?"
            rf"|\d{{1,2}}(?:st|nd|rd|th) century(?: {era})?)(?![\w.,]?\d)(?<=\.|\b)(?!\w)"
        ),
        _number(",", r"\.", "hundred|thousand|million|billion"),
        regex.compile(rf"(?:{month}|{weekday}|I|I['’]\w+)"),
    )


def _spanish() -> Grammar:
    month = (
        "(?:enero|febrero|marzo|abril|mayo|junio|julio|agosto|sep?tiembre|octubre|noviembre"
        "|diciembre)"
    )
    era = r"(?:a\. ?C\.|d\. ?C\.)"
    return Grammar(
        {"name": "qué", "number": "cuántos", "date": "cuándo"},
        regex.compile(
            rf"\b(?:(?:\d{{1,2}}|1\.º) de {month}(?: del? {_YEAR})?|{month} del? {_YEAR}"
            rf"|\d{{1,4}} {era}|{_YEAR}|siglos? [IVX]+(?: {era})?)(?![\w.,]?\d)(?<=\.|\b)(?!\w)"
        ),
        _number("[.\u00a0\u202f ]", ",", "mil|mil millones|millón|millones|billones"),
        regex.compile("(?:lunes|martes|miércoles|jueves|viernes|sábado|domingo)", regex.IGNORECASE),
    )


def _french() -> Grammar:
    month = (
        "(?:janvier|février|mars|avril|mai|juin|juillet|août|septembre|octobre|novembre|décembre)"
    )
    era = r"(?:av|apr)\. J\.-C\."
    return Grammar(
        {"name": "quoi", "number": "combien", "date": "quand"},
        regex.compile(
            rf"\b(?:(?:\d{{1,2}}|1er) {month}(?: {_YEAR})?|{month} {_YEAR}|\d{{1,4}} {era}|{_YEAR}"
            rf"|[IVX]+[eᵉ] siècle(?: {era})?)(?![\w.,]?\d)(?<=\.|\b)(?!\w)"
        ),
        _number("[\u00a0\u202f ]", ",", "mille|millions?|milliards?"),
        regex.compile(
            r"(?:(?i:lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche)"
            r"|(?:[CDJLMNST]|Qu)['’]\p{Ll}[\p{L}'’\-]*)"  # "C'est"
        ),
    )


GRAMMARS = {"english": _english(), "french": _french(), "spanish": _spanish()}


def grammar_of(language: str) -> Grammar:
    """The rules of a language.

    Raises:
        OrqaError: there are none.
    """
    if language not in GRAMMARS:
        raise OrqaError(
            f"The rules that make cloze pairs know {', '.join(GRAMMARS)}, not {language!r}; give "
            "question-answer pairs of your own."
        )
    return GRAMMARS[language]


_TITLE = r"(?:Dr|Mr|Mrs|Ms|St|Prof|Gen|Col|Capt|Jr|Sr)\."
_LETTERS = r"[\p{L}\p{N}]"
_CAPITALISED = (
    rf"(?:{_TITLE}|\p{{Lu}}(?:\.(?:\p{{Lu}}\.)*|{_LETTERS}*(?:['’\-]\p{{L}}{_LETTERS}*)*))"
)
_PARTICLE = r"(?:of|the|de|da|del|della|der|di|du|la|le|van|von|bin|ibn|al|y)"
# Not within "O'Brien", but behind the article of "l'Europe".
_BEFORE_NAME = r"(?:(?<![\w'’])|(?<=\b(?:[cdjlmnst]|qu)['’]))"
_NAME = regex.compile(
    rf"{_BEFORE_NAME}{_CAPITALISED}"
    rf"(?: (?:{_CAPITALISED}|{_PARTICLE}(?: {_PARTICLE})?(?= \p{{Lu}})))*+"
)
_WORD = regex.compile(r"\p{L}[\p{L}\p{N}]*")
_POSSESSIVE = regex.compile(r"['’]s?$")
_FINAL_MARK = regex.compile(r"[.!?]+(?=[\"'”’)]*$)")


class Blocks(Protocol):
    """The part of `corpus.store.BlockStore` that is needed here."""

    @property
    def language(self) -> str: ...
    def __len__(self) -> int: ...
    def text(self, block: int) -> str: ...
    def document_id(self, block: int) -> str: ...
    def document_start(self, block: int) -> int: ...


@dataclass(frozen=True)
class Span:
    """A salient span of a sentence, in characters."""

    start: int
    end: int
    kind: Kind


class Capitals:
    """How often each word is capitalised within sentences, and how often it is not."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self._capitalised: Counter[str] = Counter()
        self._lower: Counter[str] = Counter()
        for sentence in sentences:
            words = _WORD.findall(sentence)
            self._lower.update(word for word in words if word[0].islower())
            self._capitalised.update(word for word in words[1:] if word[0].isupper())

    def is_name(self, word: str, *, alone: bool) -> bool:
        """Whether a word that is capitalised at the start of a sentence would be so elsewhere.

        Of a word that is seen nowhere else the answer is no, unless another name follows it.
        """
        capitalised, lower = self._capitalised[word], self._lower[word.lower()]
        return capitalised > lower or (not alone and not lower)


def salient_spans(sentence: str, capitals: Capitals, grammar: Grammar) -> list[Span]:
    """The names, numbers and dates of a sentence, from left to right, without overlap."""
    found: list[Span] = []
    kinds: tuple[tuple[Kind, Iterable[tuple[int, int]]], ...] = (
        ("date", (match.span() for match in grammar.date.finditer(sentence))),
        ("number", (match.span() for match in grammar.number.finditer(sentence))),
        ("name", _names(sentence, capitals, grammar)),
    )
    for kind, spans in kinds:
        for start, end in spans:
            if all(end <= other.start or other.end <= start for other in found):
                found.append(Span(start, end, kind))
    return sorted(found, key=lambda span: span.start)


def _names(sentence: str, capitals: Capitals, grammar: Grammar) -> Iterator[tuple[int, int]]:
    first_letter = next((i for i, c in enumerate(sentence) if c.isalpha()), 0)
    for match in _NAME.finditer(sentence):
        start, end = match.span()
        first_word = _WORD.match(sentence, start)
        alone = " " not in match[0]
        if start <= first_letter and not capitals.is_name(first_word[0], alone=alone):
            # "In Bergen" loses its first word, and what follows has to be a name of its own.
            rest = regex.search(r" (?=\p{Lu})", sentence, pos=start, endpos=end)
            if rest is None:
                continue
            start = rest.end()
        name = _POSSESSIVE.sub("", sentence[start:end])
        if len(name.split()) > LONGEST_NAME_WORDS or grammar.no_name.fullmatch(name):
            continue
        if len(normalize_answer(name)) > 1:
            yield start, start + len(name)


def cloze_examples(blocks: Blocks, *, count: int, seed: int = 0) -> list[Example]:
    """Makes at most `count` pairs, at most one from each block, the same for the same seed.

    A sentence serves if it has 6 to 40 words, ends like one, and holds its answer only once; an
    answer, if some other block holds it as a salient span too.

    Raises:
        OrqaError: `count` is less than 1, there are no rules for the language of the corpus, or it
            yields no pair at all.
    """
    if count < 1:
        raise OrqaError(f"{count} cloze pairs cannot be made; ask for at least 1.")
    grammar = grammar_of(blocks.language)
    capitals = Capitals(
        sentence
        for block in _progress(len(blocks), "cloze: capitals")
        for _, sentence in _sentences(blocks.text(block))
    )
    holders: Counter[str] = Counter()
    for block in _progress(len(blocks), "cloze: spans"):
        holders.update(
            {
                normalize_answer(sentence[span.start : span.end])
                for _, sentence in _sentences(blocks.text(block))
                for span in salient_spans(sentence, capitals, grammar)
            }
        )
    examples: list[Example] = []
    for block in np.random.default_rng(seed).permutation(len(blocks)).tolist():
        if len(examples) == count:
            break
        candidates = [
            (start, sentence, span)
            for start, sentence in _sentences(blocks.text(block))
            if _is_whole(sentence)
            for span in salient_spans(sentence, capitals, grammar)
        ]
        for place in np.random.default_rng((seed, block)).permutation(len(candidates)):
            start, sentence, span = candidates[place]
            if example := _example(blocks, block, start, sentence, span, holders, grammar):
                examples.append(example)
                break
    if not examples:
        raise OrqaError(
            "No sentence of the corpus holds a name, number or date that another block holds too; "
            "cloze pairs need a larger corpus of prose."
        )
    return examples


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    for start, end in split_sentences(text):
        yield start, text[start:end]


def _is_whole(sentence: str) -> bool:
    words = len(sentence.split())
    return MIN_SENTENCE_WORDS <= words <= MAX_SENTENCE_WORDS and sentence[-1] in ".!?\"'”’)"


def _example(
    blocks: Blocks,
    block: int,
    start: int,
    sentence: str,
    span: Span,
    holders: Counter[str],
    grammar: Grammar,
) -> Example | None:
    answer = sentence[span.start : span.end]
    if holders[normalize_answer(answer)] < 2:
        return None
    before, after = sentence[: span.start], sentence[span.end :]
    asked = f" {' '.join(match_tokens(before))} | {' '.join(match_tokens(after))} "
    if f" {' '.join(match_tokens(answer))} " in asked:
        return None
    question = _FINAL_MARK.sub("", f"{before}{grammar.gap_words[span.kind]}{after}") + "?"
    place = Place(blocks.document_id(block), blocks.document_start(block) + start)
    return Example(f"cloze-{block}-{start + span.start}", question, (answer,), taken_from=place)


def _progress(count: int, name: str) -> Iterable[int]:
    return tqdm(range(count), desc=name, unit="block", disable=None, leave=False)
