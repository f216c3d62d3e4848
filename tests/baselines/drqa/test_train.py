import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from orqa_jax.baselines.drqa.answer import load_drqa
from orqa_jax.baselines.drqa.encode import Encoder, frequent_question_words
from orqa_jax.baselines.drqa.examples import (
    ReadingExample,
    load_reading,
    read_squad,
    save_reading,
    split_by_document,
)
from orqa_jax.baselines.drqa.read import DocumentReader, best_span
from orqa_jax.baselines.drqa.retrieve import TfIdfIndex
from orqa_jax.baselines.drqa.squad import (
    DrqaDecomposeConfig,
    DrqaSquadConfig,
    compare_readers,
    decompose,
    score,
    write_documents,
)
from orqa_jax.baselines.drqa.tokens import tokenize
from orqa_jax.baselines.drqa.train import (
    DrqaTrainConfig,
    encode_examples,
    epoch_batches,
    load_reader,
    reader_vectors,
    train_reader,
)
from orqa_jax.cli import main
from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.models.weights import load_params
from orqa_jax.text.word_vectors import load_word_vectors
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.metrics import MetricsLog

NAMES = ["Anka", "Tobin", "Ysolde", "Perrin", "Dunya", "Emeric", "Rill", "Marsh"]
THINGS = ["well", "mill", "bridge", "tower", "market", "road"]
OTHER = ["who", "dug", "built", "the", "a", "old", "and", "then", "by", "in", "long", "ago"]


def example(number):
    """Who made one of three things, in a paragraph about all of them."""
    rng = np.random.default_rng(number)
    names, things = rng.permutation(NAMES)[:3], rng.permutation(THINGS)[:3]
    said = [f"The old {t} was built by {n} ." for t, n in zip(things, names, strict=True)]
    text, asked = " ".join(said), int(rng.integers(3))
    start = text.index(names[asked])
    span = (start, start + len(names[asked]))
    question = f"Who built the {things[asked]} ?"
    answer = (str(names[asked]),)
    return ReadingExample(f"q{number}", question, text, (span,), answer, f"d{number % 8}")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    rng = np.random.default_rng(0)
    words = [w.lower() for w in [*NAMES, *THINGS, *OTHER, ".", "?", "was"]]
    lines = (f"{w} {' '.join(f'{x:.4f}' for x in rng.normal(size=12))}\n" for w in words)
    path.write_text("".join(lines))
    return str(path)


SMALL = {"hidden_size": 16, "layers": 1, "tuned_words": 4, "batch_size": 8, "log_every": 5}


@pytest.fixture(scope="module")
def trained(vectors, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drqa")
    save_reading(folder / "train.jsonl", [example(i) for i in range(64)])
    config = DrqaTrainConfig(
        train=str(folder / "train.jsonl"),
        out=str(folder / "run"),
        vectors=vectors,
        epochs=15,
        dropout=0.1,
        learning_rate=1e-2,
        checkpoint_every=20,
        **SMALL,
    )
    return config, train_reader(config)


def test_it_learns_to_read(trained, vectors):
    reader = DocumentReader(load_reader(trained[1], load_word_vectors(vectors)))
    held_out = [example(i) for i in range(1000, 1060)]
    spans = reader.read([e.question for e in held_out], [[e.paragraph] for e in held_out])
    right = score({e.id: s.text for e, s in zip(held_out, spans, strict=True)}, held_out)
    assert right["exact_match"].mean() > 0.9  # a name at random would be 0.33
    for e, span in zip(held_out, spans, strict=True):
        assert e.paragraph[span.start : span.end] == span.text


def test_an_interrupted_training_ends_as_an_uninterrupted_one(trained, tmp_path, monkeypatch):
    config, folder = trained
    config = dataclasses.replace(config, out=str(tmp_path / "run"))

    class Interrupted(Exception):
        pass

    add = MetricsLog.add

    def add_or_stop(log, step, metrics):
        if step == 45:
            raise Interrupted
        add(log, step, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "add", add_or_stop)
        with pytest.raises(Interrupted):
            train_reader(config)
    again = train_reader(config)
    a, b = (load_params(place / "weights.safetensors") for place in (folder, again))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    with pytest.raises(OrqaError, match=r"learning_rate was 0\.01 and is 0\.02"):
        train_reader(dataclasses.replace(config, learning_rate=0.02))


def test_fine_tuning_starts_from_a_finished_reader(trained, vectors, tmp_path):
    config, folder = trained
    path = tmp_path / "few.jsonl"
    save_reading(path, [example(i) for i in range(200, 208)])
    tuned = dataclasses.replace(
        config,
        train=f"{config.train},{path}",
        out=str(tmp_path / "tuned"),
        start_from=str(folder),
        learning_rate=1e-9,
        dropout=0.0,
        epochs=1,
    )
    found = load_params(train_reader(tuned) / "weights.safetensors")
    before = load_params(folder / "weights.safetensors")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, before)
    other = tmp_path / "other.txt"
    other.write_text("well 1 2\n")
    with pytest.raises(OrqaError, match="was trained with word vectors"):
        load_reader(folder, load_word_vectors(other))


