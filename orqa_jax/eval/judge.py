"""All that can be said of each prediction: scores, ranks, what went wrong, what kind of question.

What became of a question is one of `OUTCOMES`:

right
    exact match, from a block that speaks of the question as far as can be told.
spurious hit
    exact match, but read from a block that is no evidence: not of the gold passage where that is
    known, otherwise one that shares no content word with the question, title included. The latter
    misses many, so it is a lower bound.
lost by the reader
    some span of the blocks that were read is an exact match, but another was chosen.
not in the beam
    an answer stands in the corpus, but no span of the blocks that were read is an exact match.
not in the corpus
    no block holds an answer. Where the corpus was not searched, this counts as "not in the beam".
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from orqa_jax.errors import OrqaError
from orqa_jax.eval import questions
from orqa_jax.eval.evidence import BlockTexts, answer_ranks, best_span, token_line
from orqa_jax.eval.scores import exact_match, regex_fullmatch, regex_match, token_f1
from orqa_jax.text.jsonl import read_jsonl
from orqa_jax.text.match import match_tokens
from orqa_jax.text.normalize import normalize_answer_modern

OUTCOMES = (
    "right",
    "spurious hit",
    "lost by the reader",
    "not in the beam",
    "not in the corpus",
)

_NAMED_IN_ERRORS = 3
# Of a word only the beginning has to be in the block, so that "founded" and "founder" are one.
_STEM_LETTERS = 5
# Words that tell nothing about the subject of a question.
_STOP_WORDS = frozenset(
    (
        "about", "after", "also", "been", "before", "being", "call", "called", "came", "come",
        "comes", "could", "does", "done", "during", "each", "first", "from", "gave", "give",
        "given", "have", "here", "kind", "know", "known", "last", "like", "live", "made",
        "main", "make", "many", "more", "most", "much", "name", "named", "names", "only",
        "other", "over", "same", "some", "such", "take", "than", "that", "their", "them",
        "then", "there", "these", "they", "this", "those", "type", "under", "used", "very",
        "was", "well", "went", "were", "what", "when", "where", "which", "while", "whom",
        "whose", "will", "with", "would", "year", "years", "your",
    )
)  # fmt: skip


class Question(Protocol):
    """A question with its reference answers, such as `qa.examples.Example`."""

    @property
    def id(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def answers(self) -> tuple[str, ...]: ...
    @property
    def match(self) -> Literal["string", "regex"]: ...


@dataclass(frozen=True)
class Judgement:
    """What was found out about one prediction.

    Attributes:
        exact_match: by `exact_match`, or `regex_match` where the answers are patterns.
        modern_match: without what is wrong with that: by `normalize_answer_modern`, or
            `regex_fullmatch` where the answers are patterns.
        f1: token F1; equal to `exact_match` where the answers are patterns.
        rank_token: see `Ranks`; likewise the next two.
        retrieved: how many blocks were retrieved; None where ranks are unknown.
        oracle_exact: whether a span of the blocks that were read is an exact match.
        oracle_f1: best F1 of a span of these blocks.
        outcome: one of `OUTCOMES`; "" where the blocks are unknown and the answer is wrong.
        confidence: the system's own score of its answer, None without one.
        kinds: class of the question in each of the groupings, such as {"question word": "who"}.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    answer: str
    exact_match: bool
    modern_match: bool
    f1: float
    rank_token: int | None
    rank_substring: int | None
    rank_gold: int | None
    retrieved: int | None
    oracle_exact: bool | None
    oracle_f1: float | None
    outcome: str
    confidence: float | None
    kinds: dict[str, str]


@dataclass(frozen=True)
class Evidence:
    """What is known of the blocks that predictions point to.

    Attributes:
        text: text of a block number.
        title: title of a block number.
        beam: how many of the retrieved blocks were read, K.
        gold: blocks of the passage that a question was written from, by question id.
        in_corpus: whether any block holds an answer, by question id.
    """

    text: Callable[[int], str]
    title: Callable[[int], str] = lambda block: ""
    beam: int = 5
    gold: Mapping[str, Collection[int]] = dataclasses.field(default_factory=dict)
    in_corpus: Mapping[str, bool] = dataclasses.field(default_factory=dict)


