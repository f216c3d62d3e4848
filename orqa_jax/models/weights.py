"""Weights in and out: Hugging Face `BertModel` folders, and our own parameters as safetensors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Bert, BertConfig, Params, layer_name
from orqa_jax.models.torch_file import read_torch
from orqa_jax.text.jsonl import read_json

TreePath = tuple[str, ...]

_log = logging.getLogger(__name__)

_SINGLE_FILE = "model.safetensors"
_SHARD_INDEX = "model.safetensors.index.json"
_TORCH_FILE = "pytorch_model.bin"
# The oldest checkpoints still say gamma and beta.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def load_bert(folder: str | Path) -> tuple[BertConfig, dict[str, Any]]:
    """Reads a `BertModel`, with or without the "bert." prefix of a larger model.

    Heads beside a prefixed encoder are left out, and named in the log unless they are those of
    BERT's own pre-training. A pooler may be absent; only pooling "pooler" needs it.

    Returns:
      The config and the parameters of `Bert`, float32 numpy arrays.

    Raises:
      OrqaError: the folder is not such a checkpoint; every missing, extra and misshaped weight is
        named.
    """
    folder = Path(folder)
    config = read_bert_config(folder / "config.json")
    tensors = _encoder_tensors(folder)
    names = bert_names(config)
    if not any(name.startswith("pooler.") for name in tensors):
        names = {ours: theirs for ours, theirs in names.items() if ours[0] != "pooler"}
    params, defects = place_weights(tensors, names, bert_shapes(config))
    defects += [f"{name} is unknown" for name in sorted(tensors.keys() - set(names.values()))]
    if defects:
        raise OrqaError(
            f"{folder}: the weights are not those of the BERT that config.json describes: "
            + "; ".join(defects)
        )
    return config, params


def read_bert_config(path: Path) -> BertConfig:
    """Sizes of a BERT, from its `config.json` alone.

    Raises:
      OrqaError: there is none, or it describes something else.
    """
    values = read_json_object(path)
    try:
        return BertConfig.from_dict(values)
    except OrqaError as error:
        raise OrqaError(f"{path}: {error}") from None


def place_weights(
    tensors: Mapping[str, np.ndarray],
    names: Mapping[TreePath, str],
    shapes: Mapping[TreePath, tuple[int, ...]],
    *,
    transposed: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Puts tensors under their names into a tree of our parameters, in float32.

    Args:
      tensors: By their own names.
      names: Name of the tensor for each path of the tree.
      shapes: Shape that is expected at each path.
      transposed: Kernels lie as torch has them, [outputs, inputs].

    Returns:
      The tree, and one phrase for each tensor that is missing or misshaped.
    """
    defects = [f"{name} is missing" for name in names.values() if name not in tensors]
    params = {}
    for path, name in names.items():
        if name not in tensors:
            continue
        value = np.asarray(tensors[name], dtype=np.float32)
        turned = transposed and path[-1] == "kernel"
        params[path] = value.T if turned else value
        if params[path].shape != shapes[path]:
            expected = shapes[path][::-1] if turned else shapes[path]
            defects.append(f"{name} is {list(value.shape)}, not {list(expected)}")
    return traverse_util.unflatten_dict(params), defects


