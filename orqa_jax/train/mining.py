"""Positives and hard negatives for strong supervision of the retriever (Karpukhin et al. 2020).

A question's positive is the best block, by BM25, that holds its answer; where the gold paragraph is
known, the best block for that paragraph. Hard negatives are the best blocks that hold no answer.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.qa.examples import Example
from orqa_jax.text.jsonl import read_jsonl
from orqa_jax.text.match import Mode
from orqa_jax.train.labels import blocks_with_answer

logger = logging.getLogger(__name__)

# Questions searched together.
_BATCH = 64


@dataclass(frozen=True)
class Pair:
    """A question, the block that answers it, and blocks that look as if they did."""

    question: str
    block: int
    negatives: tuple[int, ...]


def mine_pairs(
    store: BlockStore,
    index: BM25Index,
    examples: Sequence[Example],
    paragraphs: Sequence[str] | None = None,
    *,
    negatives: int = 1,
    depth: int = 100,
) -> list[Pair]:
    """Finds a positive and hard negatives among the first blocks of BM25.

    Questions with no answer in that many blocks are left out, and so are those without enough
    negatives.

    Args:
      store: The blocks.
      index: BM25 over them.
      examples: Questions with answers.
      paragraphs: The gold paragraph of each, which the positive is then searched with.
      negatives: Hard negatives of a question.
      depth: Blocks that are looked at.

    Raises:
      OrqaError: No question has its answer in that many blocks.
    """
    pairs = []
    quiet = not sys.stderr.isatty()
    with tqdm(total=len(examples), desc="mine", unit="question", disable=quiet) as bar:
        for start in range(0, len(examples), _BATCH):
            batch = examples[start : start + _BATCH]
            ids_BD, _ = index.search([example.question for example in batch], depth)
            if paragraphs is not None:
                gold_BD, _ = index.search(list(paragraphs[start : start + _BATCH]), depth)
            for row, (example, ids_D) in enumerate(zip(batch, ids_BD, strict=True)):
                mode: Mode = "regex" if example.match == "regex" else "token"
                right_D = blocks_with_answer(store, ids_D, example.answers, mode)
                positives, wrong = ids_D[right_D], ids_D[~right_D]
                if paragraphs is not None:
                    gold_D = gold_BD[row]
                    positives = gold_D[blocks_with_answer(store, gold_D, example.answers, mode)]
                if len(positives) and len(wrong) >= negatives:
                    hard = tuple(int(block) for block in wrong[:negatives])
                    pairs.append(Pair(example.question, int(positives[0]), hard))
            bar.update(len(batch))
            if quiet and start and start % (_BATCH * 100) == 0:
                logger.info("mine: %d of %d questions", start, len(examples))
    logger.info("%d of %d questions have a positive block.", len(pairs), len(examples))
    if not pairs:
        raise OrqaError(
            f"No question has its answer among the first {depth} blocks of BM25; check that "
            "questions and documents belong together."
        )
    return pairs


def save_pairs(path: Path, pairs: Iterable[Pair], corpus_fingerprint: str) -> None:
    """Writes JSONL of `question`, `positive`, `negatives` (block numbers) and `corpus`, atomically.

    `corpus` is the fingerprint of the store that the numbers belong to.
    """
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("w", encoding="utf-8") as file:
        for pair in pairs:
            line = {
                "question": pair.question,
                "positive": pair.block,
                "negatives": pair.negatives,
                "corpus": corpus_fingerprint,
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    partial.replace(path)


def load_pairs(path: Path, store: BlockStore) -> list[Pair]:
    """Reads what `save_pairs` wrote; lines made by hand may do without `corpus`.

    Raises:
      OrqaError: A line has a defect, is of another corpus, or has other negatives than the first in
        number.
    """
    pairs: list[Pair] = []
    for where, record in read_jsonl(path):
        question, negatives = record.get("question"), record.get("negatives", [])
        numbers = [record.get("positive"), *(negatives if isinstance(negatives, list) else [None])]
        if not isinstance(question, str) or not question.strip():
            raise OrqaError(f"{where} needs a 'question' that is a string and not blank.")
        if record.get("corpus", store.fingerprint) != store.fingerprint:
            raise OrqaError(
                f"{where} has blocks of the corpus {record['corpus']!r}, but {store.folder} is "
                f"{store.fingerprint!r}; make the pairs again with `orqa mine`."
            )
        if not all(type(number) is int and 0 <= number < len(store) for number in numbers):
            raise OrqaError(
                f"{where} needs a 'positive' and 'negatives' that are blocks of this corpus, "
                f"numbers from 0 to {len(store) - 1}."
            )
        if pairs and len(negatives) != len(pairs[0].negatives):
            raise OrqaError(
                f"{where} has {len(negatives)} negatives and the first line has "
                f"{len(pairs[0].negatives)}; give every question the same number."
            )
        pairs.append(Pair(question, numbers[0], tuple(negatives)))
    if not pairs:
        raise OrqaError(f"{path} holds no pairs; `orqa mine` makes them.")
    return pairs


def fingerprint_file(path: Path) -> str:
    """sha256 of a file, in hexadecimal.

    Raises:
      OrqaError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise OrqaError(f"{path} cannot be read ({error.strerror}).") from error
