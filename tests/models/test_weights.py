import json
import logging
import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from oracles.bert import random_weights, tiny_config
from oracles.checkpoint import write_checkpoint
from safetensors.numpy import save_file

from orqa_jax.errors import OrqaError
from orqa_jax.models import weights as weights_module
from orqa_jax.models.bert import BertConfig
from orqa_jax.models.weights import fingerprint_params, load_bert, load_params, save_params

CONFIG = tiny_config()
WEIGHTS = random_weights(CONFIG)
FINGERPRINT = "b2830e24e0c257e7b80db226b1573cadbd5d845e9da25e47bb9c8fb4155c1f6f"


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "bert", CONFIG, WEIGHTS)


def test_every_weight_arrives_where_it_belongs(folder):
    config, params = load_bert(folder)
    assert config == BertConfig.from_dict(CONFIG)
    layer = "encoder.layer.1"
    expected = {
        ("embeddings", "word"): WEIGHTS["embeddings.word_embeddings.weight"],
        ("embeddings", "norm", "scale"): WEIGHTS["embeddings.LayerNorm.weight"],
        ("layer_1", "key", "kernel"): WEIGHTS[f"{layer}.attention.self.key.weight"].T,
        ("layer_1", "output_norm", "bias"): WEIGHTS[f"{layer}.output.LayerNorm.bias"],
        ("pooler", "kernel"): WEIGHTS["pooler.dense.weight"].T,
    }
    for path, value in expected.items():
        found = params
        for name in path:
            found = found[name]
        np.testing.assert_array_equal(found, value)
    # Three tables, one norm, and per layer six dense and two norms of two arrays each; a pooler.
    count = sum(len(np.ravel(value)) for value in WEIGHTS.values())
    assert sum(value.size for value in leaves(params)) == count
    assert {value.dtype for value in leaves(params)} == {np.dtype("float32")}


def leaves(params):
    for value in params.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def same_as_plain(folder, tmp_path):
    plain = write_checkpoint(tmp_path / "plain", CONFIG, WEIGHTS)
    assert fingerprint_params(load_bert(folder)[1]) == fingerprint_params(load_bert(plain)[1])


def test_prefix_of_a_larger_model_and_its_pretraining_heads(tmp_path, caplog):
    weights = {f"bert.{name}": value for name, value in WEIGHTS.items()}
    weights["cls.predictions.bias"] = np.zeros(31, np.float32)
    weights["bert.embeddings.position_ids"] = np.arange(20)[None]
    folder = write_checkpoint(tmp_path / "prefixed", CONFIG, weights)
    with caplog.at_level(logging.WARNING):
        same_as_plain(folder, tmp_path)
    assert not caplog.records


def test_other_heads_are_left_out_and_named(tmp_path, caplog):
    weights = {f"bert.{name}": value for name, value in WEIGHTS.items()}
    weights["qa_outputs.weight"] = np.zeros((2, 16), np.float32)
    folder = write_checkpoint(tmp_path / "qa", CONFIG, weights)
    with caplog.at_level(logging.WARNING):
        same_as_plain(folder, tmp_path)
    assert "qa_outputs.weight" in caplog.text


def test_oldest_names_and_buffers(tmp_path):
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in WEIGHTS.items()
    }
    weights["embeddings.position_ids"] = np.arange(20)[None]
    same_as_plain(write_checkpoint(tmp_path / "old", CONFIG, weights), tmp_path)


def test_shards(tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(WEIGHTS)
    shards = {"a.safetensors": names[:20], "b.safetensors": names[20:]}
    for shard, members in shards.items():
        save_file({name: WEIGHTS[name] for name in members}, folder / shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {n: shard for shard, ns in shards.items() for n in ns}})
    )
    same_as_plain(folder, tmp_path)

    (folder / "b.safetensors").unlink()
    with pytest.raises(OrqaError, match=r"b\.safetensors does not exist"):
        load_bert(folder)
    index.write_text("{}")
    with pytest.raises(OrqaError, match='has no "weight_map"'):
        load_bert(folder)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_weights_become_float32(tmp_path, dtype):
    weights = {name: value.astype(dtype) for name, value in WEIGHTS.items()}
    _, params = load_bert(write_checkpoint(tmp_path / "half", CONFIG, weights))
    assert params["embeddings"]["word"].dtype == np.float32
    np.testing.assert_array_equal(
        params["embeddings"]["word"],
        weights["embeddings.word_embeddings.weight"].astype(np.float32),
    )


