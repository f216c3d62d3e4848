"""Approximate maximum inner product search on the host, by ScaNN (Guo et al. 2020).

ScaNN partitions the vectors by k-means and scores quantised residuals of the partitions nearest to
a question; the best are scored again from whole vectors. How many partitions ("leaves") and whole
vectors that takes is found when the index is built: the cheapest pair that reaches `RECALL` on a
sample, measured against exact search, for a short and a long beam. The manifest holds what was
measured.

Vectors are indexed in segments, each a ScaNN searcher, so that building needs memory for one
of them only. The wheels are for Linux: an extra, while `orqa_jax.index.exact` needs nothing more.
"""

import dataclasses
import itertools
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orqa_jax.errors import OrqaError
from orqa_jax.index.exact import ExactIndex, check_questions
from orqa_jax.index.manifest import NAME, read_manifest, write_json, write_manifest
from orqa_jax.index.protocol import Found, clip_k
from orqa_jax.storage import replace_folder

missing = ""
try:
    import scann
except Exception as error:  # TensorFlow 2.21 beside it breaks its import in ways of its own
    missing = f"{type(error).__name__}: {error}"

log = logging.getLogger(__name__)

SCHEMA = 1
METRIC = "dot_product"
RECALL = 0.95
BEAMS = (100, 5000)  # sizes for which the leaves are chosen: retrieval, and the early update
SEGMENT = 2_000_000  # vectors of one searcher: what building holds in memory at a time
BFLOAT16_FROM = 4_000_000  # vectors: from here on those scored again are kept in 16 bits
LONGEST_TAIL = 0.1  # of all blocks: appended ones that are searched exactly
_SAMPLE = 128
_RESCORED = (1, 2, 4, 8)  # times the least number of whole vectors, tried one after the other
_WHOLE = 64  # what scoring a whole vector, anywhere in memory, costs in quantised ones
_AGAIN = "build it again with `orqa index --search scann`"


@dataclasses.dataclass(frozen=True)
class Effort:
    """What a search of up to `k` blocks looks at, and what that found of the exact best.

    Attributes:
      k: Blocks wanted.
      leaves: Partitions searched in each segment.
      rescored: Blocks scored again from whole vectors, in each segment.
      recall: Mean share of the exact best `k`, over the sample.
    """

    k: int
    leaves: int
    rescored: int
    recall: float


