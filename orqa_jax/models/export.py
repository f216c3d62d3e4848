"""Encoders as Hugging Face safetensors in the layout of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Params
from orqa_jax.models.retriever import RetrieverConfig
from orqa_jax.models.weights import save_bert
from orqa_jax.storage import replace_folder
from orqa_jax.text.wordpiece import WordPiece

# The only one that the LayerNorm of sentence-transformers has: torch's default.
_THEIR_NORM_EPS = 1e-5


def export_tower(
    folder: Path, config: RetrieverConfig, tower: Params, tokenizer: WordPiece, max_length: int
) -> None:
    """Writes one tower of a dual encoder, to be opened by `SentenceTransformer(folder)`.

    Its vectors are those of `DualEncoder`, to be compared by inner product. Texts longer than
    `max_length` wordpieces, special tokens counted, are cut. A block is given as the pair (title,
    text). The folder appears when it is complete.

    Raises:
      OrqaError: the folder holds something else than such a tower.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "modules.json").exists():
        raise OrqaError(f"{folder} holds other files; choose another folder.")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_bert(partial, config.bert, tower["bert"])
    tokenizer.save(partial)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    special = {name: f"[{name.split('_')[0].upper()}]" for name in _SPECIAL}
    _write(partial / "tokenizer_config.json", about | special)
    _write(partial / "sentence_bert_config.json", {"max_seq_length": max_length})
    _write(partial / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})

    hidden = config.bert.hidden_size
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    mean = config.pooling == "mean"
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": mean}
    _write(partial / "1_Pooling" / "config.json", pooling | {"pooling_mode_cls_token": not mean})
    if config.pooling == "pooler":
        modules.append(("2_Pooler", "Dense"))
        _write_dense(partial / "2_Pooler", tower["bert"]["pooler"], "Tanh")
    projection = {name: np.asarray(value) for name, value in tower["projection"].items()}
    if config.layer_norm:
        # (sx - sm) / sqrt(s^2 v + their eps) is our LayerNorm where s^2 = their eps / ours.
        scale = np.float32(np.sqrt(_THEIR_NORM_EPS / config.projection_norm_eps))
        projection = {name: scale * value for name, value in projection.items()}
    modules.append(("3_Projection", "Dense"))
    _write_dense(partial / "3_Projection", projection, "Identity")
    if config.layer_norm:
        modules.append(("4_Norm", "LayerNorm"))
        _write(partial / "4_Norm" / "config.json", {"dimension": config.projection_size})
        norm = {"norm.weight": tower["norm"]["scale"], "norm.bias": tower["norm"]["bias"]}
        _save(partial / "4_Norm", norm)
    _write(
        partial / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
    )
    replace_folder(partial, folder)


_SPECIAL = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")


def _write_dense(folder: Path, dense: Params, activation: str) -> None:
    kernel = np.asarray(dense["kernel"])
    where = "linear" if activation == "Identity" else "activation"
    about = {
        "in_features": kernel.shape[0],
        "out_features": kernel.shape[1],
        "bias": True,
        "activation_function": f"torch.nn.modules.{where}.{activation}",
    }
    _write(folder / "config.json", about)
    _save(folder, {"linear.weight": kernel.T, "linear.bias": dense["bias"]})


def _save(folder: Path, tensors: Params) -> None:
    copies = {name: np.array(value, np.float32, order="C") for name, value in tensors.items()}
    save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
