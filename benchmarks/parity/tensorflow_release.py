"""Makes the golden files of BERT's, ORQA's and REALM's releases with real TensorFlow.

A BERT, an ICT module with its block embeddings, a fine-tuned ORQA, REALM's embedder, and a corpus
in three TFRecord files. Variables have the names of the releases of 2018 to 2020, and TensorFlow's
own Saver writes them; beside them stands what encoder, retriever and reader compute.

In an environment of its own (TensorFlow 2.20 and nothing of ours):

    pip install tensorflow==2.20.0
    python benchmarks/parity/tensorflow_release.py tests/golden

The models are written here anew from the BERT paper and Lee et al. 2019 in plain TensorFlow
operations. tests/models/test_foreign.py compares with the results.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

SIZES = {"vocab": 31, "hidden": 16, "layers": 2, "inner": 24, "positions": 64, "projection": 6}
HEADS, SPAN, WIDTH, LENGTH = 2, 4, 3, 12
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz"]
# Titles and sentences of the blocks; every letter is a word.
BLOCKS = [
    ("q a", ["a b c", "d e"]),
    ("q a", ["f g h i"]),
    ("É e", ["j k", "l", "m n o"]),
    ("z", ["p q r s"]),
    ("z", ["t u", "v w x"]),
]

tf1 = tf.compat.v1
tf1.disable_v2_behavior()


def main() -> None:
    out = Path(sys.argv[1])
    write_bert(out / "bert")
    write_corpus(out / "corpus")
    write_ict(out / "ict")
    write_orqa(out / "release")
    write_embedder(out / "realm_embedder")


def variables_of(random: np.random.RandomState) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function that makes variables of random values, and all that it has made, by name."""
    made: dict[str, Any] = {}

    def variable(name, *shape, around=0.0):
        value = (around + 0.3 * random.standard_normal(shape)).astype(np.float32)
        made[name] = tf1.get_variable(name, initializer=value)
        return made[name]

    return variable, made


def dense(variable, name, x, inputs, outputs):
    kernel = variable(f"{name}/kernel", inputs, outputs)
    return tf.tensordot(x, kernel, 1) + variable(f"{name}/bias", outputs)


def norm(variable, name, x, size, eps):
    mean, variance = tf1.nn.moments(x, axes=[-1], keep_dims=True)
    scale = variable(f"{name}/gamma", size, around=1.0)
    return (x - mean) / tf.sqrt(variance + eps) * scale + variable(f"{name}/beta", size)


def bert(variable, name, ids, mask, segments, gelu):
    """Hidden states and pooled output."""
    hidden, size = SIZES["hidden"], SIZES["hidden"] // HEADS
    layer_norm = partial(norm, variable, size=hidden, eps=1e-12)
    tables = f"{name}/embeddings"
    x = tf.gather(variable(f"{tables}/word_embeddings", SIZES["vocab"], hidden), ids)
    x += tf.gather(variable(f"{tables}/token_type_embeddings", 2, hidden), segments)
    x += variable(f"{tables}/position_embeddings", SIZES["positions"], hidden)[: ids.shape[1]]
    x = layer_norm(f"{tables}/LayerNorm", x)

    def heads(y):
        return tf.transpose(tf.reshape(y, [*ids.shape, HEADS, size]), [0, 2, 1, 3])

    for layer in range(SIZES["layers"]):
        root = f"{name}/encoder/layer_{layer}"
        query, key, value = (
            heads(dense(variable, f"{root}/attention/self/{part}", x, hidden, hidden))
            for part in ("query", "key", "value")
        )
        logits = tf.matmul(query, key, transpose_b=True) / np.sqrt(size)
        logits += (1.0 - mask[:, None, None, :]) * -10000.0
        attended = tf.transpose(tf.matmul(tf.nn.softmax(logits), value), [0, 2, 1, 3])
        attended = tf.reshape(attended, [*ids.shape, hidden])
        attended = dense(variable, f"{root}/attention/output/dense", attended, hidden, hidden)
        x = layer_norm(f"{root}/attention/output/LayerNorm", x + attended)
        inner = gelu(dense(variable, f"{root}/intermediate/dense", x, hidden, SIZES["inner"]))
        inner = dense(variable, f"{root}/output/dense", inner, SIZES["inner"], hidden)
        x = layer_norm(f"{root}/output/LayerNorm", x + inner)
    return x, tf.tanh(dense(variable, f"{name}/pooler/dense", x[:, 0], hidden, hidden))


