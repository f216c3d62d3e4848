"""Exported towers, read back as sentence-transformers reads them, are the same function.

benchmarks/parity/sentence_transformers_export.py compares with sentence-transformers itself.
"""

import json

import jax
import numpy as np
import pytest
from oracles import bert as oracle
from safetensors.numpy import load_file

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import BertConfig
from orqa_jax.models.export import export_tower
from orqa_jax.models.retriever import DualEncoder, RetrieverConfig, init_dual_encoder
from orqa_jax.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
TORCHS_EPS = 1e-5


def as_sentence_transformers(folder, token_ids, mask, segment_ids):
    """Its modules one after the other, in numpy, by the files in the folder alone."""
    config = json.loads((folder / "config.json").read_text())
    states = oracle.bert(
        config, load_file(folder / "model.safetensors"), token_ids, mask, segment_ids
    )
    for module in json.loads((folder / "modules.json").read_text()):
        kind, path = module["type"].rpartition(".")[2], folder / module["path"]
        if kind == "Transformer":
            continue
        about = json.loads((path / "config.json").read_text())
        if kind == "Pooling" and about["pooling_mode_mean_tokens"]:
            x = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        elif kind == "Pooling":
            assert about["pooling_mode_cls_token"]
            x = states[:, 0]
        elif kind == "Dense":
            weights = load_file(path / "model.safetensors")
            x = x @ weights["linear.weight"].T + weights["linear.bias"]
            if about["activation_function"].endswith(".Tanh"):
                x = np.tanh(x)
        else:
            assert kind == "LayerNorm"
            weights = load_file(path / "model.safetensors")
            x = oracle.layer_norm(x, weights["norm.weight"], weights["norm.bias"], TORCHS_EPS)
    return x


@pytest.mark.parametrize(
    ("pooling", "layer_norm", "eps"),
    [("cls", False, 1e-3), ("mean", True, 1e-3), ("pooler", True, 1e-3), ("pooler", True, 1e-12)],
)
def test_exported_towers_are_the_same_function(tmp_path, pooling, layer_norm, eps):
    bert = BertConfig(len(VOCABULARY), 16, 2, 4, 24, max_position_embeddings=20)
    config = RetrieverConfig(bert, 6, pooling, True, layer_norm, projection_norm_eps=eps)
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: np.asarray(leaf) + 0.2 * rng.normal(size=leaf.shape).astype(np.float32),
        init_dual_encoder(config, jax.random.key(0)),
    )
    tokenizer = WordPiece.from_vocab(VOCABULARY)
    for _ in range(2):  # the second takes the place of the first
        export_tower(tmp_path / "encoder", config, params["encoder"], tokenizer, 20)
    mask = np.arange(9) < np.array([[9], [6], [3]])
    token_ids = np.where(mask, rng.integers(5, len(VOCABULARY), (3, 9)), 0)
    segment_ids = ((np.arange(9) > 4) & mask).astype(np.int32)
    batch = (token_ids.astype(np.int32), mask, segment_ids)
    expected = DualEncoder(config).apply({"params": params}, *batch, method="encode_blocks")
    found = as_sentence_transformers(tmp_path / "encoder", *batch)
    assert np.abs(found).max() > 0.5
    np.testing.assert_allclose(expected, found, atol=1e-5)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    config = RetrieverConfig(BertConfig(len(VOCABULARY), 16, 1, 2, 8), 4)
    params = init_dual_encoder(config, jax.random.key(0))["block_encoder"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(OrqaError, match="mine holds other files; choose another folder"):
        export_tower(tmp_path / "mine", config, params, WordPiece.from_vocab(VOCABULARY), 20)
    assert (tmp_path / "mine" / "thesis.tex").exists()
