import dataclasses
import functools
import json
import re
import shutil

import jax
import numpy as np
import pytest
from tiny_world import documents, trained_run, world, write_jsonl

from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.eval.scores import exact_match
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.models.reader import SpanReader, reader_config_from_dict
from orqa_jax.models.retriever import DualEncoder, retriever_config_from_dict
from orqa_jax.predict import (
    WEIGHTS,
    Answerer,
    CompareConfig,
    Reader,
    about_path,
    compare_systems,
    evaluate_file,
    load_answerer,
    predict_file,
    read_weight,
    tune_weight,
)
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.normalize import normalize_answer
from orqa_jax.train.checkpoint import load_model, save_model
from orqa_jax.train.retrieve import BeamSizes

QUESTIONS = [
    "Who founded the salt market of Tarnholt in 1226?",
    "When did Dunya Holt found the salt market of Velduna?",
    "Where do the glaziers live, and which of the many rivers flows past the old stone harbour?",
]


@pytest.fixture(scope="module")
def answerer():
    return functools.cache(lambda system: load_answerer(trained_run(), system=system))


@pytest.fixture
def run_copy(tmp_path):
    """A run folder of which a test may break a part."""
    shutil.copytree(trained_run(), tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    return tmp_path / "run"


@pytest.mark.parametrize("system", ["orqa", "zero_shot", "bm25", "hybrid"])
def test_answers_point_to_their_evidence(answerer, system):
    texts = {document["id"]: document for document in documents()}
    store = world().store
    answers = answerer(system).answer(QUESTIONS, candidates=7)
    assert [answer.question for answer in answers] == QUESTIONS
    for answer in answers:
        assert len(answer.candidates) == 7
        for candidate in answer.candidates:
            document = texts[candidate.document_id]
            assert document["text"][candidate.start : candidate.end] == candidate.answer
            assert candidate.title == document["title"]
            block = candidate.block_start, candidate.block_start + len(candidate.block_text)
            assert document["text"][slice(*block)] == candidate.block_text
            assert block[0] <= candidate.start < candidate.end <= block[1]
            assert candidate.block in answer.retrieved[:3]
            assert store.text(candidate.block) == candidate.block_text
        scores = [candidate.score for candidate in answer.candidates]
        assert scores == sorted(scores, reverse=True)
        assert len({normalize_answer(candidate.answer) for candidate in answer.candidates}) == 7
        assert list(answer.retrieval_scores) == sorted(answer.retrieval_scores, reverse=True)
        assert sorted(answer.retrieved) == list(range(len(store)))  # fewer than the 100 asked for


def test_retrieval_and_reading_match_one_at_a_time(answerer):
    """No batches, no buckets: each question alone, each block alone, every span in turn."""
    run = trained_run()
    about, params, tokenizer = load_model(run / "finetune" / "model", kind="question answerer")
    retriever = DualEncoder(retriever_config_from_dict(about["retriever"]))
    encode = jax.jit(functools.partial(retriever.apply, method="encode_questions"))
    read = jax.jit(SpanReader(reader_config_from_dict(about["reader"])).apply)
    embeddings_NP = np.load(run / "index" / "embeddings.npy").astype(np.float64)
    store = world().store

    for text in QUESTIONS[:2]:
        question = tokenizer.encode([text])[0].ids.tolist()
        tokens = np.zeros((1, 32), np.int32)
        tokens[0, : len(question) + 2] = [tokenizer.cls_id, *question, tokenizer.sep_id]
        vector_P = np.asarray(encode({"params": params["retriever"]}, tokens, tokens != 0)[0])
        scores_N = embeddings_NP @ vector_P.astype(np.float64)
        answer = answerer("orqa").answer([text], candidates=3, retrieve=9)[0]
        assert list(answer.retrieved) == np.argsort(-scores_N)[:9].tolist()
        np.testing.assert_allclose(answer.retrieval_scores, np.sort(scores_N)[:-10:-1], rtol=1e-4)

        spans = []
        for block in answer.retrieved[:3]:
            encoded = tokenizer.encode([store.text(block)])[0]
            first = len(question) + 2
            sequence = [tokenizer.cls_id, *question, tokenizer.sep_id]
            sequence += [*encoded.ids.tolist(), tokenizer.sep_id]
            tokens = np.zeros((1, 64), np.int32)
            tokens[0, : len(sequence)] = sequence
            segments = (tokens != 0) & (np.arange(64) >= first)
            logits_LW = read(
                {"params": params["reader"]}, tokens, tokens != 0, segments.astype(np.int32)
            )[0]
            pieces = [*tokenizer.continues_word[encoded.ids].tolist(), False]
            for start in range(len(encoded.ids)):
                for extra in range(min(6, len(encoded.ids) - start)):
                    if not pieces[start] and not pieces[start + extra + 1]:
                        score = float(logits_LW[first + start, extra])
                        characters = encoded.starts[start], encoded.ends[start + extra]
                        spans.append((score + scores_N[block], score, block, *characters))
        best = max(spans)
        found = answer.candidates[0]
        assert found.block == best[2]
        assert found.answer == store.text(best[2])[best[3] : best[4]]
        assert found.score == pytest.approx(best[0], rel=1e-4, abs=1e-4)
        assert found.reader_score == pytest.approx(best[1], rel=1e-4, abs=1e-4)


def test_a_batch_is_answered_as_its_questions_are(answerer):
    together = answerer("orqa").answer(QUESTIONS)
    for question, expected in zip(QUESTIONS, together, strict=True):
        alone = answerer("orqa").answer([question])[0]
        assert alone.retrieved == expected.retrieved
        assert [c.answer for c in alone.candidates] == [c.answer for c in expected.candidates]
        scores = [[c.score for c in answer.candidates] for answer in (alone, expected)]
        np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)