def inputs_of(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """Three sequences of different lengths, padded to 12."""
    mask = (np.arange(LENGTH) < np.array([[12], [7], [9]])).astype(np.float32)
    return {
        "ids": random.randint(1, SIZES["vocab"], (3, LENGTH)),
        "mask": mask,
        "segments": ((np.arange(LENGTH) >= 4) * mask).astype(np.int64),
    }


def retriever(variable, prefix, inputs, norm_name="layer_normalization", eps=1e-3):
    """Vectors; GELU is approximated, as by BERT's code when ORQA was released."""
    gelu = partial(tf.nn.gelu, approximate=True)
    _, pooled = bert(variable, f"{prefix}module/bert", **inputs, gelu=gelu)
    projected = dense(variable, f"{prefix}dense", pooled, SIZES["hidden"], SIZES["projection"])
    return norm(variable, f"{prefix}{norm_name}", projected, SIZES["projection"], eps)


def save(prefix: Path, variables: Any, outputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Writes a checkpoint; returns the values of ``outputs``."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver(list(variables))
        saver.save(session, str(prefix), write_meta_graph=False)
        (prefix.parent / "checkpoint").unlink()
        found: dict[str, np.ndarray] = session.run(outputs)
    return found


def write_corpus(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)

    def write(name, records):
        with tf1.io.TFRecordWriter(str(out / f"{name}.tfr")) as writer:
            for record in records:
                writer.write(record)

    def ids(text):
        return [VOCABULARY.index(letter) for letter in text.lower().replace("é", "e").split()]

    def example(title, sentences):
        made = tf.train.Example()
        starts = np.cumsum([0, *(len(ids(sentence)) for sentence in sentences[:-1])])
        for key, values in (
            ("title_ids", ids(title)),
            ("token_ids", ids(" ".join(sentences))),
            ("sentence_starts", starts),
        ):
            made.features.feature[key].int64_list.value.extend(values)
        return made.SerializeToString()

    write("blocks", [" ".join(sentences).encode() for _, sentences in BLOCKS])
    write("titles", [title.encode() for title, _ in BLOCKS])
    write("examples", [example(title, sentences) for title, sentences in BLOCKS])


def write_ict(out: Path) -> None:
    """The variables of a hub module, and the block embeddings beside it.

    Its values are those of the retriever in `write_orqa`, and so are its vectors.
    """
    tf1.reset_default_graph()
    random = np.random.RandomState(7)
    variable, made = variables_of(random)
    retriever(variable, "", inputs_of(random))
    save(out / "variables" / "variables", made.values(), {})
    tf1.reset_default_graph()
    variable, made = variables_of(random)
    variable("block_emb", len(BLOCKS), SIZES["projection"])
    found = save(out / "encoded" / "encoded.ckpt", made.values(), made)
    np.savez_compressed(out / "golden.npz", **found)


def write_orqa(out: Path) -> None:
    """Retriever and reader in one checkpoint, among what its training has left there."""
    tf1.reset_default_graph()
    random = np.random.RandomState(7)
    variable, made = variables_of(random)
    inputs = inputs_of(random)
    vectors = retriever(variable, "module/", inputs)

    gelu = partial(tf.nn.gelu, approximate=True)
    hidden, _ = bert(variable, "reader/module/bert", **inputs, gelu=gelu)
    ends = dense(variable, "reader/dense", hidden, SIZES["hidden"], 2 * SPAN)
    start, end = tf.split(ends, 2, -1)
    variable("reader/module/cls/predictions/output_bias", SIZES["vocab"])
    first = np.concatenate([np.arange(LENGTH - w) for w in range(WIDTH)])
    last = np.concatenate([np.arange(w, LENGTH) for w in range(WIDTH)])
    spans = tf.nn.relu(tf.gather(start, first, axis=1) + tf.gather(end, last, axis=1))
    spans = norm(variable, "reader/layer_normalization", spans, SPAN, 1e-3)
    logits = dense(variable, "reader/dense_1", spans, SPAN, 1)[..., 0]

    step = tf1.get_variable("global_step", initializer=np.int64(68_340))
    slot = tf1.get_variable("reader/dense/bias/adam_m", initializer=np.zeros(8, np.float32))
    kept = {name: value for name, value in made.items() if "dense_1" in name}
    outputs = {"vectors": vectors, "span_logits": logits, **kept}
    found = save(out / "model.ckpt", [*made.values(), step, slot], outputs)
    np.savez_compressed(out / "golden.npz", **inputs, first=first, last=last, **found)


def write_embedder(out: Path) -> None:
    """REALM's: its LayerNorm is that of BERT's code, by another name and with another epsilon."""
    tf1.reset_default_graph()
    random = np.random.RandomState(23)
    variable, made = variables_of(random)
    inputs = inputs_of(random)
    vectors = retriever(variable, "module/", inputs, "LayerNorm", 1e-12)
    found = save(out / "variables" / "variables", made.values(), {"vectors": vectors})
    np.savez_compressed(out / "golden.npz", **inputs, **found)


def write_bert(out: Path) -> None:
    """A released BERT, with the heads of its pre-training.

    The first code computed the exact GELU; the same name stood for its approximation from February
    2019 on.
    """
    tf1.reset_default_graph()
    random = np.random.RandomState(13)
    variable, made = variables_of(random)
    inputs = inputs_of(random)
    hidden, pooled = bert(variable, "bert", **inputs, gelu=tf.nn.gelu)
    again = partial(bert, lambda name, *_, **__: made[name], "bert", **inputs)
    later_hidden, later_pooled = again(gelu=partial(tf.nn.gelu, approximate=True))

    size = SIZES["hidden"]
    words = dense(variable, "cls/predictions/transform/dense", hidden, size, size)
    norm(variable, "cls/predictions/transform/LayerNorm", words, size, 1e-12)
    variable("cls/predictions/output_bias", SIZES["vocab"])
    variable("cls/seq_relationship/output_weights", 2, size)
    variable("cls/seq_relationship/output_bias", 2)

    outputs = {"hidden": hidden, "pooled": pooled}
    outputs |= {"later_hidden": later_hidden, "later_pooled": later_pooled}
    found = save(out / "bert_model.ckpt", made.values(), outputs)
    np.savez_compressed(out / "golden.npz", **inputs, **found)
    about = {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": size,
        "initializer_range": 0.02,
        "intermediate_size": SIZES["inner"],
        "max_position_embeddings": SIZES["positions"],
        "num_attention_heads": HEADS,
        "num_hidden_layers": SIZES["layers"],
        "type_vocab_size": 2,
        "vocab_size": SIZES["vocab"],
    }
    (out / "bert_config.json").write_text(json.dumps(about, indent=2) + "\n")
    (out / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")


if __name__ == "__main__":
    main()
