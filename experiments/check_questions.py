"""Checks the quickstart's question-answer pairs: python -m experiments.check_questions

Each pair must be answerable from its article, and not by matching words: the answer stands in the
lead section, the question shares at most half of its content words with any sentence that holds an
answer, no two questions are the same, and no article is in two splits.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

from experiments.quickstart import QUESTIONS, read_articles
from orqa_jax.text.match import find_answer
from orqa_jax.text.sentences import split_sentences

LARGEST_SHARE = 0.5
LONGEST_ANSWER_WORDS = 6

# Words that say how something is asked, not what about.
_STOP_WORDS = frozenset(
    (
        "a", "about", "after", "also", "an", "and", "any", "are", "as", "at", "be", "been",
        "before", "being", "between", "but", "by", "call", "called", "can", "could", "did",
        "do", "does", "during", "first", "for", "from", "had", "has", "have", "he", "her",
        "his", "how", "in", "into", "is", "it", "its", "kind", "known", "many", "may", "might",
        "more", "most", "much", "name", "named", "no", "not", "of", "on", "one", "or", "out",
        "over", "person", "some", "than", "that", "the", "their", "then", "there", "these",
        "they", "this", "those", "to", "under", "up", "used", "was", "were", "what", "when",
        "where", "which", "who", "whom", "whose", "why", "will", "with", "word", "would",
    )
)  # fmt: skip


def content_words(text: str) -> set[str]:
    """Lower-case words without accents, plural endings and stop words."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = set(re.findall(r"[a-z0-9]+", plain)) - _STOP_WORDS
    return {re.sub(r"(?<=[a-z]{3})(?<!s)s$", "", word) for word in words}


def defects(pairs: list[dict[str, Any]], articles: dict[str, str]) -> Iterator[str]:
    """Yields one sentence for each thing that is wrong."""
    seen: dict[frozenset[str], str] = {}
    split_of: dict[str, str] = {}
    for pair in pairs:
        question, answers, title = pair["question"], pair["answer"], pair["title"]
        where = f"{pair['id']} ({question})"
        if title not in articles:
            yield f"{where}: there is no article {title}."
            continue
        if split_of.setdefault(title, pair["split"]) != pair["split"]:
            yield f"{where}: its article is in another split too."
        lead, asked = articles[title], content_words(question)
        same = seen.setdefault(frozenset(asked), pair["id"])
        if same != pair["id"]:
            yield f"{where}: asks the same as {same}."
        if not question.endswith("?") or len(asked) < 2:
            yield f"{where}: is no whole question."
        if answers[0] not in lead or find_answer(lead, answers[:1]) is None:
            yield f"{where}: the answer {answers[0]} is not in the lead."
        if find_answer(question, answers):
            yield f"{where}: holds its own answer."
        if max(len(answer.split()) for answer in answers) > LONGEST_ANSWER_WORDS:
            yield f"{where}: has an answer of more than {LONGEST_ANSWER_WORDS} words."
        for start, end in split_sentences(lead):
            sentence = lead[start:end]
            shared = asked & content_words(sentence)
            if len(shared) > LARGEST_SHARE * len(asked) and find_answer(sentence, answers):
                yield f"{where}: shares {', '.join(sorted(shared))} with the answer's sentence."
                break


def main() -> None:
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    articles = {title: article["text"] for title, article in read_articles().items()}
    found = list(defects(pairs, articles))
    for defect in found:
        print(defect)
    titles = {pair["title"] for pair in pairs}
    print(f"{len(pairs)} pairs on {len(titles)} articles, {len(found)} defects.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
