"""Exact maximum inner product search over block embeddings, on the host and on accelerators.

The two ways suit different places. On the host, numpy scans the (memory-mapped) vectors tile by
tile; it never calls jax, so a jax host callback may use it. On accelerators the vectors lie sharded
over a mesh, and one jitted program scores, selects and merges. On a CPU the host way is the faster
one, so callers pass a mesh only where `jax.default_backend() != "cpu"`, and not from a callback.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.errors import OrqaError
from orqa_jax.index.protocol import Found, clip_k, top_k

SCORES_AT_ONCE = 2**24  # 64 MiB of float32: large tiles keep BLAS busy, small ones bound memory


class ExactIndex:
    """Scores every block; implements `orqa_jax.index.protocol.Index` for question vectors."""

    def __init__(self, embeddings_NP: npt.NDArray[np.float32], *, mesh: Mesh | None = None) -> None:
        """Search `embeddings_NP` on the host, or on the devices of `mesh` where one is given.

        Args:
          embeddings_NP: finite float32 vectors; may be a memory map.
          mesh: the vectors are sharded over its first axis, all other axes hold copies.
        """
        self._embeddings_NP = np.asarray(embeddings_NP)  # a plain view: np.memmap slows indexing
        self._mesh = mesh
        if mesh is None:
            squared_N = np.einsum("np,np->n", self._embeddings_NP, self._embeddings_NP)
            self._longest = float(np.sqrt(squared_N.max(initial=0.0)))
        else:
            self._sharded_NP = shard_embeddings(mesh, self._embeddings_NP)

    def __len__(self) -> int:
        return len(self._embeddings_NP)

    def search(self, question_BP: npt.NDArray[np.float32], /, k: int) -> Found:
        """The `k` blocks of highest inner product with each question, ties by id.

        On the host the scores are sums in one fixed order, so equal vectors have equal scores, and
        a question's result depends neither on the rest of its batch nor on the tiles.

        Args:
          question_BP: finite float32 vectors.
          k: clipped to N, with a warning.

        Returns:
          ids, int32 `[B, k]`, and scores, float32 `[B, k]`, best first.

        Raises:
          OrqaError: a question vector is not finite or of another size than the blocks', or `k` is
            less than 1.
        """
        question_BP = np.asarray(question_BP, np.float32)
        _check_questions(question_BP, self._embeddings_NP.shape[1])
        k = clip_k(k, len(self))
        if self._mesh is not None:
            ids_BK, scores_BK = device_search(
                self._mesh, self._sharded_NP, question_BP, k=k, count=len(self)
            )
            return np.asarray(ids_BK), np.asarray(scores_BK)
        return _host_search(self._embeddings_NP, self._longest, question_BP, k)


def _check_questions(question_BP: npt.NDArray[np.float32], projection_size: int) -> None:
    if question_BP.ndim != 2 or question_BP.shape[1] != projection_size:
        raise OrqaError(
            f"The question vectors have shape {question_BP.shape}, but the block embeddings have"
            f" {projection_size} columns: encode both with the same retriever."
        )
    finite_B = np.isfinite(question_BP).all(axis=1)
    if not finite_B.all():
        raise OrqaError(
            f"The vector of question {int(np.argmin(finite_B))} of the batch holds NaN or infinity:"
            " training has diverged (try a lower learning rate) or the weights are damaged."
        )


def _host_search(
    embeddings_NP: npt.NDArray[np.float32],
    longest: float,
    question_BP: npt.NDArray[np.float32],
    k: int,
) -> Found:
    batch, projection_size = question_BP.shape
    # BLAS adds in an order that depends on a vector's place, so equal vectors can differ in their
    # last bits. It serves to pick candidates, whose scores are then summed in one fixed order. Two
    # sums of P products differ by P * eps * |q||e| at most (Higham 2002, eq. 3.5), and the limits
    # below are rounded too.
    rounding_B = (
        (projection_size + 2)
        * np.finfo(np.float32).eps
        * longest
        * np.linalg.norm(question_BP, axis=1)
    ).tolist()
    best_ids = [np.empty(0, np.int32)] * batch
    best_scores = [np.empty(0, np.float32)] * batch
    tile = max(1, SCORES_AT_ONCE // max(1, batch))
    for start in range(0, len(embeddings_NP), tile):
        tile_TP = embeddings_NP[start : start + tile]
        rough_BT = question_BP @ tile_TP.T
        for row, rough_T in enumerate(rough_BT):
            floor = -math.inf
            if len(best_scores[row]) == k:
                floor = float(best_scores[row][-1]) - rounding_B[row]
            if len(rough_T) > k:
                floor = max(floor, float(np.partition(rough_T, -k)[-k]) - 2 * rounding_B[row])
            near = np.flatnonzero(rough_T >= floor)
            scores = np.einsum("tp,p->t", tile_TP.take(near, axis=0), question_BP[row])
            # Earlier blocks come first in the concatenation and stand in order among equals, so
            # positions break ties just as ids do.
            ids = np.concatenate([best_ids[row], (start + near).astype(np.int32)])
            scores = np.concatenate([best_scores[row], scores])
            order, best_scores[row] = top_k(scores, min(k, len(scores)))
            best_ids[row] = ids[order]
    return (
        np.array(best_ids, np.int32).reshape(batch, k),
        np.array(best_scores, np.float32).reshape(batch, k),
    )


def shard_embeddings(mesh: Mesh, embeddings_NP: npt.NDArray[np.float32]) -> jax.Array:
    """The vectors on the devices of `mesh`: rows over its first axis, padded to equal shards.

    Each process reads only the rows of its own devices, so a memory map is never loaded whole.
    """
    count, projection_size = embeddings_NP.shape
    axis = mesh.axis_names[0]
    shards = mesh.shape[axis]
    per_shard = max(1, -(-count // shards))

    def rows(index: tuple[slice, ...] | None) -> npt.NDArray[np.float32]:
        assert index is not None  # it is for arrays without axes
        start, stop, _ = index[0].indices(per_shard * shards)
        part = embeddings_NP[start:stop]
        return np.pad(part, [(0, stop - start - len(part)), (0, 0)])

    return jax.make_array_from_callback(
        (per_shard * shards, projection_size),
        NamedSharding(mesh, PartitionSpec(axis)),
        rows,
    )


@functools.partial(jax.jit, static_argnames=("mesh", "k", "count"))
def device_search(
    mesh: Mesh, embeddings_NP: jax.Array, question_BP: jax.Array, *, k: int, count: int
) -> tuple[jax.Array, jax.Array]:
    """Exact search as one program over the devices of `mesh`: a top-k in each shard, then merged.

    Args:
      mesh: has `AxisType.Auto` axes.
      embeddings_NP: from `shard_embeddings`.
      question_BP: float32, the same on every device.
      k: blocks wanted, at most `count`.
      count: blocks of the corpus; rows from there on are padding.

    Returns:
      ids, int32 `[B, k]`, and scores, float32 `[B, k]`, best first, ties by id.
    """
    axis = mesh.axis_names[0]

    def search_shard(shard_MP: jax.Array, question_BP: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores_BM = jnp.matmul(
            question_BP,
            shard_MP.T,
            precision=jax.lax.Precision.HIGHEST,  # TPU and GPU would round operands to fewer bits
        )
        first = jax.lax.axis_index(axis) * len(shard_MP)
        padding_M = first + jnp.arange(len(shard_MP)) >= count
        scores_BM = jnp.where(padding_M, -jnp.inf, scores_BM)
        # Of equal scores top_k takes the lower position first, here and in the merge below, where
        # shards stand in order of their blocks: so ties break by id.
        scores_BK, position_BK = jax.lax.top_k(scores_BM, min(k, len(shard_MP)))
        return first + position_BK, scores_BK

    ids_BM, scores_BM = jax.shard_map(
        search_shard,
        mesh=mesh,
        in_specs=(PartitionSpec(axis), PartitionSpec()),
        out_specs=PartitionSpec(None, axis),
    )(embeddings_NP, question_BP)
    scores_BK, position_BK = jax.lax.top_k(scores_BM, k)
    return jnp.take_along_axis(ids_BM, position_BK, axis=1), scores_BK
