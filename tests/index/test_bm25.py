import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from orqa_jax.checksums import describe_files
from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import TUNED_B, TUNED_K1, BM25Index, terms, tune_bm25
from orqa_jax.qa.examples import Example
from orqa_jax.text.wordpiece import WordPiece

DOCUMENTS = [
    ("Lighthouse", "A lighthouse warns ships. Lighthouses once burned oil and later gas."),
    ("Oil lamp", "An oil lamp burns oil through a wick."),
    ("Ship", "Ships sail on water."),
    ("Café", "A café sells coffee and cakes."),
    ("Ship", "Ships sail on water."),
    ("Numbers", "In 1887 there were 42 of them."),
]


def store_of(folder, documents, language="english"):
    folder.mkdir(exist_ok=True)
    source = folder / "documents.jsonl"
    source.write_text(
        "".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in documents)
    )
    tokenizer = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ships", "."])
    return build_corpus([source], folder / "store", tokenizer, language=language, workers=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("bm25"), DOCUMENTS)


@pytest.fixture(scope="module")
def index(store, tmp_path_factory):
    return BM25Index.build(store, tmp_path_factory.mktemp("bm25") / "index")


def oracle_scores(texts, question, k1, b):
    """BM25 with Lucene's idf, straight from its definition."""
    bags = [Counter(terms(text)) for text in texts]
    lengths = [bag.total() for bag in bags]
    mean_length = sum(lengths) / len(lengths)
    scores = np.zeros(len(texts))
    for term in terms(question):
        holders = sum(term in bag for bag in bags)
        idf = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
        for i, bag in enumerate(bags):
            tf = bag[term]
            scores[i] += idf * tf / (tf + k1 * (1 - b + b * lengths[i] / mean_length))
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.6, 0.8)])
@pytest.mark.parametrize("question", ["Which ship burned oil?", "oil oil lamp", "coffee in 1887"])
def test_scores_follow_the_formula(store, tmp_path, question, k1, b):
    index = BM25Index.build(store, tmp_path / "index", k1=k1, b=b)
    texts = [f"{store.title(i)} {store.text(i)}" for i in range(len(store))]
    expected = oracle_scores(texts, question, k1, b)

    ids_BK, scores_BK = index.search([question], 6)

    assert ids_BK.dtype == np.int32
    assert scores_BK.dtype == np.float32
    np.testing.assert_array_equal(ids_BK[0], np.argsort(-expected, kind="stable"))
    np.testing.assert_allclose(scores_BK[0], np.sort(expected)[::-1], rtol=1e-5)


def test_terms_are_folded_stemmed_and_without_stop_words():
    assert terms("The Lighthouses of Åland were BURNING in 1887, and no café?") == [
        *("lighthous", "aland", "were", "burn", "1887", "cafe")
    ]
    assert terms("Москва — столица") == ["москва", "столица"]
    assert terms("to be or not to be") == []
    assert terms("Ёлка and ἀρχή") == ["елка", "αρχη"]
    assert terms("\x00 \n…") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("ABCは日", ["abc", "は日"]),
        ("水", ["水"]),
        ("한국어 문장", ["한국", "국어", "문장"]),
        ("がか", ["がか"]),  # a voiced consonant is no accent
        ("हिन्दी में", ["हिन्दी", "में"]),  # nor is a vowel sign, and it does not end a word
        ("ภาษา", ["ภา", "าษ", "ษา"]),
        ("ＦＵＬＬ １２", ["full", "12"]),
    ],
)
def test_terms_of_other_scripts(text, expected):
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("spanish", "Las canciones españolas", ["cancion", "espanol"]),
        ("spanish", "información informacion", ["inform", "inform"]),
        ("french", "L'homme et les nationalités", ["homm", "national"]),
        ("german", "die Häuser", ["haus"]),
        ("none", "The houses São", ["the", "houses", "sao"]),
        ("none", "富士山", ["富士", "士山"]),
    ],
)
def test_terms_of_other_languages(language, text, expected):
    assert terms(text, language) == expected


def test_the_language_is_that_of_the_corpus(tmp_path):
    documents = [("Uno", "Una canción española."), ("Dos", "Las barcas azules.")]
    store = store_of(tmp_path, documents, language="spanish")
    index = BM25Index.build(store, tmp_path / "index")
    opened = BM25Index.open(tmp_path / "index", corpus_fingerprint=store.fingerprint)
    for each in (index, opened):
        ids_BK, scores_BK = each.search(["¿Qué canciones?", "¿la barca?"], 2)
        assert ids_BK[:, 0].tolist() == [0, 1]
        assert (scores_BK[:, 0] > 0).all()
        assert (scores_BK[:, 1] == 0).all()
    with pytest.raises(OrqaError, match="no language 'klingon'"):
        store_of(tmp_path / "other", documents, language="klingon")


def test_a_text_without_spaces_is_found_by_a_part_of_it(tmp_path):
    documents = [
        ("一", "富士山は高い山です。"),
        ("二", "琵琶湖は大きい湖です。"),
        ("三", "海は青い。"),
    ]
    index = BM25Index.build(store_of(tmp_path, documents), tmp_path / "index")
    ids_BK, scores_BK = index.search(["琵琶湖はどこですか", "富士山"], 3)
    assert ids_BK[:, 0].tolist() == [1, 0]
    assert (scores_BK[:, 0] > scores_BK[:, 1]).all()


