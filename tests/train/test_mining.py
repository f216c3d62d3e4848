import json

import numpy as np
import pytest
from tiny_world import ict_config, indexed_run, metrics_of, orqa, world

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.qa.examples import Example, load_examples
from orqa_jax.text.match import has_answer
from orqa_jax.train import ict
from orqa_jax.train.mining import Pair, load_pairs, mine_pairs, save_pairs


def opened():
    store = BlockStore(indexed_run() / "corpus")
    bm25 = BM25Index.open(indexed_run() / "bm25", corpus_fingerprint=store.fingerprint)
    return store, bm25


def test_positives_hold_an_answer_and_hard_negatives_do_not():
    store, bm25 = opened()
    examples = [*load_examples(world().questions), Example("r", "When?", ("13[0-9]+",), "regex")]
    expected = []
    for example in examples:
        mode = "regex" if example.match == "regex" else "token"
        ranks = bm25.search([example.question], 20)[0][0].tolist()
        right = [b for b in ranks if has_answer(store.text(b), example.answers, mode)]
        wrong = [b for b in ranks if b not in right]
        if right:
            expected.append(Pair(example.question, right[0], tuple(wrong[:2])))
    assert len(expected) > 20
    assert mine_pairs(store, bm25, examples, negatives=2, depth=20) == expected


def test_a_gold_paragraph_chooses_the_positive():
    store, bm25 = opened()
    block = 17
    answer = store.text(block).split(" founded ")[0]
    example = Example("g", "Who?", (answer,))
    (pair,) = mine_pairs(store, bm25, [example], [store.text(block)])
    assert store.text(pair.block) == store.text(block)
    with pytest.raises(OrqaError, match="No question has its answer among the first 3"):
        mine_pairs(store, bm25, [Example("n", "Who?", ("Nobody Known",))], depth=3)


def test_pairs_round_trip_and_defects_are_named(tmp_path):
    store = world().store
    last = len(store) - 1
    pairs = [Pair("who?", 3, (1, 2)), Pair("wo – é?", 0, (4, last))]
    path = tmp_path / "pairs.jsonl"
    save_pairs(path, pairs, store.fingerprint)
    assert load_pairs(path, store) == pairs
    save_pairs(path, pairs, "another")
    with pytest.raises(OrqaError, match=r"pairs.jsonl:1 has blocks of the corpus 'another'"):
        load_pairs(path, store)
    save_pairs(path, [pairs[0], Pair("why?", last + 1, (1, 2))], store.fingerprint)
    with pytest.raises(OrqaError, match=rf"pairs.jsonl:2 needs a 'positive'.*from 0 to {last}"):
        load_pairs(path, store)
    save_pairs(path, [pairs[0], Pair("why?", 1, ())], store.fingerprint)
    with pytest.raises(OrqaError, match=r":2 has 0 negatives and the first line has 2"):
        load_pairs(path, store)
    path.write_text(json.dumps({"question": "by hand", "positive": 1}) + "\n")
    assert load_pairs(path, store) == [Pair("by hand", 1, ())]
    path.write_text(json.dumps({"question": " ", "positive": 1}) + "\n")
    with pytest.raises(OrqaError, match=r":1 needs a 'question'"):
        load_pairs(path, store)
    path.write_text("")
    with pytest.raises(OrqaError, match="holds no pairs"):
        load_pairs(path, store)


def test_the_retriever_learns_from_pairs_on_the_step_of_ict(tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    orqa("mine", "--run", indexed_run(), world().questions, "--out", pairs, "--negatives", 1)
    config = ict_config(
        tmp_path / "dpr", pairs=str(pairs), steps=12, batch_size=8, dropout=0.0, warmup_steps=1
    )
    (batch,) = [batch for step, batch in enumerate(ict.batches(config, 0)) if step == 3]
    known = load_pairs(pairs, world().store)
    assert batch["block"]["token_ids"].shape[0] == 16
    assert batch["question"]["token_ids"].shape[0] == 8
    np.testing.assert_array_equal(batch["target"], np.arange(8))
    encoded = world().tokenizer.encode([pair.question for pair in known])
    hashes = [ict.sentence_hash(world().store.block_tokens(i)) for i in range(len(world().store))]
    made = {
        (tuple(e.ids), hashes[pair.block], hashes[pair.negatives[0]])
        for e, pair in zip(encoded, known, strict=True)
    }
    for row in range(8):
        ids = batch["question"]["token_ids"][row][batch["question"]["mask"][row]][1:-1]
        of_blocks = batch["sentence_hashes"][:, 0]
        assert (tuple(ids), of_blocks[row], of_blocks[8 + row]) in made
        assert batch["question_hash"][row] == of_blocks[row]
    ict.pretrain(config)
    lines = metrics_of(tmp_path / "dpr")
    assert lines[-1]["loss"] < lines[0]["loss"]
