"""A run, opened for questions: what answers, what retrieves, and how sure its answers are.

Everything here may take long and runs on a thread of its own.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orqa_jax.errors import OrqaError
from orqa_jax.eval.calibration import Calibration
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.dense import Search
from orqa_jax.index.hybrid import FusedRetriever
from orqa_jax.index.protocol import Index
from orqa_jax.predict import (
    Answer,
    Answerer,
    Candidate,
    DenseRetriever,
    HybridRetriever,
    chosen_system,
    load_answerer,
)
from orqa_jax.report.files import read_calibration
from orqa_jax.serve.config import CANDIDATES, RETRIEVED

RETRIEVERS = ("bm25", "dense", "hybrid")
# What a run consists of, to see whether it has changed.
_PARTS = ("*.json", "*/manifest.json", "*/*_weight.json", "*/model/model.json")

RunState = frozenset[tuple[str, int, int, int]]


@dataclasses.dataclass(frozen=True)
class Engine:
    """Answers and retrieves for one state of a run.

    Attributes:
      run: Its folder, links followed.
      system: Of ``orqa_jax.predict.ALL_SYSTEMS``.
      answerer: Compiled for batches of the size it was opened for.
      retrievers: By name, of ``RETRIEVERS`` those that the run has.
      calibration: None where the run has none for this system.
    """

    run: Path
    system: str
    answerer: Answerer
    retrievers: Mapping[str, Index[Sequence[str]]]
    calibration: Calibration | None

    def answer(self, questions: Sequence[str]) -> list[dict[str, Any]]:
        """The answers, ready for JSON."""
        answers = self.answerer.answer(questions, candidates=CANDIDATES, retrieve=RETRIEVED)
        return [self._answer(answer) for answer in answers]

    def retrieve(self, questions: Sequence[str], k: int) -> list[dict[str, Any]]:
        """The ``k`` best blocks of each retriever for each question, ready for JSON."""
        k = min(k, len(self.answerer.store))
        found = {
            name: retriever.search(questions, k) for name, retriever in self.retrievers.items()
        }
        return [
            {
                "question": question,
                "retrieved": {
                    name: [
                        self._block(int(block), float(score))
                        for block, score in zip(ids_BK[row], scores_BK[row], strict=True)
                    ]
                    for name, (ids_BK, scores_BK) in found.items()
                },
            }
            for row, question in enumerate(questions)
        ]

    def about(self) -> dict[str, Any]:
        """What is served, ready for JSON."""
        store, calibration = self.answerer.store, self.calibration
        threshold = calibration.threshold if calibration else None
        return {
            "run": self.run.name,
            "system": self.system,
            "retrievers": list(self.retrievers),
            "blocks": len(store),
            "blocks_read": self.answerer.reader_beam,
            "corpus_fingerprint": store.fingerprint,
            "weights_fingerprint": self.answerer.weights_fingerprint,
            "calibrated": calibration is not None,
            "abstains_below": threshold if threshold is None or threshold < 1 else 1.0,
        }

    def _answer(self, answer: Answer) -> dict[str, Any]:
        best = answer.candidates[0] if answer.candidates else None
        probability = abstain = None
        if self.calibration is not None:
            # Where nothing can be an answer, there is nothing to give.
            probability, abstain = 0.0, True
            if best is not None:
                confidence = _confidence(best)
                probability = self.calibration.probability(confidence)
                abstain = self.calibration.abstains(confidence)
        return {
            "question": answer.question,
            "answer": best.answer if best else None,
            "probability": probability,
            "abstain": abstain,
            "candidates": [_candidate(candidate) for candidate in answer.candidates],
            "weights_fingerprint": self.answerer.weights_fingerprint,
        }

    def _block(self, block: int, score: float) -> dict[str, Any]:
        store = self.answerer.store
        return {
            "block": block,
            "title": store.title(block),
            "document_id": store.document_id(block),
            "block_start": store.document_start(block),
            "block_text": store.text(block),
            "score": score,
        }


def open_engine(run: Path, *, system: str, search: Search, max_batch: int) -> Engine:
    """Opens a run, compiles all that batches of up to ``max_batch`` questions need, and tries it.

    Args:
      run: Run folder, or a link to one.
      system: "" for the one that `orqa fit` chose.
      search: As for `load_answerer`.
      max_batch: Questions.

    Raises:
      OrqaError: Something is missing or broken, or the model answers with what are no numbers.
    """
    run = run.resolve()
    system = system or chosen_system(run)
    answerer = load_answerer(run, system=system, search=search)
    retrievers = _open_retrievers(run, answerer, system, search)
    calibration = read_calibration(
        run, system=system, weights_fingerprint=answerer.weights_fingerprint
    )
    dense = retrievers.get("dense")
    if isinstance(dense, DenseRetriever):
        dense.warm_up(max_batch)
    answerer.reader.warm_up()
    engine = Engine(run, system, answerer, retrievers, calibration)
    _try_it(engine)
    return engine


def run_state(run: Path) -> RunState:
    """What identifies the files that a run consists of; changes when any is replaced."""
    run = run.resolve()
    found = set()
    for pattern in _PARTS:
        for path in run.glob(pattern):
            try:
                status = path.stat()
            except OSError:  # replaced at this very moment
                continue
            found.add((str(path), status.st_ino, status.st_mtime_ns, status.st_size))
    return frozenset(found)


def _open_retrievers(
    run: Path, answerer: Answerer, system: str, search: Search
) -> dict[str, Index[Sequence[str]]]:
    """Those of ``RETRIEVERS`` that the run has; the system's own is among them."""
    own = answerer.retriever
    found: dict[str, Index[Sequence[str]]] = {}
    if isinstance(own, BM25Index):
        found["bm25"] = own
    elif (run / "bm25" / "manifest.json").exists():
        found["bm25"] = BM25Index.open(run / "bm25", corpus_fingerprint=answerer.store.fingerprint)
    dense: Index[Sequence[str]] | None = None
    if isinstance(own, DenseRetriever):
        dense = own
    elif isinstance(own, HybridRetriever):
        dense = own.dense
    elif isinstance(own, FusedRetriever):
        dense = own.retrievers[0]
    elif (run / "index" / "manifest.json").exists():
        dense = load_answerer(run, system="orqa", search=search).retriever
    if dense is not None:
        found["dense"] = dense
    if isinstance(own, FusedRetriever) or (isinstance(own, HybridRetriever) and own.dense):
        found["hybrid"] = own
    elif len(found) == 2:
        found["hybrid"] = FusedRetriever([found["dense"], found["bm25"]], count=len(answerer.store))
    return found


def _try_it(engine: Engine) -> None:
    """Asks for the first block by its title; the answer may be wrong, but has to be one.

    Raises:
      OrqaError: It is none.
    """
    store = engine.answerer.store
    question = store.title(0).strip() or "?"
    [answer] = engine.answer([question])
    [retrieved] = engine.retrieve([question], RETRIEVED)
    scores = [candidate["score"] for candidate in answer["candidates"]]
    scores += [block["score"] for found in retrieved["retrieved"].values() for block in found]
    if not answer["candidates"] or not all(map(math.isfinite, scores)):
        raise OrqaError(
            f"The model in {engine.run} gives no answer, or one without a score, to "
            f'"{question[:80]}", the title of its first block; train it again.'
        )


def _candidate(candidate: Candidate) -> dict[str, Any]:
    start, end = candidate.sentence
    return dataclasses.asdict(candidate) | {
        "sentence_start": candidate.block_start + start,
        "sentence_end": candidate.block_start + end,
        "score": candidate.score,
    }


def _confidence(candidate: Candidate) -> float:
    """As `orqa_jax.eval.judge.confidence_of` reads it from a prediction."""
    return candidate.score if candidate.probability is None else candidate.probability
