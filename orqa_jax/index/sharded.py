"""Exact search as one program over the devices of a mesh: a running top-k in each shard, merged."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.errors import OrqaError

TILE = 2**16  # vectors scored at once in each shard: scores of a whole shard are never in memory
# Of the best k of a shard, what TPUs have to find on average. Their approximate top-k is several
# times as fast as a sort (Chern et al. 2022); elsewhere the same operation is exact.
TPU_RECALL = 0.99


def shard_vectors(mesh: Mesh, vectors_NP: npt.NDArray[Any]) -> jax.Array:
    """The vectors on the devices of `mesh`: rows over its first axis, padded to equal shards.

    Each process reads only the rows of its own devices, so a memory map is never loaded whole.

    Args:
      mesh: has `AxisType.Auto` axes.
      vectors_NP: float32, bfloat16 or int8.

    Raises:
      OrqaError: a vector holds NaN or infinity.
    """
    count, projection_size = vectors_NP.shape
    axis = mesh.axis_names[0]
    shards = mesh.shape[axis]
    per_shard = max(1, -(-count // shards))

    def rows(index: tuple[slice, ...] | None) -> npt.NDArray[Any]:
        assert index is not None  # it is for arrays without axes
        start, stop, _ = index[0].indices(per_shard * shards)
        part = vectors_NP[start:stop]
        if not np.isfinite(part).all():
            raise OrqaError(
                f"A vector among blocks {start} to {stop - 1} holds NaN or infinity: encode the "
                "blocks again with `orqa index`."
            )
        return np.pad(part, [(0, stop - start - len(part)), (0, 0)])

    return jax.make_array_from_callback(
        (per_shard * shards, projection_size), NamedSharding(mesh, PartitionSpec(axis)), rows
    )


@functools.partial(jax.jit, static_argnames=("mesh", "k", "count"))
def device_search(
    mesh: Mesh, vectors_NP: jax.Array, question_BP: jax.Array, *, k: int, count: int
) -> tuple[jax.Array, jax.Array]:
    """The blocks of highest inner product with each question.

    Args:
      mesh: has `AxisType.Auto` axes.
      vectors_NP: from `shard_vectors`. Where they are not float32, the questions are rounded to
        bfloat16 too, and sums stay in float32.
      question_BP: float32, the same on every device.
      k: blocks wanted, at most `count`.
      count: blocks of the corpus; rows from there on are padding.

    Returns:
      ids, int32 `[B, k]`, and scores, float32 `[B, k]`, best first, ties by id. On TPUs a share of
      `TPU_RECALL` of them is found on average, elsewhere all.
    """
    axis = mesh.axis_names[0]
    batch = len(question_BP)
    on_tpu = mesh.devices.flat[0].platform == "tpu"

    def search_shard(shard_MP: jax.Array, question_BP: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = len(shard_MP)
        tile, kept = min(TILE, size), min(k, size)
        first_of_shard = jax.lax.axis_index(axis) * size

        def merge_tile(
            best: tuple[jax.Array, jax.Array], number: jax.Array
        ) -> tuple[tuple[jax.Array, jax.Array], None]:
            # The last tile reaches back to be as long as the others; what it repeats is masked.
            start = jnp.minimum(number * tile, size - tile)
            tile_TP = jax.lax.dynamic_slice_in_dim(shard_MP, start, tile)
            row_T = start + jnp.arange(tile)
            real_T = (row_T >= number * tile) & (first_of_shard + row_T < count)
            scores_BT = jnp.where(real_T, _scores(question_BP, tile_TP), -jnp.inf)
            ids_BT = jnp.broadcast_to(first_of_shard + row_T, scores_BT.shape)
            if on_tpu and kept < tile:
                scores_BT, position_BT = jax.lax.approx_max_k(
                    scores_BT,
                    kept,
                    recall_target=TPU_RECALL,
                    reduction_input_size_override=size,
                    aggregate_to_topk=False,
                )
                ids_BT = jnp.take_along_axis(ids_BT, position_BT, axis=1)
            # Of equal scores top_k takes the lower position first, here and in the merge below:
            # earlier tiles and shards stand first, so ties break by id.
            ids_BM = jnp.concatenate([best[0], ids_BT], axis=1)
            scores_BK, position_BK = jax.lax.top_k(
                jnp.concatenate([best[1], scores_BT], axis=1), kept
            )
            return (jnp.take_along_axis(ids_BM, position_BK, axis=1), scores_BK), None

        nothing = (jnp.zeros((batch, kept), jnp.int32), jnp.full((batch, kept), -jnp.inf))
        nothing = jax.lax.pcast(nothing, axis, to="varying")
        best, _ = jax.lax.scan(merge_tile, nothing, jnp.arange(-(-size // tile)))
        return best

    ids_BM, scores_BM = jax.shard_map(
        search_shard,
        mesh=mesh,
        in_specs=(PartitionSpec(axis), PartitionSpec()),
        out_specs=PartitionSpec(None, axis),
    )(vectors_NP, question_BP)
    scores_BK, position_BK = jax.lax.top_k(scores_BM, k)
    return jnp.take_along_axis(ids_BM, position_BK, axis=1), scores_BK


def _scores(question_BP: jax.Array, tile_TP: jax.Array) -> jax.Array:
    if tile_TP.dtype == jnp.float32:
        # Without this, TPUs and GPUs would round operands to fewer bits.
        return jnp.matmul(question_BP, tile_TP.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.matmul(
        question_BP.astype(jnp.bfloat16),
        tile_TP.astype(jnp.bfloat16).T,
        preferred_element_type=jnp.float32,
    )
