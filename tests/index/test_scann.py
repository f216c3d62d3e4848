import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.errors import OrqaError
from orqa_jax.index import scann as scann_module
from orqa_jax.index.dense import open_search, prepare_search
from orqa_jax.index.exact import ExactIndex
from orqa_jax.index.scann import ScannIndex

MADE_FROM = {"corpus_fingerprint": "c" * 64, "weights_fingerprint": "a" * 64}

needs_scann = pytest.mark.skipif(
    bool(scann_module.missing),
    reason=f"ScaNN, of requirements.txt, cannot be imported here ({scann_module.missing})",
)


@pytest.fixture(scope="module")
def vectors_NP():
    """40 clusters, as topics of documents make them, and a group of equal vectors."""
    rng = np.random.default_rng(0)
    centre_NP = rng.standard_normal((40, 32), dtype=np.float32)[rng.integers(0, 40, 6000)]
    vectors_NP = centre_NP + 0.4 * rng.standard_normal((6000, 32), dtype=np.float32)
    vectors_NP[[7, 50, 99, 4000]] = 3 * vectors_NP[50]
    return vectors_NP


@pytest.fixture(scope="module")
def questions_BP(vectors_NP):
    rng = np.random.default_rng(1)
    near_BP = vectors_NP[rng.integers(0, 6000, 50)]
    return near_BP + 0.3 * rng.standard_normal(near_BP.shape, dtype=np.float32)


