import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.baselines.drqa.encode import token_span
from orqa_jax.baselines.drqa.tokens import (
    ENTITY_TYPES,
    PARTS_OF_SPEECH,
    capitalized_names,
    exact_match_features,
    load_tagger,
    tag_features,
    tagged_entities,
    term_frequency,
    tokenize,
)
from orqa_jax.errors import OrqaError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The ship's crew didn't sail.", "The ship 's crew did n't sail ."),
        ("In the U.S. 1,250.5 tons (50%)", "In the U.S. 1,250.5 tons ( 50 % )"),
        ("It’s Zoë—she’ll", "It ’s Zoë — she ’ll"),
        ("a1b2 12th", "a 1 b 2 12 th"),
        (" \n", ""),
    ],
)
def test_tokens_are_cut_as_for_glove(text, words):
    assert list(tokenize(text).words) == words.split()


@given(st.text(max_size=60))
def test_tokens_are_places_in_the_text(text):
    tokens = tokenize(text)
    assert [text[s:e] for s, e in zip(tokens.starts, tokens.ends, strict=True)] == [*tokens.words]
    assert (tokens.starts[1:] >= tokens.ends[:-1]).all()
    rest = "".join(text[i] for i in _outside(tokens, len(text)))
    assert not any(c.isalnum() for c in rest)


def _outside(tokens, length):
    inside = {i for s, e in zip(tokens.starts, tokens.ends, strict=True) for i in range(s, e)}
    return sorted(set(range(length)) - inside)


def test_features_of_a_paragraph():
    paragraph = ["Wells", "are", "deep", "wells", "Deep"]
    question = ["How", "deep", "is", "a", "well", "?"]
    surface, lower, lemmas = exact_match_features(paragraph, question).T
    assert surface.tolist() == [0, 0, 1, 0, 0]
    assert lower.tolist() == [0, 0, 1, 0, 1]
    assert lemmas.tolist() == [1, 1, 1, 1, 1]  # "are" and "is" are both "be"
    np.testing.assert_allclose(term_frequency(paragraph), [0.4, 0.2, 0.4, 0.4, 0.4])


def test_an_answer_is_whole_tokens_or_none():
    tokens = tokenize("The old well, dug in 1887.")
    assert token_span(tokens, 4, 12, 400) == (1, 2)
    assert token_span(tokens, 21, 25, 400) == (6, 6)
    assert token_span(tokens, 5, 12, 400) is None
    assert token_span(tokens, 4, 11, 400) is None
    assert token_span(tokens, 21, 25, 6) is None
    assert token_span(tokens, 21, 30, 400) is None
    assert token_span(tokens, 25, 25, 400) is None
    assert token_span(tokens, 26, 26, 400) is None


def test_names_are_capitalised_and_not_the_first_word():
    assert capitalized_names("Who founded the Salt Market of Brellow?") == [
        "Salt Market",
        "Brellow",
    ]
    assert capitalized_names("who dug it") == []
    assert capitalized_names("") == []


def test_a_missing_tagger_says_how_to_get_one():
    with pytest.raises(OrqaError, match=r"(pip install|has no pipeline)"):
        load_tagger("no_such_pipeline")


def test_tags_of_spacy_fall_on_the_right_tokens():
    spacy = pytest.importorskip("spacy")
    if not spacy.util.is_package("en_core_web_sm"):
        pytest.skip("the spaCy pipeline en_core_web_sm is not installed")
    tagger = load_tagger("en_core_web_sm")
    text = "Marie Curie didn't live in London."
    tokens = tokenize(text)
    features = tag_features(tagger, text, tokens)
    names = [*PARTS_OF_SPEECH, *ENTITY_TYPES]
    tags = [{names[i] for i in np.flatnonzero(row)} for row in features]
    assert tags[0] == {"PROPN", "PERSON"}
    assert tags[tokens.words.index("London")] == {"PROPN", "GPE"}
    assert tags[tokens.words.index("live")] == {"VERB"}
    assert tagged_entities(tagger, text) == ["Marie Curie", "London"]
