import copy
import dataclasses
import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_world import equal_trees, world, write_jsonl

from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.index.exact import ExactIndex
from orqa_jax.qa.examples import Example, Place, load_examples
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.mesh import make_mesh, place_batch
from orqa_jax.train.retrieve import (
    BeamSizes,
    BeamSource,
    beam_shapes,
    fetch_by_callback,
    fetch_by_device,
    own_blocks,
    question_batch,
    reader_inputs,
    spans_equal,
)

SIZES = BeamSizes(early=20, read=10, reader_length=64, span_width=6)


@pytest.fixture(scope="module")
def vectors_NP():
    rng = np.random.default_rng(0)
    return rng.standard_normal((len(world().store), 16)).astype(np.float32)


@pytest.fixture(scope="module")
def source(vectors_NP):
    examples = load_examples(world().questions)
    examples += [
        Example("absent", "Who painted the moon?", ("Nobody Known",)),
        Example("two", "Who lives there?", ("glaziers", "Tobin Marsh", "the river Darrow")),
        # As the first wordpieces of longer words it must not count:
        Example("part", "Who is it?", ("weaver", "hesk")),
    ]
    index = ExactIndex(vectors_NP)
    return BeamSource(world().store, index, vectors_NP, world().tokenizer, examples, SIZES)


def answers_of(row):
    examples = load_examples(world().questions)
    extra = [("Nobody Known",), ("glaziers", "Tobin Marsh", "the river Darrow"), ("weaver", "hesk")]
    return [*(example.answers for example in examples), *extra][row]