def judge(
    predictions: Sequence[Mapping[str, Any]],
    references: Iterable[Question],
    evidence: Evidence | None = None,
    *,
    depth: int | None = None,
    answer_counts: Mapping[str, int] | None = None,
) -> list[Judgement]:
    """Judges each prediction, in the order of the references.

    Args:
        predictions: as `load_predictions` gives them, in any order.
        references: the questions.
        evidence: the blocks; without them there are no ranks, no oracle and no outcome.
        depth: look at this many of the retrieved blocks only; all by default.
        answer_counts: of the training questions, see `questions.answer_counts`.

    Raises:
        OrqaError: no references; a question without a prediction, a prediction without a question
            or two for one question; a confidence that is no finite number; where evidence is
            given, a prediction without `retrieved`, or a block that it does not have.
    """
    references = list(references)
    by_id = _pair(predictions, references)
    texts = BlockTexts(evidence.text) if evidence else None
    if evidence:
        missing = [
            reference.id for reference in references if "retrieved" not in by_id[reference.id]
        ]
        refuse("predicted without 'retrieved' blocks", missing)
    judged = []
    for reference in references:
        prediction = by_id[reference.id]
        try:
            judged.append(_judge_one(prediction, reference, evidence, texts, depth, answer_counts))
        except IndexError as error:
            raise OrqaError(
                f"The prediction for question {reference.id!r} retrieves a block that the corpus "
                f"does not have ({error}); evaluate with the corpus that was searched."
            ) from error
    return judged


def _pair(
    predictions: Sequence[Mapping[str, Any]], references: Sequence[Question]
) -> dict[str, Mapping[str, Any]]:
    if not references:
        raise OrqaError("There are no reference questions to evaluate on.")
    by_id = {prediction["id"]: prediction for prediction in predictions}
    counts = Counter(prediction["id"] for prediction in predictions)
    known = {reference.id for reference in references}
    refuse("predicted more than once", [i for i, count in counts.items() if count > 1])
    refuse("without a prediction", [r.id for r in references if r.id not in by_id])
    refuse("predicted but not in the references", [i for i in by_id if i not in known])
    return by_id


def refuse(defect: str, ids: Collection[str]) -> None:
    """Raises `OrqaError` that names the first of `ids`, if there are any."""
    if ids:
        named = ", ".join(repr(i) for i in list(ids)[:_NAMED_IN_ERRORS])
        more = ", ..." if len(ids) > _NAMED_IN_ERRORS else ""
        raise OrqaError(
            f"{len(ids)} question id(s) {defect}: {named}{more}; "
            "predictions and references must hold the same questions, once each."
        )


