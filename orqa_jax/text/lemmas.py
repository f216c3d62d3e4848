"""Words brought to their dictionary form, by the library simplemma (its English dictionary)."""

import functools

import simplemma


@functools.lru_cache(maxsize=2**20)  # a lookup costs tens of microseconds, and texts repeat words
def lemma(word: str) -> str:
    """The dictionary form of an English word, in lower case; unknown words stay as they are."""
    found: str = simplemma.lemmatize(word.lower(), lang="en")
    return found.lower()
