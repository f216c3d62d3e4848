import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.corpus import build
from orqa_jax.corpus.postings import answer_postings
from orqa_jax.text.wordpiece import WordPiece

VOCABULARY = 7

wordpieces = st.lists(st.integers(0, VOCABULARY - 1), max_size=4)
blocks = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), max_size=6)


def store_of(shards):
    """Just what a scan sees of a store: the wordpieces of its shards."""
    made, first_block = [], 0
    for rows in shards:
        made.append(
            SimpleNamespace(
                first_block=first_block,
                token_values=np.array([token for row in rows for token in row], np.int32),
                token_offsets=np.cumsum([0, *map(len, rows)], dtype=np.int32),
            )
        )
        first_block += len(rows)
    return SimpleNamespace(shards=made)


def holds(block, answer, continues_word):
    """Reads the block from left to right."""
    for start in range(len(block) - len(answer) + 1):
        end = start + len(answer)
        if block[start:end] != answer or continues_word[block[start]]:
            continue
        if end == len(block) or not continues_word[block[end]]:
            return True
    return False


@given(
    shards=st.lists(blocks, min_size=1, max_size=3),
    answers=st.lists(st.lists(wordpieces, max_size=3), max_size=5),
    continues_word=st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY),
)
def test_matches_a_reading_of_every_block(shards, answers, continues_word):
    continues_word = np.array(continues_word)
    found = answer_postings(
        store_of(shards),
        [[np.array(ids, np.int32) for ids in of_question] for of_question in answers],
        continues_word,
    )
    everything = [block for rows in shards for block in rows]
    expected = [
        [
            number
            for number, block in enumerate(everything)
            if any(ids and holds(block, ids, continues_word) for ids in of_question)
        ]
        for of_question in answers
    ]
    assert [numbers.tolist() for numbers in found] == expected


def test_not_across_the_border_of_two_blocks():
    store = store_of([[[1, 2], [3, 1]], [[2, 3]]])
    answers = [[np.array([2, 3])], [np.array([1, 2])], [np.array([3, 1, 2])]]
    found = answer_postings(store, answers, np.zeros(VOCABULARY, bool))
    assert [numbers.tolist() for numbers in found] == [[2], [0], []]


def test_in_a_store_of_several_shards_the_words_decide(tmp_path, monkeypatch):
    """Each answer is found exactly where its words stand as words."""
    monkeypatch.setattr(build, "_SHARD_BYTES", 1)
    monkeypatch.setattr(build, "_CHUNK_CHARACTERS", 1)
    texts = [
        "The lime kiln burned for nine days.",
        "Limestone lay behind the kiln.",
        "A lime tree shades the limekiln road.",
        "Nine days later the lime kilns were cold.",
        "Old Lime Kiln, nine.",
    ]
    source = tmp_path / "documents.jsonl"
    source.write_text("".join(json.dumps({"title": "K", "text": t}) + "\n" for t in texts))
    words = sorted(
        set(re.findall(r"[a-z]+", " ".join(texts).lower())) - {"limestone", "limekiln", "kilns"}
    )
    pieces = [f"##{piece}" for piece in ("stone", "s", "kiln")]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = WordPiece.from_vocab([*special, *words, *pieces, ".", ","])
    store = build.build_corpus([source], tmp_path / "store", tokenizer, workers=1)
    assert len(store.shards) == len(store) == len(texts)

    answers = ["lime", "lime kiln", "Nine days", "kiln", "limestone", "stone"]
    ids = [[encoded.ids] for encoded in tokenizer.encode(answers)]
    found = answer_postings(store, ids, tokenizer.continues_word)
    for answer, numbers in zip(answers, found, strict=True):
        pattern = re.compile(rf"\b{answer}\b", re.IGNORECASE)
        assert numbers.tolist() == [i for i, text in enumerate(texts) if pattern.search(text)]


def test_no_answers_at_all():
    assert answer_postings(store_of([[[1]]]), [], np.zeros(VOCABULARY, bool)) == []


@pytest.mark.parametrize("answer", [[], [6]])
def test_nothing_and_the_unseen_never_match(answer):
    store = store_of([[[1, 2]]])
    found = answer_postings(store, [[np.array(answer, np.int32)]], np.zeros(VOCABULARY, bool))
    assert found[0].tolist() == []
