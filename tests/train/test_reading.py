import dataclasses
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.losses import marginal_log_likelihood
from tiny_world import documents, finetune_config, indexed_run, metrics_of, world

from orqa_jax.errors import OrqaError
from orqa_jax.models.weights import load_params
from orqa_jax.predict import load_answerer
from orqa_jax.qa.datasets import GoldSpans, read_gold_spans
from orqa_jax.qa.examples import Example
from orqa_jax.train import finetune
from orqa_jax.train.reading import ReadConfig, reading_batch, reading_loss, readings, train_reader

SETTINGS = {
    "epochs": 4.0,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "reader_beam": 3,
    "reader_length": 64,
    "max_span_wordpieces": 6,
    "span_hidden_size": 16,
    "dropout": 0.0,
    "checkpoint_every": 50,
    "log_every": 4,
}


def squad(path: Path) -> Path:
    """The founder of every second document, marked."""
    articles = []
    for number, document in enumerate(documents()[::2]):
        founder = document["text"].split(" founded ")[0]
        answers = [{"text": founder, "answer_start": 0}]
        question = {"id": f"g{number}", "question": "Who founded it?", "answers": answers}
        paragraph = {"context": document["text"], "qas": [question]}
        articles.append({"title": document["title"], "paragraphs": [paragraph]})
    path.write_text(json.dumps({"data": articles}), "utf-8")
    return path


def config(out: Path, run: Path, **changes) -> ReadConfig:
    places = {
        "corpus": str(run / "corpus"),
        "retriever": str(run / "ict" / "model"),
        "squad": str(squad(out.parent / "squad.json")),
        "out": str(out),
    }
    return ReadConfig(**places | SETTINGS | changes)


WORDS = ["river", "Hesketon", "flood", "1702", "salt market", "weavers", "the"]


@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=60),
    st.data(),
    st.booleans(),
)
def test_gold_spans_are_what_was_marked(words, data, whole_words) -> None:
    """Whatever window of a long paragraph is read, the gold span in it spells the answer."""
    context = " ".join(words)
    place = data.draw(st.integers(0, len(words) - 1))
    start = len(" ".join(words[:place])) + (place > 0)
    gold = GoldSpans(Example("1", "who lit it ?", (words[place],)), "", context, (start,))
    settings = ReadConfig(
        "", "", "", "", reader_length=32, max_span_wordpieces=6, whole_word_spans=whole_words
    )
    tokenizer = world().tokenizer
    (reading,) = readings([gold], tokenizer, settings)
    batch = reading_batch([reading], tokenizer, settings, np.random.default_rng(place))
    found = np.argwhere(batch["span_correct"][0])
    assert len(found) == 1
    first, width = found[0]
    spelled = batch["token_ids"][0, first : first + width + 1]
    np.testing.assert_array_equal(spelled, tokenizer.encode([words[place]])[0].ids)
    assert batch["span_mask"][0, first, width]
    assert not (batch["span_correct"] & ~batch["span_mask"]).any()


def test_answers_longer_than_a_span_are_left_out() -> None:
    context = "the river flood river flood river flood river"
    gold = GoldSpans(Example("1", "what ?", (context,)), "", context, (0,))
    short = ReadConfig("", "", "", "", reader_length=32, max_span_wordpieces=3)
    assert readings([gold], world().tokenizer, short) == []
    both = GoldSpans(Example("1", "what ?", (context, "flood")), "", context, (0, 10))
    (reading,) = readings([both], world().tokenizer, short)
    assert reading.spans == ((2, 2),)


class GivenLogits:
    def __init__(self, logits):
        self.logits = logits

    def apply(self, *unused, **options):
        return self.logits


def test_the_loss_is_the_likelihood_of_the_gold_spans() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(4, 5, 3)).astype(np.float32)
    mask = rng.random((4, 5, 3)) < 0.7
    correct = mask & (rng.random((4, 5, 3)) < 0.3)
    batch = {"span_mask": mask, "span_correct": correct}
    batch |= dict.fromkeys(("token_ids", "mask", "segment_ids"))
    key = jax.random.key(0)
    loss, metrics = reading_loss({"reader": None}, GivenLogits(logits), batch, key)
    flat = [x.reshape(4, -1) for x in (logits, correct, mask)]
    expected, _ = marginal_log_likelihood(*flat)
    np.testing.assert_allclose(loss, -expected.mean(), rtol=1e-5)
    best = np.where(flat[2], flat[0], -np.inf).argmax(1)
    assert float(metrics["exact_span"][0]) == flat[1][np.arange(4), best].sum()


def test_a_reader_learns_from_gold_spans_alone_and_fine_tuning_goes_on_from_it(tmp_path) -> None:
    run = indexed_run()
    settings = config(tmp_path / "read", run, epochs=30.0, learning_rate=3e-3)
    model = train_reader(settings)
    lines = metrics_of(tmp_path / "read")
    assert lines[-1]["exact_span"] > 0.5
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]
    trained = load_params(model / "weights.safetensors")
    assert train_reader(settings) == model

    tuned = finetune_config(run, out=str(tmp_path / "tuned"), reader=str(model))
    tuned = dataclasses.replace(tuned, encoder=str(world().encoder))
    retriever = load_params(run / "ict" / "model" / "weights.safetensors")
    _, params = finetune.initial_params(tuned, retriever, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params["reader"], trained["reader"])
    wider = dataclasses.replace(tuned, span_hidden_size=8)
    with pytest.raises(OrqaError, match="has other sizes"):
        finetune.initial_params(wider, retriever, jax.random.key(0))


def test_a_reader_trained_alone_answers_from_the_corpus(tmp_path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for part in ("corpus", "ict", "index", "bm25"):
        (run / part).symlink_to(indexed_run() / part)
    train_reader(config(run / "finetune", indexed_run(), epochs=1.0))
    (answer,) = load_answerer(run, system="bm25").answer(["Who founded the clock tower?"])
    assert answer.candidates


def test_gold_spans_of_the_real_file() -> None:
    data = Path(os.environ.get("ORQA_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
    if not (data / "squad_v1.1_dev.json.xz").exists():
        pytest.skip(f"no SQuAD under {data}; set ORQA_DATA")
    golds = list(read_gold_spans([data / "squad_v1.1_dev.json.xz"]))
    assert len(golds) == 10_570
