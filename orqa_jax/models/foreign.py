"""Weights of BERT's, ORQA's and REALM's releases, under their names, as parameters of our modules.

Names and sizes are those of the public releases: TensorFlow checkpoints of google-research/bert and
of ORQA's `language/orqa`, and the REALM checkpoints in the form of Hugging Face transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import BertConfig
from orqa_jax.models.reader import ReaderConfig
from orqa_jax.models.retriever import RetrieverConfig
from orqa_jax.models.tensorflow import read_tensorflow
from orqa_jax.models.weights import (
    TreePath,
    bert_names,
    bert_shapes,
    place_weights,
    read_bert_config,
    read_json_object,
    read_tensors,
)

Tensors = Mapping[str, np.ndarray]
# Where each parameter comes from: name of the tensor, and the shape that the parameter has.
Sources = dict[TreePath, tuple[str, tuple[int, ...]]]

_WORDS = "bert/embeddings/word_embeddings"
_OPTIMIZER = re.compile(r".*(adam_[mv]|AdamWeightDecayOptimizer[^/]*)$")


@dataclass(frozen=True)
class Imported:
    """What was found in a foreign checkpoint.

    Attributes:
      config: Shape of the module.
      params: Its parameters.
      unplaced: Names of the tensors of the same file that are no part of it, optimiser slots left
        out.
    """

    config: Any
    params: dict[str, Any]
    unplaced: list[str]


def load_tensorflow_bert(folder: Path, *, hidden_act: str | None = None) -> Imported:
    """Reads a released BERT: `bert_config.json` and `bert_model.ckpt`.

    Args:
      folder: holds both.
      hidden_act: "gelu" or "gelu_new" (by tanh); None for what the config says. It says "gelu" of
        both: BERT's code came to approximate it, under the same name, in February 2019.

    Raises:
      OrqaError: a file is missing or damaged; every missing and misshaped weight is named.
    """
    config = read_bert_config(folder / "bert_config.json")
    config = replace(config, hidden_act=hidden_act or config.hidden_act)
    tensors = read_tensorflow(folder / "bert_model.ckpt")
    sources = _sources_of_bert(config, tensorflow_bert_names(config, "bert/"))
    return _finish(folder, config, tensors, sources, transposed=False)


def load_tensorflow_retriever(
    source: Path, *, hidden_act: str = "gelu_new", heads: int = 0
) -> Imported:
    """Reads the tower of ORQA's ICT module or REALM's embedder, alone or in a fine-tuned model.

    Its shape follows from the weights, but for two things that leave no trace in them.

    Args:
      source: a hub module (with `variables/`), or a checkpoint.
      hidden_act: "gelu_new", or "gelu" for a BERT from before its code approximated GELU.
      heads: attention heads; 0 for one in 64 of the hidden size.

    Raises:
      OrqaError: there is no such tower, or more than one; weights are missing.
    """
    tensors = read_tensorflow(_variables(source))
    prefix = _only_prefix(source, tensors, reader=False)
    scope = _scope_of_projection(source, tensors, prefix)
    # The Keras layer of ORQA has another name, and another default epsilon, than REALM's.
    keras = f"{scope}layer_normalization/gamma" in tensors
    norm = f"{scope}layer_normalization" if keras else f"{scope}LayerNorm"
    bert = _infer_bert(source, tensors, prefix, hidden_act, heads)
    size = tensors[f"{scope}dense/kernel"].shape[-1]
    sources = _in_module(_sources_of_bert(bert, tensorflow_bert_names(bert, f"{prefix}bert/")))
    sources |= _sources_of_projection(
        bert.hidden_size,
        size,
        dense=(f"{scope}dense/kernel", f"{scope}dense/bias"),
        norm=(f"{norm}/gamma", f"{norm}/beta"),
    )
    config = _release_retriever(bert, size, 1e-3 if keras else 1e-12)
    return _finish(source, config, tensors, sources, transposed=False)


def load_tensorflow_reader(
    source: Path, *, hidden_act: str = "gelu_new", heads: int = 0, max_span_wordpieces: int = 10
) -> Imported:
    """Reads the reader of a fine-tuned ORQA or REALM; see `load_tensorflow_retriever`."""
    tensors = read_tensorflow(_variables(source))
    prefix = _only_prefix(source, tensors, reader=True)
    bert = _infer_bert(source, tensors, prefix, hidden_act, heads)
    (both_ends,) = _shape(source, tensors, "reader/dense/bias")
    size = both_ends // 2
    names = _without_pooler(tensorflow_bert_names(bert, f"{prefix}bert/"))
    sources = _in_module(_sources_of_bert(bert, names))
    sources |= _sources_of_span_score(
        bert.hidden_size,
        size,
        endpoints=("reader/dense/kernel", "reader/dense/bias"),
        norm=("reader/layer_normalization/gamma", "reader/layer_normalization/beta"),
        score=("reader/dense_1/kernel", "reader/dense_1/bias"),
    )
    config = ReaderConfig(bert, size, max_span_wordpieces)
    return _finish(source, config, tensors, sources, transposed=False)


def load_tensorflow_embeddings(source: Path) -> np.ndarray:
    """The block embeddings of a release, float32 [N, P], memory-mapped: `encoded/encoded.ckpt`."""
    folder = source / "encoded" if (source / "encoded").is_dir() else source
    tensors = read_tensorflow(folder)
    if "block_emb" not in tensors:
        raise OrqaError(
            f"{folder} holds no 'block_emb', but {', '.join(sorted(tensors)[:5])}; give the folder "
            "`encoded` of the release."
        )
    return tensors["block_emb"]


# --- REALM in the form of Hugging Face transformers -----------------------------------------------


# What a setting is that a `config.json` leaves out, by the RealmConfig of transformers.
_REALM_DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu_new",
    "retriever_proj_size": 128,
    "span_hidden_size": 256,
    "max_span_width": 10,
    "reader_beam_size": 5,
    "reader_seq_len": 320,
}


@dataclass(frozen=True)
class Realm:
    """A REALM checkpoint: its embedder, and for open question answering the rest."""

    embedder: Imported
    reader: Imported | None
    block_embeddings: np.ndarray | None
    reader_beam: int
    reader_length: int


def load_realm(folder: Path) -> Realm:
    """Reads `RealmEmbedder`, `RealmScorer` (its embedder) or `RealmForOpenQA`.

    Raises:
      OrqaError: the folder holds none of these; every missing and misshaped weight is named.
    """
    about = _REALM_DEFAULTS | read_json_object(folder / "config.json")
    if about.get("model_type") != "realm":
        raise OrqaError(
            f"{folder / 'config.json'} describes a {about.get('model_type')!r}, not a 'realm'; "
            "`orqa import` has other kinds for other models."
        )
    tensors = read_tensors(folder)
    bert = BertConfig.from_dict({**about, "model_type": "bert"})
    size, span = about["retriever_proj_size"], about["span_hidden_size"]

    def dense(name: str) -> tuple[str, str]:
        return f"{name}.weight", f"{name}.bias"

    prefix = "embedder." if any(name.startswith("embedder.") for name in tensors) else ""
    names = {path: f"{prefix}realm.{name}" for path, name in bert_names(bert).items()}
    tower = _in_module(_sources_of_bert(bert, names)) | _sources_of_projection(
        bert.hidden_size,
        size,
        dense=dense(f"{prefix}cls.dense"),
        norm=dense(f"{prefix}cls.LayerNorm"),
    )
    placed = {"block_emb"}
    reader = None
    if any(name.startswith("reader.") for name in tensors):
        names = _without_pooler(bert_names(bert))
        names = {path: f"reader.realm.{name}" for path, name in names.items()}
        sources = _in_module(_sources_of_bert(bert, names)) | _sources_of_span_score(
            bert.hidden_size,
            span,
            endpoints=dense("reader.qa_outputs.dense_intermediate"),
            norm=dense("reader.qa_outputs.layer_normalization"),
            score=dense("reader.qa_outputs.dense_output"),
        )
        placed |= {name for name, _ in sources.values()}
        reader = _finish(
            folder, ReaderConfig(bert, span, about["max_span_width"]), tensors, sources
        )
    config = _release_retriever(bert, size, bert.layer_norm_eps)
    embedder = _finish(folder, config, tensors, tower)
    unplaced = [name for name in embedder.unplaced if name not in placed]
    return Realm(
        replace(embedder, unplaced=unplaced),
        reader,
        tensors.get("block_emb"),
        about["reader_beam_size"],
        about["reader_seq_len"],
    )


# --- Names ----------------------------------------------------------------------------------------


def tensorflow_bert_names(config: BertConfig, prefix: str) -> dict[TreePath, str]:
    """Path of each parameter of `Bert` -> its name in a TensorFlow BERT."""
    names = {}
    for path, theirs in bert_names(config).items():
        name = theirs.replace("encoder.layer.", "encoder/layer_").replace(".", "/")
        if path[:1] == ("embeddings",) and len(path) == 2:
            name = name.removesuffix("/weight")
        elif path[-1] in ("scale", "bias") and "norm" in path[-2]:
            name = name.removesuffix("/weight").removesuffix("/bias")
            name += "/gamma" if path[-1] == "scale" else "/beta"
        else:
            name = name.replace("/weight", "/kernel")
        names[path] = prefix + name
    return names


def _sources_of_bert(config: BertConfig, names: Mapping[TreePath, str]) -> Sources:
    shapes = bert_shapes(config)
    return {path: (name, shapes[path]) for path, name in names.items()}


def _in_module(bert: Sources) -> Sources:
    """A BERT as the part of a tower or a reader that it is there."""
    return {("bert", *path): source for path, source in bert.items()}


def _without_pooler(names: Mapping[TreePath, str]) -> dict[TreePath, str]:
    return {path: name for path, name in names.items() if path[0] != "pooler"}


def _sources_of_projection(
    hidden: int, size: int, *, dense: tuple[str, str], norm: tuple[str, str]
) -> Sources:
    """The layers of a tower above its BERT; of each the names of its kernel (or scale) and bias."""
    return {
        ("projection", "kernel"): (dense[0], (hidden, size)),
        ("projection", "bias"): (dense[1], (size,)),
        ("norm", "scale"): (norm[0], (size,)),
        ("norm", "bias"): (norm[1], (size,)),
    }


def _sources_of_span_score(
    hidden: int,
    size: int,
    *,
    endpoints: tuple[str, str],
    norm: tuple[str, str],
    score: tuple[str, str],
) -> Sources:
    """The layers of a reader above its BERT; see `_sources_of_projection`."""
    return {
        ("endpoints", "kernel"): (endpoints[0], (hidden, 2 * size)),
        ("endpoints", "bias"): (endpoints[1], (2 * size,)),
        ("span_score", "norm_scale"): (norm[0], (size,)),
        ("span_score", "norm_bias"): (norm[1], (size,)),
        ("span_score", "kernel"): (score[0], (size, 1)),
        ("span_score", "bias"): (score[1], (1,)),
    }


def _release_retriever(bert: BertConfig, size: int, norm_eps: float) -> RetrieverConfig:
    return RetrieverConfig(
        bert,
        projection_size=size,
        pooling="pooler",
        shared_towers=True,
        layer_norm=True,
        projection_dropout=0.1,
        projection_norm_eps=norm_eps,
        projection_init="glorot_uniform",
    )


def _variables(source: Path) -> Path:
    return source / "variables" if (source / "variables").is_dir() else source


def _only_prefix(source: Path, tensors: Tensors, *, reader: bool) -> str:
    found = [
        name.removesuffix(_WORDS)
        for name in tensors
        if name.endswith(_WORDS) and name.startswith("reader/") == reader
    ]
    if len(found) != 1:
        what = "reader" if reader else "retriever"
        listed = f" ({', '.join(sorted(found))})" if found else ""
        raise OrqaError(
            f"{source} holds {len(found)} BERTs that may be its {what}{listed}, not one; import a "
            "checkpoint or module as ORQA's or REALM's code writes it."
        )
    return found[0]


def _scope_of_projection(source: Path, tensors: Tensors, prefix: str) -> str:
    """The innermost scope around a BERT that has a projection."""
    scopes = prefix.split("/")[:-1]
    for depth in range(len(scopes), -1, -1):
        scope = "".join(f"{part}/" for part in scopes[:depth])
        if f"{scope}dense/kernel" in tensors:
            return scope
    raise OrqaError(
        f"{source} holds a BERT ({prefix}bert) without a projection (dense/kernel); give the ICT "
        "module or a fine-tuned checkpoint."
    )


def _shape(source: Path, tensors: Tensors, name: str) -> tuple[int, ...]:
    if name not in tensors:
        raise OrqaError(f"{source}: {name} is missing; copy the checkpoint again.")
    return tensors[name].shape


def _infer_bert(
    source: Path, tensors: Tensors, prefix: str, hidden_act: str, heads: int
) -> BertConfig:
    root = f"{prefix}bert"
    shape = partial(_shape, source, tensors)
    vocab, hidden = shape(f"{prefix}{_WORDS}")
    layer = re.compile(re.escape(f"{root}/encoder/layer_") + r"\d+/intermediate/dense/bias")
    layers = [name for name in tensors if layer.fullmatch(name)]
    if not layers:
        raise OrqaError(f"{source} has no layers of {root}; copy the checkpoint again.")
    return BertConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=len(layers),
        num_attention_heads=heads or max(hidden // 64, 1),
        intermediate_size=shape(layers[0])[0],
        max_position_embeddings=shape(f"{root}/embeddings/position_embeddings")[0],
        type_vocab_size=shape(f"{root}/embeddings/token_type_embeddings")[0],
        hidden_act=hidden_act,
    )


def _finish(
    source: Path,
    config: Any,
    tensors: Tensors,
    sources: Sources,
    *,
    transposed: bool = True,
) -> Imported:
    names = {path: name for path, (name, _) in sources.items()}
    shapes = {path: shape for path, (_, shape) in sources.items()}
    params, defects = place_weights(tensors, names, shapes, transposed=transposed)
    if defects:
        raise OrqaError(
            f"{source} does not hold the weights that it should: {'; '.join(defects)}; copy it "
            "again."
        )
    placed = set(names.values())
    unplaced = sorted(n for n in tensors if n not in placed and not _OPTIMIZER.fullmatch(n))
    return Imported(config, params, unplaced)
