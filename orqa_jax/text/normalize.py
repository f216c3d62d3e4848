"""The standard normalisation of answers before they are compared."""

import re
import string
import unicodedata

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, white space folded, NFD.

    The normalisation of SQuAD (Rajpurkar et al. 2016), with Unicode brought to NFD before it as in
    ORQA (Lee et al. 2019), so that composed and decomposed accents are equal.
    """
    text = unicodedata.normalize("NFD", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())
