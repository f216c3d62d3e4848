import itertools
import json
import math
from collections import Counter

import mmh3
import numpy as np
import pytest

from orqa_jax.baselines.drqa.retrieve import TfIdfIndex, hashed_ngrams, paragraph_places
from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.text.wordpiece import WordPiece

DOCUMENTS = [
    ("Salt", "Salt was carried over the ridge.\n\nThe salt road has two wells. " * 6),
    ("Ridge", "The ridge road is steep."),
    ("Wells", "Old wells. Two wells of the market; salt water. Tin."),
    ("Market", "Tin and wool, wool and tin."),
    ("Ridge", "Another ridge, with salt road and all."),
    ("Nothing", "…"),
]
STOP = {"was", "over", "the", "has", "of", "is", "and", "with", "all"}
QUESTIONS = ["Where does the salt road cross the ridge?", "tin tin wool", "zyzzyva", ""]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfidf")
    source = folder / "documents.jsonl"
    lines = (
        json.dumps({"id": f"d{i}", "title": t, "text": x}) + "\n"
        for i, (t, x) in enumerate(DOCUMENTS)
    )
    source.write_text("".join(lines))
    tokenizer = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "salt"])
    return build_corpus([source], folder / "store", tokenizer, max_wordpieces=48, workers=1)


@pytest.fixture(scope="module")
def index(store, tmp_path_factory):
    return TfIdfIndex.build(store, tmp_path_factory.mktemp("tfidf") / "index")


def bag(text):
    keep = (c if c.isalnum() or c.isspace() else " , " for c in text.lower())
    words = "".join(keep).split()
    words = [None if w in STOP | {","} else w for w in words]
    pairs = [f"{a} {b}" for a, b in itertools.pairwise(words) if a and b]
    return Counter([*filter(None, words), *pairs])


def oracle(question):
    """The score of every article with n-grams as they are, not hashed."""
    bags = [bag(f"{title}\n{text}") for title, text in DOCUMENTS]
    scores = np.zeros(len(bags))
    for ngram, asked in bag(question).items():
        n = sum(ngram in b for b in bags)
        idf = max(math.log((len(bags) - n + 0.5) / (n + 0.5)), 0)
        for i, b in enumerate(bags):
            scores[i] += math.log1p(asked) * idf * math.log1p(b[ngram]) * idf
    return scores


@pytest.mark.parametrize("question", QUESTIONS)
def test_scores_follow_the_formula(index, question):
    ids_BK, scores_BK = index.search([question], 6)
    expected = oracle(question)
    order = np.argsort(-expected.astype(np.float32), kind="stable")
    np.testing.assert_array_equal(ids_BK[0], order)
    np.testing.assert_allclose(scores_BK[0], np.sort(expected)[::-1], rtol=1e-5)
    assert ids_BK.dtype == np.int32


def test_ngrams_go_to_bins_by_murmur3():
    found = hashed_ngrams("The old Wells, deep!")
    spelled = ["old", "wells", "deep", "old wells"]  # no pair across a comma or a stop word
    assert found.tolist() == [mmh3.hash(x, signed=False) % 2**24 for x in spelled]
    # The published test vector of MurmurHash3 x86 32 for "hello, world" and seed 0.
    assert mmh3.hash("hello, world", signed=False) == 0x149BBB7F


def test_an_article_is_all_its_blocks(store, index):
    assert len(index) == 6
    assert len(index.blocks(0)) > 1
    blocks = [index.blocks(article) for article in range(6)]
    assert [b for part in blocks for b in part] == list(range(len(store)))
    for article, part in enumerate(blocks):
        assert {store.document_id(block) for block in part} == {f"d{article}"}


def test_a_saved_index_answers_as_the_built_one(store, index, tmp_path):
    TfIdfIndex.build(store, tmp_path / "index")
    opened = TfIdfIndex.open(tmp_path / "index", corpus_fingerprint=store.fingerprint)
    for a, b in zip(opened.search(QUESTIONS, 4), index.search(QUESTIONS, 4), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(OrqaError, match="made from corpus"):
        TfIdfIndex.open(tmp_path / "index", corpus_fingerprint="f" * 64)
    (tmp_path / "index" / "data.npy").unlink()
    with pytest.raises(OrqaError, match="cannot be read"):
        TfIdfIndex.open(tmp_path / "index", corpus_fingerprint=store.fingerprint)


def test_paragraphs_know_their_place():
    text = "One line.\n\n  \nAnother\n"
    assert paragraph_places(text) == [(0, "One line."), (14, "Another")]
    for start, line in paragraph_places(text):
        assert text[start : start + len(line)] == line
