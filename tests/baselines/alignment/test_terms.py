from orqa_jax.baselines.alignment.terms import content_lemmas


def test_stop_words_go_and_repetitions_stay():
    text = "The ship's wells, and the SHIP wasn’t in them: wells-tin"
    assert content_lemmas(text) == ["ship", "well", "ship", "well", "tin"]
    assert content_lemmas("Is it? … of the") == []
    assert content_lemmas("élan в 1887") == ["élan", "в", "1887"]
