"""Judging files: predictions, references and the corpus brought together, whatever made them."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orqa_jax.corpus.places import block_at, blocks_of_documents
from orqa_jax.corpus.postings import answer_postings
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.calibration import Calibration, Platt, calibrate
from orqa_jax.eval.evaluate import RECALL_AT, Evaluation, summarize
from orqa_jax.eval.judge import Evidence, Judgement, judge
from orqa_jax.eval.predictions import Passage, Predictions, read_predictions
from orqa_jax.eval.questions import answer_counts
from orqa_jax.index.manifest import write_json
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.jsonl import read_json, read_jsonl, record_id
from orqa_jax.text.wordpiece import WordPiece

# In a run folder: what the confidence of one of its systems is worth.
CALIBRATION_NAME = "calibration.json"
# Of the paper; for predictions that do not say how many blocks were read.
DEFAULT_BEAM = 5

logger = logging.getLogger(__name__)


def about_path(predictions: Path) -> Path:
    """The file beside a predictions file that says where it came from."""
    return predictions.with_name(predictions.name + ".about.json")


def read_about(predictions: Path) -> dict[str, Any]:
    """What is known of where predictions came from: {} where nothing is.

    Raises:
        OrqaError: the file beside them is broken.
    """
    path = about_path(predictions)
    if not path.exists():
        return {}
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        Path(about["corpus"]), str(about["corpus_fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OrqaError(f"{path} is broken ({error!r}); predict again.") from error
    return dict(about)


@dataclass(frozen=True)
class Source:
    """Everything that belongs to one file of predictions.

    Attributes:
        predictions: as read.
        references: their file.
        examples: what it holds.
        store: the blocks that `retrieved` numbers, if they are a corpus at hand.
        beam: how many blocks were read.
    """

    predictions: Predictions
    references: Path
    examples: list[Example]
    store: BlockStore | None
    beam: int

    def passage(self, block: int) -> Passage:
        """The passage that a number of `retrieved` means.

        Raises:
            IndexError: there is none of that number.
        """
        if self.predictions.passages is not None:
            return self.predictions.passages[block]
        if self.store is None:
            raise IndexError(f"block {block} of an unknown corpus")
        return Passage(
            self.store.document_id(block), self.store.title(block), self.store.text(block)
        )

    @property
    def has_blocks(self) -> bool:
        """Whether the texts of blocks are at hand."""
        return self.predictions.passages is not None or self.store is not None

    @property
    def has_retrieved(self) -> bool:
        """Whether the predictions rank blocks too; DPR's reader names one passage alone."""
        return any("retrieved" in record for record in self.predictions.records)

    def block_text(self) -> Callable[[int], str]:
        """Text by block number, without reading what is not asked for."""
        if self.predictions.passages is not None:
            passages = self.predictions.passages
            return lambda block: passages[block].text
        assert self.store is not None
        return self.store.text


def open_source(
    predictions: Path, references: Path, *, corpus: Path | None = None, beam: int | None = None
) -> Source:
    """Reads predictions and references, and opens the corpus that was searched, if it is there.

    Args:
        predictions: in one of the formats of `eval.predictions`.
        references: question-answer pairs.
        corpus: the block store; by default the one named beside the predictions. Not needed where
            the predictions bring their passages along.
        beam: blocks that were read; by default what is said beside the predictions, or 5.

    Raises:
        OrqaError: a file is missing or broken, the corpus is another one, or the beam is empty.
    """
    examples = load_examples(references)
    found = read_predictions(predictions, examples)
    about = read_about(predictions)
    if beam is None:
        beam = int(about.get("reader_beam", DEFAULT_BEAM))
    if beam < 1:
        raise OrqaError(f"The beam is {beam}; at least 1 block has to be read.")
    if found.passages is not None:
        return Source(found, references, examples, None, beam)
    if corpus is None and about and Path(about["corpus"]).exists():
        corpus = Path(about["corpus"])
    store = BlockStore(corpus) if corpus else None
    if store and about and about["corpus_fingerprint"] != store.fingerprint:
        raise OrqaError(
            f"{predictions} was made on corpus {about['corpus_fingerprint'][:16]}, but "
            f"{corpus} is {store.fingerprint[:16]}; name the right one with --corpus."
        )
    return Source(found, references, examples, store, beam)


def judge_source(source: Source, *, train: Path | None = None) -> list[Judgement]:
    """Judges the predictions of a source, see `eval.judge`.

    Where the corpus is at hand, it is searched for the answers as fine-tuning does it, by
    wordpieces, so that answers that stand nowhere are told apart.

    Args:
        source: of `open_source`.
        train: training pairs, for the table by how often an answer occurs in them.
    """
    counts = None
    if train is not None:
        counts = answer_counts(example.answers for example in load_examples(train))
    evidence = None
    if source.has_blocks and source.has_retrieved:
        evidence = Evidence(
            source.block_text(),
            lambda block: source.passage(block).title,
            source.beam,
            gold_blocks(source),
            answers_in_corpus(source.store, source.examples) if source.store else {},
        )
    return judge(source.predictions.records, source.examples, evidence, answer_counts=counts)


def judge_file(
    predictions: Path,
    references: Path,
    *,
    corpus: Path | None = None,
    beam: int | None = None,
    train: Path | None = None,
) -> list[Judgement]:
    """`judge_source` of `open_source`."""
    source = open_source(predictions, references, corpus=corpus, beam=beam)
    return judge_source(source, train=train)


