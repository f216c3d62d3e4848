"""Released weights give what TensorFlow and transformers computed from them (benchmarks/parity)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from oracles.bundle import write_bundle
from safetensors.numpy import save_file

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Bert
from orqa_jax.models.foreign import (
    load_realm,
    load_tensorflow_bert,
    load_tensorflow_embeddings,
    load_tensorflow_reader,
    load_tensorflow_retriever,
)
from orqa_jax.models.reader import SpanReader
from orqa_jax.models.retriever import DualEncoder
from orqa_jax.models.tensorflow import read_tensorflow
from orqa_jax.models.torch_file import read_torch
from orqa_jax.models.weights import fingerprint_params, load_bert, save_bert

GOLDEN = Path(__file__).parents[1] / "golden"
SHAPE = {"hidden_act": "gelu_new", "heads": 2}


def batch(golden):
    return golden["ids"], golden["mask"].astype(bool), golden["segments"]


def vectors(found, golden):
    model = DualEncoder(found.config)
    params = {"params": {"encoder": found.params}}
    return model.apply(params, *batch(golden), method="encode_blocks")


def span_logits(found, golden):
    logits = SpanReader(found.config).apply({"params": found.params}, *batch(golden))
    return np.asarray(logits)[:, golden["first"], golden["last"] - golden["first"]]


def test_orqa_as_tensorflow_computes_it():
    golden = np.load(GOLDEN / "release" / "golden.npz")
    retriever = load_tensorflow_retriever(GOLDEN / "release", **SHAPE)
    reader = load_tensorflow_reader(GOLDEN / "release", max_span_wordpieces=3, **SHAPE)
    assert np.abs(golden["vectors"]).max() > 0.5
    np.testing.assert_allclose(vectors(retriever, golden), golden["vectors"], atol=1e-5)
    np.testing.assert_allclose(span_logits(reader, golden), golden["span_logits"], atol=1e-5)
    assert "global_step" in retriever.unplaced
    assert "reader/module/cls/predictions/output_bias" in reader.unplaced
    assert "reader/dense/kernel" in retriever.unplaced
    assert not any("adam_m" in name for name in reader.unplaced)
    assert retriever.config.projection_norm_eps == 1e-3

    exact = load_tensorflow_retriever(GOLDEN / "release", hidden_act="gelu", heads=2)
    assert np.abs(np.asarray(vectors(exact, golden)) - golden["vectors"]).max() > 1e-4


def test_realm_as_transformers_computes_it():
    golden = np.load(GOLDEN / "realm" / "golden.npz")
    found = load_realm(GOLDEN / "realm")
    np.testing.assert_allclose(vectors(found.embedder, golden), golden["vectors"], atol=1e-5)
    np.testing.assert_allclose(span_logits(found.reader, golden), golden["span_logits"], atol=1e-5)
    np.testing.assert_array_equal(found.block_embeddings, golden["block_emb"])
    assert (found.reader_beam, found.reader_length) == (2, 32)
    assert any("cls.predictions" in name for name in found.embedder.unplaced)
    assert not any(name.startswith("reader.qa_outputs") for name in found.embedder.unplaced)


def renamed(tmp_path, rename):
    """The golden retriever under the names of another release."""
    tensors = read_tensorflow(GOLDEN / "release")
    kept = {rename(name): value for name, value in tensors.items() if rename(name)}
    return write_bundle(tmp_path / "variables" / "variables", kept)


def test_an_ict_module():
    golden = np.load(GOLDEN / "release" / "golden.npz")
    found = load_tensorflow_retriever(GOLDEN / "ict", **SHAPE)
    np.testing.assert_allclose(vectors(found, golden), golden["vectors"], atol=1e-5)
    assert found.unplaced == []
    embeddings = load_tensorflow_embeddings(GOLDEN / "ict")
    np.testing.assert_array_equal(embeddings, np.load(GOLDEN / "ict" / "golden.npz")["block_emb"])


def test_realms_embedder_as_tensorflow_wrote_it():
    golden = np.load(GOLDEN / "realm_embedder" / "golden.npz")
    found = load_tensorflow_retriever(GOLDEN / "realm_embedder", **SHAPE)
    np.testing.assert_allclose(vectors(found, golden), golden["vectors"], atol=1e-5)
    assert (found.config.projection_norm_eps, found.unplaced) == (1e-12, [])


def test_what_is_missing_or_ambiguous_is_named(tmp_path):
    renamed(tmp_path, lambda name: None if name.startswith("reader") else name)
    with pytest.raises(OrqaError, match="holds 0 BERTs that may be its reader"):
        load_tensorflow_reader(tmp_path)
    renamed(tmp_path / "twice", lambda name: name.replace("reader/", "other/"))
    with pytest.raises(OrqaError, match=r"holds 2 BERTs .* \(module/module/, other/module/\)"):
        load_tensorflow_retriever(tmp_path / "twice")
    lost = "module/module/bert/encoder/layer_1/output/dense/bias"
    renamed(tmp_path / "lost", lambda name: None if name in (lost, "module/dense/bias") else name)
    with pytest.raises(OrqaError, match=f"{lost} is missing; module/dense/bias is missing"):
        load_tensorflow_retriever(tmp_path / "lost", **SHAPE)
    lost = "module/module/bert/embeddings/position_embeddings"
    renamed(tmp_path / "short", lambda name: None if name == lost else name)
    with pytest.raises(OrqaError, match=f"{lost} is missing"):
        load_tensorflow_retriever(tmp_path / "short", **SHAPE)
    renamed(tmp_path / "bare", lambda name: None if name == "module/dense/kernel" else name)
    with pytest.raises(OrqaError, match=r"without a projection"):
        load_tensorflow_retriever(tmp_path / "bare", **SHAPE)
    with pytest.raises(OrqaError, match="holds no 'block_emb', but"):
        load_tensorflow_embeddings(GOLDEN / "release")


@pytest.mark.parametrize(("hidden_act", "code"), [(None, ""), ("gelu_new", "later_")])
def test_bert_as_tensorflow_computes_it(hidden_act, code):
    golden = np.load(GOLDEN / "bert" / "golden.npz")
    found = load_tensorflow_bert(GOLDEN / "bert", hidden_act=hidden_act)
    model, params = Bert(found.config), {"params": found.params}
    hidden = model.apply(params, *batch(golden))
    assert np.abs(golden["later_hidden"] - golden["hidden"]).max() > 1e-4
    np.testing.assert_allclose(hidden, golden[f"{code}hidden"], atol=1e-5)
    pooled = model.apply(params, hidden, method="pool")
    np.testing.assert_allclose(pooled, golden[f"{code}pooled"], atol=1e-5)
    assert found.unplaced == [
        "cls/predictions/output_bias",
        "cls/predictions/transform/LayerNorm/beta",
        "cls/predictions/transform/LayerNorm/gamma",
        "cls/predictions/transform/dense/bias",
        "cls/predictions/transform/dense/kernel",
        "cls/seq_relationship/output_bias",
        "cls/seq_relationship/output_weights",
    ]


def test_a_released_bert_becomes_an_encoder_folder(tmp_path):
    found = load_tensorflow_bert(GOLDEN / "bert")
    save_bert(tmp_path / "encoder", found.config, found.params)
    config, params = load_bert(tmp_path / "encoder")
    assert config == found.config
    assert fingerprint_params(params) == fingerprint_params(found.params)
    with pytest.raises(OrqaError, match=r"bert_config.json does not exist"):
        load_tensorflow_bert(tmp_path)


def test_an_embedder_and_a_scorer_of_realm(tmp_path):
    golden = np.load(GOLDEN / "realm" / "golden.npz")
    tensors = read_torch(GOLDEN / "realm" / "pytorch_model.bin")
    embedder = {n: v for n, v in tensors.items() if n.startswith("embedder.")}
    alone = {name.removeprefix("embedder."): value for name, value in embedder.items()}
    scorer = embedder | {f"query_{name}": value + 1 for name, value in embedder.items()}
    for name, weights in (("embedder", alone), ("scorer", scorer)):
        (tmp_path / name).mkdir()
        shutil.copy(GOLDEN / "realm" / "config.json", tmp_path / name)
        save_file(weights, tmp_path / name / "model.safetensors")
        found = load_realm(tmp_path / name)
        assert found.reader is None
        assert found.block_embeddings is None
        np.testing.assert_allclose(vectors(found.embedder, golden), golden["vectors"], atol=1e-5)
    assert "query_embedder.cls.dense.bias" in found.embedder.unplaced


def test_realm_folders_of_something_else(tmp_path):
    with pytest.raises(OrqaError, match=r"config.json does not exist"):
        load_realm(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(OrqaError, match=r"config.json must hold a JSON object"):
        load_realm(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(OrqaError, match="describes a 'bert', not a 'realm'"):
        load_realm(tmp_path)
    shutil.copytree(GOLDEN / "realm", tmp_path / "realm")
    config = json.loads((tmp_path / "realm" / "config.json").read_text())
    (tmp_path / "realm" / "config.json").write_text(json.dumps(config | {"span_hidden_size": 5}))
    with pytest.raises(OrqaError, match=r"dense_intermediate.weight is \[8, 16\], not \[10, 16\]"):
        load_realm(tmp_path / "realm")
