"""Does a text hold an answer, and where."""

from __future__ import annotations

import logging
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import regex

from orqa_jax.text.languages import LETTER, UNSPACED
from orqa_jax.text.normalize import normalize_answer

Mode = Literal["token", "substring", "regex"]
Place = Literal["anywhere", "start", "whole"]

# What one pattern may take for all texts of one call: a hostile one, "(a|aa)+$", takes for ever.
REGEX_SECONDS = 2.0

logger = logging.getLogger(__name__)

# A token is a run of letters, digits and marks, or one other visible character. In scripts without
# spaces between words each letter is a token, else an answer would never stand alone.
_TOKEN = regex.compile(rf"{LETTER}+|[{UNSPACED}]\p{{M}}*+|[^\p{{Z}}\p{{C}}]", regex.V1)
# The same of ASCII text, in less than half the time.
_ASCII_TOKEN = re.compile(r"[0-9a-zA-Z]+|[!-~]")
_IS_WORD = regex.compile(LETTER, regex.V1)
_IS_UNSPACED = regex.compile(f"[{UNSPACED}]", regex.V1)
_GAP = r"[\p{Z}\p{C}]"


def has_answer(text: str, answers: Sequence[str], mode: Mode = "token") -> bool:
    """True if `text` holds at least one of `answers`.

    Mode "token" compares sequences of lower-case NFD tokens (words and single punctuation marks,
    white space ignored), the recall criterion of DPR (Karpukhin et al. 2020): "Rome" is not in
    "Jerome"; an answer of which `normalize_answer` leaves nothing ("the", "?") is in no text. A
    letter of a script without spaces between words (Chinese, Japanese, Thai) is a token of its own,
    unlike DPR's, or no answer would ever be found there. Mode "substring" compares raw characters,
    as the labels of the ORQA release do: "a" is in "The Nile basin". Mode "regex" takes the answers
    for regular expressions (CuratedTREC), found anywhere, whatever their case; one that is broken
    or slower than `REGEX_SECONDS` matches nothing more.

    Raises:
        ValueError: an unknown mode.
    """
    return bool(texts_with_answer([text], answers, mode)[0])


def texts_with_answer(
    texts: Sequence[str], answers: Sequence[str], mode: Mode = "token"
) -> npt.NDArray[np.bool_]:
    """`has_answer` of many texts against the answers of one question: bool [len(texts)]."""
    found: Iterator[bool]
    if mode == "token":
        pattern = _token_pattern(tuple(answers))
        found = (pattern is not None and bool(pattern.search(_fold(text))) for text in texts)
    elif mode == "substring":
        real = [answer for answer in answers if answer.strip()]
        found = (any(answer in text for answer in real) for text in texts)
    elif mode == "regex":
        found = iter(_texts_with_regex(texts, answers).tolist())
    else:
        raise ValueError(f"mode is {mode!r}, not 'token', 'substring' or 'regex'")
    return np.fromiter(found, dtype=np.bool_, count=len(texts))


def find_answer(text: str, answers: Sequence[str]) -> tuple[int, int] | None:
    """The first match of one of `answers` in mode "token", the longest that starts there.

    Returns:
        (start, end) characters of the original text, or None.
    """
    pattern = _token_pattern(tuple(answers))
    match = pattern.search(_fold(text)) if pattern else None
    if match is None:
        return None
    start, end = match.span()
    # Where folding made characters longer, offsets[i] is where character i of `text` went.
    offsets = list(accumulate((len(_fold(character)) for character in text), initial=0))
    if offsets[-1] == len(text):
        return start, end
    origin = np.searchsorted(offsets, start, side="right") - 1
    return int(origin), int(np.searchsorted(offsets, end, side="left"))


def first_match(pattern: str, text: str, place: Place = "anywhere") -> tuple[int, int] | None:
    """Where a regular expression matches first: (start, end) characters, or None.

    Flags are those of the published evaluations (``IGNORECASE | UNICODE | MULTILINE``). A pattern
    that is broken, or takes longer than `REGEX_SECONDS`, matches nothing; the latter is logged.

    Args:
        place: "anywhere", at the "start" of the text, or the "whole" text.
    """
    compiled = _compile(pattern)
    if compiled is None:
        return None
    search = {"anywhere": compiled.search, "start": compiled.match, "whole": compiled.fullmatch}
    try:
        match = search[place](text, timeout=REGEX_SECONDS)
    except TimeoutError:
        _warn_of_slow(pattern)
        return None
    return match.span() if match else None


def all_matches(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each match that is not empty, one after the other; see `first_match`."""
    compiled = _compile(pattern)
    if compiled is None:
        return
    try:
        for match in compiled.finditer(text, timeout=REGEX_SECONDS):
            if match.end() > match.start():
                yield match.span()
    except TimeoutError:
        _warn_of_slow(pattern)


@lru_cache(maxsize=8192)
def _compile(pattern: str) -> regex.Pattern[str] | None:
    try:
        return regex.compile(pattern, regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)
    except (regex.error, RecursionError):  # the latter for thousands of brackets
        return None


def _texts_with_regex(texts: Sequence[str], patterns: Sequence[str]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(texts), np.bool_)
    for pattern in patterns:
        compiled = _compile(pattern)
        if compiled is None:
            continue
        deadline = time.monotonic() + REGEX_SECONDS
        try:
            for i in np.flatnonzero(~found).tolist():
                # The library takes a limit of 0 for none.
                left = max(deadline - time.monotonic(), 1e-6)
                found[i] = compiled.search(texts[i], timeout=left) is not None
        except TimeoutError:
            _warn_of_slow(pattern)
    return found


def _warn_of_slow(pattern: str) -> None:
    logger.warning(
        "The answer pattern %r takes longer than %s s, so it counts as no match.",
        pattern,
        REGEX_SECONDS,
    )


def match_tokens(text: str) -> list[str]:
    """The tokens that mode "token" compares: words and single marks, NFD, in lower case."""
    folded = _fold(text)
    return (_ASCII_TOKEN if folded.isascii() else _TOKEN).findall(folded)


def _fold(text: str) -> str:
    # Whether a Greek sigma is final depends on what follows the token.
    return unicodedata.normalize("NFD", text).lower().replace("ς", "σ")


@lru_cache(maxsize=8192)
def _token_pattern(answers: tuple[str, ...]) -> regex.Pattern[str] | None:
    """A pattern that matches in a folded text where the tokens of one answer stand in a row."""
    rows = {tuple(match_tokens(answer)) for answer in answers if normalize_answer(answer)}
    rows.discard(())
    if not rows:
        return None
    longest_first = sorted(rows, key=lambda row: (-len(row), row))
    return regex.compile("|".join(_row_pattern(row) for row in longest_first), regex.V1)


def _row_pattern(row: tuple[str, ...]) -> str:
    pattern = regex.escape(row[0], special_only=True)
    for left, right in pairwise(row):
        both_words = _IS_WORD.match(left) and _IS_WORD.match(right)
        pattern += _GAP + ("++" if both_words else "*+")
        pattern += regex.escape(right, special_only=True)
    before = f"(?<!{LETTER})" if _IS_WORD.match(row[0]) else ""
    if _IS_WORD.match(row[-1]):
        return f"{before}{pattern}(?!{LETTER})"
    return before + pattern + (r"(?!\p{M})" if _IS_UNSPACED.match(row[-1]) else "")