def test_a_pooler_may_be_absent_but_not_half(tmp_path):
    weights = {name: value for name, value in WEIGHTS.items() if "pooler" not in name}
    _, params = load_bert(write_checkpoint(tmp_path / "without", CONFIG, weights))
    assert "pooler" not in params
    weights["pooler.dense.weight"] = WEIGHTS["pooler.dense.weight"]
    with pytest.raises(OrqaError, match=r"pooler\.dense\.bias is missing"):
        load_bert(write_checkpoint(tmp_path / "half", CONFIG, weights))


def test_every_defect_is_named_at_once(tmp_path):
    weights = dict(WEIGHTS)
    del weights["encoder.layer.0.output.dense.bias"]
    del weights["embeddings.LayerNorm.weight"]
    weights["encoder.layer.2.output.dense.bias"] = np.zeros(16, np.float32)
    weights["encoder.layer.1.intermediate.dense.weight"] = np.zeros((25, 16), np.float32)
    folder = write_checkpoint(tmp_path / "bad", CONFIG, weights)
    with pytest.raises(OrqaError) as caught:
        load_bert(folder)
    for defect in (
        str(folder),
        "encoder.layer.0.output.dense.bias is missing",
        "embeddings.LayerNorm.weight is missing",
        "encoder.layer.2.output.dense.bias is unknown",
        "encoder.layer.1.intermediate.dense.weight is [25, 16], not [24, 16]",
    ):
        assert defect in str(caught.value)


def test_damaged_files_are_named(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100], whole[:3], b"", b"\xff" * 64, whole + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(OrqaError, match=f"{re.escape(str(path))} is not a whole safetensors"):
            load_bert(folder)
        with pytest.raises(OrqaError, match="is not a whole safetensors"):
            load_params(path)


def test_folders_without_weights(tmp_path, folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(OrqaError, match=r"holds no model\.safetensors"):
        load_bert(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(OrqaError, match=r"pytorch_model\.bin is no whole file of weights"):
        load_bert(folder)
    with pytest.raises(OrqaError, match=r"nowhere/config\.json does not exist"):
        load_bert(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"vocab_size": ', r"config\.json is not JSON in UTF-8"),
        ("[]", r"config\.json must hold a JSON object"),
        (
            json.dumps(CONFIG | {"hidden_act": "relu"}),
            "bert/config.json: BERT config: hidden_act is 'relu'",
        ),
    ],
)
def test_bad_configs(folder, text, message):
    (folder / "config.json").write_text(text)
    with pytest.raises(OrqaError, match=message):
        load_bert(folder)


def test_params_round_trip(tmp_path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    params = {
        "transposed": values.T,
        "every_other": values[:, ::2],
        "nested": {"on_device": jnp.asarray(values), "scalar": np.float32(3.0)},
        "counts": np.array([1, 2], np.int32),
        "low": jnp.asarray(values, jnp.bfloat16),
        "empty": np.zeros((0, 4), np.float32),
    }
    path = tmp_path / "params.safetensors"
    save_params(path, params)
    loaded = load_params(path)
    assert fingerprint_params(loaded) == fingerprint_params(params)
    np.testing.assert_array_equal(loaded["transposed"], [[0, 3], [1, 4], [2, 5]])
    assert loaded["nested"]["scalar"].shape == ()
    assert loaded["low"].dtype == jnp.bfloat16
    assert [file.name for file in tmp_path.iterdir()] == ["params.safetensors"]


def test_interrupted_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "params.safetensors"
    save_params(path, {"a": np.zeros(2, np.float32)})

    def half_written(tensors, filename):
        filename.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(weights_module, "save_file", half_written)
    with pytest.raises(KeyboardInterrupt):
        save_params(path, {"a": np.ones(2, np.float32)})
    assert load_params(path)["a"].tolist() == [0.0, 0.0]
    assert [file.name for file in tmp_path.iterdir()] == ["params.safetensors"]


def test_missing_params_are_named(tmp_path):
    with pytest.raises(OrqaError, match=r"gone\.safetensors does not exist"):
        load_params(tmp_path / "gone.safetensors")


def test_fingerprint_is_of_content_alone():
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    params = {"a": {"b": value}, "c": value + 1}
    same = {"c": jnp.asarray(value + 1), "a": {"b": np.asfortranarray(value)}}
    assert fingerprint_params(params) == fingerprint_params(same) == FINGERPRINT
    others = [
        {"a": {"x": value}, "c": value + 1},
        {"a": {"b": value.reshape(3, 2)}, "c": value + 1},
        {"a": {"b": value}, "c": value + 2},
        {"a": {"b": value.view(np.int32)}, "c": value + 1},
        {"a": {"b": value}},
    ]
    assert len({fingerprint_params(other) for other in [*others, params]}) == 6
