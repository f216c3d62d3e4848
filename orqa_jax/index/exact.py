"""Exact maximum inner product search over block vectors, on the host or on accelerators.

The two ways suit different places. On the host, numpy scans the (memory-mapped) vectors tile by
tile; it never calls jax, so a jax host callback may use it. On accelerators the vectors lie sharded
over a mesh (`orqa_jax.index.sharded`). On a CPU the host way is the faster one, so callers pass a
mesh only where `jax.default_backend() != "cpu"`, and not from a callback.

How the host finds the best k of N without sorting anything long:

1. The k-th best score is guessed, a little too low, from the scores of every n-th vector.
2. Threads score tile after tile with BLAS. Scores above the guess are candidates, a few more than
   k. (Once very many have come together they are cut to the best k, which raises the floor.)
3. Candidates are scored again in one fixed order of summation while their tile is in the cache.
4. If the k-th best lies above the guess, nothing was missed. Otherwise that question is searched
   again without a guess.
"""

import collections
import functools
import itertools
import math
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh
from threadpoolctl import ThreadpoolController

from orqa_jax.errors import OrqaError
from orqa_jax.index.compressed import Compressed
from orqa_jax.index.protocol import Found, clip_k
from orqa_jax.index.sharded import device_search, shard_vectors

SCORES_AT_ONCE = 2**20  # of one tile, 4 MiB: what the filter reads is still in the cache
CANDIDATES_AT_ONCE = 2**22  # more are cut to the best k a question, which also raises the floor
_TILE = 2**16  # vectors of a tile at most
_MULTIPLIED_AT_ONCE = 2048  # vectors: copied close together first, BLAS does not wait for memory
_QUESTIONS_AT_ONCE = 256  # rows fit into uint8, which is quick to sort by
_RESCORED_AT_ONCE = 4096
_SAMPLE = 2**14

_ALONE = threading.Lock()

_Keys = npt.NDArray[np.uint64]
"""Scores and ids in one number, so that sorting is fast: the best score first, ties by id."""


