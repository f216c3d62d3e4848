"""Approximate maximum inner product search on the host, by ScaNN (Guo et al. 2020).

ScaNN partitions the vectors by k-means and scores quantised residuals of the partitions nearest to
a question; the best are scored again from whole vectors. How many partitions ("leaves") that takes
is found when the index is built: the fewest that reach `RECALL` on a sample, measured against exact
search, for a short and a long beam. The manifest holds what was measured.

The wheels are for Linux only, so the package is an extra; `orqa_jax.index.exact` needs nothing.
"""

import dataclasses
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orqa_jax.errors import OrqaError
from orqa_jax.index.exact import ExactIndex, check_questions
from orqa_jax.index.manifest import NAME, read_manifest, write_json
from orqa_jax.index.protocol import Found, clip_k

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
BFLOAT16_FROM = 4_000_000  # vectors: from here on those scored again are kept in 16 bits
LONGEST_TAIL = 0.1  # of all blocks: appended ones that are searched exactly
_SAMPLE = 128
_AGAIN = "build it again with `orqa index --search scann`"


@dataclasses.dataclass(frozen=True)
class Effort:
    """What a search of up to `k` blocks looks at, and what that found of the exact best.

    Attributes:
      k: Blocks wanted.
      leaves: Partitions searched.
      rescored: Blocks scored again from whole vectors.
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
        searcher: Any,
        embeddings_NP: npt.NDArray[np.float32],
        covered: int,
        leaves: int,
        efforts: list[Effort],
    ) -> None:
        self._searcher, self._embeddings_NP = searcher, embeddings_NP
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
        # Partitions of some sqrt(N)/2 vectors make the two stages about equally long.
        leaves = max(1, min(round(2 * math.sqrt(count)), count // 16))
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

        builder = module.scann_ops_pybind.builder(embeddings_NP, BEAMS[0], METRIC)
        builder = builder.tree(
            num_leaves=leaves,
            num_leaves_to_search=leaves,
            training_sample_size=min(count, 100 * leaves),
        )
        builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
        kept = module.ReorderType.BFLOAT16 if count >= BFLOAT16_FROM else module.ReorderType.FLOAT32
        searcher = builder.reorder(_rescored(BEAMS[0]), quantize=kept).build()
        log.info("%s: %d leaves in %.0f s", folder, leaves, time.perf_counter() - started)

        index = cls(searcher, embeddings_NP, count, leaves, [])
        index.efforts = [index._least_effort(question_BP, truth_BK[:, :k]) for k in beams]
        partial = folder.with_name(folder.name + ".partial").absolute()
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        searcher.serialize(str(partial), relative_path=True)
        write_json(
            partial / NAME,
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
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
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
            searcher = module.scann_ops_pybind.load_searcher(str(folder.absolute()))
        except (OSError, ValueError, RuntimeError) as error:
            raise OrqaError(f"{folder} cannot be read ({error}): {_AGAIN}.") from error
        efforts = [Effort(**effort) for effort in manifest["efforts"]]
        return cls(searcher, embeddings_NP, manifest["covered"], manifest["leaves"], efforts)

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
        ids_BK, scores_BK = self._approximate(question_BP, min(k, self._covered), leaves)
        if self._tail is not None:
            tail_ids_BK, tail_scores_BK = self._tail.search(question_BP, min(k, len(self._tail)))
            ids_BK = np.concatenate([ids_BK, tail_ids_BK + np.int32(self._covered)], axis=1)
            scores_BK = np.concatenate([scores_BK, tail_scores_BK], axis=1)
        if self._tail is not None or np.any(scores_BK[:, 1:] == scores_BK[:, :-1]):
            order_BK = np.lexsort((ids_BK, -scores_BK), axis=1)[:, :k]
            ids_BK = np.take_along_axis(ids_BK, order_BK, axis=1)
            scores_BK = np.take_along_axis(scores_BK, order_BK, axis=1)
        # Where leaves held fewer than k blocks, the rest is missing: a plain search has them all.
        short = np.flatnonzero(np.isnan(scores_BK).any(axis=1))
        if len(short):
            ids_BK[short], scores_BK[short] = self._exact.search(question_BP[short], k)
        return ids_BK, scores_BK

    def _approximate(self, question_BP: npt.NDArray[np.float32], k: int, leaves: int) -> Found:
        """ScaNN's ids and scores; a score is NaN where it found nothing more."""
        ids_BK, scores_BK = self._searcher.search_batched_parallel(
            question_BP,
            final_num_neighbors=k,
            pre_reorder_num_neighbors=min(_rescored(k), self._covered),
            leaves_to_search=leaves,
            batch_size=-(-len(question_BP) // (os.cpu_count() or 1)),
        )
        return ids_BK.view(np.int32), scores_BK

    def _least_effort(
        self, question_BP: npt.NDArray[np.float32], truth_BK: npt.NDArray[np.int32]
    ) -> Effort:
        """The fewest leaves, to a factor of 1.5, in which `RECALL` of the truth is found."""
        k = truth_BK.shape[1]
        leaves = max(1, self._leaves // 256)
        while True:
            ids_BK, scores_BK = self._approximate(question_BP, k, leaves)
            found = [
                len(np.intersect1d(ids[~np.isnan(scores)], truth)) / k
                for ids, scores, truth in zip(ids_BK, scores_BK, truth_BK, strict=True)
            ]
            recall = float(np.mean(found))
            if recall >= RECALL or leaves == self._leaves:
                return Effort(k, leaves, min(_rescored(k), self._covered), round(recall, 4))
            leaves = min(self._leaves, math.ceil(1.5 * leaves))


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


def _rescored(k: int) -> int:
    """Blocks scored again: the quantised order is rough, which matters less in a long beam."""
    return math.ceil(k + 30 * math.sqrt(k))


def _scann() -> Any:
    if missing:
        raise OrqaError(
            f"ScaNN cannot be used here ({missing}): install it with `pip install orqa_jax[scann]`"
            " (Linux only, without TensorFlow 2.21 or later), or search exactly, as is the default."
        )
    return scann