def _judge_one(
    prediction: Mapping[str, Any],
    reference: Question,
    evidence: Evidence | None,
    texts: BlockTexts | None,
    depth: int | None,
    answer_counts: Mapping[str, int] | None,
) -> Judgement:
    answer, answers, regex = prediction["answer"], reference.answers, reference.match == "regex"
    if regex:
        exact, modern = regex_match(answer, answers), regex_fullmatch(answer, answers)
    else:
        exact = exact_match(answer, answers)
        modern = exact_match(answer, answers, normalize_answer_modern)
    found: dict[str, Any] = dict.fromkeys(
        ("rank_token", "rank_substring", "rank_gold", "retrieved", "oracle_exact", "oracle_f1")
    )
    outcome = "right" if exact else ""
    if evidence and texts:
        blocks, gold = prediction["retrieved"][:depth], evidence.gold.get(reference.id)
        ranks = answer_ranks(blocks, answers, texts, regex=regex, gold=gold)
        oracle_exact, oracle_f1 = best_span(blocks[: evidence.beam], answers, texts, regex=regex)
        found = {
            "rank_token": ranks.token,
            "rank_substring": ranks.substring,
            "rank_gold": ranks.gold,
            "retrieved": len(blocks),
            "oracle_exact": oracle_exact,
            "oracle_f1": oracle_f1,
        }
        if exact:
            block = answer_block(prediction)
            if block is not None and not _is_evidence(
                block, reference.question, evidence, texts, gold
            ):
                outcome = "spurious hit"
        elif oracle_exact:
            outcome = "lost by the reader"
        elif ranks.token is None and not evidence.in_corpus.get(reference.id, True):
            outcome = "not in the corpus"
        else:
            outcome = "not in the beam"
    kinds = {
        "question word": questions.question_word(reference.question),
        "answer type": questions.answer_type(reference.question, answers, regex=regex),
        "question length": questions.question_length(reference.question),
    }
    if answer_counts is not None and not regex:
        kinds["answer in training"] = questions.answer_frequency(answers, answer_counts)
    return Judgement(
        id=reference.id,
        question=reference.question,
        answers=tuple(answers),
        answer=answer,
        exact_match=exact,
        modern_match=modern,
        f1=float(exact) if regex else token_f1(answer, answers),
        outcome=outcome,
        confidence=confidence_of(prediction),
        kinds=kinds,
        **found,
    )


def answer_block(prediction: Mapping[str, Any]) -> int | None:
    """The block that the answer was read from, if the prediction tells."""
    candidates = prediction.get("candidates")
    block = candidates[0].get("block") if candidates else None
    return block if type(block) is int else None


def confidence_of(prediction: Mapping[str, Any]) -> float | None:
    """A probability where the prediction has one, else a score, else None.

    Keys: `confidence`, or of the first candidate `probability`, or the sum of its scores.

    Raises:
        OrqaError: it is not a finite number.
    """
    best: Mapping[str, Any] = next(iter(prediction.get("candidates") or ()), {})
    if isinstance(prediction.get("confidence"), int | float):
        found = [prediction["confidence"]]
    elif best.get("probability") is not None:
        found = [best["probability"]]
    elif "reader_score" in best:
        found = [best["reader_score"], best.get("retrieval_score", 0.0)]
    else:
        return None
    if not all(isinstance(part, int | float) and math.isfinite(part) for part in found):
        raise OrqaError(
            f"The prediction for question {prediction['id']!r} has a confidence, probability or "
            f"score that is no finite number ({found!r}); correct it or leave it out."
        )
    return float(sum(found))


def _is_evidence(
    block: int,
    question: str,
    evidence: Evidence,
    texts: BlockTexts,
    gold: Collection[int] | None,
) -> bool:
    if gold is not None:
        return block in gold
    asked = {
        token[:_STEM_LETTERS]
        for token in match_tokens(question)
        if len(token) > 3 and token not in _STOP_WORDS
    }
    spoken_of = token_line(evidence.title(block)) + texts.tokens(block)
    return not asked or any(f" {stem}" in spoken_of for stem in asked)


def write_details(path: str | os.PathLike[str], judged: Iterable[Judgement]) -> None:
    """Writes one JSON object a question, with the fields of `Judgement`, atomically."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("w", encoding="utf-8") as file:
        for one in judged:
            file.write(json.dumps(dataclasses.asdict(one), ensure_ascii=False) + "\n")
    partial.replace(path)


def read_details(path: str | os.PathLike[str]) -> list[Judgement]:
    """Reads back what `write_details` wrote.

    Raises:
        OrqaError: a line is something else, named by file and line.
    """
    judged = []
    names = {field.name for field in dataclasses.fields(Judgement)}
    for where, record in read_jsonl(path):
        if record.keys() != names:
            raise OrqaError(f"{where} is no line of `orqa eval --details`; make the file again.")
        judged.append(Judgement(**{**record, "answers": tuple(record["answers"])}))
    return judged
