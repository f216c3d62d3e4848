import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orqa_jax.train.chunks import in_chunks
from orqa_jax.train.mesh import make_mesh, place_batch


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("chunk_size", [0, 1, 2, 100])
def test_rows_keep_their_places(devices, chunk_size):
    mesh = make_mesh(jax.devices()[:devices])
    rows_BP = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)

    def encode(inputs):
        return jnp.tanh(inputs["x"]) * inputs["weight"][:, None]

    inputs = place_batch(mesh, {"x": rows_BP, "weight": np.arange(32, dtype=np.float32)})
    run = jax.jit(lambda inputs: in_chunks(encode, inputs, chunk_size=chunk_size, mesh=mesh))
    expected = np.tanh(rows_BP) * np.arange(32, dtype=np.float32)[:, None]
    np.testing.assert_allclose(run(inputs), expected, rtol=1e-5, atol=1e-6)


def test_memory_is_that_of_a_chunk_and_arithmetic_a_third_more():
    mesh = make_mesh(jax.devices()[:1])
    weights = jnp.ones((64, 64))
    rows = jnp.ones((256, 16, 64))

    def loss(weights, rows, chunk_size):
        def encode(rows):
            for _ in range(8):
                rows = jnp.sin(rows @ weights)
            return rows[:, 0]

        return in_chunks(encode, rows, chunk_size=chunk_size, mesh=mesh).sum()

    def compiled(chunk_size):
        gradient = jax.grad(lambda weights, rows: loss(weights, rows, chunk_size))
        return jax.jit(gradient).lower(weights, rows).compile()

    whole, half, eighth = (
        compiled(size).memory_analysis().temp_size_in_bytes for size in (0, 64, 32)
    )
    assert half < 0.5 * whole
    assert eighth < 0.65 * half
