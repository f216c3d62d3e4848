"""Readers of the data sets for ranking and choosing answers, in the formats they are published in.

SelQA and WikiQA give candidate sentences to rank; Yahoo! Answers gives the answers of users; the
science exams (AI2, ARC) give choices; the 8th-grade evidence set gives choices with evidence.
"""

import csv
import lzma
import re
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orqa_jax.errors import OrqaError
from orqa_jax.text.jsonl import open_bytes, read_json, read_jsonl, read_lines

# A choice in the text of an AI2 question: "... (A) iron (B) copper".
_CHOICE = re.compile(r"\(([A-E1-5])\)\s*")


@dataclass(frozen=True)
class RankingQuestion:
    """A question with candidate answers; `relevant` says of each whether it answers it."""

    id: str
    question: str
    candidates: tuple[str, ...]
    relevant: tuple[bool, ...]


@dataclass(frozen=True)
class ChoiceQuestion:
    """A multiple-choice question.

    Attributes:
        id: as published.
        question: text without the choices; "" where the choices are whole statements.
        choices: texts.
        correct: of each choice, whether it is right.
        evidence: of each choice, sentences found for it; None where they are still to be found.
    """

    id: str
    question: str
    choices: tuple[str, ...]
    correct: tuple[bool, ...]
    evidence: tuple[tuple[str, ...], ...] | None = None


def read_selqa(path: Path) -> list[RankingQuestion]:
    """SelQA answer sentence selection (Jurczyk et al. 2016): a JSON list of questions.

    Raises:
        OrqaError: the file cannot be read or a question, named by its place, lacks a part.
    """
    records = read_json(path)
    if not isinstance(records, list):
        raise OrqaError(f"{path} holds a JSON {type(records).__name__}; give a SelQA file, a list.")
    found = []
    for place, record in enumerate(records):
        try:
            answers = set(record["answers"])
            relevant = tuple(i in answers for i in range(len(record["candidates"])))
            question, candidates = record["question"], tuple(record["candidates"])
        except (KeyError, TypeError) as error:
            raise OrqaError(
                f"Question {place} of {path} needs question, candidates and answers ({error!r})."
            ) from error
        found.append(RankingQuestion(str(place), question, candidates, relevant))
    return _answerable(found, path)


def read_wikiqa(path: Path) -> list[RankingQuestion]:
    """WikiQA (Yang et al. 2015), `WikiQA-{train,dev,test}.tsv`.

    Questions without a right sentence are left out, as in all published evaluations.

    Raises:
        OrqaError: the file cannot be read or lacks a column.
    """
    rows: dict[str, list[dict[str, str]]] = {}
    for row in _table(path, "\t", ("QuestionID", "Question", "Sentence", "Label")):
        rows.setdefault(row["QuestionID"], []).append(row)
    found = [
        RankingQuestion(
            name,
            group[0]["Question"],
            tuple(row["Sentence"] for row in group),
            tuple(row["Label"] == "1" for row in group),
        )
        for name, group in rows.items()
    ]
    return _answerable(found, path)


def read_yahoo(path: Path) -> list[RankingQuestion]:
    """Yahoo! Answers, the XML of Webscope L5 and L6: the best answer among all that users gave.

    Raises:
        OrqaError: the file cannot be read or is not XML.
    """
    found: list[RankingQuestion] = []
    try:
        with open_bytes(path) as file:
            for _, element in ElementTree.iterparse(file):
                if element.tag != "document":
                    continue
                best = (element.findtext("bestanswer") or "").strip()
                others = [(item.text or "").strip() for item in element.iter("answer_item")]
                candidates = tuple(dict.fromkeys(text for text in [*others, best] if text))
                question = " ".join(
                    (element.findtext(name) or "").strip() for name in ("subject", "content")
                )
                relevant = tuple(text == best for text in candidates)
                name = element.findtext("uri") or str(len(found))
                found.append(RankingQuestion(name, question.strip(), candidates, relevant))
                element.clear()
    except ElementTree.ParseError as error:
        raise OrqaError(f"{path} is not XML ({error}); give a Webscope L5 or L6 file.") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise OrqaError(f"{path} cannot be read ({error}); check the path and the file.") from error
    return _answerable(found, path)


