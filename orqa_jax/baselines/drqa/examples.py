"""Questions with a paragraph and the place of the answer in it: what the reader learns from."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orqa_jax.errors import OrqaError
from orqa_jax.qa.datasets import read_gold_spans
from orqa_jax.text.jsonl import read_jsonl


@dataclass(frozen=True)
class ReadingExample:
    """A question, a paragraph, and the answers as (start, end) characters of the paragraph.

    Attributes:
        id: of the question.
        question: text.
        paragraph: text.
        spans: none where the paragraph holds no answer; the first is the one to learn.
        answers: all accepted strings.
        document: names the document that the paragraph is from.
    """

    id: str
    question: str
    paragraph: str
    spans: tuple[tuple[int, int], ...]
    answers: tuple[str, ...]
    document: str


def read_squad(path: Path) -> list[ReadingExample]:
    """SQuAD 1.1 (Rajpurkar et al. 2016). The answer to learn is the one given most often.

    Raises:
        OrqaError: see `read_gold_spans`.
    """
    found = []
    for gold in read_gold_spans([path]):
        answers = gold.example.answers
        spans = Counter(
            (start, start + len(text)) for start, text in zip(gold.starts, answers, strict=True)
        )
        found.append(
            ReadingExample(
                gold.example.id,
                gold.example.question,
                gold.context,
                tuple(span for span, _ in spans.most_common()),
                tuple(dict.fromkeys(answers)),
                gold.title,
            )
        )
    return found


def split_by_document(
    examples: Sequence[ReadingExample],
) -> tuple[list[ReadingExample], list[ReadingExample]]:
    """(train, test): every fourth document, in order of their first example, is for testing.

    Raises:
        OrqaError: there are fewer than four documents.
    """
    names = list(dict.fromkeys(example.document for example in examples))
    held_out = set(names[3::4])
    if not held_out:
        raise OrqaError(
            f"Every fourth document is held out for testing, but there are only {len(names)}; give"
            " a file with more."
        )
    train = [example for example in examples if example.document not in held_out]
    return train, [example for example in examples if example.document in held_out]


def save_reading(path: Path, examples: Iterable[ReadingExample]) -> None:
    """Writes JSONL that `load_reading` reads back, atomically."""
    # Several processes may write the same file, each as its own copy.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(asdict(example), ensure_ascii=False) + "\n")
    os.replace(partial, path)


def load_reading(path: Path) -> list[ReadingExample]:
    """Reads a SQuAD file (.json, also compressed), or the JSONL that `save_reading` wrote.

    Raises:
        OrqaError: the file cannot be read, a line is no example, or there is none.
    """
    if ".json" in path.suffixes:
        return read_squad(path)
    found = []
    for where, record in read_jsonl(path):
        try:
            spans = tuple((int(start), int(end)) for start, end in record["spans"])
            texts: dict[str, Any] = {
                name: record[name] for name in ("id", "question", "paragraph", "document")
            }
            found.append(ReadingExample(**texts, spans=spans, answers=tuple(record["answers"])))
        except (KeyError, TypeError, ValueError) as error:
            raise OrqaError(
                f"{where} is no reading example ({error!r}); write the file with"
                " `orqa drqa-supervise`."
            ) from error
    if not found:
        raise OrqaError(f"{path} holds no reading examples; write it with `orqa drqa-supervise`.")
    return found
