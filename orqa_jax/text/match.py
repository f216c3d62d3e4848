"""Does a text hold an answer, and where."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import regex

from orqa_jax.text.normalize import normalize_answer

Mode = Literal["token", "substring"]

# A token is a run of letters, digits and marks, or one other visible character.
_WORD = r"[\p{L}\p{N}\p{M}]"
_TOKEN = regex.compile(rf"{_WORD}+|[^\p{{Z}}\p{{C}}]")
_IS_WORD = regex.compile(_WORD)
_GAP = r"[\p{Z}\p{C}]"


def has_answer(text: str, answers: Sequence[str], mode: Mode = "token") -> bool:
    """True if `text` holds at least one of `answers`.

    Mode "token" compares sequences of lower-case NFD tokens (words and single punctuation marks,
    white space ignored), the recall criterion of DPR (Karpukhin et al. 2020): "Rome" is not in
    "Jerome". Mode "substring" compares raw characters, as the labels of the ORQA release do.
    An answer of which `normalize_answer` leaves nothing ("the", "?") is in no text.

    Raises:
        ValueError: an unknown mode.
    """
    return bool(texts_with_answer([text], answers, mode)[0])


def texts_with_answer(
    texts: Sequence[str], answers: Sequence[str], mode: Mode = "token"
) -> npt.NDArray[np.bool_]:
    """`has_answer` of many texts against the answers of one question: bool [len(texts)]."""
    if mode == "token":
        pattern = _token_pattern(tuple(answers))
        found = (pattern is not None and bool(pattern.search(_fold(text))) for text in texts)
    elif mode == "substring":
        real = [answer for answer in answers if normalize_answer(answer)]
        found = (any(answer in text for answer in real) for text in texts)
    else:
        raise ValueError(f"mode is {mode!r}, not 'token' or 'substring'")
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


def _fold(text: str) -> str:
    # Whether a Greek sigma is final depends on what follows the token.
    return unicodedata.normalize("NFD", text).lower().replace("ς", "σ")


@lru_cache(maxsize=8192)
def _token_pattern(answers: tuple[str, ...]) -> regex.Pattern[str] | None:
    """A pattern that matches in a folded text where the tokens of one answer stand in a row."""
    rows = {tuple(_TOKEN.findall(_fold(answer))) for answer in answers if normalize_answer(answer)}
    rows.discard(())
    if not rows:
        return None
    longest_first = sorted(rows, key=lambda row: (-len(row), row))
    return regex.compile("|".join(_row_pattern(row) for row in longest_first))


def _row_pattern(row: tuple[str, ...]) -> str:
    pattern = regex.escape(row[0], special_only=True)
    for left, right in pairwise(row):
        both_words = _IS_WORD.match(left) and _IS_WORD.match(right)
        pattern += _GAP + ("++" if both_words else "*+")
        pattern += regex.escape(right, special_only=True)
    before = f"(?<!{_WORD})" if _IS_WORD.match(row[0]) else ""
    after = f"(?!{_WORD})" if _IS_WORD.match(row[-1]) else ""
    return before + pattern + after