def test_zero_shot_is_the_retriever_as_ict_left_it(answerer):
    run = trained_run()
    about, params, tokenizer = load_model(run / "ict" / "model", kind="dual encoder")
    model = DualEncoder(retriever_config_from_dict(about["retriever"]))
    ids = tokenizer.encode(QUESTIONS[:1])[0].ids
    tokens = np.array([[tokenizer.cls_id, *ids, tokenizer.sep_id]], np.int32)
    encode = jax.jit(functools.partial(model.apply, method="encode_questions"))
    vector_P = np.asarray(encode({"params": params}, tokens, np.ones_like(tokens, bool)))[0]
    scores_N = np.load(run / "index" / "embeddings.npy") @ vector_P
    untrained = answerer("zero_shot").answer(QUESTIONS[:1])[0]
    np.testing.assert_allclose(untrained.retrieval_scores, np.sort(scores_N)[::-1], rtol=1e-4)
    trained = answerer("orqa").answer(QUESTIONS[:1])[0]
    assert not np.allclose(untrained.retrieval_scores, trained.retrieval_scores, rtol=1e-2)
    assert untrained.candidates[0].reader_score != trained.candidates[0].reader_score


def test_bm25_retrieves_by_words(answerer):
    index = BM25Index.open(trained_run() / "bm25", corpus_fingerprint=world().store.fingerprint)
    ids_BK, scores_BK = index.search(QUESTIONS, len(world().store))
    for row, answer in enumerate(answerer("bm25").answer(QUESTIONS)):
        assert list(answer.retrieved) == ids_BK[row].tolist()
        np.testing.assert_allclose(answer.retrieval_scores, scores_BK[row], rtol=1e-6)
    assert "Tarnholt" in world().store.text(int(ids_BK[0, 0]))


def test_hybrid_fuses_the_ranks_of_both_retrievers(answerer):
    hybrid = answerer("hybrid").answer(QUESTIONS, retrieve=6)
    ranked = [answerer(system).read(QUESTIONS, 92).ids_BC for system in ("orqa", "bm25")]
    for row, answer in enumerate(hybrid):
        gains = np.zeros(len(world().store))
        for ids in ranked:
            gains[ids[row]] += 1 / (61 + np.arange(92))
        expected = np.argsort(-gains.astype(np.float32), kind="stable")[:6]
        assert answer.retrieved == tuple(expected.tolist())


def test_no_question_and_empty_questions(answerer):
    assert answerer("orqa").answer([]) == []
    assert answerer("bm25").answer([]) == []
    with pytest.raises(OrqaError, match="Question 2 of the batch is empty"):
        answerer("orqa").answer(["Who?", " \n"])


@pytest.mark.parametrize("question", ["?", "\u200b\u200b", "[SEP] [CLS]", "кто это?", "who " * 200])
def test_strange_questions_are_answered(answerer, question):
    answer = answerer("orqa").answer([question])[0]
    assert answer.candidates[0].answer in answer.candidates[0].block_text


