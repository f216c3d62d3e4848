"""What differs between languages: how words are written, stemmed, and which of them say nothing.

Stemmers and lists of stop words are those of the libraries PyStemmer and bm25s.
"""

import functools
import unicodedata
from collections.abc import Callable

import regex
import Stemmer

from orqa_jax.errors import OrqaError

DEFAULT = "english"
# A language of which nothing is known: words are compared as they are written.
NONE = "none"

# Scripts that are written without spaces between words, for a character class of `regex`.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
# A letter, digit or mark of any other script; needs `regex.V1`, which knows differences of sets.
LETTER = rf"[\p{{L}}\p{{N}}\p{{M}}--[{UNSPACED}]]"

# Elsewhere a mark is a letter of its own: a vowel in Indic scripts, a voiced consonant in kana.
_ACCENT = regex.compile(r"(?<=[\p{Latin}\p{Greek}\p{Cyrillic}\p{Hebrew}\p{Arabic}]\p{Mn}*)\p{Mn}")


def check_language(language: str) -> None:
    """Raises `OrqaError` for a language without a stemmer, unless it is "none"."""
    known = (*Stemmer.algorithms(), NONE)
    if language not in known:
        raise OrqaError(
            f"There is no language {language!r}; known are {', '.join(known)}. With {NONE!r} words "
            "are compared as they are written, which suits Chinese and Japanese."
        )


def fold_accents(text: str) -> str:
    """Composed text without accents, where those are no letters of their own."""
    if text.isascii():
        return text
    bare = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
    return unicodedata.normalize("NFC", bare)


@functools.cache
def stop_words(language: str) -> frozenset[str]:
    """Frequent words that say nothing, in lower case; none where the library has no list."""
    # Its import starts jax, before which the processes of a run have to be joined.
    import bm25s.stopwords

    name = "EN" if language == "english" else language.upper()
    return frozenset(getattr(bm25s.stopwords, f"STOPWORDS_{name}", ()))


@functools.cache
def stemmer(language: str) -> Callable[[str], str]:
    """From a word in lower case to its stem."""
    if language == NONE:
        return str
    stem: Callable[[str], str] = Stemmer.Stemmer(language).stemWord
    return stem
