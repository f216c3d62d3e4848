import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.train.chunks import cut_lengths, in_chunks
from orqa_jax.train.mesh import make_mesh, place_batch

LONGEST = 40


def batch():
    """32 sequences of random lengths, and a weight for each."""
    rng = np.random.default_rng(0)
    length_B = rng.integers(1, LONGEST + 1, 32).astype(np.int32)
    token_BL = np.where(np.arange(LONGEST) < length_B[:, None], rng.standard_normal((32, 40)), 0.0)
    return token_BL.astype(np.float32), np.arange(1, 33, dtype=np.float32), length_B


def encoded(encode, devices, chunk_size, chunk_lengths=3):
    mesh = make_mesh(jax.devices()[:devices])

    def run(params, inputs):
        chunks = {"chunk_size": chunk_size, "chunk_lengths": chunk_lengths}
        return in_chunks(encode, params, *inputs, **chunks, mesh=mesh)

    return jax.jit(run), place_batch(mesh, batch())


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("chunk_size", [0, 1, 2, 100])
def test_rows_keep_their_places(devices, chunk_size):
    def encode(params, token_BL, weight_B):
        return (token_BL.sum(axis=1) * weight_B)[:, None] * params

    run, inputs = encoded(encode, devices, chunk_size)
    params = np.array([1.0, 2.0, 3.0], np.float32)
    token_BL, weight_B, _ = batch()
    sums_B = token_BL.sum(axis=1) * weight_B
    np.testing.assert_allclose(run(params, inputs), sums_B[:, None] * params, rtol=1e-4, atol=1e-4)
    gradient = jax.grad(lambda params: run(params, inputs)[:, 1].sum())(params)
    np.testing.assert_allclose(gradient, [0.0, sums_B.sum(), 0.0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("devices", "chunk_size"), [(1, 4), (2, 2), (8, 1)])
def test_a_chunk_is_as_long_as_its_longest_sequence_needs(devices, chunk_size):
    def encode(params, token_BL, weight_B):
        return jnp.full((len(token_BL), 1), token_BL.shape[1], jnp.float32)

    run, inputs = encoded(encode, devices, chunk_size)
    found_B = np.asarray(run((), inputs))[:, 0]
    expected_B = np.zeros(32)
    for rows in np.arange(32).reshape(devices, -1):
        by_length = sorted(rows, key=lambda row: batch()[2][row])
        for chunk in np.reshape(by_length, (-1, chunk_size)):
            longest = batch()[2][chunk].max()
            expected_B[chunk] = next(n for n in (16, 32, 40) if n >= longest)
    np.testing.assert_array_equal(found_B, expected_B)
    assert set(expected_B) == {16, 32, 40}


@pytest.mark.parametrize(("chunk_size", "chunk_lengths"), [(0, 3), (4, 1)])
def test_all_rows_may_have_their_full_length(chunk_size, chunk_lengths):
    def encode(params, token_BL, weight_B):
        return token_BL[:, -1:] * 0 + token_BL.shape[1]

    run, inputs = encoded(encode, 2, chunk_size, chunk_lengths)
    assert set(np.asarray(run((), inputs)).ravel()) == {LONGEST}


@given(st.integers(1, 600), st.integers(1, 5))
def test_few_lengths_of_which_the_last_holds_all(longest, count):
    lengths = cut_lengths(longest, count)
    assert 1 <= len(lengths) <= count
    assert lengths[-1] == longest
    assert lengths == sorted(set(lengths))
    assert all(length % 16 == 0 for length in lengths[:-1])
    for part in range(1, count):
        least = min(length for length in lengths if length >= longest * part / count)
        assert least - longest * part / count < 16


def test_memory_is_that_of_a_chunk():
    mesh = make_mesh(jax.devices()[:1])
    weights = jnp.ones((64, 64))
    rows, lengths = jnp.ones((256, 48)), jnp.full(256, 48)

    def loss(weights, rows, chunk_size):
        def encode(weights, rows, _):
            hidden = rows[..., None] * weights[0]
            for _ in range(8):
                hidden = jnp.sin(hidden @ weights)
            return hidden[:, 0]

        chunks = {"chunk_size": chunk_size, "chunk_lengths": 3}
        return in_chunks(encode, weights, rows, None, lengths, **chunks, mesh=mesh).sum()

    def compiled(chunk_size):
        gradient = jax.grad(lambda weights, rows: loss(weights, rows, chunk_size))
        return jax.jit(gradient).lower(weights, rows).compile()

    whole, half, eighth = (
        compiled(size).memory_analysis().temp_size_in_bytes for size in (0, 64, 32)
    )
    assert half < 0.5 * whole
    assert eighth < 0.65 * half