@pytest.fixture(scope="module")
def folder(vectors_NP, tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "scann"
    ScannIndex.build(vectors_NP, folder, **MADE_FROM)
    return folder


def recall(found_BK, truth_BK):
    return np.mean([len(np.intersect1d(*rows)) for rows in zip(found_BK, truth_BK, strict=True)])


@needs_scann
@pytest.mark.parametrize("k", [5, 100, 5000])
def test_finds_most_of_what_exact_search_finds(vectors_NP, questions_BP, folder, k):
    index = ScannIndex.open(folder, vectors_NP, **MADE_FROM)
    ids_BK, scores_BK = index.search(questions_BP, k)
    truth_BK, _ = ExactIndex(vectors_NP).search(questions_BP, k)
    assert (ids_BK.dtype, scores_BK.dtype) == (np.int32, np.float32)
    assert ids_BK.shape == (50, k)
    assert recall(ids_BK, truth_BK) / k > 0.9
    assert all(len(set(row)) == k for row in ids_BK.tolist())
    expected_BK = np.einsum("bp,bkp->bk", questions_BP, vectors_NP[ids_BK])
    np.testing.assert_allclose(scores_BK, expected_BK, rtol=1e-4, atol=1e-4)
    assert np.all(np.diff(scores_BK, axis=1) <= 0)


@needs_scann
def test_segments_are_one_index(vectors_NP, questions_BP, tmp_path, monkeypatch):
    monkeypatch.setattr(scann_module, "SEGMENT", 2100)
    ScannIndex.build(vectors_NP, tmp_path / "scann", **MADE_FROM)
    index = ScannIndex.open(tmp_path / "scann", vectors_NP, **MADE_FROM)
    assert len([path for path in (tmp_path / "scann").iterdir() if path.is_dir()]) == 3
    for k in (5, 100, 3000):
        ids_BK, scores_BK = index.search(questions_BP, k)
        truth_BK, _ = ExactIndex(vectors_NP).search(questions_BP, k)
        assert recall(ids_BK, truth_BK) / k > 0.9
        expected_BK = np.einsum("bp,bkp->bk", questions_BP, vectors_NP[ids_BK])
        np.testing.assert_allclose(scores_BK, expected_BK, rtol=1e-4, atol=1e-4)
        assert np.all(np.diff(scores_BK, axis=1) <= 0)
    assert index.search(vectors_NP[50:51], 4)[0].tolist() == [[7, 50, 99, 4000]]


@needs_scann
def test_equal_scores_come_in_order_of_id(vectors_NP, folder):
    index = ScannIndex.open(folder, vectors_NP, **MADE_FROM)
    ids_BK, scores_BK = index.search(vectors_NP[50:51], 4)
    assert ids_BK.tolist() == [[7, 50, 99, 4000]]
    assert len(set(scores_BK[0].tolist())) == 1


@given(st.lists(st.lists(st.sampled_from([3.0, 2.0, 1.5, np.nan]), min_size=7, max_size=7)))
def test_candidates_are_sorted_with_ties_by_id(rows):
    scores_BM = np.array(rows, np.float32).reshape(-1, 7)
    ids_BM = np.random.default_rng(0).permuted(
        np.tile(np.arange(7, dtype=np.int32), (len(rows), 1)), axis=1
    )
    ids_BK, scores_BK = scann_module._sort(ids_BM, scores_BM, 5)
    order_BK = np.lexsort((ids_BM, -scores_BM), axis=1)[:, :5]
    np.testing.assert_array_equal(scores_BK, np.take_along_axis(scores_BM, order_BK, axis=1))
    known = ~np.isnan(scores_BK)
    np.testing.assert_array_equal(
        ids_BK[known], np.take_along_axis(ids_BM, order_BK, axis=1)[known]
    )


@needs_scann
def test_more_is_scored_again_where_the_quantised_order_is_too_rough(tmp_path):
    rng = np.random.default_rng(4)
    deviation_P = np.arange(1, 33, dtype=np.float32) ** -0.5
    vectors_NP = (rng.standard_normal((6000, 32), dtype=np.float32) * deviation_P).astype(
        np.float32
    )
    index = ScannIndex.build(vectors_NP, tmp_path / "scann", **MADE_FROM)
    assert [effort.k for effort in index.efforts] == [100, 5000]
    for effort in index.efforts:
        assert effort.recall >= 0.95
        assert effort.k <= effort.rescored <= 6000


@needs_scann
def test_the_manifest_says_what_the_sample_measured(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["corpus_fingerprint"] == MADE_FROM["corpus_fingerprint"]
    assert (manifest["count"], manifest["covered"], manifest["leaves"]) == (6000, 6000, 155)
    assert [effort["k"] for effort in manifest["efforts"]] == [100, 5000]
    for effort in manifest["efforts"]:
        assert 0.95 <= effort["recall"] <= 1
        assert 1 <= effort["leaves"] <= 155


@needs_scann
def test_a_moved_index_gives_the_same_without_building(
    vectors_NP, questions_BP, folder, tmp_path, monkeypatch
):
    expected = ScannIndex.open(folder, vectors_NP, **MADE_FROM).search(questions_BP, 50)
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "scann")
    monkeypatch.setattr(ScannIndex, "build", None)
    prepare_search(moved.parent, vectors_NP, "scann", **MADE_FROM)
    found = open_search(moved.parent, vectors_NP, "scann", **MADE_FROM).search(questions_BP, 50)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@needs_scann
def test_where_leaves_are_short_of_blocks_the_rest_is_searched_for(vectors_NP, folder):
    """6,000 blocks wanted of all: no search of a few leaves has them."""
    index = ScannIndex.open(folder, vectors_NP, **MADE_FROM)
    question_BP = vectors_NP[:2] + 0.1
    ids_BK, scores_BK = index.search(question_BP, 6000)
    expected_ids_BK, _ = ExactIndex(vectors_NP).search(question_BP, 6000)
    assert np.isfinite(scores_BK).all()
    assert [sorted(row) for row in ids_BK.tolist()] == [list(range(6000))] * 2
    assert recall(ids_BK[:, :20], expected_ids_BK[:, :20]) == 20


@needs_scann
def test_appended_blocks_are_found_exactly(vectors_NP, questions_BP, folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "scann")
    new_NP = np.random.default_rng(3).standard_normal((30, 32), dtype=np.float32)
    new_NP[4] = 2 * questions_BP[0]
    new_NP[5] = 2 * questions_BP[1]
    grown_NP = np.concatenate([vectors_NP, new_NP])
    later = MADE_FROM | {"corpus_fingerprint": "d" * 64}
    earlier = {MADE_FROM["corpus_fingerprint"]: 6000}
    with monkeypatch.context() as patch:
        patch.setattr(ScannIndex, "build", None)
        prepare_search(tmp_path, grown_NP, "scann", **later, earlier=earlier)
    index = open_search(tmp_path, grown_NP, "scann", **later)
    ids_BK, _ = index.search(questions_BP, 100)
    truth_BK, _ = ExactIndex(grown_NP).search(questions_BP, 100)
    assert ids_BK[:2, 0].tolist() == [6004, 6005]
    for ids, truth in zip(ids_BK.tolist(), truth_BK.tolist(), strict=True):
        assert {block for block in truth if block >= 6000} <= set(ids)
    assert recall(ids_BK, truth_BK) > 90

    later = MADE_FROM | {"corpus_fingerprint": "e" * 64}
    earlier["d" * 64] = 6030
    much_NP = np.concatenate([grown_NP, vectors_NP[:700]])
    prepare_search(tmp_path, much_NP, "scann", **later, earlier=earlier)
    manifest = json.loads((tmp_path / "scann" / "manifest.json").read_text())
    assert manifest["covered"] == 6730


@needs_scann
def test_what_does_not_belong_is_refused(vectors_NP, folder, tmp_path):
    for word in ("corpus", "weights"):
        other = MADE_FROM | {f"{word}_fingerprint": "b" * 64}
        with pytest.raises(OrqaError, match=f"made from {word} [ac]{{16}}, not from"):
            ScannIndex.open(folder, vectors_NP, **other)
    with pytest.raises(OrqaError, match="of 6000 vectors, but there are 5999"):
        ScannIndex.open(folder, vectors_NP[1:], **MADE_FROM)
    broken = shutil.copytree(folder, tmp_path / "scann")
    manifest = json.loads((broken / "manifest.json").read_text())
    (broken / "manifest.json").write_text(json.dumps(manifest | {"metric": "squared_l2"}))
    with pytest.raises(OrqaError, match="for squared_l2, but scores are dot_product"):
        ScannIndex.open(broken, vectors_NP, **MADE_FROM)
    (broken / "manifest.json").write_text(json.dumps(manifest))
    (broken / "0" / "scann_config.pb").unlink()
    with pytest.raises(OrqaError, match="cannot be read"):
        ScannIndex.open(broken, vectors_NP, **MADE_FROM)
    (broken / "manifest.json").unlink()
    with pytest.raises(OrqaError, match="missing or unfinished"):
        ScannIndex.open(broken, vectors_NP, **MADE_FROM)


@needs_scann
def test_vectors_that_are_not_finite_are_refused(vectors_NP, folder, tmp_path):
    damaged_NP = vectors_NP.copy()
    damaged_NP[17, 3] = np.nan
    with pytest.raises(OrqaError, match="holds NaN or infinity"):
        ScannIndex.build(damaged_NP, tmp_path / "scann", **MADE_FROM)
    with pytest.raises(OrqaError, match="question 1 of the batch holds NaN"):
        ScannIndex.open(folder, vectors_NP, **MADE_FROM).search(damaged_NP[16:18], 5)


@needs_scann
def test_an_index_of_something_else_is_built_again(vectors_NP, folder, tmp_path, caplog):
    shutil.copytree(folder, tmp_path / "scann")
    other = MADE_FROM | {"weights_fingerprint": "b" * 64}
    prepare_search(tmp_path, vectors_NP[:500], "scann", **other)
    assert "Making it again" in caplog.text
    index = open_search(tmp_path, vectors_NP[:500], "scann", **other)
    ids_BK, _ = index.search(vectors_NP[:3], 500)
    assert [sorted(row) for row in ids_BK.tolist()] == [list(range(500))] * 3


def test_without_the_package_exact_search_works_and_scann_says_what_to_do(tmp_path):
    code = """
import sys
sys.modules["scann"] = None
import numpy as np
from pathlib import Path
from orqa_jax.errors import OrqaError
from orqa_jax.index.dense import open_search, prepare_search
vectors = np.eye(3, dtype=np.float32)
made_from = {"corpus_fingerprint": "c", "weights_fingerprint": "w"}
prepare_search(Path(sys.argv[1]), vectors, "exact", **made_from)
index = open_search(Path(sys.argv[1]), vectors, "exact", **made_from)
assert index.search(vectors, 1)[0].tolist() == [[0], [1], [2]]
for use in (prepare_search, open_search):
    try:
        use(Path(sys.argv[1]), vectors, "scann", **made_from)
    except OrqaError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("pip install orqa_jax[scann]" in line for line in lines)


@pytest.mark.parametrize("search", ["exact", "bfloat16", "int8"])
def test_exact_searches_by_name(vectors_NP, questions_BP, tmp_path, search):
    prepare_search(tmp_path, vectors_NP, search, **MADE_FROM)
    index = open_search(tmp_path, vectors_NP, search, **MADE_FROM)
    ids_BK, scores_BK = index.search(questions_BP, 30)
    expected_ids_BK, expected_scores_BK = ExactIndex(vectors_NP).search(questions_BP, 30)
    np.testing.assert_array_equal(ids_BK, expected_ids_BK)
    np.testing.assert_array_equal(scores_BK, expected_scores_BK)
    assert sorted(path.name for path in tmp_path.iterdir()) == [search] * (search != "exact")


@pytest.mark.parametrize("use", [prepare_search, open_search])
def test_an_unknown_search_is_refused(vectors_NP, tmp_path, use):
    with pytest.raises(OrqaError, match="search is \"faiss\"; it can be 'exact' or"):
        use(tmp_path, vectors_NP, "faiss", **MADE_FROM)
    assert not list(tmp_path.iterdir())
