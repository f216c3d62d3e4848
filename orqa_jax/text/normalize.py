"""Normalisation of answers before they are compared: as everyone has it, and as it should be."""

import re
import string
import unicodedata

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, white space folded, NFD.

    The normalisation of SQuAD (Rajpurkar et al. 2016), with Unicode brought to NFD before it as in
    ORQA (Lee et al. 2019), so that composed and decomposed accents are equal. Published numbers
    rest on it, and so on what it gets wrong: "1914–18" differs from "1914-18", and "The", "A" and
    "?" are all equal, since nothing is left of them.
    """
    text = unicodedata.normalize("NFD", text).lower().translate(_ASCII_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalize_answer_modern(text: str) -> str:
    """`normalize_answer` without its two known faults.

    Punctuation is what Unicode calls so (dashes, curly quotes, ideographic stops), beside ASCII's.
    A step that would leave nothing is not taken: "The The" stays "the the", "?" stays "?".
    """
    folded = " ".join(unicodedata.normalize("NFD", text).lower().split())
    bare = "".join(c for c in folded.translate(_ASCII_PUNCTUATION) if not _is_punctuation(c))
    without_articles = " ".join(_ARTICLES.sub(" ", bare).split())
    return without_articles or " ".join(bare.split()) or folded


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")
