import dataclasses

import numpy as np
import pytest
from tiny_world import indexed_run, world

from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.exact import ExactIndex
from orqa_jax.qa.examples import Example
from orqa_jax.text.match import all_matches, has_answer
from orqa_jax.train.labels import blocks_with_answer, spans_matching
from orqa_jax.train.retrieve import BeamSizes, BeamSource

SIZES = BeamSizes(early=40, read=6, reader_length=64, span_width=6)
EXAMPLES = [
    Example("years", "When was it?", (r"1[23]\d\d", "flood"), "regex"),
    Example("people", "Who founded it?", ("tobin (marsh|holt)", "["), "regex"),
    Example("letters", "What flows?", ("arrow", "Ilse")),
]


def source(**changes) -> BeamSource:
    store = BlockStore(indexed_run() / "corpus")
    vectors = np.load(indexed_run() / "index" / "embeddings.npy")
    sizes = dataclasses.replace(SIZES, **changes)
    return BeamSource(store, ExactIndex(vectors), vectors, world().tokenizer, EXAMPLES, sizes)


def beam(**changes):
    made = source(**changes)
    question = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    return made, made.fetch(np.arange(3), question)


def test_labels_of_regular_expressions_in_a_beam() -> None:
    made, found = beam()
    store, tokenizer = world().store, world().tokenizer
    for row, example in enumerate(EXAMPLES[:2]):
        texts = [store.text(int(block)) for block in found["block_ids"][row]]
        expected = [has_answer(text, example.answers, "regex") for text in texts]
        assert found["early_correct"][row].tolist() == expected
        assert any(expected)
        assert not all(expected)
        for k in range(SIZES.read):
            encoded = tokenizer.encode([texts[k]])[0]
            first = len(made.questions[row]) + 2
            matches = {m for p in example.answers for m in all_matches(p, texts[k])}
            spelled = set()
            for s, w in np.argwhere(found["span_correct"][row, k]):
                start = int(encoded.starts[s - first])
                spelled.add((start, int(encoded.ends[s - first + w])))
            whole = {m for m in matches if m[0] in encoded.starts and m[1] in encoded.ends}
            fits = {m for m in whole if m[1] <= encoded.ends[min(63 - first, len(encoded.ids)) - 1]}
            assert spelled == fits
    assert found["span_correct"][0].any()


def test_substring_labels_are_those_of_the_release() -> None:
    _, by_words = beam()
    _, by_characters = beam(substring_labels=True)
    store = world().store
    texts = [store.text(int(block)) for block in by_characters["block_ids"][2]]
    expected = ["arrow" in text or "Ilse" in text for text in texts]
    assert by_characters["early_correct"][2].tolist() == expected
    # "arrow" is in Darrow as characters, and in no block as a word.
    assert sum(expected) > by_words["early_correct"][2].sum()


def test_spans_within_words_are_candidates_where_words_are_not_whole() -> None:
    _, whole = beam()
    _, anywhere = beam(whole_words=False)
    assert (anywhere["span_mask"] | whole["span_mask"]).sum() == anywhere["span_mask"].sum()
    assert anywhere["span_mask"].sum() > whole["span_mask"].sum()
    # All starts and ends within the block, and nothing else.
    for row in range(3):
        inside = (anywhere["segment_ids"][row] == 1) & anywhere["mask"][row]
        for k in range(SIZES.read):
            places = np.flatnonzero(inside[k])[:-1]  # the last is [SEP]
            count = sum(max(len(places) - w, 0) for w in range(SIZES.span_width))
            assert anywhere["span_mask"][row, k].sum() == count


def test_by_hand() -> None:
    store, tokenizer = world().store, world().tokenizer
    block = 0
    text = store.text(block)
    assert text.startswith("Anka Rill founded the ")
    ids = np.array([block])
    assert blocks_with_answer(store, ids, ["anka"], "regex").tolist() == [True]
    assert blocks_with_answer(store, ids, ["anka"], "substring").tolist() == [False]
    patterns = ["anka rill", "Rill founded", "ill", "zzz"]
    spans = spans_matching(store, tokenizer, ids, np.array([7]), patterns, (64, 3))
    ids_of = tokenizer.encode(["Anka", "Rill", "founded"])
    lengths = [len(encoded.ids) for encoded in ids_of]
    expected = {(7, sum(lengths[:2]) - 1), (7 + lengths[0], sum(lengths[1:]) - 1)}
    found = {(int(s), int(w)) for _, s, w in np.argwhere(spans)}
    assert found == {(s, w) for s, w in expected if w < 3}
    with pytest.raises(IndexError):
        blocks_with_answer(store, np.array([10**6]), ["x"], "regex")