class ExactIndex:
    """Scores every block; implements `orqa_jax.index.protocol.Index` for question vectors."""

    def __init__(
        self,
        embeddings_NP: npt.NDArray[np.float32],
        *,
        compressed: Compressed | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        """Search `embeddings_NP` on the host, or on the devices of `mesh` where one is given.

        The host reads nothing yet: the first search reads all vectors once more than later ones.

        Args:
          embeddings_NP: float32 vectors; may be a memory map.
          compressed: the same vectors in fewer bits. These are scanned instead, and results stay
            those of the float32 vectors, of which only candidates are read.
          mesh: the vectors are sharded over its first axis, all other axes hold copies.

        Raises:
          OrqaError: on devices, a vector holds NaN or infinity.
        """
        self._mapped = embeddings_NP.base if compressed is not None else None
        self._embeddings_NP = np.asarray(embeddings_NP)  # a plain view: np.memmap slows indexing
        self._compressed = compressed
        self._mesh = mesh
        if mesh is not None:
            self._sharded_NP = shard_vectors(mesh, self._scanned_NP)

    def __len__(self) -> int:
        return len(self._embeddings_NP)

    def search(self, question_BP: npt.NDArray[np.float32], /, k: int) -> Found:
        """The `k` blocks of highest inner product with each question, ties by id.

        On the host, and wherever the vectors are compressed, scores are sums in one fixed order: so
        equal vectors have equal scores, and a question's result depends neither on the rest of its
        batch nor on tiles, threads or precision. TPUs alone miss some of the best: they find
        a share of `sharded.TPU_RECALL` on average.

        Args:
          question_BP: finite float32 vectors.
          k: clipped to N, with a warning.

        Returns:
          ids, int32 `[B, k]`, and scores, float32 `[B, k]`, best first.

        Raises:
          OrqaError: a question vector is not finite or of another size than the blocks', a block
            vector is not finite, or `k` is less than 1.
        """
        question_BP = np.ascontiguousarray(question_BP, np.float32)
        check_questions(question_BP, self._embeddings_NP.shape[1])
        k = clip_k(k, len(self))
        if self._mesh is not None and self._compressed is None:
            ids_BK, scores_BK = device_search(
                self._mesh, self._sharded_NP, question_BP, k=k, count=len(self)
            )
            return np.asarray(ids_BK), np.asarray(scores_BK)
        search = self._host_search if self._mesh is None else self._compressed_device_search
        # Every thread takes tiles of its own, which leaves none for BLAS. A search takes all cores,
        # and the number of BLAS threads belongs to the process: so one search at a time.
        with _ALONE, _blas().limit(limits=1, user_api="blas"):
            parts = [
                search(question_BP[start : start + _QUESTIONS_AT_ONCE], k)
                for start in range(0, len(question_BP), _QUESTIONS_AT_ONCE)
            ]
        if not parts:
            return np.empty((0, k), np.int32), np.empty((0, k), np.float32)
        return _unpack(np.concatenate(parts))

    @property
    def _scanned_NP(self) -> npt.NDArray[Any]:
        if self._compressed is None:
            return self._embeddings_NP
        return np.asarray(self._compressed.codes_NP)

    @functools.cached_property
    def _longest(self) -> float:
        if self._compressed is not None:
            return self._compressed.longest
        tiles = range(0, len(self), _TILE)
        squared = (
            np.einsum("np,np->n", x, x).max()
            for x in (self._embeddings_NP[start : start + _TILE] for start in tiles)
        )
        longest = math.sqrt(np.max(np.fromiter(squared, np.float64, len(tiles)), initial=0.0))
        if not math.isfinite(longest):
            raise OrqaError(
                "A block vector holds NaN or infinity: encode the blocks again with `orqa index`."
            )
        return longest

    @functools.cached_property
    def _sample_MP(self) -> npt.NDArray[np.float32]:
        step = max(16, len(self) // _SAMPLE)
        # Of what is scanned anyway: reading single vectors of a mapped file brings in far more.
        sample_MP = self._scanned_NP[step // 2 :: step].astype(np.float32)
        return sample_MP if self._compressed is None else sample_MP * self._compressed.scale_P

    def _allowance(self, question_BP: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """How far a scanned score may lie from the sum in fixed order, for each question."""
        # Two sums of P products differ by P * eps * |q||e| at most (Higham 2002, eq. 3.5), and
        # limits and scaled questions are rounded too.
        rounding = (question_BP.shape[1] + 4) * float(np.finfo(np.float32).eps)
        error = 0.0
        if self._compressed is not None:
            error = self._compressed.error
            if self._mesh is not None:
                rounding += 2.0**-8  # devices round the scaled question to bfloat16
        length_B: npt.NDArray[np.float64] = np.linalg.norm(question_BP.astype(np.float64), axis=1)
        return length_B * (rounding * (self._longest + error) + error)

    def _host_search(self, question_BP: npt.NDArray[np.float32], k: int) -> _Keys:
        allowance_B = self._allowance(question_BP)
        guess_B = self._guess(question_BP, k) - 2 * allowance_B
        best = self._scan(question_BP, k, guess_B, allowance_B)
        reached_B = np.array([_worst(keys) if len(keys) == k else -math.inf for keys in best])
        missed = np.flatnonzero(reached_B < guess_B + allowance_B)
        if len(missed):
            no_guess = np.full(len(missed), -math.inf)
            again = self._scan(question_BP[missed], k, no_guess, allowance_B[missed])
            for row, keys in zip(missed, again, strict=True):
                best[row] = keys
        return np.stack(best)

    def _guess(self, question_BP: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float64]:
        """A score that fewer than k blocks reach only by rare chance, for each question."""
        sample_MP = self._sample_MP
        expected = k * len(sample_MP) / len(self)
        rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
        if rank > len(sample_MP):
            return np.full(len(question_BP), -math.inf)

        def kth(rows: slice) -> npt.NDArray[np.float32]:
            return np.partition(question_BP[rows] @ sample_MP.T, -rank, axis=1)[:, -rank]

        parts = _in_threads(kth, len(question_BP))
        return np.concatenate(parts).astype(np.float64)

    def _scan(
        self,
        question_BP: npt.NDArray[np.float32],
        k: int,
        floor_B: npt.NDArray[np.float64],
        allowance_B: npt.NDArray[np.float64],
    ) -> list[_Keys]:
        """The best k of the blocks whose scanned score is at least `floor_B`, for each question."""
        batch = len(question_BP)
        tile = min(_TILE, max(1, SCORES_AT_ONCE // batch))
        scaled_BP = question_BP
        if self._compressed is not None:
            scaled_BP = question_BP * self._compressed.scale_P
        waiting = collections.deque(range(0, len(self), tile))
        found: list[_Candidates] = []
        count, counting = 0, threading.Lock()

        def scan_tiles(_: int) -> None:
            """Takes tile after tile until there are none, or very many candidates."""
            nonlocal count
            scores_BT = np.empty((batch, tile), np.float32)
            decoded_MP = np.empty((min(_MULTIPLIED_AT_ONCE, tile), scaled_BP.shape[1]), np.float32)
            lowest_B = _down(floor_B)
            while count <= CANDIDATES_AT_ONCE:
                try:
                    start = waiting.popleft()
                except IndexError:
                    return
                tile_TP = self._scanned_NP[start : start + tile]
                rough_BT = scores_BT[:, : len(tile_TP)]
                for first in range(0, len(tile_TP), _MULTIPLIED_AT_ONCE):
                    part = slice(first, min(first + _MULTIPLIED_AT_ONCE, len(tile_TP)))
                    decoded_MP[: part.stop - first] = tile_TP[part]
                    np.matmul(scaled_BP, decoded_MP[: part.stop - first].T, out=rough_BT[:, part])
                candidates = self._candidates(question_BP, rough_BT, start, lowest_B)
                found.append(candidates)
                with counting:
                    count += len(candidates.keys)

        while True:
            for _ in _threads().map(scan_tiles, range(_cores())):
                pass
            best = _best(found, batch, k)
            if not waiting:
                return best
            found = [_Candidates(np.full(len(x), row, np.uint8), x) for row, x in enumerate(best)]
            count = 0
            kth_B = np.array([_worst(x) if len(x) == k else -math.inf for x in best])
            floor_B = np.maximum(floor_B, kth_B - allowance_B)

    def _candidates(
        self,
        question_BP: npt.NDArray[np.float32],
        rough_BT: npt.NDArray[np.float32],
        start: int,
        floor_B: npt.NDArray[np.float32],
    ) -> "_Candidates":
        """Those of a tile that reach the floor, scored in fixed order."""
        near = np.flatnonzero(rough_BT >= floor_B[:, None])
        rows = near // rough_BT.shape[1]
        ids = near - rows * rough_BT.shape[1] + start
        scores = np.empty(len(ids), np.float32)
        for first in range(0, len(ids), _RESCORED_AT_ONCE):
            part = slice(first, first + _RESCORED_AT_ONCE)
            scores[part] = _score(
                self._embeddings_NP, ids[part], question_BP.take(rows[part], axis=0)
            )
        self._forget_pages()
        return _Candidates(rows.astype(np.uint8), _pack(scores, ids))

    def _compressed_device_search(self, question_BP: npt.NDArray[np.float32], k: int) -> _Keys:
        """As many blocks by compressed scores as it takes to know that the best k are there."""
        assert self._compressed is not None
        assert self._mesh is not None
        allowance_B = self._allowance(question_BP)
        scaled_BP = question_BP * self._compressed.scale_P
        fetched = min(2 * k, len(self))
        while True:
            ids_BM, rough_BM = device_search(
                self._mesh, self._sharded_NP, scaled_BP, k=fetched, count=len(self)
            )
            ids_BM = np.asarray(ids_BM)
            keys_BK = np.stack(
                [
                    np.sort(_pack(_score(self._embeddings_NP, ids_M, question_P), ids_M))[:k]
                    for ids_M, question_P in zip(ids_BM, question_BP, strict=True)
                ]
            )
            kth_B = _unpack(keys_BK[:, -1])[1]
            # What was not fetched scores at most as the last that was.
            if fetched == len(self) or np.all(kth_B > np.asarray(rough_BM)[:, -1] + allowance_B):
                return keys_BK
            fetched = min(2 * fetched, len(self))

    def _forget_pages(self) -> None:
        """Gives back the pages of the float32 vectors, of which a compressed scan reads few."""
        if isinstance(self._mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


class _Candidates(NamedTuple):
    """Rows of the batch, ascending, and the key of a block that may be among the row's best."""

    rows: npt.NDArray[np.uint8]
    keys: _Keys


def check_questions(question_BP: npt.NDArray[np.float32], projection_size: int) -> None:
    """Raises `OrqaError` unless all vectors are finite and of the blocks' size."""
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


def _score(
    embeddings_NP: npt.NDArray[np.float32],
    ids: npt.NDArray[Any],
    questions: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Inner products, each summed in the same order, whatever else is scored.

    BLAS adds in an order that depends on a vector's place, so equal vectors can differ in their
    last bits.
    """
    vectors_MP = embeddings_NP.take(ids, axis=0)
    return np.einsum("mp,mp->m", vectors_MP, np.broadcast_to(questions, vectors_MP.shape))


def _best(found: list[_Candidates], batch: int, k: int) -> list[_Keys]:
    """The best k keys of each row, in order; fewer where there are fewer candidates."""
    row = np.concatenate([part.rows for part in found])
    order = np.argsort(row, kind="stable")
    keys = np.concatenate([part.keys for part in found])[order]
    bounds = np.searchsorted(row[order], np.arange(batch + 1))

    def sort(rows: slice) -> list[_Keys]:
        return [np.sort(keys[bounds[b] : bounds[b + 1]])[:k] for b in range(rows.start, rows.stop)]

    return [best for part in _in_threads(sort, batch) for best in part]


def _in_threads(work: Callable[[slice], Any], batch: int) -> list[Any]:
    """Calls `work` on slices that make up the rows of a batch, one for each core, in order."""
    parts = min(batch, _cores())
    bounds = [batch * part // parts for part in range(parts + 1)]
    return list(_threads().map(work, itertools.starmap(slice, itertools.pairwise(bounds))))


@functools.cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="search")


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _down(floor_B: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    return np.nextafter(floor_B.astype(np.float32), np.float32(-np.inf))


def _pack(scores: npt.NDArray[np.float32], ids: npt.NDArray[Any]) -> _Keys:
    # Read as integers, positive floats ascend and negative ones descend; adding 0 makes -0.0 equal
    # to 0.0.
    bits = (scores + np.float32(0)).view(np.uint32)
    descending = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))
    return descending.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)


def _unpack(keys: _Keys) -> Found:
    descending = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(descending >> 31, descending, descending ^ np.uint32(0x7FFFFFFF))
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int32), bits.view(np.float32)


def _worst(keys: _Keys) -> float:
    return float(_unpack(keys[-1:])[1][0])
