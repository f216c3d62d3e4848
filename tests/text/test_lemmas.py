from orqa_jax.text.lemmas import lemma


def test_words_go_to_their_dictionary_form():
    assert [lemma(w) for w in ("Wells", "geese", "carried", "1887", "zyxes")] == [
        *("well", "goose", "carry", "1887", "zyxes")
    ]