def test_batches_hold_every_example_and_like_lengths():
    lengths = np.random.default_rng(0).integers(5, 90, 50)
    config = DrqaTrainConfig(train="", out="", batch_size=8)
    first, again = (epoch_batches(lengths, config, 0) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert {row for rows in first for row in rows} == set(range(50))
    assert {len(rows) for rows in first} == {8}
    spread = [np.ptp(lengths[rows]) for rows in first]
    assert max(spread) < 25
    other = epoch_batches(lengths, config, 1)
    assert not all((a == b).all() for a, b in zip(first, other, strict=True))
    means = [lengths[rows].mean() for rows in first]
    assert means != sorted(means)


def test_encoded_examples_point_at_the_answer(vectors):
    words = load_word_vectors(vectors)
    made = [example(i) for i in range(5)]
    inside = dataclasses.replace(made[0], spans=((1, 4),))
    encoder = Encoder(words, frequent_question_words(["who who built the ?"], words, 2))
    assert encoder.tuned == {"who": 1, "built": 2}
    targets = encode_examples(encoder, [*made, inside])
    assert len(targets.encoded) == 5
    for e, start, end in zip(made, targets.starts, targets.ends, strict=True):
        assert tokenize(e.paragraph).words[start : end + 1] == e.answers
    batch = encoder.batch(targets.encoded[:2])
    assert batch["vectors"].shape == (2, 64, 12)
    first = tokenize(made[0].paragraph).words
    np.testing.assert_array_equal(
        batch["vectors"][0, : len(first)], words.lookup([w.lower() for w in first])
    )
    assert (batch["vectors"][0, len(first) :] == 0).all()
    assert batch["mask"].sum(axis=1).tolist() == [len(tokenize(e.paragraph)) for e in made[:2]]
    assert batch["tuned"][0].max() == 2
    with pytest.raises(OrqaError, match="No training example"):
        encode_examples(encoder, [inside])


def test_the_best_span_is_the_best_of_at_most_fifteen_tokens():
    rng = np.random.default_rng(1)
    words = list("abcdefghij")
    text = " , ".join(words) + " ."
    count = len(tokenize(text))
    start, end = rng.normal(size=(2, count)).astype(np.float32)
    tokens = tokenize(text)
    spans = {
        (a, b): start[a] + end[b]
        for a, b in itertools.product(range(count), repeat=2)
        if a <= b < a + 15
    }
    a, b = max(spans, key=spans.get)
    expected = (pytest.approx(spans[a, b]), tokens.starts[a], tokens.ends[b])
    assert best_span(start, end, text) == expected
    found = best_span(start, end, text, {"d", "h"})
    assert found[0] == pytest.approx(max(spans[i, i] for i in (2 * 3, 2 * 7)))
    assert text[found[1] : found[2]] in {"d", "h"}
    assert best_span(start, end, text, {"nothing"}) is None
    start[:], end[:] = 0.0, 0.0
    start[0], end[-1] = 9.0, 9.0
    score, first, last = best_span(start, end, text)
    assert (score, first, last) != (18.0, 0, len(text))


def test_scores_compare_across_the_paragraphs_of_a_question(trained, vectors):
    reader = DocumentReader(load_reader(trained[1], load_word_vectors(vectors)))
    made = [example(i) for i in range(300, 304)]
    texts = [e.paragraph for e in made]
    (together,) = reader.read([made[2].question], [[*texts, ""]])
    singles = [reader.read([made[2].question], [[text]])[0] for text in texts]
    best = int(np.argmax([single.score for single in singles]))
    assert together.paragraph == best
    assert together.text == singles[best].text
    (closed,) = reader.read([made[2].question], [texts], {"ANKA", "Dunya"})
    assert closed.text in {"Anka", "Dunya"}
    assert reader.read(["Who?"], [[""]]) == [None]


def test_squad_and_its_split(tmp_path):
    path = tmp_path / "squad.json"
    articles = [
        {
            "title": f"T{i}",
            "paragraphs": [
                {
                    "context": "Anka dug it in 1887.",
                    "qas": [
                        {
                            "id": f"{i}",
                            "question": "Who dug it?",
                            "answers": [
                                {"answer_start": 15, "text": "1887"},
                                {"answer_start": 0, "text": "Anka"},
                                {"answer_start": 0, "text": "Anka"},
                            ],
                        }
                    ],
                }
            ],
        }
        for i in range(9)
    ]
    path.write_text(json.dumps({"data": articles}))
    examples = read_squad(path)
    assert examples[0].spans == ((0, 4), (15, 19))
    assert examples[0].answers == ("1887", "Anka")
    train, test = split_by_document(examples)
    assert [e.document for e in test] == ["T3", "T7"]
    assert len(train) == 7
    with pytest.raises(OrqaError, match="there are only 3"):
        split_by_document(examples[:3])
    save_reading(tmp_path / "out.jsonl", train)
    assert load_reading(tmp_path / "out.jsonl") == train
    assert load_reading(path) == examples
    path.write_text("{}")
    with pytest.raises(OrqaError, match="has no 'data'"):
        read_squad(path)
    (tmp_path / "bad.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(OrqaError, match=r"bad\.jsonl:1 is no reading example"):
        load_reading(tmp_path / "bad.jsonl")


@pytest.mark.slow
def test_the_ablations_make_a_table(vectors, tmp_path):
    squad = squad_file(tmp_path / "squad.json", 4)
    config = DrqaSquadConfig(
        squad=str(squad),
        out=str(tmp_path / "out"),
        variants="full,neither",
        hidden_size=4,
        layers=1,
        epochs=1,
        batch_size=4,
        vectors=vectors,
    )
    table = compare_readers(config)
    assert table.splitlines()[2].startswith("| full ")
    assert "neither loses" in table
    answers = json.loads((tmp_path / "out" / "neither" / "predictions.json").read_text())
    assert set(answers) == {f"q{i}" for i in range(12, 16)}
    with pytest.raises(OrqaError, match="no variant 'half'"):
        dataclasses.replace(config, variants="half")


def squad_file(path, count):
    """Articles of four questions each, in SQuAD's format."""
    articles = []
    for number in range(count):
        made = [example(i) for i in range(number * 4, number * 4 + 4)]
        paragraphs = [
            {
                "context": e.paragraph,
                "qas": [
                    {
                        "id": e.id,
                        "question": e.question,
                        "answers": [{"answer_start": e.spans[0][0], "text": e.answers[0]}],
                    }
                ],
            }
            for e in made
        ]
        articles.append({"title": f"T{number}", "paragraphs": paragraphs})
    path.write_text(json.dumps({"data": articles}))
    return path


def test_the_decomposition_reads_more_and_more(trained, vectors, tmp_path):
    squad = squad_file(tmp_path / "squad.json", 8)
    write_documents(squad, tmp_path / "documents.jsonl")
    tokenizer = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."])
    run = tmp_path / "run"
    store = build_corpus([tmp_path / "documents.jsonl"], run / "corpus", tokenizer, workers=1)
    index = TfIdfIndex.build(store, run / "tfidf")

    table = decompose(DrqaDecomposeConfig(str(squad), str(trained[1]), str(run), questions=5))

    _, test = split_by_document(read_squad(squad))
    chosen = [test[i] for i in (0, 2, 4, 5, 7)]
    reader = DocumentReader(load_reader(trained[1], load_word_vectors(vectors)))
    together = [e.paragraph for e in read_squad(squad) if e.document == "T3"]
    document = [
        reader.read([e.question], [together])[0].text in e.answers
        for e in chosen
        if e.document == "T3"
    ]
    assert len(document) == 2
    rows = [line.split("|")[1:4] for line in table.splitlines()[2:5]]
    assert [row[0].strip() for row in rows] == [
        *("given the paragraph", "given the document", "over the corpus")
    ]
    alone = reader.read([e.question for e in chosen], [[e.paragraph] for e in chosen])
    right = np.mean([s.text in e.answers for s, e in zip(alone, chosen, strict=True)])
    assert rows[0][1].split()[0] == f"{100 * right:.1f}"
    among = [
        any(store.title(index.blocks(a).start) == e.document for a in ids)
        for e, ids in zip(chosen, index.search([e.question for e in chosen], 5)[0], strict=True)
    ]
    assert f"among five for {100 * np.mean(among):.1f}%" in table
    every, more = (
        decompose(DrqaDecomposeConfig(str(squad), str(trained[1]), str(run), questions=count))
        for count in (len(test), 99)
    )
    assert more == every


def test_the_commands_from_documents_to_answers(trained, vectors, tmp_path, capsys):
    run = tmp_path / "run"
    lines = [
        {"id": e.document, "title": f"T{i}", "text": e.paragraph}
        for i, e in enumerate(example(i) for i in range(8))
    ]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    tokenizer = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."])
    build_corpus([tmp_path / "documents.jsonl"], run / "corpus", tokenizer, workers=1)
    questions = tmp_path / "questions.jsonl"
    asked = [
        {"id": e.id, "question": e.question, "answer": list(e.answers)}
        for e in (example(i) for i in range(8))
    ]
    questions.write_text("".join(json.dumps(x) + "\n" for x in asked))

    assert main(["drqa-index", "--run", str(run)]) == 0
    out = tmp_path / "supervised.jsonl"
    assert main(["drqa-supervise", "--run", str(run), str(questions), "--out", str(out)]) == 0
    for reading in load_reading(out):
        ((start, end),) = reading.spans
        assert reading.paragraph[start:end] in reading.answers
    settings = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    train = ["--train", f"{out},{trained[0].train}", "--vectors", vectors, "--epochs", "1"]
    assert main(["drqa-train", "--run", str(run), *train, *settings]) == 0
    predictions = tmp_path / "predictions.jsonl"
    command = ["predict", "--run", str(run), str(questions), "--system", "drqa"]
    assert main([*command, "--out", str(predictions)]) == 0
    assert main(["eval", str(predictions), str(questions)]) == 0
    assert "recall@5" in capsys.readouterr().out

    answerer = load_drqa(run)
    (answer,) = answerer.answer([asked[0]["question"]], retrieve=3)
    (best,) = answer.candidates
    assert answerer.store.text(best.block)[best.start - best.block_start :].startswith(best.answer)
    assert len(answer.retrieved) == 3
    assert reader_vectors(run / "drqa" / "model").rows == load_word_vectors(vectors).rows

    closed = tmp_path / "closed.txt"
    closed.write_text("anka\n\nDunya\n")
    closed_out = tmp_path / "closed.jsonl"
    assert main([*command, "--closed", str(closed), "--out", str(closed_out)]) == 0
    answers = {json.loads(line)["answer"] for line in closed_out.read_text().splitlines()}
    assert answers
    assert answers <= {"Anka", "Dunya", ""}
    closed.write_text("\n")
    assert main([*command, "--closed", str(closed), "--out", str(closed_out)]) == 2
    assert "holds no answers" in capsys.readouterr().err