def evaluate_file(predictions: Path, references: Path, *, corpus: Path | None = None) -> Evaluation:
    """Scores a predictions file against question-answer pairs.

    Recall of the answer string needs retrieved blocks and their texts: those of ``corpus``, or of
    the one named beside the predictions. Where there are none, it is left out and the log says so.

    Raises:
      OrqaError: A file is missing or broken, ids do not match, or the corpus is another one.
    """
    source = open_source(predictions, references, corpus=corpus)
    evidence = None
    if not source.has_retrieved:
        logger.warning("No recall: %s names no retrieved blocks.", predictions)
    elif source.has_blocks:
        evidence = Evidence(source.block_text(), beam=0)
    else:
        logger.warning("No recall: the blocks are not at hand; name their folder with --corpus.")
    records, depth = source.predictions.records, max(RECALL_AT)
    return summarize(judge(records, source.examples, evidence, depth=depth))


def save_calibration(
    run: Path, predictions: Path, judged: Sequence[Judgement], *, wrong_cost: float = 1.0
) -> Calibration:
    """Learns from judged predictions of a run when its answers are right; writes it to the run.

    Questions without a candidate answer are left out: there is nothing to be sure of.

    Args:
        run: folder of the run.
        predictions: of ``orqa predict``, on questions that nothing was trained on.
        judged: these predictions.
        wrong_cost: see `abstain_threshold`.

    Raises:
        OrqaError: the predictions do not say which model made them, or have no confidence.
    """
    about = read_about(predictions)
    if not {"system", "weights_fingerprint"} <= about.keys():
        raise OrqaError(
            f"{about_path(predictions)} does not say which model made the predictions; make them "
            "with `orqa predict`."
        )
    known = [one for one in judged if one.confidence is not None]
    if not known:
        raise OrqaError(f"No prediction in {predictions} has a confidence to calibrate.")
    confidence = [float(one.confidence or 0.0) for one in known]
    found = calibrate(confidence, [one.exact_match for one in known], wrong_cost=wrong_cost)
    never = math.isinf(found.threshold)
    write_json(
        run / CALIBRATION_NAME,
        {
            "system": about["system"],
            "weights_fingerprint": about["weights_fingerprint"],
            "slope": found.platt.slope,
            "intercept": found.platt.intercept,
            # JSON has no infinity: null, where no answer is worth its risk.
            "threshold": None if never else found.threshold,
            "wrong_cost": wrong_cost,
            "questions": len(known),
        },
    )
    return found


def read_calibration(run: Path, *, system: str, weights_fingerprint: str) -> Calibration | None:
    """What `save_calibration` wrote for this model; None where nothing is there for it.

    Raises:
        OrqaError: the file is broken.
    """
    path = run / CALIBRATION_NAME
    if not path.exists():
        return None
    found = read_json(path)
    try:
        made_for = found["system"], found["weights_fingerprint"]
        platt = Platt(float(found["slope"]), float(found["intercept"]))
        threshold = math.inf if found["threshold"] is None else float(found["threshold"])
    except (KeyError, TypeError, ValueError) as error:
        raise OrqaError(f"{path} is broken ({error!r}); calibrate again, or delete it.") from error
    if made_for != (system, weights_fingerprint):
        logger.warning(
            "%s is of system %s with weights %s, and not used for system %s with weights %s.",
            path,
            *(made_for[0], str(made_for[1])[:16]),
            *(system, weights_fingerprint[:16]),
        )
        return None
    return Calibration(platt, threshold)


def answers_in_corpus(store: BlockStore, examples: Sequence[Example]) -> dict[str, bool]:
    """Whether any block holds an answer, by question id.

    As fine-tuning looks for them: a run of whole words with the same wordpieces. Questions whose
    answers are regular expressions are left out, since a whole corpus of them takes too long.
    """
    plain = [example for example in examples if example.match == "string"]
    tokenizer = WordPiece.load(store.tokenizer_folder)
    answers = tokenizer.encode_answers([example.answers for example in plain])
    postings = answer_postings(store, answers, tokenizer.continues_word)
    return {example.id: bool(len(p)) for example, p in zip(plain, postings, strict=True)}


def gold_blocks(source: Source) -> dict[str, frozenset[int]]:
    """Blocks of the passage that each question was written from, for questions that tell.

    A question tells by the keys `document_id`, and `answer_start`, a character of that document's
    text that lies in the answer; without the latter every block of the document counts. Passages
    that the predictions bring along are found by their id alone.

    Raises:
        OrqaError: one of the keys has a wrong type, or no block of the corpus is from the document.
    """
    wanted: dict[str, tuple[str, str, int | None]] = {}
    for where, record in read_jsonl(source.references):
        document, start = record.get("document_id"), record.get("answer_start")
        if document is None:
            continue
        if not isinstance(document, str) or not (start is None or type(start) is int):
            raise OrqaError(
                f"{where} needs a 'document_id' that is a string and an 'answer_start' that is a "
                "whole number (or neither)."
            )
        question = record_id(where, record, default=where.rpartition(":")[2])
        wanted[question] = (where, document, start)
    if not wanted:
        return {}
    blocks_of = _blocks_of_documents(source, {document for _, document, _ in wanted.values()})
    found = {}
    for question, (where, document, start) in wanted.items():
        blocks = blocks_of.get(document, [])
        if source.store is None:
            # Passages that nothing retrieved are not at hand.
            found[question] = frozenset(blocks)
            continue
        if not blocks:
            raise OrqaError(
                f"{where} was written from document {document!r}, of which the corpus has no "
                "block; evaluate with the corpus that the questions were made for."
            )
        if start is not None:
            block = block_at(source.store, blocks, start)
            blocks = [] if block is None else [block]
        found[question] = frozenset(blocks)
    return found


def _blocks_of_documents(source: Source, documents: set[str]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    if source.predictions.passages is not None:
        for number, passage in enumerate(source.predictions.passages):
            if passage.id in documents:
                found.setdefault(passage.id, []).append(number)
        return found
    assert source.store is not None
    return blocks_of_documents(source.store, documents)
