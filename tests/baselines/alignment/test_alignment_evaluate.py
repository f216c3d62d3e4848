import json

import numpy as np
import pytest

from orqa_jax.baselines.alignment.align import Aligner, AlignmentWeights
from orqa_jax.baselines.alignment.datasets import ChoiceQuestion, RankingQuestion
from orqa_jax.baselines.alignment.evaluate import (
    ALL,
    FULL,
    ONE,
    OVERLAP,
    WEIGHTS,
    compare_choice,
    compare_ranking,
    find_evidence,
    format_comparison,
    sum_of_best,
)
from orqa_jax.baselines.alignment.rerank import AlignmentReranker, find_sentences
from orqa_jax.cli import main
from orqa_jax.corpus.build import build_corpus
from orqa_jax.errors import OrqaError
from orqa_jax.eval.bootstrap import one_tailed_bootstrap
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.text.word_vectors import WordVectors
from orqa_jax.text.wordpiece import WordPiece

WORDS = [f"word{i}" for i in range(40)]
VECTORS = WordVectors(
    {word: row for row, word in enumerate(WORDS)},
    np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32),
)


def text(rng):
    return " ".join(rng.choice(WORDS, rng.integers(1, 7)))


def ranking_questions(seed, count):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        size = int(rng.integers(2, 6))
        relevant = rng.random(size) < 0.4
        relevant[rng.integers(size)] = True
        texts = tuple(text(rng) for _ in range(size))
        found.append(RankingQuestion(str(number), text(rng), texts, tuple(relevant.tolist())))
    return found


def choice_questions(seed, count):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        size = int(rng.integers(2, 5))
        choices = tuple(text(rng) for _ in range(size))
        evidence = tuple(tuple(text(rng) for _ in range(rng.integers(1, 5))) for _ in choices)
        right = int(rng.integers(size))
        correct = tuple(i == right for i in range(size))
        found.append(ChoiceQuestion(str(number), text(rng), choices, correct, evidence))
    return found


def mean_average_precision(questions, weights):
    aligner = Aligner(VECTORS, [q.question for q in questions])
    found = []
    for q in questions:
        order = np.argsort(-aligner.scores(q.question, q.candidates, weights), kind="stable")
        hits, precisions = 0, []
        for rank, candidate in enumerate(order, 1):
            if q.relevant[candidate]:
                hits += 1
                precisions.append(hits / rank)
        found.append(np.mean(precisions))
    return found


def test_ranking_is_tuned_on_dev_and_measured_on_test():
    dev, test = ranking_questions(1, 25), ranking_questions(2, 30)
    found = compare_ranking(VECTORS, dev, test)
    tried = {w: np.mean(mean_average_precision(dev, w)) for w in [*WEIGHTS[:60], found.weights]}
    assert tried[found.weights] == pytest.approx(max(tried.values()))
    expected = mean_average_precision(test, found.weights)
    np.testing.assert_allclose(found.scores[FULL]["MAP"], expected)
    assert set(found.scores) == {FULL, ONE, ALL, OVERLAP}
    p_value = one_tailed_bootstrap(expected, found.scores[ONE]["MAP"])
    assert found.p_values["MAP, one-to-one"] == p_value
    assert found.intervals()[FULL]["MAP"].mean == pytest.approx(np.mean(expected))


def test_choices_are_scored_by_their_best_evidence():
    dev, test = choice_questions(3, 20), choice_questions(4, 30)
    found = compare_choice(VECTORS, dev, test)
    aligner = Aligner(VECTORS, [f"{q.question} {c}" for q in test for c in q.choices])
    expected = []
    for q in test:
        totals = [
            sorted(aligner.scores(f"{q.question} {choice}", evidence, found.weights))[::-1]
            for choice, evidence in zip(q.choices, q.evidence, strict=True)
        ]
        sums = [sum(scores[: found.justifications]) for scores in totals]
        expected.append(float(q.correct[int(np.argmax(sums))]))
    assert found.scores[FULL]["P@1"].tolist() == expected


def test_sum_of_best_ignores_what_is_not_there():
    scores = np.array([[1, 3, -np.inf, 2], [-np.inf, -1, -np.inf, -np.inf]], np.float32)
    assert sum_of_best(scores, 2).tolist() == [5.0, -1.0]
    assert sum_of_best(scores, 9).tolist() == [6.0, -1.0]


def test_evidence_is_asked_for_with_question_and_choice():
    question = ChoiceQuestion("1", "Which floats?", ("cork", "iron"), (True, False))
    found = find_evidence(question, lambda texts: [[text.upper()] for text in texts])
    assert found.evidence == (("WHICH FLOATS? CORK",), ("WHICH FLOATS? IRON",))
    assert found.correct == question.correct


