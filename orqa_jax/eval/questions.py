"""Kinds of questions, told from question and answers by rule, for tables that split results.

The rules know English. They are rough on purpose: a table by kind needs kinds that are mostly
right, and reproducible without a model. tests/eval/test_questions.py measures them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from orqa_jax.text.normalize import normalize_answer

QUESTION_WORDS = ("who", "what", "which", "when", "where", "why", "how many", "how")
ANSWER_TYPES = ("date", "number", "person", "place", "other")

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_YEAR = r"(?:1\d{3}|20\d{2})"
_DATE = re.compile(
    rf"\b{_YEAR}s?\b|^{_MONTH}\.?$|\b{_MONTH}\.? \d|\b\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}\b|"
    rf"^{_WEEKDAY}s?$|\b{_WEEKDAY},|\bcentur(?:y|ies)\b|\d ?(?:b\.?c\.?e?|a\.?d)\b",
    re.IGNORECASE,
)
_NUMBER_WORD = (
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:-\w+)?|hundreds?|thousands?|millions?|"
    r"billions?|dozens?|half|once|twice)"
)
_NUMBER = re.compile(
    rf"^\W*(?:about |around |over |nearly |more than )?[$£€]?(?:\d[\d.,]*|{_NUMBER_WORD}\b)",
    re.IGNORECASE,
)
_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|old|tall|long|far|big|large|high|deep|fast|wide|often|heavy|hot)\b|"
    r"\bwhat (?:number|percentage|percent)\b|\b(?:population|height|distance)\b"
)
_ASKS_DATE = re.compile(
    r"\bwhen\b|\b(?:what|which) (?:\w+ )?(?:year|date|day|month|century|decade|time)\b|"
    r"\bhow long ago\b"
)
_ASKS_PERSON = re.compile(
    r"\bwho(?:m|se|'s)?\b|\b(?:what|which) (?:\w+ )?(?:actor|actress|artist|author|composer|"
    r"director|emperor|explorer|inventor|king|leader|man|musician|painter|person|philosopher|"
    r"physicist|player|poet|president|queen|scientist|singer|woman|writer)\b"
)
_ASKS_PLACE = re.compile(
    r"\bwhere\b|\b(?:what|which) (?:\w+ )?(?:area|capital|city|cities|continent|country|countries|"
    r"county|desert|district|island|lake|location|mountain|nation|ocean|place|province|region|"
    r"river|sea|state|states|town|village)\b|\bthe (?:capital|location|birthplace) of\b"
)
_PARTICLE = "de|del|der|den|du|da|di|of|the|van|von|la|le|el|al|bin|ibn|and"
_NAME = re.compile(rf"[A-Z][\w'’.-]*(?: (?:[A-Z][\w'’.-]*|{_PARTICLE})){{0,5}}|{_PARTICLE} [A-Z].*")
_LONGEST_NAME_WORDS = 5


def question_word(question: str) -> str:
    """One of `QUESTION_WORDS`, the first that stands in the question, or "other"."""
    folded = f" {' '.join(re.findall(r'[a-z]+', question.lower()))} "
    folded = re.sub(r" (?:whom|whose) ", " who ", folded).replace(" how much ", " how many ")
    found = [(place, -len(w), w) for w in QUESTION_WORDS if (place := folded.find(f" {w} ")) >= 0]
    return min(found)[2] if found else "other"


def answer_type(question: str, answers: Sequence[str], *, regex: bool = False) -> str:
    """One of `ANSWER_TYPES`, by what is asked for and what the answers look like.

    The form of the answers decides on dates and numbers; persons and places look alike, so there
    the question decides, and the answer must be written like a name or all in lower case. Of
    regular expressions only the question is looked at.
    """
    asked = question.lower()
    if regex:
        kinds = {"date": _ASKS_DATE, "number": _ASKS_NUMBER}
        for kind, pattern in kinds.items():
            if pattern.search(asked):
                return kind
    else:
        dates = sum(bool(_DATE.search(answer)) for answer in answers)
        numbers = sum(bool(_NUMBER.match(answer)) for answer in answers)
        asks_number = bool(_ASKS_NUMBER.search(asked))
        if 2 * dates > len(answers) and not (asks_number and 2 * numbers > len(answers)):
            return "date"
        if 2 * numbers > len(answers) and (asks_number or not _asks_name(asked)):
            return "number"
    if _ASKS_PLACE.search(asked):
        return "place"
    if _ASKS_PERSON.search(asked) and (regex or any(map(_may_be_name, answers))):
        return "person"
    return "other"


def _asks_name(question: str) -> bool:
    return bool(_ASKS_PERSON.search(question) or _ASKS_PLACE.search(question))


def _may_be_name(answer: str) -> bool:
    short = len(answer.split()) <= _LONGEST_NAME_WORDS
    return bool(_NAME.fullmatch(answer.strip())) or (answer.islower() and short)


def question_length(question: str) -> str:
    """Its number of words, in four classes."""
    words = len(question.split())
    for limit, name in ((5, "1-5 words"), (8, "6-8 words"), (12, "9-12 words")):
        if words <= limit:
            return name
    return "13 or more words"


def answer_counts(answers_of_training: Iterable[Sequence[str]]) -> Mapping[str, int]:
    """How many training questions each normalised answer answers, for `answer_frequency`."""
    counts: dict[str, int] = {}
    for answers in answers_of_training:
        for normalized in {normalize_answer(answer) for answer in answers}:
            counts[normalized] = counts.get(normalized, 0) + 1
    return counts


def answer_frequency(answers: Sequence[str], counts: Mapping[str, int]) -> str:
    """How many training questions have one of these answers (that of most of them), in classes."""
    seen = max((counts.get(normalize_answer(answer), 0) for answer in answers), default=0)
    if seen == 0:
        return "never in training"
    return "once" if seen == 1 else "2-9 times" if seen < 10 else "10 times or more"
