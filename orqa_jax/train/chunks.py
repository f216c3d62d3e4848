"""Encoding a batch chunk by chunk, so that neither its size decides over memory nor its longest
sequence over time.

Each device holds the activations of one chunk of its rows at a time. The backward pass computes
them again, chunk by chunk: 4/3 of the arithmetic, for any batch (as the gradient caching of Gao et
al. 2021, arXiv:2101.06983, but within one program). A device takes its rows in the order of their
length, and each chunk is cut to the shortest of a few lengths that holds it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from orqa_jax.train.mesh import BATCH

# Shorter lengths are rounded up to multiples of what accelerators like.
_LENGTH_STEP = 16


def cut_lengths(longest: int, count: int) -> list[int]:
    """Up to ``count`` lengths for chunks of sequences of up to ``longest`` wordpieces."""
    step = count * _LENGTH_STEP
    parts = (-(-longest * part // step) * _LENGTH_STEP for part in range(1, count + 1))
    return sorted({min(part, longest) for part in parts})


def in_chunks(
    encode: Callable[[Any, Any, Any], jax.Array],
    params: Any,
    sequences_BL: Any,
    rest_B: Any,
    length_B: jax.Array,
    *,
    chunk_size: int,
    chunk_lengths: int,
    mesh: Mesh,
) -> jax.Array:
    """Returns ``encode(params, sequences_BL, rest_B)``, computed in chunks.

    Differentiable by ``params`` alone, and these must lie whole on every device.

    Args:
      encode: To float32 vectors [rows, P], each of its own row alone. What it makes of a sequence
        must not depend on the padding after it.
      params: What ``encode`` learns.
      sequences_BL: Arrays [B, L] of sequences with their padding at the end, split over the devices
        of ``mesh``.
      rest_B: Other arrays whose first dimension is the batch, split alike.
      length_B: int32, length of each sequence without its padding, split alike.
      chunk_size: Rows of a chunk on one device, a divisor of the device's rows; 0 for all at once,
        at their full length.
      chunk_lengths: How many lengths a chunk is cut to, each a program of its own to compile; 1 for
        the full length alone.
      mesh: Where the batch lies.
    """
    batch_size, longest = jax.tree.leaves(sequences_BL)[0].shape
    rows = batch_size // mesh.size
    if not 0 < chunk_size < rows:
        return encode(params, sequences_BL, rest_B)
    lengths = cut_lengths(longest, chunk_lengths)

    def cut_to(length: int) -> Callable[[Any, Any, Any], jax.Array]:
        def encode_cut(params: Any, sequences: Any, rest: Any) -> jax.Array:
            return encode(params, jax.tree.map(lambda x: x[:, :length], sequences), rest)

        return encode_cut

    # Both passes choose among whole programs: activations that left one of them would be held in
    # every length at once.
    @jax.custom_vjp
    def encode_chunk(params: Any, choice: jax.Array, sequences: Any, rest: Any) -> jax.Array:
        return jax.lax.switch(choice, [cut_to(n) for n in lengths], params, sequences, rest)

    def forward(params: Any, choice: jax.Array, sequences: Any, rest: Any) -> Any:
        return encode_chunk(params, choice, sequences, rest), (params, choice, sequences, rest)

    def backward(kept: Any, cotangent: jax.Array) -> Any:
        params, choice, sequences, rest = kept

        def gradient(length: int) -> Callable[..., Any]:
            def of_cut(params: Any, sequences: Any, rest: Any, cotangent: jax.Array) -> Any:
                _, pull = jax.vjp(lambda p: cut_to(length)(p, sequences, rest), params)
                return pull(cotangent)[0]

            return of_cut

        branches = [gradient(n) for n in lengths]
        return (
            jax.lax.switch(choice, branches, params, sequences, rest, cotangent),
            None,
            None,
            None,
        )

    encode_chunk.defvjp(forward, backward)

    def on_device(params: Any, sequences: Any, rest: Any, length: jax.Array) -> jax.Array:
        # Each device has a gradient of its own until the last chunk, and they are added up once.
        params = jax.lax.pcast(params, mesh.axis_names, to="varying")
        order = jnp.argsort(length)

        def split(array: jax.Array) -> jax.Array:
            return array[order].reshape(-1, chunk_size, *array.shape[1:])

        choices = jnp.searchsorted(jnp.asarray(lengths), split(length)[:, -1])
        _, vectors = jax.lax.scan(
            lambda _, chunk: (None, encode_chunk(params, *chunk)),
            None,
            (choices, *jax.tree.map(split, (sequences, rest))),
        )
        return vectors.reshape(rows, -1)[jnp.argsort(order)]

    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(PartitionSpec(), BATCH, BATCH, BATCH), out_specs=BATCH
    )(params, sequences_BL, rest_B, length_B)
