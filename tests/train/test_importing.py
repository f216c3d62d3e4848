"""Whole runs from old artefacts: import, then answer; and what a run gives to others."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_world import orqa, trained_run

from orqa_jax.cli import main
from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.models.tensorflow import read_tensorflow
from orqa_jax.models.weights import load_bert, save_bert
from orqa_jax.predict import load_answerer
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.checkpoint import load_model, save_model
from orqa_jax.train.exporting import export_encoders, export_predictions

GOLDEN = Path(__file__).parents[1] / "golden"


def test_a_released_bert_has_the_gelu_that_is_asked_for(tmp_path: Path) -> None:
    for option, expected in (((), "gelu"), (("--hidden-act", "gelu_new"), "gelu_new")):
        orqa("import", "bert", GOLDEN / "bert", tmp_path / expected, *option)
        config, params = load_bert(tmp_path / expected)
        assert config.hidden_act == expected
        tensors = read_tensorflow(GOLDEN / "bert" / "bert_model.ckpt")
        np.testing.assert_array_equal(
            params["layer_1"]["query"]["kernel"],
            tensors["bert/encoder/layer_1/attention/self/query/kernel"],
        )
        tokenizer = WordPiece.load(tmp_path / expected)
        assert tokenizer.encode(["B a?"])[0].ids.tolist() == [6, 5, 1]


@pytest.fixture
def imported(tmp_path: Path) -> tuple[Path, Path]:
    """A run folder with the released corpus of five blocks, and the encoder of its vocabulary."""
    run, encoder = tmp_path / "run", tmp_path / "encoder"
    orqa("import", "bert", GOLDEN / "bert", encoder)
    orqa("import", "corpus", GOLDEN / "corpus", run, "--encoder", encoder)
    return run, encoder


def test_a_released_orqa_answers(imported, capsys, caplog) -> None:
    run, encoder = imported
    orqa("import", "retriever", GOLDEN / "ict", run, "--encoder", encoder, "--heads", 2)
    with caplog.at_level("INFO"):
        orqa("import", "answerer", GOLDEN / "release", run, "--encoder", encoder, "--heads", 2)
    assert "reader/module/cls/predictions/output_bias" in caplog.text
    vectors = np.load(GOLDEN / "ict" / "golden.npz")["block_emb"]
    np.testing.assert_array_equal(np.load(run / "index" / "embeddings.npy"), vectors)
    about, params, _ = load_model(run / "finetune" / "model", kind="question answerer")
    tensors = read_tensorflow(GOLDEN / "release")
    np.testing.assert_array_equal(
        params["reader"]["endpoints"]["bias"], tensors["reader/dense/bias"]
    )
    assert about["reader_length"] == 320

    # The golden BERT has 64 positions, fewer than the release reads.
    path = run / "finetune" / "model" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reader_length": 40}))
    for system in ("orqa", "zero_shot"):
        answerer = load_answerer(run, system=system)
        (answer,) = answerer.answer(["b c?"])
        best = answer.candidates[0]
        assert best.answer in BlockStore(run / "corpus").text(best.block)
        assert len(answer.retrieved) == 5


def test_a_hugging_face_realm_answers(imported) -> None:
    run, encoder = imported
    orqa("import", "realm", GOLDEN / "realm", run, "--encoder", encoder)
    golden = np.load(GOLDEN / "realm" / "golden.npz")
    np.testing.assert_array_equal(np.load(run / "index" / "embeddings.npy"), golden["block_emb"])
    answerer = load_answerer(run)
    assert answerer.reader.sizes.read == 2
    (answer,) = answerer.answer(["a?"])
    assert answer.candidates


def test_what_does_not_belong_together_is_refused(imported, tmp_path: Path, capsys) -> None:
    run, encoder = imported
    arguments = ["import", "retriever", str(GOLDEN / "release"), str(run)]
    assert main(arguments) == 2
    assert "arguments are required: --encoder" in capsys.readouterr().err
    assert main(["import", "corpus", "tfr", str(run), "--encoder", "bert", "--heads", "2"]) == 2
    assert "unrecognized arguments: --heads 2" in capsys.readouterr().err
    vocabulary = (encoder / "vocab.txt").read_text().splitlines()
    (encoder / "vocab.txt").write_text("\n".join(vocabulary[:-1]) + "\n")
    assert main([*arguments, "--encoder", str(encoder), "--heads", "2"]) == 2
    assert "has 30 entries, but the weights have embeddings of 31" in capsys.readouterr().err
    assert not (run / "ict" / "model").exists()
    assert main(["import", "bert", str(GOLDEN / "bert"), str(encoder)]) == 2
    assert "is not an empty folder; choose another" in capsys.readouterr().err
    released, again = tmp_path / "bert", tmp_path / "again"
    shutil.copytree(GOLDEN / "bert", released)
    shutil.copyfile(encoder / "vocab.txt", released / "vocab.txt")
    assert main(["import", "bert", str(released), str(again)]) == 2
    assert "has 30 entries" in capsys.readouterr().err
    (released / "vocab.txt").unlink()
    assert main(["import", "bert", str(released), str(again)]) == 2
    assert "vocab.txt does not exist" in capsys.readouterr().err
    assert not again.exists()


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