def test_blocks_that_begin_within_a_word(tmp_path):
    """On its own the text of such a block is other wordpieces than those that were read."""
    text = "z" * 12 + "lives there, in autumn, in the river."
    source = write_jsonl(tmp_path / "d.jsonl", [{"title": "a", "text": text}])
    tokenizer = world().tokenizer
    store = build_corpus([source], tmp_path / "store", tokenizer, max_wordpieces=16, workers=1)
    assert store.text(1).startswith("lives there")
    assert len(tokenizer.encode([store.text(1)])[0].ids) < store.lengths[1]

    about, params, _ = load_model(trained_run() / "finetune" / "model", kind="question answerer")
    sizes = BeamSizes(early=99, read=len(store), reader_length=64, span_width=6)
    model = SpanReader(reader_config_from_dict(about["reader"]))
    reader = Reader(model, params["reader"], store, tokenizer, sizes)
    retriever = BM25Index.build(store, tmp_path / "bm25")
    answerer = Answerer(store, retriever, reader, tokenizer=tokenizer)
    answer = answerer.answer(["What is in the river?"], candidates=500)[0]
    assert "river" in [candidate.answer.strip(".") for candidate in answer.candidates]
    for candidate in answer.candidates:
        assert candidate.answer == text[candidate.start : candidate.end]
        ids = tokenizer.encode([candidate.answer])[0].ids.tolist()
        tokens = store.block_tokens(candidate.block).tolist()
        starts = range(len(tokens) - len(ids) + 1)
        assert ids in [tokens[start : start + len(ids)] for start in starts]


# --- Files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def predictions(answerer, tmp_path_factory):
    out = tmp_path_factory.mktemp("predictions") / "new" / "p.jsonl"
    predict_file(answerer("orqa"), world().questions, out, about={"system": "orqa"})
    return out


def test_a_file_of_predictions(answerer, predictions):
    examples = load_examples(world().questions)
    lines = [json.loads(line) for line in predictions.read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == [example.id for example in examples]
    expected = answerer("orqa").answer([examples[4].question])[0]
    assert lines[4]["answer"] == expected.candidates[0].answer
    assert lines[4]["retrieved"] == list(expected.retrieved)
    assert lines[4]["candidates"][0]["title"] == expected.candidates[0].title
    names = sorted(path.name for path in predictions.parent.iterdir())
    assert names == ["p.jsonl", "p.jsonl.about.json"]
    about = json.loads((predictions.parent / names[1]).read_text())
    assert about["system"] == "orqa"
    assert about["corpus_fingerprint"] == world().store.fingerprint


def test_predictions_never_take_the_place_of_questions(answerer, tmp_path):
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "Who?"}\n')
    with pytest.raises(OrqaError, match=r"q.jsonl holds the questions themselves"):
        predict_file(answerer("orqa"), questions, questions, about={})
    with pytest.raises(OrqaError, match="is a folder"):
        predict_file(answerer("orqa"), questions, tmp_path, about={})
    assert questions.read_text() == '{"question": "Who?"}\n'


def test_the_scores_of_a_file_of_predictions(predictions):
    examples = load_examples(world().questions)
    lines = [json.loads(line) for line in predictions.read_text("utf-8").splitlines()]
    store = world().store
    found = evaluate_file(predictions, world().questions).per_question
    assert found["exact_match"].tolist() == [
        exact_match(line["answer"], example.answers)
        for line, example in zip(lines, examples, strict=True)
    ]
    for k in (1, 5, 20, 100):
        hits = []
        for line, example in zip(lines, examples, strict=True):
            words = "|".join(map(re.escape, example.answers))
            texts = " # ".join(store.text(block) for block in line["retrieved"][:k])
            hits.append(float(bool(re.search(rf"\b(?:{words})\b", texts, re.IGNORECASE))))
        assert found[f"recall@{k}"].tolist() == hits
    assert 0 < found["recall@5"].mean() < found["recall@100"].mean() == 1.0


def test_without_the_corpus_there_is_no_recall(predictions, tmp_path, caplog):
    moved = tmp_path / "p.jsonl"
    shutil.copy(predictions, moved)
    found = evaluate_file(moved, world().questions).intervals
    assert set(found) == {"exact_match", "modern_match", "f1"}
    assert "--corpus" in caplog.text
    found = evaluate_file(moved, world().questions, corpus=trained_run() / "corpus").intervals
    assert "recall@5" in found


