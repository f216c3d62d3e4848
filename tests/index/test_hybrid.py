import json

import numpy as np
import pytest

from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.exact import ExactIndex
from orqa_jax.index.hybrid import FusedRetriever, HybridIndex, fuse_rankings
from orqa_jax.text.wordpiece import WordPiece

TEXTS = [
    "salt was carried over the ridge",
    "the ridge has two wells",
    "salt salt and tin",
    "a market for tin and wool",
    "wells of the old market",
    "nothing of note",
]
QUESTIONS = ["salt and tin", "where are the wells", "zyzzyva"]


@pytest.fixture(scope="module")
def bm25(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    source = folder / "documents.jsonl"
    source.write_text("".join(json.dumps({"title": "T", "text": text}) + "\n" for text in TEXTS))
    tokenizer = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    store = build_corpus([source], folder / "store", tokenizer, workers=1)
    return BM25Index.build(store, folder / "bm25")


def test_fusion_adds_reciprocal_ranks():
    ids_BK, scores_BK = fuse_rankings([np.array([[7, 2, 5]]), np.array([[5, 9, 7]])], 4)
    assert ids_BK.tolist() == [[5, 7, 2, 9]]  # 5 and 7 swap ranks: equal sums, so by id
    expected = [1 / 63 + 1 / 61, 1 / 61 + 1 / 63, 1 / 62, 1 / 62]
    np.testing.assert_allclose(scores_BK[0], expected, rtol=1e-6)
    assert scores_BK[0, 0] == scores_BK[0, 1]


def test_a_fused_retriever_is_the_fusion_of_its_parts(bm25):
    rng = np.random.default_rng(0)
    order = np.array([rng.permutation(6) for _ in QUESTIONS]).astype(np.int32)

    class Fixed:
        def search(self, questions, k):
            return order[:, :k], np.zeros((len(questions), k), np.float32)

    fused = FusedRetriever([bm25, Fixed()], count=6)
    ids_BK, scores_BK = fused.search(QUESTIONS, 3)
    rank_of = np.argsort(bm25.search(QUESTIONS, 6)[0], axis=1), np.argsort(order, axis=1)
    expected = sum(1 / (61 + ranks) for ranks in rank_of)
    best = np.argsort(-expected.astype(np.float32), axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(ids_BK, best)
    np.testing.assert_allclose(scores_BK, np.take_along_axis(expected, best, 1), rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.3, 5.0])
def test_hybrid_search_is_exact_over_the_union(bm25, weight):
    rng = np.random.default_rng(1)
    vectors_NP = rng.normal(size=(6, 4)).astype(np.float32)
    question_BP = rng.normal(size=(3, 4)).astype(np.float32)
    query_BX = np.concatenate([question_BP, np.full((3, 1), weight, np.float32)], axis=1)
    index = HybridIndex(bm25, ExactIndex(vectors_NP), vectors_NP)

    ids_BK, blocks_BKX = index.search(QUESTIONS, query_BX, 2)

    for row, question in enumerate(QUESTIONS):
        dense = vectors_NP @ question_BP[row]
        sparse = bm25.scores(question)
        union = set(np.argsort(-dense, kind="stable")[:2]) | set(bm25.search([question], 2)[0][0])
        total = dense + weight * sparse
        expected = sorted(union, key=lambda i: (-total[i], i))[:2]
        assert ids_BK[row].tolist() == expected
        np.testing.assert_allclose(blocks_BKX[row, :, :4], vectors_NP[expected])
        np.testing.assert_allclose(blocks_BKX[row, :, 4], sparse[expected])


def test_without_dense_vectors_the_order_is_that_of_bm25(bm25):
    index = HybridIndex(bm25, None, np.zeros((6, 0), np.float32))
    ids_BK, blocks_BKX = index.search(QUESTIONS, np.ones((3, 1), np.float32), 4)
    expected_BK, scores_BK = bm25.search(QUESTIONS, 4)
    np.testing.assert_array_equal(ids_BK, expected_BK)
    np.testing.assert_array_equal(blocks_BKX[..., 0], scores_BK)


def test_vectors_of_a_diverged_training_are_refused(bm25):
    index = HybridIndex(bm25, None, np.zeros((6, 0), np.float32))
    weights_BX = np.array([[1], [np.nan], [1]], np.float32)
    with pytest.raises(OrqaError, match="question 1 of the batch holds NaN"):
        index.search(QUESTIONS, weights_BX, 4)