def test_fetch_finds_what_a_sort_finds(source, vectors_NP):
    rows_B = np.array([0, 7, 30, 31, 32])
    question_BP = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    beam = source.fetch(rows_B, question_BP)
    scores_BN = question_BP.astype(np.float64) @ vectors_NP.astype(np.float64).T
    expected_BC = np.argsort(-scores_BN, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(beam["block_ids"], expected_BC)
    np.testing.assert_array_equal(beam["vectors"], vectors_NP[expected_BC])


def test_fetch_says_what_its_time_went_into(source):
    source.take_seconds()
    question_BP = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    started = time.perf_counter()
    source.fetch(np.arange(5), question_BP)
    source.fetch(np.arange(5), question_BP)
    elapsed = time.perf_counter() - started
    seconds = source.take_seconds()
    assert set(seconds) == {"search_share", "gather_share", "labels_share"}
    assert min(seconds.values()) > 0
    assert 0.5 * elapsed < sum(seconds.values()) <= elapsed
    assert source.take_seconds() == {}


def test_fetch_labels_blocks_and_spans_by_their_words(source):
    """By the text alone: an answer counts where its words stand as words, any case."""
    store, tokenizer = world().store, world().tokenizer
    rows_B = np.arange(33)
    question_BP = np.random.default_rng(2).standard_normal((33, 16)).astype(np.float32)
    beam = source.fetch(rows_B, question_BP)
    found = 0
    for b, row in enumerate(rows_B):
        words = "|".join(re.escape(answer) for answer in answers_of(row))
        pattern = re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
        texts = [store.text(int(block)) for block in beam["block_ids"][b]]
        early = [bool(pattern.search(text)) for text in texts]
        assert beam["early_correct"][b].tolist() == early
        for k in range(SIZES.read):
            encoded = tokenizer.encode([texts[k]])[0]
            first = len(source.questions[row]) + 2
            spans = {
                (start - first, start - first + extra)
                for start, extra in np.argwhere(beam["span_correct"][b, k])
            }
            spelled = {(int(encoded.starts[start]), int(encoded.ends[end])) for start, end in spans}
            expected = {
                match.span()
                for match in pattern.finditer(texts[k])
                if len(tokenizer.encode([match[0]])[0].ids) <= SIZES.span_width
            }
            assert spelled == expected
            found += len(spelled)
    assert found > 10
    assert not beam["early_correct"][30].any()


def test_candidates_are_runs_of_whole_words_of_the_block(source):
    store, tokenizer = world().store, world().tokenizer
    ids_BK = np.array([[0, 17, 40]])
    question = source.questions[1]
    got = reader_inputs(store, tokenizer, [question], ids_BK, SIZES)
    for k, block in enumerate(ids_BK[0]):
        tokens = store.block_tokens(int(block)).tolist()
        first = len(question) + 2
        sequence = [tokenizer.cls_id, *question, tokenizer.sep_id, *tokens, tokenizer.sep_id]
        assert len(sequence) <= 64
        assert got["token_ids"][0, k][got["mask"][0, k]].tolist() == sequence
        assert got["segment_ids"][0, k].tolist() == [
            int(first <= position < len(sequence)) for position in range(64)
        ]
        pieces = [bool(tokenizer.continues_word[token]) for token in [*tokens, tokenizer.sep_id]]
        expected = {
            (first + start, extra)
            for start in range(len(tokens))
            for extra in range(min(6, len(tokens) - start))
            if not pieces[start] and not pieces[start + extra + 1]
        }
        assert {tuple(span) for span in np.argwhere(got["span_mask"][0, k])} == expected


def test_a_long_question_leaves_half_of_the_sequence_to_the_block():
    store, tokenizer = world().store, world().tokenizer
    question = np.full(100, 7, np.int32)
    got = reader_inputs(store, tokenizer, [question], np.array([[3]]), SIZES)
    block = store.block_tokens(3).tolist()[: 64 - 3 - 32]
    expected = [tokenizer.cls_id, *[7] * 32, tokenizer.sep_id, *block, tokenizer.sep_id]
    assert got["token_ids"][0, 0].tolist() == expected


@pytest.mark.parametrize(
    ("length", "ends"),
    [(9, [4, 7]), (8, [4]), (7, [4]), (6, [4])],  # "a" ends at 4, "bcd" (b ##c ##d) at 7
)
def test_a_word_that_the_length_cuts_is_no_candidate(tmp_path, length, ends):
    vocab = ["a", "b", "##c", "##d", "[UNK]", "[MASK]", "[CLS]", "[SEP]", "[PAD]"]
    tokenizer = WordPiece.from_vocab(vocab)
    file = write_jsonl(tmp_path / "d.jsonl", [{"title": "", "text": "a bcd"}])
    store = build_corpus([file], tmp_path / "store", tokenizer, workers=1)
    sizes = BeamSizes(early=1, read=1, reader_length=length, span_width=4)
    question = np.array([0, 0], np.int32)
    got = reader_inputs(store, tokenizer, [question], np.array([[0]]), sizes)
    spans = np.argwhere(got["span_mask"][0, 0])
    assert sorted({int(start + extra) for start, extra in spans}) == ends


def test_an_answer_without_wordpieces_of_its_own_is_not_found_where_others_have_none(tmp_path):
    tokenizer = WordPiece.from_vocab([*"abcd", "[UNK]", "[MASK]", "[CLS]", "[SEP]", "[PAD]"])
    lines = [{"title": "", "text": text} for text in ("a xyz b", "c d")]
    file = write_jsonl(tmp_path / "d.jsonl", lines)
    store = build_corpus([file], tmp_path / "store", tokenizer, workers=1)
    examples = [Example("0", "c", ("qrs",)), Example("1", "c", ("qrs", "b"))]
    vectors_NP = np.array([[1.0], [0.5]], np.float32)
    sizes = BeamSizes(early=2, read=2, reader_length=10, span_width=3)
    index = ExactIndex(vectors_NP)
    source = BeamSource(store, index, vectors_NP, tokenizer, examples, sizes)
    beam = source.fetch(np.array([0, 1]), np.ones((2, 1), np.float32))
    assert beam["early_correct"].tolist() == [[False, False], [True, False]]
    assert np.argwhere(beam["span_correct"]).tolist() == [[1, 0, 5, 0]]  # the b alone


def test_a_beam_worked_by_hand(tmp_path):
    """Blocks [2 3 4] and [5 6], question [0 1], answers [3 4] and [7], padded to ten."""
    vocab = [*"abcdefgh", "[UNK]", "[MASK]", "[CLS]", "[SEP]", "[PAD]"]
    tokenizer = WordPiece.from_vocab(vocab)
    lines = [{"title": "", "text": text} for text in ("c d e", "f g")]
    file = write_jsonl(tmp_path / "d.jsonl", lines)
    store = build_corpus([file], tmp_path / "store", tokenizer, workers=1)
    examples = [Example("0", "a b", ("d e", "h"))]
    vectors_NP = np.array([[1.0], [0.5]], np.float32)
    sizes = BeamSizes(early=9, read=2, reader_length=10, span_width=3)
    index = ExactIndex(vectors_NP)
    source = BeamSource(store, index, vectors_NP, tokenizer, examples, sizes)
    beam = source.fetch(np.array([0]), np.array([[2.0]], np.float32))
    assert beam["block_ids"].tolist() == [[0, 1]]
    assert beam["early_correct"].tolist() == [[True, False]]
    assert np.where(beam["mask"], beam["token_ids"], 0)[0].tolist() == [
        [10, 0, 1, 11, 2, 3, 4, 11, 0, 0],
        [10, 0, 1, 11, 5, 6, 11, 0, 0, 0],
    ]
    in_block_KL = beam["span_mask"][0, :, :, 0]  # no word here has two pieces
    assert [np.flatnonzero(mask).tolist() for mask in in_block_KL] == [[4, 5, 6], [4, 5]]
    assert np.argwhere(beam["span_correct"]).tolist() == [[0, 0, 5, 1]]  # from 5 to 6


@given(
    tokens=st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=3),
    answers=st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=4),
    width=st.integers(1, 4),
)
def test_spans_equal_is_a_comparison_of_every_span(tokens, answers, width):
    got = spans_equal(np.array(tokens), [np.array(ids, np.int32) for ids in answers], width)
    expected = {
        (k, start, extra)
        for k, row in enumerate(tokens)
        for start in range(7)
        for extra in range(width)
        if start + extra < 7 and row[start : start + extra + 1] in answers
    }
    assert {tuple(place) for place in np.argwhere(got)} == expected
    assert got.shape == (len(tokens), 7, width)