def test_the_command_reads_files_and_prints_the_table(tmp_path, capsys):
    vectors = tmp_path / "vectors.txt"
    rows = zip(WORDS, VECTORS.matrix_VD, strict=True)
    vectors.write_text("".join(f"{w} {' '.join(map(str, v))}\n" for w, v in rows))
    for name, seed in (("dev", 1), ("test", 2)):
        records = [
            {
                "question": q.question,
                "candidates": q.candidates,
                "answers": [i for i, right in enumerate(q.relevant) if right],
            }
            for q in ranking_questions(seed, 25)
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps(records))
    files = ["--dev", str(tmp_path / "dev.json"), "--test", str(tmp_path / "test.json")]
    command = ["align", "--format", "selqa", *files, "--vectors", str(vectors), "--raw-vectors"]

    assert main(command) == 0

    expected = compare_ranking(VECTORS, ranking_questions(1, 25), ranking_questions(2, 25))
    assert capsys.readouterr().out == format_comparison(expected) + "\n"
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["p_values"] == expected.p_values
    assert told["tuned"]["most"] == expected.weights.most
    for system, scores in expected.intervals().items():
        means = {metric: value["mean"] for metric, value in told["scores"][system].items()}
        assert means == {metric: value.mean for metric, value in scores.items()}


def test_choices_without_evidence_need_a_corpus(tmp_path, capsys):
    path = tmp_path / "arc.jsonl"
    path.write_text(json.dumps({"query": "Which floats?", "choices": ["cork", "tin"], "gold": 0}))
    (tmp_path / "vectors.txt").write_text("cork 1 0\n")
    files = ["--dev", str(path), "--test", str(path), "--vectors", str(tmp_path / "vectors.txt")]
    command = ["align", "--format", "arc", *files, "--raw-vectors"]
    assert main(command) == 2
    assert "come without evidence" in capsys.readouterr().err

    sentences = ["Cork floats on water.", "Tin is a metal.", "Cork and tin are old words."]
    store = store_of(tmp_path, [("A", " ".join(sentences)), ("B", "Wool is warm.")])
    BM25Index.build(store, tmp_path / "run" / "bm25")
    assert main([*command, "--run", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("| system ")
    bm25 = BM25Index.open(tmp_path / "run" / "bm25", corpus_fingerprint=store.fingerprint)
    assert find_sentences(bm25, store, ["cork"], blocks=1) == [sentences]


def test_a_file_without_questions_is_told(tmp_path, capsys):
    path = tmp_path / "arc.jsonl"
    path.write_text("\n")
    (tmp_path / "vectors.txt").write_text("cork 1 0\n")
    files = ["--dev", str(path), "--test", str(path), "--vectors", str(tmp_path / "vectors.txt")]
    assert main(["align", "--format", "arc", *files, "--raw-vectors"]) == 2
    assert "arc.jsonl holds no question" in capsys.readouterr().err


def test_a_reranked_beam_is_in_order_of_alignment(tmp_path):
    texts = ["word3 word4", "word3 word3", "word5", "word3 word7 word8", "other"]
    store = store_of(tmp_path, [("word9", text) for text in texts])
    bm25 = BM25Index.build(store, tmp_path / "bm25")
    aligner = Aligner(VECTORS, ["word3", "word1"])
    weights = AlignmentWeights(most=2, least=1, negative_weight=0.5)
    reranker = AlignmentReranker(bm25, store, aligner, weights, depth=3)

    ids_BK, scores_BK = reranker.search(["word3 word1"], 5)

    first = bm25.search(["word3 word1"], 5)[0][0]
    scores = aligner.scores("word3 word1", [f"word9 {texts[i]}" for i in first[:3]], weights)
    order = np.argsort(-scores, kind="stable")
    assert ids_BK[0].tolist() == [*first[:3][order], *first[3:]]
    np.testing.assert_allclose(scores_BK[0, :3], scores[order])
    assert (np.diff(scores_BK[0]) <= 0).all()
    assert reranker.search(["word3 word1"], 2)[0].tolist() == [ids_BK[0, :2].tolist()]
    with pytest.raises(OrqaError, match="at least one block"):
        reranker.search(["word3 word1"], 0)


def store_of(folder, documents):
    source = folder / "documents.jsonl"
    lines = (json.dumps({"title": title, "text": text}) + "\n" for title, text in documents)
    source.write_text("".join(lines))
    tokenizer = WordPiece.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return build_corpus([source], folder / "run" / "corpus", tokenizer, workers=1)
