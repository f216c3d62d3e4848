"""The terms of a text that are aligned."""

import regex
from bm25s.stopwords import STOPWORDS_EN_PLUS

from orqa_jax.text.lemmas import lemma

_WORD = regex.compile(r"[\p{L}\p{N}\p{M}]+(?:['’][\p{L}]+)?")
_STOP_WORDS = frozenset(STOPWORDS_EN_PLUS)


def content_lemmas(text: str) -> list[str]:
    """The lemmas of the words of `text`, without stop words, in order and with repetitions."""
    words = (word.replace("’", "'") for word in _WORD.findall(text.lower()))
    lemmas = (lemma(word.removesuffix("'s")) for word in words if word not in _STOP_WORDS)
    return [word for word in lemmas if word not in _STOP_WORDS]
