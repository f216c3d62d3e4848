import pytest
import regex

from orqa_jax.baselines.drqa.distant import (
    DropCounts,
    answer_patterns,
    answer_spans,
    supervise_one,
    window_overlap,
)
from orqa_jax.baselines.drqa.tokens import tokenize
from orqa_jax.errors import OrqaError
from orqa_jax.qa.examples import Example

QUESTION = Example("q", "Who dug the deep well of Brellow?", ("Anka Rill",))


def run(paragraphs, example=QUESTION, names=("Brellow",), regex_answers=False):
    counts = DropCounts()
    patterns = answer_patterns(example, regex_answers)
    found = supervise_one(
        example, (("Title", text) for text in paragraphs), patterns, names, counts
    )
    return found, counts


def test_every_filter_drops_and_counts():
    paragraphs = [
        "Nobody knows who dug the deep well of Brellow.",
        "Anka Rill.",
        "Anka Rill of Brellow " + "and so on " * 200,
        "Anka Rill dug the deep well of Quenby, they say.",
        "BRELLOW! Anka Rill! " + "Then " * 3,
        "In Brellow anka rill dug the deep well by hand.",
    ]
    found, counts = run(paragraphs)
    assert counts == DropCounts(
        paragraphs=6, without_answer=1, wrong_length=2, without_name=1, kept=2
    )
    assert [example.paragraph for example in found] == [paragraphs[5], paragraphs[4]]
    ((start, end),) = found[0].spans
    assert paragraphs[5][start:end] == "anka rill"
    assert (found[0].document, found[0].answers) == ("Title", ("Anka Rill",))


def test_without_overlap_nothing_is_learned():
    found, counts = run(["Sixty years later Anka Rill came home."], names=())
    assert found == []
    assert (counts.no_overlap, counts.kept) == (1, 0)


def test_the_five_best_are_kept_in_order_of_overlap():
    paragraphs = [f"Anka Rill {tail} and more words." for tail in ("dug", "dug the", "well")] * 2
    paragraphs.append("Anka Rill dug the deep well and more words.")
    found, counts = run(paragraphs, names=())
    best = paragraphs[6]
    expected = [best, paragraphs[1], paragraphs[4], paragraphs[0], paragraphs[2]]
    assert [example.paragraph for example in found] == expected
    assert (counts.beyond_best, counts.kept) == (2, 5)


def test_the_overlap_counts_words_and_pairs_near_the_answer():
    question = tokenize("dug the well")
    text = "well " + "x " * 20 + "Anka dug the well " + "y " * 18 + "dug"
    tokens = tokenize(text)
    # Within 20 tokens: "dug", "the", "well", "dug the", "the well"; the ends are 21 away.
    assert window_overlap(question, tokens, 21, 21) == 5
    # From one token further on, the last word is near, but the question has it once only.
    assert window_overlap(question, tokens, 22, 22) == 5
    assert window_overlap(tokenize("dug the well dug"), tokens, 23, 23) == 6


def test_the_mention_with_the_largest_overlap_is_the_answer():
    text = "Anka Rill. " + "x " * 25 + "Anka Rill dug the deep well of Brellow."
    found, _ = run([text])
    assert found[0].spans == ((text.rindex("Anka"), text.rindex("Anka") + 9),)


def test_answers_are_whole_tokens():
    tokens = tokenize("Rome, Jerome and ROME")
    patterns = answer_patterns(Example("1", "q", ("rome",)), False)
    assert answer_spans("Rome, Jerome and ROME", tokens, patterns) == [(0, 0), (4, 4)]
    patterns = answer_patterns(Example("1", "q", (r"(18|19)\d\d",)), True)
    text = "from 1887 to 1901, not 21901"
    assert [text[s:e] for s, e in spans_as_characters(text, patterns)] == ["1887", "1901"]


def spans_as_characters(text, patterns):
    tokens = tokenize(text)
    spans = answer_spans(text, tokens, patterns)
    return [(tokens.starts[a], tokens.ends[b]) for a, b in spans]


def test_a_broken_expression_is_named():
    with pytest.raises(OrqaError, match="question 7 is no regular expression"):
        answer_patterns(Example("7", "q", ("(open",)), True)
    assert isinstance(answer_patterns(Example("7", "q", ("(open",)), False)[0], regex.Pattern)
