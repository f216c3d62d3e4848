"""Makes the golden checkpoint of a fine-tuned ORQA with real TensorFlow.

Variables have the names of the 2019 release; beside them stands what retriever and reader compute.

In an environment of its own (TensorFlow 2.20 and nothing of ours):

    pip install tensorflow==2.20.0
    python benchmarks/parity/tensorflow_release.py tests/golden/release

The model is written here anew from the BERT paper and Lee et al. 2019 in plain TensorFlow
operations, with the approximate GELU of BERT's later code. tests/models/test_foreign.py compares
with the result.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

SIZES = {"vocab": 31, "hidden": 16, "layers": 2, "inner": 24, "positions": 64, "projection": 6}
HEADS, SPAN, WIDTH = 2, 4, 3

tf1 = tf.compat.v1
tf1.disable_v2_behavior()


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(7)
    variables = {}

    def variable(name, *shape, around=0.0):
        value = (around + 0.3 * random.standard_normal(shape)).astype(np.float32)
        variables[name] = tf1.get_variable(name, initializer=value)
        return variables[name]

    def dense(name, x, inputs, outputs):
        return tf.tensordot(x, variable(f"{name}/kernel", inputs, outputs), 1) + variable(
            f"{name}/bias", outputs
        )

    def norm(name, x, size, eps):
        mean, variance = tf1.nn.moments(x, axes=[-1], keep_dims=True)
        scale, shift = variable(f"{name}/gamma", size, around=1.0), variable(f"{name}/beta", size)
        return (x - mean) / tf.sqrt(variance + eps) * scale + shift

    def bert(name, ids, mask, segments):
        hidden, size = SIZES["hidden"], SIZES["hidden"] // HEADS
        tables = f"{name}/embeddings"
        x = tf.gather(variable(f"{tables}/word_embeddings", SIZES["vocab"], hidden), ids)
        x += tf.gather(variable(f"{tables}/token_type_embeddings", 2, hidden), segments)
        x += variable(f"{tables}/position_embeddings", SIZES["positions"], hidden)[: ids.shape[1]]
        x = norm(f"{tables}/LayerNorm", x, hidden, 1e-12)

        def heads(y):
            return tf.transpose(tf.reshape(y, [*ids.shape, HEADS, size]), [0, 2, 1, 3])

        for layer in range(SIZES["layers"]):
            root = f"{name}/encoder/layer_{layer}"
            query, key, value = (
                heads(dense(f"{root}/attention/self/{part}", x, hidden, hidden))
                for part in ("query", "key", "value")
            )
            logits = tf.matmul(query, key, transpose_b=True) / np.sqrt(size)
            logits += (1.0 - mask[:, None, None, :]) * -10000.0
            attended = tf.transpose(tf.matmul(tf.nn.softmax(logits), value), [0, 2, 1, 3])
            attended = tf.reshape(attended, [*ids.shape, hidden])
            attended = dense(f"{root}/attention/output/dense", attended, hidden, hidden)
            x = norm(f"{root}/attention/output/LayerNorm", x + attended, hidden, 1e-12)
            inner = dense(f"{root}/intermediate/dense", x, hidden, SIZES["inner"])
            inner = tf.nn.gelu(inner, approximate=True)
            inner = dense(f"{root}/output/dense", inner, SIZES["inner"], hidden)
            x = norm(f"{root}/output/LayerNorm", x + inner, hidden, 1e-12)
        pooled = tf.tanh(dense(f"{name}/pooler/dense", x[:, 0], hidden, hidden))
        return x, pooled

    ids = random.randint(1, SIZES["vocab"], (3, 12))
    mask = (np.arange(12) < np.array([[12], [7], [9]])).astype(np.float32)
    segments = ((np.arange(12) >= 4) * mask).astype(np.int64)
    _, pooled = bert("module/module/bert", ids, mask, segments)
    projected = dense("module/dense", pooled, SIZES["hidden"], SIZES["projection"])
    vectors = norm("module/layer_normalization", projected, SIZES["projection"], 1e-3)

    hidden, _ = bert("reader/module/bert", ids, mask, segments)
    ends = dense("reader/dense", hidden, SIZES["hidden"], 2 * SPAN)
    start, end = tf.split(ends, 2, -1)
    variable("reader/module/cls/predictions/output_bias", SIZES["vocab"])
    first = np.concatenate([np.arange(12 - w) for w in range(WIDTH)])
    last = np.concatenate([np.arange(w, 12) for w in range(WIDTH)])
    spans = tf.nn.relu(tf.gather(start, first, axis=1) + tf.gather(end, last, axis=1))
    spans = norm("reader/layer_normalization", spans, SPAN, 1e-3)
    logits = dense("reader/dense_1", spans, SPAN, 1)[..., 0]

    step = tf1.get_variable("global_step", initializer=np.int64(68_340))
    slot = tf1.get_variable("reader/dense/bias/adam_m", initializer=np.zeros(8, np.float32))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver([*variables.values(), step, slot])
        saver.save(session, str(out / "model.ckpt"), write_meta_graph=False)
        (out / "checkpoint").unlink()
        found = session.run({"vectors": vectors, "span_logits": logits})
        kept = {name: session.run(value) for name, value in variables.items() if "dense_1" in name}
    inputs = {"ids": ids, "mask": mask, "segments": segments, "first": first, "last": last}
    np.savez_compressed(out / "golden.npz", **inputs, **found, **kept)


if __name__ == "__main__":
    main()
