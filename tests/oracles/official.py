"""The published scorers' definitions, written down again from their papers: slow and plain.

SQuAD: lower case, ASCII punctuation dropped, articles as whole words dropped, white space folded;
no Unicode normalisation. NQ-open as ORQA scored it: NFD before that. DrQA: NFD of both sides, then
as SQuAD; for CuratedTREC the pattern has to match from the start of the prediction, case ignored,
and a pattern that does not compile matches nothing.
"""

import re
import unicodedata

PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def squad_words(text: str) -> list[str]:
    kept = "".join(c for c in text.lower() if c not in PUNCTUATION)
    # Articles go as words between word boundaries, not as items of a split at white space.
    spaced = re.sub(r"(?<!\w)(?:a|an|the)(?!\w)", " ", kept)
    return spaced.split()


def squad_exact(prediction: str, answers: list[str]) -> bool:
    return any(squad_words(prediction) == squad_words(answer) for answer in answers)


def squad_f1(prediction: str, answers: list[str]) -> float:
    best = 0.0
    for answer in answers:
        left, right = squad_words(prediction), squad_words(answer)
        rest, same = list(right), 0
        for word in left:
            if word in rest:
                rest.remove(word)
                same += 1
        if same:
            precision, recall = same / len(left), same / len(right)
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def nq_open_exact(prediction: str, answers: list[str]) -> bool:
    return squad_exact(nfd(prediction), [nfd(answer) for answer in answers])


def drqa_regex(prediction: str, patterns: list[str]) -> bool:
    for pattern in patterns:
        try:
            compiled = re.compile(pattern, re.IGNORECASE | re.UNICODE | re.MULTILINE)
        except re.error:
            continue
        if compiled.match(prediction):
            return True
    return False


def dpr_tokens(text: str) -> list[str]:
    """Runs of letters, digits and marks, and single other characters that are not blank; NFD."""
    tokens: list[str] = []
    joined = False
    for character in nfd(text):
        category = unicodedata.category(character)
        if category[0] in "LNM":
            if joined:
                tokens[-1] += character
            else:
                tokens.append(character)
            joined = True
        else:
            joined = False
            if category[0] not in "ZC":
                tokens.append(character)
    return [token.lower() for token in tokens]


def dpr_has_answer(text: str, answers: list[str]) -> bool:
    words = dpr_tokens(text)
    for answer in answers:
        wanted = dpr_tokens(answer)
        for start in range(len(words) - len(wanted) + 1):
            if words[start : start + len(wanted)] == wanted:
                return True
    return False