def read_arc(path: Path) -> list[ChoiceQuestion]:
    """ARC (Clark et al. 2018): its own JSONL, or the one with `query`, `choices` and `gold`.

    Raises:
        OrqaError: a line, named by its number, is of neither kind.
    """
    found = []
    for where, record in read_jsonl(path):
        try:
            if "query" in record:
                name, question = where.rpartition(":")[2], record["query"]
                texts = record["choices"]
                gold = range(len(texts)).index(record["gold"])
            else:
                name, question = record["id"], record["question"]["stem"]
                texts = [choice["text"] for choice in record["question"]["choices"]]
                labels = [choice["label"] for choice in record["question"]["choices"]]
                gold = labels.index(record["answerKey"])
        except (KeyError, TypeError, ValueError) as error:
            raise OrqaError(
                f"{where} is no ARC question ({error!r}); it needs id, question.stem, "
                "question.choices and answerKey, or query, choices and gold."
            ) from error
        question = question.removeprefix("Question:").strip()
        correct = tuple(i == gold for i in range(len(texts)))
        found.append(ChoiceQuestion(name, question, tuple(texts), correct))
    return found


def read_science(path: Path) -> list[ChoiceQuestion]:
    """AI2 science questions (ScienceQA), CSV: the choices stand in the question's text.

    Questions with a diagram and those without choices are left out.

    Raises:
        OrqaError: the file cannot be read, lacks a column, or a key is not among the choices.
    """
    found = []
    columns = ("questionID", "AnswerKey", "question")
    for row in _table(path, ",", columns):
        if row.get("includesDiagram") == "1" or row.get("isMultipleChoiceQuestion") == "0":
            continue
        stem, *parts = _CHOICE.split(row["question"])
        labels, texts = parts[::2], [text.strip() for text in parts[1::2]]
        key = row["AnswerKey"].strip()
        if key not in labels:
            raise OrqaError(
                f"Question {row['questionID']} of {path} has the key {key!r}, which is not one of "
                f"its choices ({', '.join(labels) or 'none'}); correct or remove it."
            )
        correct = tuple(label == key for label in labels)
        found.append(ChoiceQuestion(row["questionID"], stem.strip(), tuple(texts), correct))
    return found


def read_evidence(path: Path) -> list[ChoiceQuestion]:
    """The AI2 8th-grade set of hypotheses with Wikipedia evidence, `enwv0-*.csv`.

    A hypothesis is a question and one of its answers as a statement. Questions none of whose
    hypotheses is right (evidence was found only for the wrong ones) are kept: no choice is right.

    Raises:
        OrqaError: the file cannot be read or lacks a column.
    """
    questions: dict[str, dict[str, tuple[bool, list[str]]]] = {}
    for row in _table(path, ",", ("label", "qid", "htext", "mtext")):
        hypotheses = questions.setdefault(row["qid"], {})
        _, sentences = hypotheses.setdefault(row["htext"], (row["label"] == "1", []))
        sentences.append(row["mtext"])
    return [
        ChoiceQuestion(
            name,
            "",
            tuple(hypotheses),
            tuple(correct for correct, _ in hypotheses.values()),
            tuple(tuple(sentences) for _, sentences in hypotheses.values()),
        )
        for name, hypotheses in questions.items()
    ]


def _answerable(questions: list[RankingQuestion], path: Path) -> list[RankingQuestion]:
    kept = [question for question in questions if any(question.relevant)]
    if not kept:
        raise OrqaError(f"{path} holds no question with a right answer; check the file.")
    return kept


def _table(path: Path, delimiter: str, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    lines = (f"{line}\n" for _, line in read_lines(path))
    if delimiter == "\t":  # there a quotation mark is part of the text
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.DictReader(lines)
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise OrqaError(f"{path} has no column {missing[0]}; give the published file.")
        for row in reader:
            if any(row[name] is None for name in columns):
                raise OrqaError(f"{path}:{reader.line_num} has too few columns.")
            yield row
    except csv.Error as error:
        raise OrqaError(f"{path}:{reader.line_num} is no row of a table ({error}).") from error


RANKING_READERS = {"selqa": read_selqa, "wikiqa": read_wikiqa, "yahoo": read_yahoo}
CHOICE_READERS = {"arc": read_arc, "science": read_science, "evidence": read_evidence}