class ScannIndex:
    """Finds most of the best blocks; implements `orqa_jax.index.protocol.Index` for vectors."""

    def __init__(
        self,
        searchers: Sequence[Any],
        embeddings_NP: npt.NDArray[np.float32],
        covered: int,
        leaves: int,
        efforts: list[Effort],
    ) -> None:
        self._searchers, self._embeddings_NP = searchers, embeddings_NP
        self._covered, self._leaves = covered, leaves
        self.efforts = efforts
        self._tail = ExactIndex(embeddings_NP[covered:]) if covered < len(embeddings_NP) else None
        self._exact = ExactIndex(embeddings_NP)

    def __len__(self) -> int:
        return len(self._embeddings_NP)

    @classmethod
    def build(
        cls,
        embeddings_NP: npt.NDArray[np.float32],
        folder: Path,
        *,
        corpus_fingerprint: str,
        weights_fingerprint: str,
    ) -> "ScannIndex":
        """Indexes the vectors, measures recall, and saves both in `folder` in place of what is
        there; the vectors themselves stay where they are.

        The sample on which recall is measured are vectors of blocks, each a little off: questions
        are not known yet.

        Raises:
          OrqaError: ScaNN is missing, or a vector holds NaN or infinity.
        """
        module = _scann()
        count = len(embeddings_NP)
        bounds = _segments(count)
        segment = bounds[1]
        # Partitions of some sqrt(N)/2 vectors make the two stages about equally long.
        leaves = max(1, min(round(2 * math.sqrt(segment)), segment // 16))
        started = time.perf_counter()
        exact = ExactIndex(embeddings_NP)
        rng = np.random.default_rng(0)
        sample = np.sort(rng.choice(count, min(_SAMPLE, count), replace=False))
        question_BP = embeddings_NP[sample]
        noise_BP = rng.standard_normal(question_BP.shape, dtype=np.float32)
        question_BP = question_BP + 0.5 * question_BP.std() * noise_BP
        beams = sorted({min(k, count) for k in BEAMS})
        # First of all, because it refuses vectors that are not finite.
        truth_BK, _ = exact.search(question_BP, beams[-1])

        partial = folder.with_name(folder.name + ".partial").absolute()
        shutil.rmtree(partial, ignore_errors=True)
        kept = module.ReorderType.BFLOAT16 if count >= BFLOAT16_FROM else module.ReorderType.FLOAT32
        searchers = []
        for number, (start, end) in enumerate(itertools.pairwise(bounds)):
            builder = module.scann_ops_pybind.builder(embeddings_NP[start:end], BEAMS[0], METRIC)
            builder = builder.tree(
                num_leaves=leaves,
                num_leaves_to_search=leaves,
                training_sample_size=min(end - start, 100 * leaves),
            )
            builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
            searchers.append(builder.reorder(_least_rescored(BEAMS[0]), quantize=kept).build())
            (partial / str(number)).mkdir(parents=True)
            searchers[-1].serialize(str(partial / str(number)), relative_path=True)
            spent = time.perf_counter() - started
            left = spent / end * (count - end)
            log.info("%s: %d of %d vectors, %.0f s left", folder, end, count, left)

        index = cls(searchers, embeddings_NP, count, leaves, [])
        index.efforts = [index._least_effort(question_BP, truth_BK[:, :k]) for k in beams]
        write_manifest(
            partial,
            {
                "schema": SCHEMA,
                "corpus_fingerprint": corpus_fingerprint,
                "weights_fingerprint": weights_fingerprint,
                "metric": METRIC,
                "count": count,
                "covered": count,
                "leaves": leaves,
                "rescored_in": "bfloat16" if count >= BFLOAT16_FROM else "float32",
                "efforts": [dataclasses.asdict(effort) for effort in index.efforts],
                "sample": f"{len(sample)} block vectors with noise of half their deviation",
                "seconds": round(time.perf_counter() - started, 1),
            },
        )
        replace_folder(partial, folder)
        for effort in index.efforts:
            log.info(
                "%s: recall@%d is %.3f in %d of %d leaves",
                folder,
                effort.k,
                effort.recall,
                effort.leaves,
                leaves,
            )
        return index

    @classmethod
    def open(
        cls,
        folder: Path,
        embeddings_NP: npt.NDArray[np.float32],
        *,
        corpus_fingerprint: str,
        weights_fingerprint: str,
    ) -> "ScannIndex":
        """The finished index in `folder` over `embeddings_NP`, loaded as it was built.

        Raises:
          OrqaError: ScaNN is missing; no index is there, it is damaged, or it was built from
            another corpus, by other weights or for another metric.
        """
        module = _scann()
        manifest = read_manifest(
            folder,
            "a ScaNN index",
            schema=SCHEMA,
            fingerprints={"corpus": corpus_fingerprint, "weights": weights_fingerprint},
            remedy=_AGAIN,
        )
        if manifest["metric"] != METRIC:
            raise OrqaError(
                f"{folder} holds a ScaNN index for {manifest['metric']}, but scores are {METRIC}: "
                f"{_AGAIN}."
            )
        if manifest["count"] != len(embeddings_NP):
            raise OrqaError(
                f"{folder} holds a ScaNN index of {manifest['count']} vectors, but there are "
                f"{len(embeddings_NP)}: {_AGAIN}."
            )
        try:
            searchers = [
                module.scann_ops_pybind.load_searcher(str(folder.absolute() / str(number)))
                for number in range(len(_segments(manifest["covered"])) - 1)
            ]
        except (OSError, ValueError, RuntimeError) as error:
            raise OrqaError(f"{folder} cannot be read ({error}): {_AGAIN}.") from error
        efforts = [Effort(**effort) for effort in manifest["efforts"]]
        return cls(searchers, embeddings_NP, manifest["covered"], manifest["leaves"], efforts)

    def search(self, question_BP: npt.NDArray[np.float32], /, k: int) -> Found:
        """About the `k` blocks of highest inner product with each question, ties by id.

        Appended blocks are searched exactly. Scores are inner products with the vectors that ScaNN
        keeps to score again, rounded to bfloat16 where there are very many.

        Args:
          question_BP: finite float32 vectors.
          k: clipped to N, with a warning.

        Returns:
          ids, int32 `[B, k]`, and scores, float32 `[B, k]`, best first.

        Raises:
          OrqaError: a question vector is not finite or of another size than the blocks', or `k` is
            less than 1.
        """
        question_BP = np.ascontiguousarray(question_BP, np.float32)
        check_questions(question_BP, self._embeddings_NP.shape[1])
        k = clip_k(k, len(self))
        if not len(question_BP):
            return np.empty((0, k), np.int32), np.empty((0, k), np.float32)
        effort = next((effort for effort in self.efforts if effort.k >= k), self.efforts[-1])
        share = max(1, k / effort.k)  # a beam longer than any that was measured
        leaves = min(self._leaves, math.ceil(share * effort.leaves))
        rescored = math.ceil(share * effort.rescored)
        ids_BK, scores_BK = self._approximate(question_BP, min(k, self._covered), leaves, rescored)
        if self._tail is not None:
            tail_ids_BK, tail_scores_BK = self._tail.search(question_BP, min(k, len(self._tail)))
            ids_BK = np.concatenate([ids_BK, tail_ids_BK + np.int32(self._covered)], axis=1)
            scores_BK = np.concatenate([scores_BK, tail_scores_BK], axis=1)
            ids_BK, scores_BK = _sort(ids_BK, scores_BK, k)
        else:
            ids_BK = _order_ties(ids_BK, scores_BK)
        # Where leaves held fewer than k blocks, the rest is missing: a plain search has them all.
        short = np.flatnonzero(np.isnan(scores_BK).any(axis=1))
        if len(short):
            ids_BK[short], scores_BK[short] = self._exact.search(question_BP[short], k)
        return ids_BK, scores_BK

    def _approximate(
        self, question_BP: npt.NDArray[np.float32], k: int, leaves: int, rescored: int
    ) -> Found:
        """ScaNN's ids and scores; a score is NaN where it found nothing more."""
        parts = []
        for start, searcher in zip(_segments(self._covered), self._searchers, strict=False):
            ids_BK, scores_BK = searcher.search_batched_parallel(
                question_BP,
                final_num_neighbors=min(k, searcher.size()),
                pre_reorder_num_neighbors=min(max(rescored, k), searcher.size()),
                leaves_to_search=leaves,
                batch_size=-(-len(question_BP) // (os.cpu_count() or 1)),
            )
            parts.append((ids_BK.view(np.int32) + np.int32(start), scores_BK))
        if len(parts) == 1:
            return parts[0]
        return _sort(
            np.concatenate([ids_BK for ids_BK, _ in parts], axis=1),
            np.concatenate([scores_BK for _, scores_BK in parts], axis=1),
            k,
        )

    def _least_effort(
        self, question_BP: npt.NDArray[np.float32], truth_BK: npt.NDArray[np.int32]
    ) -> Effort:
        """The cheapest way, of those tried, that finds `RECALL` of the truth; else the best."""
        k = truth_BK.shape[1]
        tried: list[tuple[float, Effort]] = []
        for factor in _RESCORED:
            rescored = min(factor * _least_rescored(k), self._covered)
            leaves = max(1, self._leaves // 256)
            while True:
                ids_BK, scores_BK = self._approximate(question_BP, k, leaves, rescored)
                found = [
                    len(np.intersect1d(ids[~np.isnan(scores)], truth)) / k
                    for ids, scores, truth in zip(ids_BK, scores_BK, truth_BK, strict=True)
                ]
                recall = float(np.mean(found))
                if recall >= RECALL or leaves == self._leaves:
                    break
                leaves = min(self._leaves, math.ceil(1.5 * leaves))
            cost = self._covered * leaves / self._leaves + _WHOLE * rescored * len(self._searchers)
            tried.append((cost, Effort(k, leaves, rescored, round(recall, 4))))
            if rescored == self._covered or leaves == 1:
                break
        reached = [(cost, effort) for cost, effort in tried if effort.recall >= RECALL]
        if reached:
            return min(reached, key=lambda pair: pair[0])[1]
        return max(tried, key=lambda pair: pair[1].recall)[1]


def extend(
    folder: Path,
    *,
    count: int,
    corpus_fingerprint: str,
    weights_fingerprint: str,
    earlier: Mapping[str, int],
) -> None:
    """Makes an index of a corpus that has grown since an index of what it has become.

    The blocks that were appended are searched exactly. Nothing is done where there is no such
    index, or where more than `LONGEST_TAIL` of all blocks were appended.

    Args:
      folder: of the index.
      count: blocks of the corpus now.
      corpus_fingerprint: of the corpus now.
      weights_fingerprint: of the retriever, which has to be the one the index was built from.
      earlier: `BlockStore.earlier`.
    """
    try:
        manifest = read_manifest(
            folder,
            "a ScaNN index",
            schema=SCHEMA,
            fingerprints={"weights": weights_fingerprint},
            remedy=_AGAIN,
        )
    except OrqaError:
        return
    appended = count - manifest["covered"]
    if manifest["corpus_fingerprint"] in earlier and appended <= LONGEST_TAIL * count:
        grown = {"count": count, "corpus_fingerprint": corpus_fingerprint}
        write_json(folder / NAME, manifest | grown)


def _segments(count: int) -> list[int]:
    """Bounds of the segments of `count` vectors, all of about the same length."""
    segments = max(1, -(-count // SEGMENT))
    return [count * number // segments for number in range(segments + 1)]


def _sort(ids_BM: npt.NDArray[np.int32], scores_BM: npt.NDArray[np.float32], k: int) -> Found:
    """The best `k` in order, ties by id; a score of NaN comes last."""
    order_BM = np.argsort(-scores_BM, axis=1)
    scores_BM = np.take_along_axis(scores_BM, order_BM, axis=1)
    ids_BM = _order_ties(np.take_along_axis(ids_BM, order_BM, axis=1), scores_BM)
    return ids_BM[:, :k], scores_BM[:, :k]


def _order_ties(
    ids_BM: npt.NDArray[np.int32], scores_BM: npt.NDArray[np.float32]
) -> npt.NDArray[np.int32]:
    """Ids of sorted scores, ascending where scores are equal; only those few are sorted."""
    same_BM = np.zeros((len(scores_BM), scores_BM.shape[1] + 1), bool)
    np.equal(scores_BM[:, 1:], scores_BM[:, :-1], out=same_BM[:, 1:-1])
    tied = np.flatnonzero(same_BM[:, :-1] | same_BM[:, 1:])
    if not len(tied):
        return ids_BM
    ids = ids_BM.ravel().copy()
    run = np.cumsum(~same_BM[:, :-1].ravel()[tied])
    ids[tied] = ids[tied][np.lexsort((ids[tied], run))]
    return ids.reshape(ids_BM.shape)


def _least_rescored(k: int) -> int:
    """Blocks scored again: the quantised order is rough, which matters less in a long beam."""
    return math.ceil(k + 30 * math.sqrt(k))


def _scann() -> Any:
    if missing:
        raise OrqaError(
            f"ScaNN cannot be used here ({missing}): install it with `pip install orqa_jax[scann]`"
            " (Linux only, without TensorFlow 2.21 or later), or search exactly, as is the default."
        )
    return scann
