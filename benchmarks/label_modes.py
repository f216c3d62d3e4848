"""What the labels of the 2019 release are worth beside word-to-word ones, and what they cost.

    python -m benchmarks.label_modes STORE questions.jsonl [--regex patterns.jsonl]

Over the best 100 blocks of BM25 for each question: how often the two labels differ. Over the best
5: how many spans are candidates, and how many spell an answer, anywhere and from word to word. Then
the time of labelling one beam of 5000 blocks: by substrings, by words, by regular expressions.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from orqa_jax.corpus.store import BlockStore
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.match import Mode, texts_with_answer
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.retrieve import BeamSizes, BeamSource

DEPTH, BEAM, TIMED = 100, 5000, 20
READ, READER_LENGTH, SPAN_WIDTH = 5, 320, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--regex", type=Path)
    options = parser.parse_args()
    store = BlockStore(options.store)
    examples = load_examples(options.questions)
    with tempfile.TemporaryDirectory() as scratch:
        index = BM25Index.build(store, Path(scratch) / "bm25")
        ids_BK, _ = index.search([example.question for example in examples], DEPTH)
    labels = np.zeros((2, len(examples), DEPTH), bool)
    modes: tuple[Mode, ...] = ("token", "substring")
    for row, example in enumerate(examples):
        texts = [store.text(int(block)) for block in ids_BK[row]]
        for number, mode in enumerate(modes):
            labels[number, row] = texts_with_answer(texts, example.answers, mode)
    by_word, by_character = labels
    print(f"{len(examples)} questions, {len(store)} blocks, the best {DEPTH} of BM25 each")
    print(f"blocks right by words {by_word.sum()}, by characters {by_character.sum()}")
    print(f"  by characters alone {(by_character & ~by_word).sum()}")
    print(f"  by words alone {(by_word & ~by_character).sum()}")
    any_word, any_character = by_word.any(axis=1), by_character.any(axis=1)
    print(f"questions with a right block: {any_word.mean():.3f}, {any_character.mean():.3f}")
    print(f"  by characters alone {(any_character & ~any_word).mean():.3f}")
    print(f"  by words alone {(any_word & ~any_character).mean():.3f}")
    compare_spans(store, index, examples, ids_BK[:, :READ])

    rng = np.random.default_rng(0)
    beam = [store.text(int(block)) for block in rng.choice(len(store), BEAM, replace=False)]
    timed: list[tuple[Mode, list[Example]]] = [(mode, examples[:TIMED]) for mode in modes]
    if options.regex:
        timed.append(("regex", load_examples(options.regex)[:TIMED]))
    for mode, chosen in timed:
        seconds = []
        for example in chosen:
            start = time.process_time()
            texts_with_answer(beam, example.answers, mode)
            seconds.append(time.process_time() - start)
        print(f"{mode}: {1e3 * np.median(seconds):.0f} ms of CPU time a beam of {BEAM}, median")


def compare_spans(
    store: BlockStore, index: BM25Index, examples: list[Example], ids_BK: np.ndarray
) -> None:
    """Spans within words, as the release has them, beside spans of whole words."""
    tokenizer = WordPiece.load(store.folder / "tokenizer")
    no_vectors = np.zeros((len(store), 1), np.float32)
    found = {}
    for whole_words in (True, False):
        sizes = BeamSizes(DEPTH, READ, READER_LENGTH, SPAN_WIDTH, whole_words=whole_words)
        source = BeamSource(store, index, no_vectors, tokenizer, examples, sizes)
        counts = []
        for row, ids_K in enumerate(ids_BK):
            made = source.reader_inputs(np.array([row]), ids_K[None])
            counts.append((made["span_mask"].sum(), made["span_correct"].sum()))
        found[whole_words] = np.array(counts)
    (candidates, correct), (all_candidates, all_correct) = (
        found[True].sum(axis=0),
        found[False].sum(axis=0),
    )
    print(f"spans of the best {READ}: {candidates} of whole words, {all_candidates} anywhere")
    print(f"  that spell an answer: {correct}, {all_correct}")
    readable = [(found[whole][:, 1] > 0).mean() for whole in (True, False)]
    print(f"  questions with one: {readable[0]:.3f}, {readable[1]:.3f}")


if __name__ == "__main__":
    main()