def test_the_scores_of_all_blocks_are_those_of_the_search(index):
    ids_BK, scores_BK = index.search(["oil lamp ships"], 6)
    np.testing.assert_array_equal(index.scores("oil lamp ships")[ids_BK[0]], scores_BK[0])


def test_tuning_finds_what_every_setting_would_have_found(tmp_path):
    long = "oil oil oil oil " + "word " * 60 + "Marlow"
    roads = [("Road", f"Road number {i} has sand on it.") for i in range(8)]
    documents = [("A", long), ("B", "oil in Tessin"), *roads]
    store = store_of(tmp_path, documents)
    examples = [Example("1", "oil", ("Tessin",)), Example("2", "sand", ("number 7",))]
    reached = {}
    for k1, b in itertools.product(TUNED_K1, TUNED_B):
        index = BM25Index.build(store, tmp_path / "index", k1=k1, b=b)
        ids_BK, _ = index.search(["oil", "sand"], 10)
        reached[k1, b] = sum(
            any(answer in store.text(int(i)) for i in ids[:k])
            for ids, answer in zip(ids_BK, ["Tessin", "number 7"], strict=True)
            for k in (1, 5, 20, 100)
        )
    assert len(set(reached.values())) > 1
    assert tune_bm25(store, examples) == max(reached, key=reached.get)


def test_titles_count_and_equal_blocks_stand_in_order(index):
    ids_BK, scores_BK = index.search(["ship", "CAFE"], 2)
    assert ids_BK.tolist() == [[2, 4], [3, 0]]
    assert scores_BK[0, 0] == scores_BK[0, 1]
    assert scores_BK[1, 1] == 0


@pytest.mark.parametrize("question", ["", "zyzzyva", "the of and", "?!"])
def test_a_question_without_known_words_gets_the_first_blocks(index, question):
    ids_BK, scores_BK = index.search([question], 4)
    assert ids_BK.tolist() == [[0, 1, 2, 3]]
    assert scores_BK.tolist() == [[0.0] * 4]


def test_k_is_clipped_and_an_empty_batch_is_fine(index):
    assert index.search(["oil"], 100)[0].shape == (1, 6)
    assert index.search([], 3)[0].shape == (0, 3)
    with pytest.raises(OrqaError, match="at least one block"):
        index.search(["oil"], 0)


def test_a_corpus_without_words_can_be_searched(tmp_path):
    index = BM25Index.build(store_of(tmp_path, [("…", "?!")]), tmp_path / "index")
    ids_BK, scores_BK = index.search(["anything"], 1)
    assert ids_BK.tolist() == [[0]]
    assert scores_BK.tolist() == [[0.0]]


def test_a_saved_index_answers_as_the_built_one(store, index, tmp_path):
    folder = tmp_path / "some" / "folder"
    BM25Index.build(store, folder)
    opened = BM25Index.open(folder, corpus_fingerprint=store.fingerprint)
    questions = ["oil lamp", "who sells cakes"]
    for ours, theirs in zip(opened.search(questions, 6), index.search(questions, 6), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    assert len(opened) == 6


def test_another_corpus_is_refused_with_both_fingerprints(store, tmp_path):
    folder = tmp_path / "index"
    BM25Index.build(store, folder)
    message = (
        f"{folder} holds a BM25 index made from corpus {store.fingerprint[:16]}, not from corpus"
        f" {'f' * 16} as now in use"
    )
    with pytest.raises(OrqaError, match=re.escape(message)):
        BM25Index.open(folder, corpus_fingerprint="f" * 64)


def test_what_is_missing_or_damaged_is_refused(store, tmp_path):
    folder = tmp_path / "index"
    with pytest.raises(OrqaError, match=r"has no manifest.json of a BM25 index"):
        BM25Index.open(folder, corpus_fingerprint=store.fingerprint)
    BM25Index.build(store, folder)
    next(folder.glob("data*.npy")).unlink()
    with pytest.raises(OrqaError, match="cannot be read"):
        BM25Index.open(folder, corpus_fingerprint=store.fingerprint)


def test_a_build_replaces_what_an_interrupted_one_left(store, tmp_path):
    folder, partial = tmp_path / "index", tmp_path / "index.partial"
    BM25Index.build(store, folder, k1=2.0)
    shutil.copytree(folder, partial)
    (partial / "manifest.json").unlink()

    BM25Index.build(store, folder)

    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("files") == {
        name: described
        for name, described in describe_files(folder).items()
        if name != "manifest.json"
    }
    assert manifest == {
        "schema": 2,
        "corpus_fingerprint": store.fingerprint,
        "count": 6,
        "language": "english",
        "k1": 0.9,
        "b": 0.4,
    }


def test_importing_the_trainings_does_not_start_jax():
    """The processes of a run can only be joined before; bm25s starts jax when it is imported."""
    code = (
        "import jax._src.xla_bridge as bridge, orqa_jax.train.finetune, orqa_jax.predict;"
        "assert not bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_index_of_the_same_corpus_and_settings_is_kept(store, tmp_path):
    BM25Index.build(store, tmp_path / "bm25")
    written = (tmp_path / "bm25" / "manifest.json").stat().st_mtime_ns
    BM25Index.build(store, tmp_path / "bm25")
    assert (tmp_path / "bm25" / "manifest.json").stat().st_mtime_ns == written
    BM25Index.build(store, tmp_path / "bm25", k1=1.2)
    assert (tmp_path / "bm25" / "manifest.json").stat().st_mtime_ns != written
