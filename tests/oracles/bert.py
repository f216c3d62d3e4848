"""BERT in numpy, float64, one step a line, on weights under their names in a torch `BertModel`."""

import numpy as np
from scipy.special import erf

EPS = 1e-12


def tiny_config(**changes):
    """A `config.json` small enough to reason about."""
    return {
        "model_type": "bert",
        "vocab_size": 31,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 20,
        "type_vocab_size": 2,
        "layer_norm_eps": EPS,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    } | changes


def random_weights(config, seed=0, scale=0.2):
    """Weights of the BERT that `config` describes, from numpy's frozen legacy generator."""
    random = np.random.RandomState(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    weights = {}

    def add(name, *shape, around=0.0):
        weights[name] = (around + scale * random.standard_normal(shape)).astype(np.float32)

    def dense(name, inputs, outputs):
        add(f"{name}.weight", outputs, inputs)
        add(f"{name}.bias", outputs)

    def norm(name):
        add(f"{name}.weight", hidden, around=1.0)
        add(f"{name}.bias", hidden)

    add("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    add("embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden)
    add("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    norm("embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"encoder.layer.{i}.attention.{part}", hidden, hidden)
        norm(f"encoder.layer.{i}.attention.output.LayerNorm")
        dense(f"encoder.layer.{i}.intermediate.dense", hidden, inner)
        dense(f"encoder.layer.{i}.output.dense", inner, hidden)
        norm(f"encoder.layer.{i}.output.LayerNorm")
    dense("pooler.dense", hidden, hidden)
    return weights


def layer_norm(x, scale, bias, eps=EPS):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * scale + bias


def bert(config, weights, token_ids, mask, segment_ids, num_layers=None):
    """Hidden states [B, L, H] after `num_layers` layers (all by default)."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    batch, length = token_ids.shape
    heads = config["num_attention_heads"]
    size = config["hidden_size"] // heads

    def dense(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, x):
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["embeddings.word_embeddings.weight"][token_ids]
    x = x + weights["embeddings.position_embeddings.weight"][np.arange(length)]
    x = x + weights["embeddings.token_type_embeddings.weight"][segment_ids]
    x = norm("embeddings.LayerNorm", x)
    for i in range(config["num_hidden_layers"] if num_layers is None else num_layers):
        prefix = f"encoder.layer.{i}"
        attended = np.zeros_like(x)
        for b in range(batch):
            query, key, value = (
                dense(f"{prefix}.attention.self.{part}", x[b]) for part in ("query", "key", "value")
            )
            for h in range(heads):
                columns = slice(h * size, (h + 1) * size)
                logits = query[:, columns] @ key[:, columns].T / np.sqrt(size)
                logits[:, ~mask[b]] = -np.inf
                logits -= logits.max(-1, keepdims=True)
                probabilities = np.exp(logits)
                probabilities /= probabilities.sum(-1, keepdims=True)
                attended[b, :, columns] = probabilities @ value[:, columns]
        x = norm(
            f"{prefix}.attention.output.LayerNorm",
            x + dense(f"{prefix}.attention.output.dense", attended),
        )
        inner = dense(f"{prefix}.intermediate.dense", x)
        inner = inner * 0.5 * (1.0 + erf(inner / np.sqrt(2.0)))
        x = norm(f"{prefix}.output.LayerNorm", x + dense(f"{prefix}.output.dense", inner))
    return x