def test_another_corpus_is_refused(predictions, tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", documents()[:9])
    other = build_corpus([source], tmp_path / "other", world().tokenizer, workers=1)
    with pytest.raises(OrqaError, match=other.fingerprint[:16]):
        evaluate_file(predictions, world().questions, corpus=other.folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"corpus": 3}'])
def test_a_broken_description_of_predictions_is_named(predictions, tmp_path, content):
    shutil.copy(predictions, tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl.about.json").write_text(content)
    with pytest.raises(OrqaError, match=r"p\.jsonl\.about\.json"):
        evaluate_file(tmp_path / "p.jsonl", world().questions)


@pytest.mark.parametrize(("system", "untuned"), [("bm25", 1.0), ("hybrid", 3000.0)])
def test_the_weight_of_retrieval_is_the_best_on_dev(run_copy, system, untuned):
    examples = load_examples(world().questions)[:8]
    weight = tune_weight(run_copy, system, examples)
    assert read_weight(run_copy, system) == weight
    assert read_weight(trained_run(), system) == untuned
    answerer = load_answerer(run_copy, system=system)
    assert answerer.retrieval_weight == weight
    matches = {}
    for tried in WEIGHTS[system]:
        answerer.retrieval_weight = tried
        answers = answerer.answer([example.question for example in examples], candidates=1)
        matches[tried] = sum(
            exact_match(answer.candidates[0].answer, example.answers)
            for answer, example in zip(answers, examples, strict=True)
        )
    assert matches[weight] == max(matches.values())


def test_a_comparison_of_the_systems(run_copy, tmp_path):
    few = write_jsonl(tmp_path / "few.jsonl", [dataclasses.asdict(e) for e in few_examples()])
    config = CompareConfig(str(run_copy), str(few), str(few), str(tmp_path / "out"))
    table = compare_systems(config)
    rows = table.splitlines()
    assert len(rows) == 5
    assert [row.split("|")[1].split(",")[0].split()[0] for row in rows[2:]] == [
        "BM25",
        "zero-shot",
        "ORQA",
    ]
    assert (tmp_path / "out" / "results.md").read_text() == table + "\n"
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl")}
    assert len(times) == 3
    assert compare_systems(config) == table
    assert times == {path: path.stat().st_mtime_ns for path in times}

    # Predictions of another model, though of the same name, are made again.
    stale = tmp_path / "out" / "orqa.jsonl"
    described = json.loads(about_path(stale).read_text())
    about_path(stale).write_text(json.dumps(described | {"weights_fingerprint": "other"}))
    assert compare_systems(config) == table
    changed = {path for path in times if path.stat().st_mtime_ns != times[path]}
    assert changed == {stale}
    assert json.loads(about_path(stale).read_text()) == described


def few_examples():
    return load_examples(world().questions)[:3]


# --- What does not belong together ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "system"),
    [
        ("corpus", "orqa"),
        ("finetune/model", "orqa"),
        ("index", "orqa"),
        ("bm25", "bm25"),
        ("ict/model", "zero_shot"),
    ],
)
def test_a_missing_part_is_named(run_copy, part, system):
    shutil.rmtree(run_copy / part)
    with pytest.raises(OrqaError) as raised:
        load_answerer(run_copy, system=system)
    assert str(run_copy / part) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_of_another_corpus_is_refused(run_copy, tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", documents()[:9])
    shutil.rmtree(run_copy / "corpus")
    build_corpus([source], run_copy / "corpus", world().tokenizer, workers=1)
    fingerprints = BlockStore(run_copy / "corpus").fingerprint, world().store.fingerprint
    for system in ("orqa", "zero_shot", "bm25"):
        with pytest.raises(OrqaError) as raised:
            load_answerer(run_copy, system=system)
        assert all(fingerprint[:16] in str(raised.value) for fingerprint in fingerprints)


def test_an_index_of_other_weights_is_refused(run_copy):
    manifest = json.loads((run_copy / "index" / "manifest.json").read_text())
    manifest["weights_fingerprint"] = "0" * 64
    (run_copy / "index" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OrqaError, match="weights 0000000000000000"):
        load_answerer(run_copy)


def test_zero_shot_of_another_retriever_is_refused(run_copy):
    """A retriever that was trained again does not fit the vectors that are in the index."""
    folder = run_copy / "ict" / "model"
    about, params, tokenizer = load_model(folder, kind="dual encoder")
    params["question_encoder"]["projection"]["bias"] += 1.0
    description = {name: about[name] for name in ("retriever", "question_length", "block_length")}
    save_model(
        folder, kind="dual encoder", description=description, params=params, tokenizer=tokenizer
    )
    with pytest.raises(OrqaError, match=about["weights_fingerprint"][:16]):
        load_answerer(run_copy, system="zero_shot")


def test_an_unknown_system_is_named():
    with pytest.raises(OrqaError, match=r'"tfidf".*"bm25"'):
        load_answerer(trained_run(), system="tfidf")
