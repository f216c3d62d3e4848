"""Recall on the sample against a scoring by hand in one batch on one device."""

import functools

import jax
import numpy as np
import pytest
from tiny_world import world

from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.models.retriever import DualEncoder, RetrieverConfig, init_dual_encoder
from orqa_jax.models.weights import load_bert
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.match import has_answer
from orqa_jax.train.inputs import pair_inputs, question_inputs
from orqa_jax.train.mesh import make_mesh, tree_shardings
from orqa_jax.train.watch_recall import RANKS, sample_recall, watch_recall


def asked():
    """The questions of the made-up world, each text once."""
    return list(
        {example.question: example for example in load_examples(world().questions)}.values()
    )


def by_wordpieces():
    """The examples, by the encoder input of their questions."""
    encoded = world().tokenizer.encode([example.question for example in asked()])
    inputs = question_inputs(world().tokenizer, [found.ids for found in encoded], 32)
    return dict(zip(map(tuple, inputs["token_ids"]), asked(), strict=True))


def draw(examples=None, **sizes):
    found = asked() if examples is None else examples
    lengths = {"question_length": 32, "block_length": 48}
    return sample_recall(world().store, world().tokenizer, found, **lengths, **sizes)


@pytest.fixture(scope="module")
def retriever():
    bert_config, bert_params = load_bert(world().encoder)
    config = RetrieverConfig(bert=bert_config, projection_size=16)
    return DualEncoder(config), init_dual_encoder(config, jax.random.key(4), bert_params)


def blocks_of(sample):
    """Number of each block of the pool, found by its wordpieces."""
    store, tokenizer = world().store, world().tokenizer
    everything = np.arange(len(store))
    inputs = pair_inputs(tokenizer, store.titles(everything), store.tokens(everything), 48)
    return [
        np.flatnonzero((inputs["token_ids"] == row).all(axis=1))[0]
        for row in sample.blocks["token_ids"]
    ]


def test_the_sample_is_a_pool_with_an_answer_for_every_question():
    sample = draw(questions=7, blocks=30)
    assert sample.correct_QM.shape == (7, 30)
    assert sample.correct_QM.any(axis=1).all()
    pool = blocks_of(sample)
    assert len(set(pool)) == 30
    examples = by_wordpieces()
    for row, correct_M in zip(sample.questions["token_ids"], sample.correct_QM, strict=True):
        answers = examples[tuple(row)].answers
        for block, correct in zip(pool, correct_M, strict=True):
            held = has_answer(world().store.text(int(block)), answers)
            assert correct == held


def test_the_draw_follows_from_the_seed():
    for name in ("token_ids", "mask"):
        np.testing.assert_array_equal(draw(seed=3).blocks[name], draw(seed=3).blocks[name])
    assert not np.array_equal(
        draw(questions=7, seed=3).questions["token_ids"],
        draw(questions=7, seed=4).questions["token_ids"],
    )


def test_a_pool_is_at_most_the_corpus():
    assert draw(blocks=10**6).correct_QM.shape[1] == len(world().store)


def test_recall_of_both_systems_by_hand(retriever):
    model, params = retriever
    sample = draw(questions=20, blocks=40)
    found = watch_recall(params, model, make_mesh(), sample)

    def vectors(inputs, method):
        names = ["token_ids", "mask"] + ["segment_ids"] * (method == "encode_blocks")
        apply = jax.jit(functools.partial(model.apply, method=method))
        return np.asarray(apply({"params": params}, *(inputs[name] for name in names)))

    questions = vectors(sample.questions, "encode_questions")
    blocks = vectors(sample.blocks, "encode_blocks")
    dense = questions @ blocks.T
    store, pool = world().store, [int(block) for block in blocks_of(sample)]
    sparse = BM25Index.of_texts(f"{store.title(block)}\n{store.text(block)}" for block in pool)
    examples = by_wordpieces()
    texts = [examples[tuple(row)].question for row in sample.questions["token_ids"]]
    ranked = {
        "zero_shot": np.argsort(-dense, axis=1, kind="stable"),
        "bm25": sparse.search(texts, 40)[0],
    }
    assert found.keys() == {f"{name}_recall@{k}" for name in ranked for k in RANKS}
    for name, order_QM in ranked.items():
        for k in RANKS:
            hits = sum(
                bool(correct_M[order_M[:k]].any())
                for correct_M, order_M in zip(sample.correct_QM, order_QM, strict=True)
            )
            assert found[f"{name}_recall@{k}"] == (hits, 20)
    assert found["bm25_recall@1"][0] > found["zero_shot_recall@1"][0]


def test_devices_do_not_matter(retriever):
    model, params = retriever
    sample = draw(questions=12, blocks=50)
    of_one, of_eight = (
        watch_recall(jax.device_put(params, tree_shardings(mesh, params)), model, mesh, sample)
        for mesh in (make_mesh(jax.devices()[:1]), make_mesh())
    )
    assert of_one == of_eight


def test_questions_about_something_else_are_refused():
    strangers = [Example("1", "Who wrote it?", ("zyzzyva quux",))]
    with pytest.raises(OrqaError, match="None of the watched questions"):
        draw(strangers)
