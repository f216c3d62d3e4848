import tempfile
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from orqa_jax.errors import OrqaError
from orqa_jax.index import exact, sharded
from orqa_jax.index.compressed import compress
from orqa_jax.index.exact import ExactIndex


def oracle(embeddings_NP, question_BP, k):
    """A full sort of the scores in float64, ties by id."""
    scores_BN = question_BP.astype(np.float64) @ embeddings_NP.astype(np.float64).T
    ids_BK = np.argsort(-scores_BN, axis=1, kind="stable")[:, :k]
    return ids_BK, np.take_along_axis(scores_BN, ids_BK, axis=1)


def small_integers(seed, *shape):
    """Vectors whose products are exact in float32 and often equal."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compressed(embeddings_NP, precision):
    if precision == "float32":
        return None
    fingerprints = {"corpus_fingerprint": "c", "weights_fingerprint": "w"}
    with tempfile.TemporaryDirectory() as folder:
        return compress(embeddings_NP, Path(folder, "codes"), precision, **fingerprints)


@pytest.fixture(scope="module")
def mesh():
    devices = jax.devices()
    assert len(devices) == 8, "the tests run on 8 simulated devices"
    return Mesh(np.array(devices), ("data",))


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(exact, "SCORES_AT_ONCE", 5 * 64)


@given(
    count=st.integers(1, 60),
    batch=st.integers(0, 4),
    size=st.integers(1, 5),
    k=st.integers(1, 70),
    at_once=st.sampled_from([1, 7, 40, 2**24]),
    candidates=st.sampled_from([1, 50, 2**24]),
    precision=st.sampled_from(["float32", "bfloat16", "int8"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_host_search_matches_a_full_sort_however_it_is_tiled(
    count, batch, size, k, at_once, candidates, precision, seed
):
    embeddings_NP = small_integers(seed, count, size)
    question_BP = small_integers(seed + 1, batch, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "SCORES_AT_ONCE", at_once)
        patch.setattr(exact, "CANDIDATES_AT_ONCE", candidates)
        index = ExactIndex(embeddings_NP, compressed=compressed(embeddings_NP, precision))
        ids_BK, scores_BK = index.search(question_BP, k)

    expected_ids_BK, expected_scores_BK = oracle(embeddings_NP, question_BP, k)
    assert ids_BK.dtype == np.int32
    assert scores_BK.dtype == np.float32
    np.testing.assert_array_equal(ids_BK, expected_ids_BK)
    np.testing.assert_array_equal(scores_BK, expected_scores_BK)


def test_host_search_finds_the_best_of_real_numbers(small_tiles):
    embeddings_NP, question_BP = normal(0, 3001, 128), normal(1, 5, 128)
    ids_BK, scores_BK = ExactIndex(embeddings_NP).search(question_BP, 400)
    expected_ids_BK, expected_scores_BK = oracle(embeddings_NP, question_BP, 400)
    np.testing.assert_allclose(scores_BK, expected_scores_BK, rtol=1e-5, atol=1e-5)
    assert (ids_BK == expected_ids_BK).mean() > 0.99  # rounding may swap close neighbours
    assert all(len(set(row)) == 400 for row in ids_BK.tolist())


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("place", ["host", "devices"])
@pytest.mark.parametrize(("count", "k"), [(40_011, 300), (1003, 700), (30, 40)])
def test_compressed_vectors_give_the_same_results_to_the_bit(mesh, precision, place, count, k):
    embeddings_NP, question_BP = normal(20, count, 64), 3 * normal(21, 40, 64)
    embeddings_NP[::7] *= np.linspace(0.1, 2, 64, dtype=np.float32)
    embeddings_NP[count // 2 :: 11] = embeddings_NP[3]  # equal vectors
    index = ExactIndex(
        embeddings_NP,
        compressed=compressed(embeddings_NP, precision),
        mesh=mesh if place == "devices" else None,
    )
    ids_BK, scores_BK = index.search(question_BP, k)
    expected_ids_BK, expected_scores_BK = ExactIndex(embeddings_NP).search(question_BP, k)
    np.testing.assert_array_equal(ids_BK, expected_ids_BK)
    np.testing.assert_array_equal(scores_BK, expected_scores_BK)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_nothing_is_missed_where_the_guess_is_far_too_high(precision):
    """Among every sixteenth vector, from which the k-th best score is guessed, are all the best."""
    embeddings_NP, question_BP = normal(22, 20_000, 32), normal(23, 5, 32)
    embeddings_NP[8::16][:400] += 3 * question_BP[0]
    index = ExactIndex(embeddings_NP, compressed=compressed(embeddings_NP, precision))
    ids_BK, _ = index.search(question_BP, 600)
    expected_ids_BK, _ = oracle(embeddings_NP, question_BP, 600)
    assert (ids_BK == expected_ids_BK).mean() > 0.99
    assert [set(row) for row in ids_BK.tolist()] == [set(row) for row in expected_ids_BK.tolist()]


def test_search_reads_a_tile_at_a_time(monkeypatch):
    """Where every block is a candidate, memory still holds few of them."""
    monkeypatch.setattr(exact, "SCORES_AT_ONCE", 2**14)
    monkeypatch.setattr(exact, "CANDIDATES_AT_ONCE", 2**14)
    embeddings_NP, question_BP = np.ones((200_000, 2), np.float32), np.ones((8, 2), np.float32)
    index = ExactIndex(embeddings_NP)
    index.search(question_BP[:1], 1)
    tracemalloc.start()
    ids_BK, _ = index.search(question_BP, 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ids_BK.tolist() == [list(range(10))] * 8
    assert peak < 6e6  # all candidates would be 25 MB


@pytest.mark.parametrize("batch", [1, 31, 64])
def test_equal_vectors_come_in_order_of_id(batch):
    # BLAS scores equal vectors differently in different places; what is returned must not show it.
    embeddings_NP = np.tile(normal(2, 128), (5003, 1))
    ids_BK, scores_BK = ExactIndex(embeddings_NP).search(normal(3, batch, 128), 900)
    np.testing.assert_array_equal(ids_BK, np.tile(np.arange(900), (batch, 1)))
    np.testing.assert_array_equal(scores_BK, np.tile(scores_BK[:, :1], (1, 900)))


def test_a_question_is_answered_alike_alone_and_in_a_batch():
    index, question_BP = ExactIndex(normal(4, 9001, 128)), normal(5, 40, 128)
    ids_BK, scores_BK = index.search(question_BP, 1000)
    for row in (0, 17, 39):
        alone_ids, alone_scores = index.search(question_BP[row : row + 1], 1000)
        np.testing.assert_array_equal(alone_ids[0], ids_BK[row])
        np.testing.assert_array_equal(alone_scores[0], scores_BK[row])


@pytest.fixture
def short_tiles_on_devices(monkeypatch):
    monkeypatch.setattr(sharded, "TILE", 50)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("short_tiles_on_devices")
@pytest.mark.parametrize(("count", "k"), [(1003, 20), (1003, 700), (990, 126)])
def test_device_search_in_tiles_that_overlap_matches_a_full_sort(mesh, count, k):
    embeddings_NP, question_BP = small_integers(6, count, 16), small_integers(7, 5, 16)
    ids_BK, scores_BK = ExactIndex(embeddings_NP, mesh=mesh).search(question_BP, k)
    expected_ids_BK, expected_scores_BK = oracle(embeddings_NP, question_BP, k)
    np.testing.assert_array_equal(ids_BK, expected_ids_BK)
    np.testing.assert_array_equal(scores_BK, expected_scores_BK)


# 1003 blocks make shards of 126, the last one shorter; 3 blocks leave five shards without any.
@pytest.mark.parametrize(("count", "k"), [(1003, 1), (1003, 100), (1003, 700), (3, 2), (8, 9)])
def test_device_search_matches_a_full_sort(mesh, count, k):
    embeddings_NP, question_BP = small_integers(6, count, 16), small_integers(7, 5, 16)
    ids_BK, scores_BK = ExactIndex(embeddings_NP, mesh=mesh).search(question_BP, k)
    expected_ids_BK, expected_scores_BK = oracle(embeddings_NP, question_BP, k)
    assert ids_BK.dtype == np.int32
    assert scores_BK.dtype == np.float32
    np.testing.assert_array_equal(ids_BK, expected_ids_BK)
    np.testing.assert_array_equal(scores_BK, expected_scores_BK)


def test_device_search_never_returns_padding_below_zero_scores(mesh):
    embeddings_NP = -np.ones((9, 4), np.float32)  # padding would score 0, above every block
    ids_BK, scores_BK = ExactIndex(embeddings_NP, mesh=mesh).search(np.ones((1, 4)), 9)
    assert ids_BK.tolist() == [list(range(9))]
    assert scores_BK.tolist() == [[-4.0] * 9]


def test_device_search_agrees_with_the_host_on_a_mesh_of_two_axes(mesh):
    two_axes = Mesh(mesh.devices.reshape(4, 2), ("data", "model"))
    embeddings_NP, question_BP = normal(8, 501, 32), normal(9, 3, 32)
    ids_BK, scores_BK = ExactIndex(embeddings_NP, mesh=two_axes).search(question_BP, 20)
    host_ids_BK, host_scores_BK = ExactIndex(embeddings_NP).search(question_BP, 20)
    np.testing.assert_array_equal(ids_BK, host_ids_BK)
    np.testing.assert_allclose(scores_BK, host_scores_BK, rtol=1e-5)


def test_the_shards_are_equal_and_in_order(mesh):
    embeddings_NP = normal(10, 21, 2)
    sharded_NP = sharded.shard_vectors(mesh, embeddings_NP)
    assert {shard.data.shape for shard in sharded_NP.addressable_shards} == {(3, 2)}
    np.testing.assert_array_equal(np.asarray(sharded_NP)[:21], embeddings_NP)
    np.testing.assert_array_equal(np.asarray(sharded_NP)[21:], np.zeros((3, 2)))


def test_search_through_a_memory_map(tmp_path):
    embeddings_NP = small_integers(11, 50, 8)
    np.save(tmp_path / "vectors.npy", embeddings_NP)
    mapped_NP = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    question_BP = small_integers(12, 2, 8)
    ids_BK, _ = ExactIndex(mapped_NP).search(question_BP, 10)
    np.testing.assert_array_equal(ids_BK, oracle(embeddings_NP, question_BP, 10)[0])


def test_vectors_that_cannot_be_compared_are_refused():
    index = ExactIndex(normal(13, 10, 8))
    with pytest.raises(OrqaError, match="block embeddings have 8 columns"):
        index.search(normal(14, 2, 9), 3)
    question_BP = normal(15, 3, 8)
    question_BP[1, 4] = np.nan
    with pytest.raises(OrqaError, match="question 1 of the batch holds NaN or infinity"):
        index.search(question_BP, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_block_vectors_that_are_not_finite_are_refused(mesh, value):
    embeddings_NP = normal(16, 100, 8)
    embeddings_NP[70, 3] = value
    with pytest.raises(OrqaError, match="holds NaN or infinity"):
        ExactIndex(embeddings_NP).search(normal(14, 2, 8), 3)
    with pytest.raises(OrqaError, match="among blocks 65 to 77 holds NaN or infinity"):
        ExactIndex(embeddings_NP, mesh=mesh)
    with pytest.raises(OrqaError, match="holds NaN or infinity"):
        compressed(embeddings_NP, "int8")
