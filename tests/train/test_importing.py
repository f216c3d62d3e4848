"""Whole runs from old artefacts: import, then answer; and what a run gives to others."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from oracles.bundle import example, write_bundle, write_records
from safetensors.numpy import load_file
from tiny_world import orqa, trained_run

from orqa_jax.cli import main
from orqa_jax.errors import OrqaError
from orqa_jax.models.tensorflow import read_tensorflow
from orqa_jax.models.weights import load_bert, save_bert
from orqa_jax.predict import load_answerer
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.checkpoint import load_model, save_model
from orqa_jax.train.exporting import export_encoders, export_predictions

GOLDEN = Path(__file__).parents[1] / "golden"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# 31 entries, as the golden weights have embeddings.
VOCABULARY = [*SPECIAL, "the", "quay", "ilse", "##s", ".", *"abcdefghijklmnopqrst", "?"]
TEXTS = ["the quay.", "ilse.", "a quay of ilse?", "the ilse s.", "a b c."]


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """An encoder, and the corpus files of a release of five blocks."""
    tokenizer = WordPiece.from_vocab(VOCABULARY)
    assert tokenizer.vocab_size == 31
    tensors = read_tensorflow(GOLDEN / "release")
    bert = {
        name.removeprefix("reader/module/"): value
        for name, value in tensors.items()
        if name.startswith("reader/module/bert/")
    }
    write_bundle(tmp_path / "bert" / "bert_model.ckpt", bert)
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 64}
    (tmp_path / "bert" / "bert_config.json").write_text(json.dumps(sizes))
    records = tmp_path / "tfr"
    records.mkdir()
    ids = [encoded.ids for encoded in tokenizer.encode(TEXTS)]
    title = tokenizer.encode(["quay"])[0].ids
    examples = [example(title_ids=title, token_ids=x, sentence_starts=[0]) for x in ids]
    write_records(records / "blocks.tfr", [text.encode() for text in TEXTS])
    write_records(records / "titles.tfr", [b"quay"] * 5)
    write_records(records / "examples.tfr", examples)
    return tmp_path


def test_a_released_orqa_answers(released: Path, capsys, caplog) -> None:
    run, encoder = released / "run", released / "encoder"
    vectors = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    module = released / "ict"
    tensors = read_tensorflow(GOLDEN / "release")
    inner = {n.removeprefix("module/"): v for n, v in tensors.items() if n.startswith("module/")}
    write_bundle(module / "variables" / "variables", inner)
    write_bundle(module / "encoded" / "encoded.ckpt", {"block_emb": vectors})

    orqa("import", "bert", released / "bert", encoder)
    orqa("import", "corpus", released / "tfr", run, "--encoder", encoder)
    orqa("import", "retriever", module, run, "--encoder", encoder, "--heads", 2)
    with caplog.at_level("INFO"):
        orqa("import", "answerer", GOLDEN / "release", run, "--encoder", encoder, "--heads", 2)
    assert "reader/module/cls/predictions/output_bias" in caplog.text
    np.testing.assert_array_equal(np.load(run / "index" / "embeddings.npy"), vectors)
    about, params, _ = load_model(run / "finetune" / "model", kind="question answerer")
    np.testing.assert_array_equal(
        params["reader"]["endpoints"]["bias"], tensors["reader/dense/bias"]
    )
    assert about["reader_length"] == 320

    # The golden BERT has 64 positions, fewer than the release reads.
    path = run / "finetune" / "model" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reader_length": 40}))
    for system in ("orqa", "zero_shot"):
        answerer = load_answerer(run, system=system)
        (answer,) = answerer.answer(["a quay?"])
        assert answer.candidates[0].answer in TEXTS[answer.candidates[0].block]
        assert len(answer.retrieved) == 5


def test_a_hugging_face_realm_answers(released: Path) -> None:
    run, encoder = released / "run", released / "encoder"
    orqa("import", "bert", released / "bert", encoder)
    orqa("import", "corpus", released / "tfr", run, "--encoder", encoder)
    orqa("import", "realm", GOLDEN / "realm", run, "--encoder", encoder)
    golden = np.load(GOLDEN / "realm" / "golden.npz")
    np.testing.assert_array_equal(np.load(run / "index" / "embeddings.npy"), golden["block_emb"])
    answerer = load_answerer(run)
    assert answerer.reader.sizes.read == 2
    (answer,) = answerer.answer(["a?"])
    assert answer.candidates


def test_what_does_not_belong_together_is_refused(released: Path, capsys) -> None:
    run, encoder = released / "run", released / "encoder"
    orqa("import", "bert", released / "bert", encoder)
    arguments = ["import", "retriever", str(GOLDEN / "release"), str(run)]
    assert main(arguments) == 2
    assert "Give --encoder, the BERT that this retriever was made with" in capsys.readouterr().err
    (encoder / "vocab.txt").write_text("\n".join(VOCABULARY[:-1]) + "\n")
    assert main([*arguments, "--encoder", str(encoder), "--heads", "2"]) == 2
    assert "has 30 entries, but the weights have embeddings of 31" in capsys.readouterr().err
    assert not (run / "ict" / "model").exists()
    shutil.copyfile(encoder / "vocab.txt", released / "bert" / "vocab.txt")
    assert main(["import", "bert", str(released / "bert"), str(released / "again")]) == 2
    (released / "bert" / "vocab.txt").unlink()
    assert main(["import", "bert", str(released / "bert"), str(released / "again")]) == 2
    assert "vocab.txt does not exist" in capsys.readouterr().err
    assert not (released / "again").exists()


def test_exported_encoders(tmp_path: Path) -> None:
    run = trained_run()
    question, block = export_encoders(run, tmp_path / "out")
    kinds = [
        entry["type"].rpartition(".")[2]
        for entry in json.loads((question / "modules.json").read_text())
    ]
    assert kinds == ["Transformer", "Pooling", "Dense"]
    _, tuned, tokenizer = load_model(run / "finetune" / "model", kind="question answerer")
    _, ict, _ = load_model(run / "ict" / "model", kind="dual encoder")
    for folder, tower in (
        (question, tuned["retriever"]["question_encoder"]),
        (block, ict["block_encoder"]),
    ):
        config, params = load_bert(folder)
        np.testing.assert_array_equal(
            params["embeddings"]["word"], tower["bert"]["embeddings"]["word"]
        )
        dense = load_file(folder / "3_Projection" / "model.safetensors")
        np.testing.assert_array_equal(dense["linear.weight"], tower["projection"]["kernel"].T)
        assert WordPiece.load(folder).fingerprint == tokenizer.fingerprint
        save_bert(tmp_path / "again", config, params)
        written = (tmp_path / "again" / "model.safetensors").read_bytes()
        assert written == (folder / "model.safetensors").read_bytes()


def test_what_was_tuned_on_bm25_alone_exports_the_retriever_of_ict(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run() / "ict" / "model", run / "ict" / "model")
    kind = "question answerer"
    about, params, tokenizer = load_model(trained_run() / "finetune" / "model", kind=kind)
    del params["retriever"]
    (run / "finetune").mkdir()
    save_model(
        run / "finetune" / "model",
        kind=kind,
        description={"retriever": about["retriever"]},
        params=params,
        tokenizer=tokenizer,
    )
    question, _ = export_encoders(run, tmp_path / "out")
    _, ict, _ = load_model(run / "ict" / "model", kind="dual encoder")
    dense = load_file(question / "3_Projection" / "model.safetensors")
    kernel = ict["question_encoder"]["projection"]["kernel"]
    np.testing.assert_array_equal(dense["linear.weight"], kernel.T)


def test_exported_predictions(tmp_path: Path) -> None:
    lines = [
        {"id": "1", "question": "who? é", "answer": "Ida", "retrieved": [3]},
        {"id": "2", "question": "why?", "answer": ""},
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    orqa("export", "predictions", path, tmp_path / "official.jsonl")
    found = [json.loads(line) for line in (tmp_path / "official.jsonl").read_text().splitlines()]
    assert found == [
        {"question": "who? é", "prediction": "Ida"},
        {"question": "why?", "prediction": ""},
    ]
    path.write_text('{"id": "1", "answer": "Ida"}\n')
    with pytest.raises(OrqaError, match=r"p.jsonl:1 needs a 'question' and an 'answer'"):
        export_predictions(path, tmp_path / "official.jsonl")
    assert len((tmp_path / "official.jsonl").read_text().splitlines()) == 2
