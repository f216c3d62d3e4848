"""Questions in, answers with their evidence out."""

import dataclasses
import functools
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.evaluate import format_table
from orqa_jax.eval.scores import exact_match
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.index.dense import Search, open_search
from orqa_jax.index.embeddings import open_embeddings
from orqa_jax.index.hybrid import FusedRetriever, HybridIndex
from orqa_jax.index.manifest import write_json
from orqa_jax.index.protocol import Index
from orqa_jax.locks import hold
from orqa_jax.models.reader import SpanReader, reader_config_from_dict
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.report.files import about_path, evaluate_file
from orqa_jax.text.normalize import normalize_answer
from orqa_jax.text.sentences import split_sentences
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import finetune, ict
from orqa_jax.train.checkpoint import describe_model, load_model
from orqa_jax.train.inputs import question_inputs
from orqa_jax.train.mesh import accelerator_mesh
from orqa_jax.train.retrieve import BeamSizes, reader_inputs
from orqa_jax.train.sparse import sparse_weight
from orqa_jax.train.state import Params

# Sequences are padded to a multiple of this, so that few shapes are compiled.
_LENGTH_STEP = 32
# Sequences read together at most.
_ROWS = 8
# Questions answered together when a file of them is read.
_BATCH = 32
_SECONDS_BETWEEN_LOG_LINES = 10
# The first of the dev questions choose among the weights: one number needs no more.
_TUNING_QUESTIONS = 200
ALL_SYSTEMS = ("orqa", "zero_shot", "bm25", "hybrid", "trained_bm25", "trained_hybrid")
_TRAINED_EVIDENCE = {"trained_bm25": "bm25", "trained_hybrid": "hybrid"}
# Tried for retrieval scores that the reader was not trained beside: BM25's have some twenty times
# the reader's scale, and of fused ranks the first and the third differ by a thousandth.
WEIGHTS = {
    "bm25": (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    "hybrid": (0.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0),
}
_UNTUNED = {"bm25": 1.0, "hybrid": 3000.0}

# What `orqa fit` found to answer best, in a run folder.
CHOICE_NAME = "fit.json"

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One span that may answer the question.

    Attributes:
      answer: Exactly the characters of the document.
      block: Number of the block it stands in.
      title: Title of the document.
      document_id: Id of the document.
      start: First character of the answer in the document's text.
      end: One past its last character.
      block_start: First character of the block in the document's text.
      block_text: Text of the block.
      retrieval_score: Of the block.
      reader_score: Of the span; the total of both ranks the candidates.
      probability: Of this span among all spans of all blocks that were read (Lee et al. 2019,
        section 4): how sure the model is, not yet calibrated. None where a system has no such
        distribution.
    """

    answer: str
    block: int
    title: str
    document_id: str
    start: int
    end: int
    block_start: int
    block_text: str
    retrieval_score: float
    reader_score: float
    probability: float | None

    @property
    def score(self) -> float:
        return self.retrieval_score + self.reader_score

    @property
    def sentence(self) -> tuple[int, int]:
        """Where the sentences that the answer touches begin and end in the text of the block."""
        start, end = self.start - self.block_start, self.end - self.block_start
        spans = split_sentences(self.block_text)
        touched = [span for span in spans if span[0] < end and span[1] > start]
        return touched[0][0], touched[-1][1]


@dataclasses.dataclass(frozen=True)
class Answer:
    """The best candidates for a question, best first, and the blocks that were retrieved.

    ``candidates`` is empty only where no retrieved block holds a possible span.
    """

    question: str
    candidates: tuple[Candidate, ...]
    retrieved: tuple[int, ...]
    retrieval_scores: tuple[float, ...]

    def to_dict(self, identifier: str) -> dict[str, Any]:
        """One line of a predictions file."""
        best = self.candidates[0] if self.candidates else None
        return {
            "id": identifier,
            "question": self.question,
            "answer": best.answer if best else "",
            "candidates": [dataclasses.asdict(candidate) for candidate in self.candidates],
            "retrieved": list(self.retrieved),
            "retrieval_scores": [round(score, 5) for score in self.retrieval_scores],
        }


class System(Protocol):
    """Whatever answers questions from a corpus: `Answerer`, or one of the baselines."""

    @property
    def store(self) -> BlockStore: ...

    @property
    def reader_beam(self) -> int | None:
        """How many of the retrieved blocks are read; None where that differs between questions."""
        ...

    def answer(self, questions: Sequence[str], /) -> list[Answer]: ...


class DenseRetriever:
    """Retrieval by the question tower and the block embeddings."""

    def __init__(
        self,
        model: DualEncoder,
        params: Params,
        index: Index[np.ndarray],
        tokenizer: WordPiece,
        question_length: int,
    ) -> None:
        self._params, self._index, self._tokenizer = params, index, tokenizer
        self._question_length = question_length
        self._encode = jax.jit(functools.partial(model.apply, method="encode_questions"))

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """ids [B, k] and scores [B, k], best first."""
        return self._index.search(self.encode(questions), k)

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """question_BP."""
        ids = [encoded.ids for encoded in self._tokenizer.encode(questions)]
        longest = max((len(x) for x in ids), default=0) + 2
        length = min(self._question_length, -(-longest // _LENGTH_STEP) * _LENGTH_STEP)
        rows = _next_power_of_two(len(ids))
        batch = question_inputs(self._tokenizer, ids + [ids[0]] * (rows - len(ids)), length)
        vectors = self._encode({"params": self._params}, batch["token_ids"], batch["mask"])
        return np.asarray(vectors)[: len(ids)]

    def warm_up(self, batch_size: int) -> None:
        """Compiles every shape that up to this many questions together can have."""
        for rows in _powers_of_two(batch_size):
            for length in _lengths(self._question_length):
                tokens_BL = np.zeros((rows, length), np.int32)
                self._encode({"params": self._params}, tokens_BL, tokens_BL == 0)


class HybridRetriever:
    """Retrieval as it was trained with BM25 in the loop, alone or beside the question tower."""

    def __init__(self, index: HybridIndex, weight: float, dense: DenseRetriever | None) -> None:
        self._index, self._weight, self.dense = index, weight, dense

    def search(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """ids [B, k] and scores [B, k], best first."""
        weight_B1 = np.full((len(questions), 1), self._weight, np.float32)
        parts = [weight_B1] if self.dense is None else [self.dense.encode(questions), weight_B1]
        query_BX = np.concatenate(parts, axis=1)
        ids_BK, blocks_BKX = self._index.search(questions, query_BX, k)
        return ids_BK, np.einsum("bx,bkx->bk", query_BX, blocks_BKX)


class Reader:
    """The span reader of a fine-tuned model, on the blocks of one store."""

    def __init__(
        self,
        model: SpanReader,
        params: Params,
        store: BlockStore,
        tokenizer: WordPiece,
        sizes: BeamSizes,
    ) -> None:
        self._params, self._store, self._tokenizer, self.sizes = params, store, tokenizer, sizes
        self._logits = jax.jit(model.apply)
        # No more than one question has, so that a question asked alone does not pay for padding.
        self._rows = min(_ROWS, sizes.read)

    def spans(self, questions: Sequence[str], ids_BK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores every candidate span of each beam.

        Returns:
          float32 [B, K, L, W], -inf where there is no candidate, and the wordpieces read [B, K, L].
        """
        ids = [encoded.ids for encoded in self._tokenizer.encode(questions)]
        beam = reader_inputs(self._store, self._tokenizer, ids, ids_BK, self.sizes)
        batch_size, read, length = beam["token_ids"].shape
        flat = {name: x.reshape(batch_size * read, *x.shape[2:]) for name, x in beam.items()}
        width = self.sizes.span_width
        logits = np.full((batch_size * read, length, width), -np.inf, np.float32)
        used_M = flat["mask"].sum(axis=1)
        order = np.argsort(used_M, kind="stable")
        # Sequences of like length go together, so that short ones do not pay for padding.
        for start in range(0, len(order), self._rows):
            chunk = order[start : start + self._rows]
            padded = np.resize(chunk, self._rows)
            bucket = min(length, -(-int(used_M[chunk].max()) // _LENGTH_STEP) * _LENGTH_STEP)
            part = [flat[name][padded, :bucket] for name in ("token_ids", "mask", "segment_ids")]
            scored = np.asarray(self._logits({"params": self._params}, *part))
            logits[chunk, :bucket] = scored[: len(chunk)]
        logits = np.where(flat["span_mask"], logits, -np.inf)
        return logits.reshape(batch_size, read, length, width), beam["token_ids"]

    def warm_up(self) -> None:
        """Compiles every shape that sequences can have."""
        for length in _lengths(self.sizes.reader_length):
            tokens_BL = np.zeros((self._rows, length), np.int32)
            self._logits({"params": self._params}, tokens_BL, tokens_BL == 0, tokens_BL)


@dataclasses.dataclass(frozen=True)
class ReadBeam:
    """What is known of a batch of questions before an answer is chosen.

    Attributes:
      ids_BC: Retrieved blocks, best first.
      scores_BC: Their retrieval scores.
      token_ids_BKL: What the reader read.
      logits_BKLW: Reader scores of the spans, -inf where there is no candidate.
    """

    ids_BC: np.ndarray
    scores_BC: np.ndarray
    token_ids_BKL: np.ndarray
    logits_BKLW: np.ndarray


class Answerer:
    """Answers questions from a corpus: retrieve, read, and point to the evidence.

    Args:
      store: The blocks.
      retriever: Finds blocks for raw questions.
      reader: The span reader.
      retrieval_weight: Factor of the retrieval score in a candidate's total score: 1 for the dense
        retriever that the reader was trained with.
      weights_fingerprint: Of the model that the reader is part of; "" where nobody asks for it.
    """

    def __init__(
        self,
        store: BlockStore,
        retriever: Index[Sequence[str]],
        reader: Reader,
        *,
        tokenizer: WordPiece,
        retrieval_weight: float = 1.0,
        weights_fingerprint: str = "",
    ) -> None:
        self.store, self.retriever, self.reader = store, retriever, reader
        self.weights_fingerprint = weights_fingerprint
        self._tokenizer, self.retrieval_weight = tokenizer, retrieval_weight

    @property
    def reader_beam(self) -> int:
        """Blocks that are read for each question, K."""
        return self.reader.sizes.read

    def answer(
        self, questions: Sequence[str], *, candidates: int = 5, retrieve: int = 100
    ) -> list[Answer]:
        """Answers a batch of questions.

        Args:
          questions: Any number of questions.
          candidates: Distinct answers to return for each.
          retrieve: Blocks to retrieve; the first ``reader_beam`` of them are read.

        Raises:
          OrqaError: A question is empty.
        """
        if not questions:
            return []
        beam = self.read(questions, retrieve)
        return [
            Answer(
                question,
                self._candidates(beam, row, self.retrieval_weight, candidates),
                tuple(int(i) for i in beam.ids_BC[row]),
                tuple(float(s) for s in beam.scores_BC[row]),
            )
            for row, question in enumerate(questions)
        ]

    def read(self, questions: Sequence[str], retrieve: int) -> ReadBeam:
        """Retrieves and reads, see ``answer``."""
        for place, question in enumerate(questions, 1):
            if not question.strip():
                raise OrqaError(f"Question {place} of the batch is empty; ask something.")
        retrieve = min(max(retrieve, self.reader.sizes.read), len(self.store))
        ids_BC, scores_BC = self.retriever.search(questions, retrieve)
        logits_BKLW, token_ids_BKL = self.reader.spans(
            questions, ids_BC[:, : self.reader.sizes.read]
        )
        return ReadBeam(ids_BC, scores_BC, token_ids_BKL, logits_BKLW)

    def best_answers(self, beam: ReadBeam, weight: float) -> list[str]:
        """The best answer string of each question under a retrieval weight; "" where none is."""
        chosen = [self._candidates(beam, row, weight, 1) for row in range(len(beam.ids_BC))]
        return [found[0].answer if found else "" for found in chosen]

    def _candidates(
        self, beam: ReadBeam, row: int, weight: float, count: int
    ) -> tuple[Candidate, ...]:
        logits_KLW, token_ids_KL = beam.logits_BKLW[row], beam.token_ids_BKL[row]
        scores_K = weight * beam.scores_BC[row, : len(logits_KLW)]
        total = (logits_KLW + scores_K[:, None, None]).reshape(-1)
        order = np.argsort(-total, kind="stable")[: int(np.isfinite(total).sum())]
        log_sum = np.logaddexp.reduce(total[order], dtype=np.float64) if len(order) else 0.0
        chosen: list[Candidate] = []
        seen: set[str] = set()
        encodings: dict[int, Any] = {}
        for flat in order:
            k, start, extra = (int(x) for x in np.unravel_index(flat, logits_KLW.shape))
            block = int(beam.ids_BC[row, k])
            if block not in encodings:
                encoded = self._tokenizer.encode([self.store.text(block)])[0]
                # A block cut within a word may be other wordpieces on its own, at other places.
                same = np.array_equal(encoded.ids, self.store.block_tokens(block))
                encodings[block] = encoded if same else None
            if (encoded := encodings[block]) is None:
                continue
            # The block stands between the question's [SEP] and the last one.
            first = int(np.flatnonzero(token_ids_KL[k] == self._tokenizer.sep_id)[0]) + 1
            begin = int(encoded.starts[start - first])
            end = int(encoded.ends[start - first + extra])
            text = self.store.text(block)
            key = normalize_answer(text[begin:end])
            if key in seen:
                continue
            seen.add(key)
            block_start = self.store.document_start(block)
            chosen.append(
                Candidate(
                    answer=text[begin:end],
                    block=block,
                    title=self.store.title(block),
                    document_id=self.store.document_id(block),
                    start=block_start + begin,
                    end=block_start + end,
                    block_start=block_start,
                    block_text=text,
                    retrieval_score=float(scores_K[k]),
                    reader_score=float(logits_KLW[k, start, extra]),
                    probability=float(np.exp(total[flat] - log_sum)),
                )
            )
            if len(chosen) == count:
                break
        return tuple(chosen)


def chosen_system(run: Path) -> str:
    """The system that `orqa fit` found best for this run; "orqa" for runs it did not make."""
    path = run / CHOICE_NAME
    return str(json.loads(path.read_text(encoding="utf-8"))["system"]) if path.exists() else "orqa"


def load_answerer(run: Path, *, system: str = "orqa", search: Search = "exact") -> Answerer:
    """Opens what a run folder holds: ``corpus``, ``ict``, ``index``, ``bm25`` and ``finetune``.

    Args:
      run: The folder of the run.
      system: "orqa" is the fine-tuned whole; "zero_shot" is what fine-tuning started from, the
        question tower as ICT left it and a reader that has learned nothing; "bm25" retrieves by
        BM25 and reads with the fine-tuned reader; "hybrid" fuses the ranks of "orqa" and "bm25".
        "trained_bm25" and "trained_hybrid" are what fine-tuning with that ``evidence`` left in
        ``finetune_bm25`` and ``finetune_hybrid``.
      search: How block vectors are searched; see ``orqa_jax.index.dense``.

    Raises:
      OrqaError: A part is missing, or parts do not belong together.
    """
    if system not in ALL_SYSTEMS:
        known = ", ".join(f'"{name}"' for name in ALL_SYSTEMS)
        raise OrqaError(f'system is "{system}"; it can be {known}.')
    store = BlockStore(run / "corpus")
    evidence = _TRAINED_EVIDENCE.get(system, "dense")
    folder = run / ("finetune" if evidence == "dense" else f"finetune_{evidence}")
    about, params, tokenizer = load_model(folder / "model", kind=finetune.MODEL_KIND)
    if about["config"].get("evidence", "dense") != evidence:
        raise OrqaError(
            f"The model in {folder} was trained with other evidence; train one with "
            f"`orqa finetune --evidence {evidence} --out {folder}`."
        )
    if about["corpus_fingerprint"] not in (store.fingerprint, *store.earlier):
        raise OrqaError(
            f"The model in {folder} was trained on corpus "
            f"{about['corpus_fingerprint'][:16]}, but {run / 'corpus'} is "
            f"{store.fingerprint[:16]}; train it again on this corpus."
        )
    reader_config = reader_config_from_dict(about["reader"])
    if system == "zero_shot":
        params = initial_answerer_params(run, about["config"])
    sizes = BeamSizes(
        early=len(store),
        read=min(about["reader_beam"], len(store)),
        reader_length=about["reader_length"],
        span_width=reader_config.max_span_wordpieces,
        whole_words=about["whole_word_spans"],
    )
    params = jax.tree.map(jnp.asarray, params)
    reader = Reader(SpanReader(reader_config), params["reader"], store, tokenizer, sizes)
    retriever: Index[Sequence[str]]
    retrieval_weight = 1.0
    weight = float(sparse_weight(params["sparse"])) if "sparse" in params else 0.0
    if system not in ("orqa", "zero_shot"):
        bm25 = BM25Index.open(run / "bm25", corpus_fingerprint=store.fingerprint)
    if system == "bm25":
        retriever, retrieval_weight = bm25, read_weight(run, system)
    elif system == "trained_bm25":
        no_vectors_NP = np.zeros((len(store), 0), np.float32)
        retriever = HybridRetriever(HybridIndex(bm25, None, no_vectors_NP), weight, None)
    else:
        embeddings, weights = run / "index", about["retriever_fingerprint"]
        if "block_encoder_fingerprint" in about and system != "zero_shot":
            embeddings, weights = folder / "index", about["block_encoder_fingerprint"]
        fingerprints = {
            "corpus_fingerprint": store.fingerprint,
            "weights_fingerprint": weights,
        }
        vectors_NP = open_embeddings(embeddings, **fingerprints)
        index = open_search(embeddings, vectors_NP, search, **fingerprints, mesh=accelerator_mesh())
        model = DualEncoder(retriever_config_from_dict(about["retriever"]))
        retriever = dense = DenseRetriever(
            model, params["retriever"], index, tokenizer, about["question_length"]
        )
        if system == "hybrid":
            retriever = FusedRetriever([dense, bm25], count=len(store))
            retrieval_weight = read_weight(run, system)
        elif system == "trained_hybrid":
            retriever = HybridRetriever(HybridIndex(bm25, index, vectors_NP), weight, dense)
    return Answerer(
        store,
        retriever,
        reader,
        tokenizer=tokenizer,
        retrieval_weight=retrieval_weight,
        weights_fingerprint=about["weights_fingerprint"],
    )


def initial_answerer_params(run: Path, config: dict[str, Any]) -> Params:
    """The parameters that the fine-tuning of this run started from, made again from its seed."""
    names = {field.name for field in dataclasses.fields(finetune.FinetuneConfig)}
    settings = finetune.FinetuneConfig(**{k: v for k, v in config.items() if k in names})
    about, retriever_params, _ = load_model(run / "ict" / "model", kind=ict.MODEL_KIND)
    found, started_from = about["weights_fingerprint"], config["retriever_fingerprint"]
    if found != started_from:
        raise OrqaError(
            f"{run / 'ict' / 'model'} has weights {found[:16]}, but fine-tuning started from "
            f"{started_from[:16]}; fine-tune again, or restore that retriever."
        )
    key, _ = jax.random.split(jax.random.key(settings.seed))
    return finetune.initial_params(settings, retriever_params, key)[1]


def _next_power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _powers_of_two(most: int) -> list[int]:
    """Those up to the first that is at least ``most``."""
    return [1 << n for n in range((most - 1).bit_length() + 1)]


def _lengths(longest: int) -> list[int]:
    """The lengths that sequences of at most ``longest`` wordpieces are padded to."""
    return [
        min(length, longest) for length in range(_LENGTH_STEP, longest + _LENGTH_STEP, _LENGTH_STEP)
    ]


def predict_file(answerer: System, questions: Path, out: Path, *, about: dict[str, Any]) -> None:
    """Answers every question of a JSONL file; ``out`` appears when all are answered.

    Beside it, ``<out>.about.json`` says what made the predictions and on which corpus, for
    ``evaluate_file``.
    """
    examples = load_examples(questions, answers_needed=False)
    check_predictions_path(questions, out)
    partial = out.with_name(out.name + ".partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        hold(out),
        partial.open("w", encoding="utf-8") as file,
        tqdm(total=len(examples), desc="predict", unit="question", disable=_quiet()) as bar,
    ):
        started = said = time.monotonic()
        for start in range(0, len(examples), _BATCH):
            batch = examples[start : start + _BATCH]
            answers = answerer.answer([example.question for example in batch])
            for example, answer in zip(batch, answers, strict=True):
                line = json.dumps(answer.to_dict(example.id), ensure_ascii=False)
                file.write(line + "\n")
            bar.update(len(batch))
            now, done = time.monotonic(), start + len(batch)
            if bar.disable and now - said >= _SECONDS_BETWEEN_LOG_LINES:
                said, left = now, (now - started) / done * (len(examples) - done)
                logger.info("predict: %d of %d, %.0f s left", done, len(examples), left)
        made_from: dict[str, Any] = {
            "questions": str(questions.resolve()),
            "corpus": str(answerer.store.folder.resolve()),
            "corpus_fingerprint": answerer.store.fingerprint,
        }
        if answerer.reader_beam is not None:
            made_from["reader_beam"] = answerer.reader_beam
        if isinstance(answerer, Answerer):
            made_from["weights_fingerprint"] = answerer.weights_fingerprint
        write_json(about_path(out), about | made_from)
        partial.replace(out)


def check_predictions_path(questions: Path, out: Path) -> None:
    """Raises ``OrqaError`` where predictions would take the place of the questions or a folder."""
    if out.is_dir():
        raise OrqaError(f"{out} is a folder; give the name of a file for the predictions.")
    if out.exists() and out.samefile(questions):
        raise OrqaError(f"{out} holds the questions themselves; give the predictions another name.")


def _made_by(predictions: Path, about: dict[str, Any]) -> bool:
    """Whether the file beside the predictions says all that ``about`` does."""
    path = about_path(predictions)
    said = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return said.items() >= about.items()


SYSTEMS = {
    "bm25": "BM25, read by the fine-tuned reader",
    "zero_shot": "zero-shot after ICT, untrained reader",
    "orqa": "ORQA, fine-tuned end to end",
}


@dataclasses.dataclass(frozen=True)
class CompareConfig:
    """What to compare the systems of a run on.

    Attributes:
      run: Run folder with ``corpus``, ``ict``, ``index``, ``bm25`` and ``finetune``.
      dev: JSONL file of question-answer pairs on which the weight of BM25's score is chosen.
      test: JSONL file of question-answer pairs that the table is about.
      out: Folder for the predictions and ``results.md``.
    """

    run: str
    dev: str
    test: str
    out: str


def compare_systems(config: CompareConfig) -> str:
    """Answers the test questions with every system; returns, and writes, the table of results.

    Predictions of the same model that are there already are not made again.
    """
    run, out = Path(config.run), Path(config.out)
    model = describe_model(run / "finetune" / "model", kind=finetune.MODEL_KIND)
    weights = model["weights_fingerprint"]
    if not _weight_path(run, "bm25").exists():
        tune_weight(run, "bm25", load_examples(Path(config.dev))[:_TUNING_QUESTIONS])
    rows = {}
    for system, name in SYSTEMS.items():
        predictions = out / f"{system}.jsonl"
        about = {"run": str(run.resolve()), "system": system, "weights_fingerprint": weights}
        if not (predictions.exists() and _made_by(predictions, about)):
            answerer = load_answerer(run, system=system)
            predict_file(answerer, Path(config.test), predictions, about=about)
        rows[name] = evaluate_file(predictions, Path(config.test)).intervals
    table = format_table(rows)
    (out / "results.md").write_text(table + "\n", encoding="utf-8")
    return table


def tune_weight(run: Path, system: str, examples: Sequence[Example]) -> float:
    """Chooses and stores the weight of the retrieval score beside the reader's, by exact match.

    The reader was trained beside the dense scores, so BM25's and those of fused ranks need a scale
    of their own. ``system`` is "bm25" or "hybrid".
    """
    answerer, weights = load_answerer(run, system=system), WEIGHTS[system]
    matches = np.zeros(len(weights))
    for start in range(0, len(examples), _BATCH):
        batch = examples[start : start + _BATCH]
        beam = answerer.read([example.question for example in batch], answerer.reader.sizes.read)
        for place, weight in enumerate(weights):
            best = answerer.best_answers(beam, weight)
            matches[place] += sum(
                exact_match(answer, example.answers)
                for answer, example in zip(best, batch, strict=True)
            )
    weight = weights[int(np.argmax(matches))]
    write_json(_weight_path(run, system), {"weight": weight})
    return weight


def read_weight(run: Path, system: str) -> float:
    """The weight that ``tune_weight`` stored, or one that may fit."""
    path = _weight_path(run, system)
    if not path.exists():
        return _UNTUNED[system]
    return float(json.loads(path.read_text(encoding="utf-8"))["weight"])


def _weight_path(run: Path, system: str) -> Path:
    return run / "finetune" / f"{system}_weight.json"


def _quiet() -> bool:
    return not sys.stderr.isatty()
