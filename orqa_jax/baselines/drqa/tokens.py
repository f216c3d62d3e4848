"""Words with their places in the text, and what the reader is told about each of them.

Chen et al. 2017 (arXiv:1704.00051), section 3.2.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import regex

from orqa_jax.errors import OrqaError
from orqa_jax.text.lemmas import lemma

# As GloVe's corpora were cut: "isn't" is "is" and "n't", "ship's" is "ship" and "'s"; numbers stay
# whole, and so do abbreviations of single letters.
_TOKEN = regex.compile(
    r"(?i:n['’]t\b|['’](?:s|re|ve|ll|d|m)\b)"
    r"|(?:\p{L}\.){2,}"
    r"|\p{N}+(?:[.,:]\p{N}+)*"
    r"|(?:(?!(?i:n['’]t\b))[\p{L}\p{M}])+"
    r"|[^\p{Z}\p{C}]"
)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text: characters `starts[i]` to `ends[i]` are `words[i]`."""

    words: tuple[str, ...]
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.words)


@functools.lru_cache(maxsize=2**14)
def tokenize(text: str) -> Tokens:
    matches = list(_TOKEN.finditer(text))
    return Tokens(
        tuple(match.group() for match in matches),
        np.array([match.start() for match in matches], np.int32),
        np.array([match.end() for match in matches], np.int32),
    )


def exact_match_features(paragraph: Sequence[str], question: Sequence[str]) -> np.ndarray:
    """float32 [L, 3]: whether a word is in the question as it is, in lower case, and as a lemma."""
    forms: tuple[Callable[[str], str], ...] = (str, str.lower, lemma)
    features = np.zeros((len(paragraph), 3), np.float32)
    for column, form in enumerate(forms):
        asked = {form(word) for word in question}
        features[:, column] = [form(word) in asked for word in paragraph]
    return features


def term_frequency(paragraph: Sequence[str]) -> np.ndarray:
    """float32 [L]: the share of the paragraph's tokens that are this word, in lower case."""
    words = [word.lower() for word in paragraph]
    counts = Counter(words)
    return np.array([counts[word] / len(words) for word in words], np.float32)


# Universal part-of-speech tags, and the entity types of OntoNotes.
PARTS_OF_SPEECH = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON"),
    *("PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X", "SPACE"),
)
ENTITY_TYPES = (
    *("CARDINAL", "DATE", "EVENT", "FAC", "GPE", "LANGUAGE", "LAW", "LOC", "MONEY", "NORP"),
    *("ORDINAL", "ORG", "PERCENT", "PERSON", "PRODUCT", "QUANTITY", "TIME", "WORK_OF_ART"),
)


@functools.cache
def load_tagger(name: str) -> Any:
    """The installed spaCy pipeline `name`, for `tag_features` and `tagged_entities`.

    Raises:
        OrqaError: spaCy or the pipeline is not installed.
    """
    if importlib.util.find_spec("spacy") is None:
        raise OrqaError("Tags need spaCy: run `pip install orqa_jax[tags]`, or leave tagger empty.")
    spacy = importlib.import_module("spacy")
    try:
        return spacy.load(name, exclude=["parser", "lemmatizer"])
    except (OSError, ValueError) as error:
        raise OrqaError(
            f"spaCy has no pipeline {name} ({error}); install one that knows English, such as"
            " en_core_web_sm, or leave tagger empty."
        ) from error


def tag_features(tagger: Any, text: str, tokens: Tokens) -> np.ndarray:
    """float32 [L, tags + types]: one-hot part of speech and entity type of each token.

    A token takes those of spaCy's token at its first character; outside of an entity all types
    are 0.
    """
    tagged = tagger(text)
    place = {token.idx + i: token for token in tagged for i in range(len(token.text))}
    columns = {name: i for i, name in enumerate([*PARTS_OF_SPEECH, *ENTITY_TYPES])}
    features = np.zeros((len(tokens), len(columns)), np.float32)
    for row, start in enumerate(tokens.starts.tolist()):
        token = place.get(start)
        if token is not None:
            for name in (token.pos_, token.ent_type_):
                if name in columns:
                    features[row, columns[name]] = 1.0
    return features


def tagged_entities(tagger: Any, text: str) -> list[str]:
    """The named entities of a text, as spaCy finds them."""
    return [entity.text for entity in tagger(text).ents]


_NAME = regex.compile(r"\p{Lu}[\p{L}\p{M}\p{N}'’.-]*(?:\s+\p{Lu}[\p{L}\p{M}\p{N}'’.-]*)*")


def capitalized_names(text: str) -> list[str]:
    """Runs of capitalised words, but for the first word of the text: names without a tagger."""
    first = tokenize(text).ends[0] if len(tokenize(text)) else 0
    names = (match.group().rstrip(".'’-") for match in _NAME.finditer(text, int(first)))
    return [name for name in names if len(name) > 1]