def of_share(source, share):
    """The same source, where only a share of the questions is read."""
    other = copy.copy(source)
    other.sizes = dataclasses.replace(source.sizes, reading_share=share)
    return other


def test_questions_with_the_answer_in_their_beam_are_read_first(source):
    rows_B = np.array([30, 7, 32, 0, 12, 30])
    question_BP = np.random.default_rng(3).standard_normal((6, 16)).astype(np.float32)
    whole = source.fetch(rows_B, question_BP)
    readable = whole["span_correct"].any(axis=(1, 2, 3))
    assert 0 < readable.sum() < 6
    for share, count in ((1.0, 6), (0.5, 3), (0.2, 1), (0.01, 1)):
        beam = of_share(source, share).fetch(rows_B, question_BP)
        first = [b for b in range(6) if readable[b]] + [b for b in range(6) if not readable[b]]
        expected = sorted(first[:count])
        assert beam["read"].tolist() == expected
        assert beam["readable"].tolist() == readable.tolist()
        for name in ("token_ids", "mask", "segment_ids", "span_mask", "span_correct"):
            np.testing.assert_array_equal(beam[name], whole[name][expected])
        for name in ("block_ids", "vectors", "early_correct"):
            np.testing.assert_array_equal(beam[name], whole[name])


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("early", [2, 20, 500])
def test_shapes_are_those_of_fetch(vectors_NP, early, share):
    """Also where the early beam is smaller than what is read, or larger than the corpus."""
    examples = load_examples(world().questions)
    sizes = BeamSizes(early=early, read=3, reader_length=64, span_width=6)
    index = ExactIndex(vectors_NP)
    source = BeamSource(world().store, index, vectors_NP, world().tokenizer, examples, sizes)
    source = of_share(source, share)
    beam = source.fetch(np.array([1, 2]), np.ones((2, 16), np.float32))
    found = {name: (array.shape, array.dtype) for name, array in beam.items()}
    expected = {name: (s.shape, s.dtype) for name, s in beam_shapes(source.sizes, 2, 16).items()}
    assert found == expected
    assert beam["block_ids"].shape[1] == min(early, len(world().store))


def test_a_question_does_not_retrieve_the_block_it_was_taken_from(vectors_NP):
    store = world().store
    taken = [Example("t", "Who?", ("Anka Rill",), taken_from=Place(store.document_id(7), 0))]
    own = next(i for i in range(len(store)) if store.document_id(i) == store.document_id(7))
    examples = [*taken, Example("plain", "Who?", ("Anka Rill",))]
    question_BP = np.stack([vectors_NP[own] * 9] * 2)
    scores_N = vectors_NP @ question_BP[0]
    for early in (20, 10_000):
        sizes = dataclasses.replace(SIZES, early=early)
        index = ExactIndex(vectors_NP)
        source = BeamSource(store, index, vectors_NP, world().tokenizer, examples, sizes)
        beam = source.fetch(np.array([0, 1]), question_BP)
        kept = min(early, len(store) - 1)
        best = np.argsort(-scores_N, kind="stable")
        assert best[0] == own
        np.testing.assert_array_equal(beam["block_ids"][0], best[best != own][:kept])
        np.testing.assert_array_equal(beam["block_ids"][1], best[:kept])
        np.testing.assert_array_equal(beam["vectors"][0], vectors_NP[beam["block_ids"][0]])
        shapes = beam_shapes(source.sizes, 2, 16)
        assert {name: x.shape for name, x in beam.items()} == {
            name: x.shape for name, x in shapes.items()
        }
        only_plain = source.fetch(np.array([1]), question_BP[:1])
        np.testing.assert_array_equal(only_plain["block_ids"][0], best[:kept])


