"""Encoding a batch chunk by chunk, so that its size does not decide over memory.

Each device holds the activations of one chunk of its rows at a time. The backward pass computes
them again, chunk by chunk: 4/3 of the arithmetic, for any batch (as the gradient caching of Gao et
al. 2021, arXiv:2101.06983, but within one program).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.train.mesh import BATCH


def in_chunks(
    encode: Callable[[Any], jax.Array], inputs_B: Any, *, chunk_size: int, mesh: Mesh
) -> jax.Array:
    """Returns ``encode(inputs_B)``, computed in chunks.

    Args:
      encode: From arrays of some rows to float32 vectors [rows, P], each of its own row alone.
      inputs_B: Arrays whose first dimension is the batch, split over the devices of ``mesh``.
      chunk_size: Rows of a chunk on one device, a divisor of the device's rows; 0 for all at once.
      mesh: Where the batch lies.
    """
    batch_size = jax.tree.leaves(inputs_B)[0].shape[0]
    rows = batch_size // mesh.size
    if not 0 < chunk_size < rows:
        return encode(inputs_B)
    chunks = rows // chunk_size
    # A chunk has rows of all devices, and each device keeps its own.
    by_chunk = NamedSharding(mesh, PartitionSpec(None, *BATCH))

    def split(array_B: jax.Array) -> jax.Array:
        rest = array_B.shape[1:]
        array = array_B.reshape(mesh.size, chunks, chunk_size, *rest).swapaxes(0, 1)
        array = array.reshape(chunks, mesh.size * chunk_size, *rest)
        return jax.lax.with_sharding_constraint(array, by_chunk)

    def encode_chunk(_: None, chunk: Any) -> tuple[None, jax.Array]:
        # Within a scan nothing can merge the two computations of a chunk.
        return None, jax.checkpoint(encode, prevent_cse=False)(chunk)

    _, vectors = jax.lax.scan(encode_chunk, None, jax.tree.map(split, inputs_B))
    vectors = vectors.reshape(chunks, mesh.size, chunk_size, -1).swapaxes(0, 1)
    return jax.lax.with_sharding_constraint(
        vectors.reshape(batch_size, -1), NamedSharding(mesh, BATCH)
    )
