"""A small Japanese corpus of our own, from text to answers: no spaces, no capitals, no stems."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.new_encoder import write_new_bert
from orqa_jax.cli import main
from orqa_jax.corpus.build import build_corpus
from orqa_jax.corpus.statistics import answer_statistics
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.models.bert import BertConfig
from orqa_jax.text.match import find_answer, texts_with_answer
from orqa_jax.text.sentences import split_sentences
from orqa_jax.text.wordpiece import WordPiece

# (title, text, question, answer); the villages do not exist.
VILLAGES = [
    (
        "風見村",
        "風見村は山の北にある。村長は森田ハルである。",
        "風見村の村長は誰ですか。",
        "森田ハル",
    ),
    (
        "石橋町",
        "石橋町には古い灯台が立つ。灯台は1874年に建てられた。",
        "石橋町の灯台はいつ建てられましたか。",
        "1874年",
    ),
    (
        "青木島",
        "青木島の名物はカキのスープだ。冬に多くの人が食べに来る。",
        "青木島の名物は何ですか。",
        "カキのスープ",
    ),
    (
        "雪原町",
        "雪原町では毎年たこ上げ大会が開かれる。大会は二月に行われる。",
        "雪原町の大会は何月ですか。",
        "二月",
    ),
    (
        "月見浜",
        "月見浜は白い砂で知られる。浜の長さは三キロである。",
        "月見浜の長さはどれくらいですか。",
        "三キロ",
    ),
    (
        "松風市",
        "松風市はガラス工場の町だ。工場を始めたのは小西ユリである。",
        "松風市の工場は誰が始めましたか。",
        "小西ユリ",
    ),
    (
        "霧谷村",
        "霧谷村の川は南へ流れる。川の名は黒沢川という。",
        "霧谷村の川の名は何ですか。",
        "黒沢川",
    ),
    ("花岡町", "花岡町の駅は小さい。駅にはネコの駅長がいる。", "花岡町の駅長は何ですか。", "ネコ"),
    (
        "夏目湖",
        "夏目湖は深い湖だ。深さは百二十メートルある。",
        "夏目湖の深さは何メートルですか。",
        "百二十メートル",
    ),
    (
        "星野村",
        "星野村の天文台には大きな望遠鏡がある。村の人口は四百人だ。",
        "星野村の人口は何人ですか。",
        "四百人",
    ),
    (
        "竹林町",
        "竹林町の寺は七百年前からある。寺を建てたのは空山である。",
        "竹林町の寺は誰が建てましたか。",
        "空山",
    ),
    (
        "貝塚島",
        "貝塚島へは船で行く。船はミナト号という。",
        "貝塚島へ行く船の名は何ですか。",
        "ミナト号",
    ),
]
DOCUMENTS = [{"id": title, "title": title, "text": text} for title, text, _, _ in VILLAGES]


def write_lines(path: Path, records: list[dict[str, object]]) -> Path:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    texts = [f"{d['title']}\n{d['text']}" for d in DOCUMENTS]
    return WordPiece.learn(texts, 1000, lowercase=False)


def test_japanese_is_cut_searched_and_labelled(tmp_path: Path, tokenizer: WordPiece) -> None:
    source = write_lines(tmp_path / "villages.jsonl", DOCUMENTS)
    store = build_corpus([source], tmp_path / "corpus", tokenizer, language="none", workers=1)
    assert [store.title(block) for block in range(len(store))] == [v[0] for v in VILLAGES]
    assert all(len(split_sentences(text)) == 2 for _, text, _, _ in VILLAGES)

    answers = [(answer,) for *_, answer in VILLAGES]
    for block, (answer,) in enumerate(answers):
        start, end = find_answer(store.text(block), [answer]) or (0, 0)
        assert store.text(block)[start:end] == answer
        holds = texts_with_answer([store.text(i) for i in range(len(store))], [answer])
        assert holds[block]
    # Wordpieces of an answer are those of the text around it, so the reader can learn all of them.
    found = answer_statistics(store, answers)
    assert (found.questions, found.answerable) == (len(VILLAGES), len(VILLAGES))

    bm25 = BM25Index.build(store, tmp_path / "bm25")
    ids_BK, _ = bm25.search([question for _, _, question, _ in VILLAGES], 1)
    np.testing.assert_array_equal(ids_BK[:, 0], np.arange(len(VILLAGES)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_japanese_from_text_to_answers(tmp_path: Path, tokenizer: WordPiece) -> None:
    """Every stage, by the commands; it learns its own dozen questions by heart."""
    sizes = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    write_new_bert(tmp_path / "encoder", sizes, tokenizer, seed=0)
    source = write_lines(tmp_path / "villages.jsonl", DOCUMENTS)
    pairs = [{"id": title, "question": q, "answer": [a]} for title, _, q, a in VILLAGES]
    questions = str(write_lines(tmp_path / "questions.jsonl", pairs))
    run, encoder = str(tmp_path / "run"), str(tmp_path / "encoder")
    predictions = tmp_path / "predictions.jsonl"
    small = "--dropout 0 --learning-rate 2e-3"
    for command in (
        f"corpus {source} --out {run}/corpus --encoder {encoder} --language none",
        f"ict --run {run} --encoder {encoder} --steps 60 --batch-size 8 --question-length 24 "
        f"--block-length 64 --warmup-steps 5 {small}",
        f"index --run {run}",
        f"finetune --run {run} --encoder {encoder} --train {questions} --epochs 60 --batch-size 8 "
        f"--early-update-beam 12 --reader-beam 3 --reader-length 96 {small}",
        f"predict --run {run} {questions} --out {predictions}",
    ):
        assert main(command.split()) == 0, command
    lines = predictions.read_text(encoding="utf-8").splitlines()
    answered = {record["id"]: record["answer"] for record in map(json.loads, lines)}
    right = [answered[pair["id"]] == pair["answer"][0] for pair in pairs]
    assert sum(right) >= 10, answered