def test_own_blocks_must_be_of_the_corpus():
    store = world().store
    for place in (Place("nobody", 0), Place(store.document_id(0), 99_999)):
        with pytest.raises(OrqaError, match=r"'t' was taken from document .* from the corpus that"):
            own_blocks(store, [Example("t", "?", ("a",), taken_from=place)])
    assert own_blocks(store, [Example("t", "?", ("a",))]).tolist() == [-1]


def test_a_question_batch(source):
    batch = question_batch(source, np.array([4, 2]), 32)
    tokenizer = world().tokenizer
    for row, number in enumerate((4, 2)):
        text = load_examples(world().questions)[number].question
        ids = tokenizer.encode([text])[0].ids.tolist()
        expected = [tokenizer.cls_id, *ids, tokenizer.sep_id]
        assert batch["token_ids"][row][batch["mask"][row]].tolist() == expected
    assert batch["rows"].tolist() == [4, 2]
    assert batch["rows"].dtype == np.int32


@pytest.mark.timeout(120)
def test_the_callback_serves_each_device_its_rows(source):
    mesh = make_mesh()
    rows_B = np.arange(3, 27, dtype=np.int32)
    question_BP = np.random.default_rng(4).standard_normal((24, 16)).astype(np.float32)

    @jax.jit
    def inside(rows_B, question_BP):
        return fetch_by_callback(source, mesh, rows_B, question_BP)

    placed = place_batch(mesh, {"rows": rows_B, "question": question_BP})
    beam = inside(placed["rows"], placed["question"])
    equal_trees(jax.device_get(beam), source.fetch(rows_B, question_BP))
    assert beam["vectors"].sharding.spec[0] == "data"


@pytest.mark.timeout(120)
def test_each_device_chooses_among_its_rows_and_names_them_in_the_whole_batch(source):
    source = of_share(source, 0.4)
    mesh = make_mesh()
    rows_B = np.arange(3, 27, dtype=np.int32)
    question_BP = np.random.default_rng(4).standard_normal((24, 16)).astype(np.float32)
    placed = place_batch(mesh, {"rows": rows_B, "question": question_BP})
    parts = [source.fetch(rows_B[b : b + 3], question_BP[b : b + 3]) for b in range(0, 24, 3)]
    expected = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    expected["read"] += np.arange(0, 24, 3, dtype=np.int32)
    shapes = {name: array.shape for name, array in expected.items()}
    together = beam_shapes(source.sizes, 24, 16, devices=8)
    assert {name: shape.shape for name, shape in together.items()} == shapes
    inside = jax.jit(functools.partial(fetch_by_callback, source, mesh))
    equal_trees(jax.device_get(inside(placed["rows"], placed["question"])), expected)
    equal_trees(fetch_by_device(source, placed["rows"], placed["question"]), expected)


@pytest.mark.timeout(120)
def test_the_callback_lets_gradients_through_recomputed_scores_alone(source, vectors_NP):
    mesh = make_mesh()
    rows_B = jnp.arange(8, dtype=jnp.int32)
    question_BP = np.random.default_rng(5).standard_normal((8, 16)).astype(np.float32)

    @jax.jit
    @jax.grad
    def gradient(question_BP):
        beam = fetch_by_callback(source, mesh, rows_B, question_BP)
        return jnp.einsum("bp,bcp->", question_BP, beam["vectors"])

    ids_BC = source.fetch(np.arange(8), question_BP)["block_ids"]
    expected = vectors_NP[ids_BC].sum(axis=1)
    np.testing.assert_allclose(gradient(jnp.asarray(question_BP)), expected, rtol=1e-5, atol=1e-5)
