"""Times the early-update labels of a question by postings and by a match in the blocks themselves.

    python -m benchmarks.labels STORE QUESTIONS

Both label 5,000 random blocks a question by whole words, on one core, and have to agree.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orqa_jax.corpus.postings import answer_postings
from orqa_jax.corpus.store import BlockStore
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.retrieve import is_in


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--blocks", type=int, default=5000)
    parser.add_argument("--sample", type=int, default=100, help="questions")
    options = parser.parse_args()
    store = BlockStore(options.store)
    tokenizer = WordPiece.load(store.tokenizer_folder)
    examples = load_examples(options.questions)
    answers = tokenizer.encode_answers([x.answers for x in examples])

    started = time.process_time()
    postings = answer_postings(store, answers, tokenizer.continues_word)
    once = time.process_time() - started
    size = sum(found.nbytes for found in postings) / 1e6
    print(f"postings of {len(examples):,} questions in {len(store):,} blocks: {once:.1f} s, "
          f"{size:.1f} MB")  # fmt: skip

    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {"postings": [], "match": []}
    for question in rng.choice(len(examples), options.sample, replace=False):
        ids_C = rng.choice(len(store), options.blocks, replace=False)
        started = time.process_time()
        looked_up_C = is_in(ids_C, postings[question])
        middle = time.process_time()
        matched_C = matches(store, ids_C, answers[question], tokenizer.continues_word)
        seconds["postings"].append(middle - started)
        seconds["match"].append(time.process_time() - middle)
        np.testing.assert_array_equal(looked_up_C, matched_C)
    for name, spent in seconds.items():
        print(
            f"{name}: {1000 * np.median(spent):.3f} ms a question (worst {1000 * max(spent):.3f})"
        )


def matches(
    store: BlockStore, ids_C: np.ndarray, answers: Sequence[np.ndarray], continues_word: np.ndarray
) -> np.ndarray:
    """bool [C], by comparing every place of the gathered blocks with every answer."""
    gathered = store.tokens(ids_C)
    tokens, offsets = gathered.values, gathered.offsets
    owner = np.repeat(np.arange(len(ids_C)), np.diff(offsets))
    begins_word = ~continues_word[tokens]
    ends_word = np.append(begins_word[1:], True)
    ends_word[offsets[1:] - 1] = True
    found_C = np.zeros(len(ids_C), bool)
    for ids in answers:
        places = len(tokens) - len(ids) + 1
        if not len(ids) or places < 1:
            continue
        equal = tokens[:places] == ids[0]
        for step, token in enumerate(ids[1:], 1):
            equal &= tokens[step : step + places] == token
        first = np.flatnonzero(equal)
        last = first + len(ids) - 1
        right = begins_word[first] & ends_word[last] & (owner[first] == owner[last])
        found_C[owner[first[right]]] = True
    return found_C


if __name__ == "__main__":
    main()