def save_bert(folder: Path, config: BertConfig, params: Params) -> None:
    """Writes a `BertModel` (safetensors, config.json) for `load_bert` and for transformers."""
    flat = traverse_util.flatten_dict(params)
    tensors = {}
    for path, name in bert_names(config).items():
        if path in flat:  # a pooler may be absent
            value = np.asarray(flat[path])
            tensors[name] = (value.T if path[-1] == "kernel" else value).copy(order="C")
    folder.mkdir(parents=True, exist_ok=True)
    # Without this mark transformers takes the file for one of another framework.
    save_file(tensors, folder / _SINGLE_FILE, metadata={"format": "pt"})
    about = {"architectures": ["BertModel"], **config.to_dict()}
    (folder / "config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def save_params(path: str | Path, params: Params) -> None:
    """Writes nested parameters as one safetensors file, names joined by "/"; atomic."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        # safetensors writes the buffer behind a view, so every array must lie in its own order.
        save_file({name: value.copy(order="C") for name, value in _named(params)}, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_params(path: str | Path) -> dict[str, Any]:
    """Reads what `save_params` wrote, as numpy arrays.

    Raises:
      OrqaError: the file is missing, damaged or cut short.
    """
    return traverse_util.unflatten_dict(read_safetensors(Path(path)), sep="/")


def fingerprint_params(params: Params) -> str:
    """SHA-256, in hexadecimal, of the names, types, shapes and bytes of all parameters.

    Equal values have equal fingerprints, whatever devices hold them.
    """
    digest = hashlib.sha256()
    for name, value in _named(params):
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _named(params: Params) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in sorted(traverse_util.flatten_dict(params, sep="/").items()):
        yield name, np.asarray(value)


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file of a checkpoint.

    Raises:
      OrqaError: it is missing, damaged, or holds no object.
    """
    if not path.exists():
        raise OrqaError(f"{path} does not exist; give the folder of a checkpoint that has it.")
    values = read_json(path)
    if not isinstance(values, dict):
        raise OrqaError(f"{path} must hold a JSON object.")
    return values


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint folder of Hugging Face, by their names.

    They are safetensors, in one file or in shards, or else a `pytorch_model.bin`, no code of which
    is run.

    Raises:
      OrqaError: there is no such file, or one is damaged.
    """
    if (folder / _SINGLE_FILE).exists():
        return read_safetensors(folder / _SINGLE_FILE)
    if (folder / _SHARD_INDEX).exists():
        shard_of = read_json_object(folder / _SHARD_INDEX).get("weight_map")
        if not isinstance(shard_of, dict):
            raise OrqaError(
                f'{folder / _SHARD_INDEX} has no "weight_map" that names the shards; copy it again.'
            )
        tensors = {}
        for shard in sorted(set(shard_of.values())):
            tensors.update(read_safetensors(folder / shard))
        return tensors
    if (folder / _TORCH_FILE).exists():
        return read_torch(folder / _TORCH_FILE)
    raise OrqaError(
        f"{folder} holds no {_SINGLE_FILE} and no {_TORCH_FILE}; give the folder of a checkpoint."
    )


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a safetensors file.

    Raises:
      OrqaError: the file is missing, damaged or cut short.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise OrqaError(f"{path} does not exist; copy all files of the checkpoint.") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OrqaError(
            f"{path} is not a whole safetensors file ({error}); copy or download it again."
        ) from None


def _encoder_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of the encoder in `folder`, under today's names without prefix."""
    tensors = read_tensors(folder)
    if any(name.startswith("bert.") for name in tensors):
        heads = sorted(name for name in tensors if not name.startswith(("bert.", "cls.")))
        if heads:
            _log.warning("%s: left out weights beside the encoder: %s", folder, ", ".join(heads))
        tensors = {
            name.removeprefix("bert."): tensor
            for name, tensor in tensors.items()
            if name.startswith("bert.")
        }
    # Buffers that older versions of transformers saved along with the weights.
    for buffer in ("embeddings.position_ids", "embeddings.token_type_ids"):
        tensors.pop(buffer, None)
    return {_today(name): tensor for name, tensor in tensors.items()}


def _today(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def bert_names(config: BertConfig) -> dict[TreePath, str]:
    """Path of each parameter of `Bert` -> name in a `BertModel`."""
    dense = {"kernel": "weight", "bias": "bias"}
    norm = {"scale": "weight", "bias": "bias"}
    names: dict[TreePath, str] = {
        ("embeddings", "word"): "embeddings.word_embeddings.weight",
        ("embeddings", "position"): "embeddings.position_embeddings.weight",
        ("embeddings", "segment"): "embeddings.token_type_embeddings.weight",
    }

    def add(path: TreePath, theirs: str, leaves: dict[str, str]) -> None:
        names.update({(*path, ours): f"{theirs}.{leaf}" for ours, leaf in leaves.items()})

    add(("embeddings", "norm"), "embeddings.LayerNorm", norm)
    for index in range(config.num_hidden_layers):
        ours, theirs = layer_name(index), f"encoder.layer.{index}"
        for part in ("query", "key", "value"):
            add((ours, part), f"{theirs}.attention.self.{part}", dense)
        add((ours, "attention_output"), f"{theirs}.attention.output.dense", dense)
        add((ours, "attention_norm"), f"{theirs}.attention.output.LayerNorm", norm)
        add((ours, "intermediate"), f"{theirs}.intermediate.dense", dense)
        add((ours, "output"), f"{theirs}.output.dense", dense)
        add((ours, "output_norm"), f"{theirs}.output.LayerNorm", norm)
    add(("pooler",), "pooler.dense", dense)
    return names


def bert_shapes(config: BertConfig) -> dict[TreePath, tuple[int, ...]]:
    """Path of each parameter of `Bert` -> its shape."""
    bert = Bert(config)
    ids_BL = jax.ShapeDtypeStruct((1, 1), np.int32)
    params = jax.eval_shape(
        lambda ids: bert.init(jax.random.key(0), ids, ids > 0, ids, method=_everything), ids_BL
    )["params"]
    return {path: leaf.shape for path, leaf in traverse_util.flatten_dict(params).items()}


def _everything(bert: Bert, *inputs: jax.Array) -> jax.Array:
    return bert.pool(bert(*inputs))
