"""The document reader of DrQA: which span of a paragraph answers a question.

Chen et al. 2017 (arXiv:1704.00051), section 3.2. Two bidirectional LSTMs of three layers, one over
the paragraph and one over the question; the start and the end of the span are scored by bilinear
forms. D is the size of a word vector, F the number of features of a word.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


@dataclasses.dataclass(frozen=True)
class DrqaReaderConfig:
    """Shape of the reader.

    Attributes:
      vector_size: D, of the word vectors.
      features: F, further features of a paragraph word (exact match, term frequency, tags).
      tuned_words: Words whose vectors are trained (1000 in the paper); slot 0 is for all others.
      hidden_size: Of one direction of one layer (128).
      layers: Of each LSTM (3).
      dropout: On word vectors and on the input of each layer and of the output (0.3).
      aligned_embedding: Whether paragraph words see the question word that is most like them.
    """

    vector_size: int
    features: int
    tuned_words: int
    hidden_size: int = 128
    layers: int = 3
    dropout: float = 0.3
    aligned_embedding: bool = True


class DrqaReader(nn.Module):
    """Scores every token of a paragraph as start and as end of the answer."""

    config: DrqaReaderConfig

    @nn.compact
    def __call__(self, batch: dict[str, jax.Array], *, deterministic: bool = True) -> Any:
        """start_logits_BL and end_logits_BL in float32, -1e9 on padding.

        Args:
          batch: of the paragraph ``vectors`` float32 [B, L, D], ``tuned`` int32 [B, L] (slot of a
            trained word, or 0), ``features`` float32 [B, L, F] and ``mask`` bool [B, L]; of the
            question ``question_vectors``, ``question_tuned`` and ``question_mask`` [B, Q].
          deterministic: False for dropout.
        """
        config = self.config
        tuned_WD = self.param(
            "tuned_vectors", nn.initializers.zeros, (config.tuned_words + 1, config.vector_size)
        )

        def embed(vectors: jax.Array, tuned: jax.Array) -> jax.Array:
            """Trained vectors take the place of the given ones."""
            embedded = jnp.where(tuned[..., None] > 0, tuned_WD[tuned], vectors)
            return nn.Dropout(config.dropout)(embedded, deterministic=deterministic)

        mask_BL, question_mask_BQ = batch["mask"], batch["question_mask"]
        paragraph_BLD = embed(batch["vectors"], batch["tuned"])
        question_BQD = embed(batch["question_vectors"], batch["question_tuned"])
        parts = [paragraph_BLD, batch["features"]]
        if config.aligned_embedding:
            aligned = AlignedQuestion(name="align")
            parts.append(aligned(paragraph_BLD, question_BQD, question_mask_BQ))
        lstm = partial(
            StackedBiLstm, config.hidden_size, config.layers, config.dropout, deterministic
        )
        encoded_BLH = lstm(name="paragraph")(jnp.concatenate(parts, axis=-1), mask_BL)
        words_BQH = lstm(name="question")(question_BQD, question_mask_BQ)
        weight_BQ = nn.Dense(1, use_bias=False, name="question_attention")(words_BQH)[..., 0]
        question_BH = jnp.einsum("bq,bqh->bh", _softmax(weight_BQ, question_mask_BQ), words_BQH)

        def bilinear(name: str) -> jax.Array:
            wanted_BH = nn.Dense(encoded_BLH.shape[-1], name=name)(question_BH)
            logits_BL = jnp.einsum("blh,bh->bl", encoded_BLH, wanted_BH)
            return jnp.where(mask_BL, logits_BL, -1e9)

        return bilinear("start"), bilinear("end")


class AlignedQuestion(nn.Module):
    """A soft alignment: for each paragraph word the question words, weighted by likeness."""

    @nn.compact
    def __call__(
        self, paragraph_BLD: jax.Array, question_BQD: jax.Array, question_mask_BQ: jax.Array
    ) -> jax.Array:
        """float32 [B, L, D]; the likeness is a product after one shared dense layer with ReLU."""
        shared = nn.Dense(paragraph_BLD.shape[-1], name="projection")
        left_BLD, right_BQD = nn.relu(shared(paragraph_BLD)), nn.relu(shared(question_BQD))
        likeness_BLQ = jnp.einsum("bld,bqd->blq", left_BLD, right_BQD)
        weight_BLQ = _softmax(likeness_BLQ, question_mask_BQ[:, None, :])
        return jnp.einsum("blq,bqd->bld", weight_BLQ, question_BQD)


class StackedBiLstm(nn.Module):
    """Bidirectional LSTM layers, each over the outputs of the one below."""

    hidden_size: int
    layers: int
    dropout: float
    deterministic: bool

    @nn.compact
    def __call__(self, inputs_BLX: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """The outputs of all layers side by side, [B, L, layers * 2 * hidden_size]."""
        drop = nn.Dropout(self.dropout, deterministic=self.deterministic)
        outputs = []
        for layer in range(self.layers):
            size = inputs_BLX.shape[-1]
            hidden = self.hidden_size
            kernel_2XG = self.param(
                f"kernel_{layer}", _uniform(hidden), (2, size, 4 * hidden), jnp.float32
            )
            recurrent_2HG = self.param(
                f"recurrent_{layer}", _uniform(hidden), (2, hidden, 4 * hidden), jnp.float32
            )
            bias_2G = self.param(f"bias_{layer}", _uniform(hidden), (2, 4 * hidden), jnp.float32)
            # The word vectors that come in have been dropped out already.
            inputs_BLX = inputs_BLX if layer == 0 else drop(inputs_BLX)
            inputs_BLX = bi_lstm(inputs_BLX, mask_BL, kernel_2XG, recurrent_2HG, bias_2G)
            outputs.append(inputs_BLX)
        return drop(jnp.concatenate(outputs, axis=-1))


def bi_lstm(
    inputs_BLX: jax.Array,
    mask_BL: jax.Array,
    kernel_2XG: jax.Array,
    recurrent_2HG: jax.Array,
    bias_2G: jax.Array,
) -> jax.Array:
    """One LSTM layer read forwards and backwards, [B, L, 2 * H]; zero where the mask is False.

    Both directions advance in one scan, so that a step is one batched product. Gates lie in the
    order input, forget, cell, output. Padding stands at the end of a row.
    """
    gates_L2BG = jnp.einsum("blx,dxg->ldbg", inputs_BLX, kernel_2XG) + bias_2G[:, None, :]
    gates_L2BG = jnp.stack([gates_L2BG[:, 0], gates_L2BG[::-1, 1]], axis=1)
    mask_LB = mask_BL.T
    mask_L2B1 = jnp.stack([mask_LB, mask_LB[::-1]], axis=1)[..., None]
    hidden_L2BH = _lstm_scan(gates_L2BG, mask_L2B1.astype(gates_L2BG.dtype), recurrent_2HG)
    both = [hidden_L2BH[:, 0], hidden_L2BH[::-1, 1]]
    return jnp.concatenate(both, axis=-1).swapaxes(0, 1)


@jax.custom_vjp
def _lstm_scan(gates_L2BG: jax.Array, mask_L2B1: jax.Array, recurrent_2HG: jax.Array) -> jax.Array:
    """Hidden states [L, 2, B, H]; where the mask is 0 they, and the cells, are 0."""
    return _lstm_forward(gates_L2BG, mask_L2B1, recurrent_2HG)[0]


def _lstm_forward(
    gates_L2BG: jax.Array, mask_L2B1: jax.Array, recurrent_2HG: jax.Array
) -> tuple[jax.Array, Any]:
    size = recurrent_2HG.shape[1]
    zeros_2BH = jnp.zeros((*gates_L2BG.shape[1:3], size), gates_L2BG.dtype)

    def step(carry: Any, now: Any) -> Any:
        hidden, cell = carry
        gates, mask = now
        gates = gates + jnp.einsum("dbh,dhg->dbg", hidden, recurrent_2HG)
        gates = jnp.concatenate(
            [
                jax.nn.sigmoid(gates[..., : 2 * size]),
                jnp.tanh(gates[..., 2 * size : 3 * size]),
                jax.nn.sigmoid(gates[..., 3 * size :]),
            ],
            axis=-1,
        )
        enter, forget, new, leave = jnp.split(gates, 4, axis=-1)
        cell = (forget * cell + enter * new) * mask
        hidden = leave * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell, gates)

    _, (hidden_L2BH, cell_L2BH, active_L2BG) = jax.lax.scan(
        step, (zeros_2BH, zeros_2BH), (gates_L2BG, mask_L2B1)
    )
    return hidden_L2BH, (hidden_L2BH, cell_L2BH, active_L2BG, mask_L2B1, recurrent_2HG)


def _lstm_backward(saved: Any, upstream_L2BH: jax.Array) -> Any:
    """Backpropagation through time, with the weight gradient as one product after the scan.

    Left to automatic differentiation, a step would add a gradient of the size of the recurrent
    matrix, at several times the cost of the step itself.
    """
    hidden_L2BH, cell_L2BH, active_L2BG, mask_L2B1, recurrent_2HG = saved
    zeros_2BH = jnp.zeros_like(hidden_L2BH[0])

    def shifted(x: jax.Array) -> jax.Array:
        return jnp.concatenate([zeros_2BH[None], x[:-1]])

    def step(carry: Any, now: Any) -> Any:
        d_hidden, d_cell = carry
        upstream, cell, cell_before, gates, mask = now
        enter, forget, new, leave = jnp.split(gates, 4, axis=-1)
        squashed = jnp.tanh(cell)
        d_hidden = d_hidden + upstream
        d_cell = (d_cell + d_hidden * leave * (1.0 - squashed * squashed)) * mask
        d_gates = jnp.concatenate(
            [
                d_cell * new * enter * (1.0 - enter),
                d_cell * cell_before * forget * (1.0 - forget),
                d_cell * enter * (1.0 - new * new),
                d_hidden * squashed * leave * (1.0 - leave),
            ],
            axis=-1,
        )
        return (jnp.einsum("dbg,dhg->dbh", d_gates, recurrent_2HG), d_cell * forget), d_gates

    _, d_gates_L2BG = jax.lax.scan(
        step,
        (zeros_2BH, zeros_2BH),
        (upstream_L2BH, cell_L2BH, shifted(cell_L2BH), active_L2BG, mask_L2B1),
        reverse=True,
    )
    d_recurrent_2HG = jnp.einsum("ldbh,ldbg->dhg", shifted(hidden_L2BH), d_gates_L2BG)
    return d_gates_L2BG, jnp.zeros_like(mask_L2B1), d_recurrent_2HG


_lstm_scan.defvjp(_lstm_forward, _lstm_backward)


def _uniform(size: int) -> Any:
    """Uniform within 1 / sqrt(hidden size), the usual start of an LSTM."""
    scale = size**-0.5

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    return init


def _softmax(logits: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(mask, logits, -1e9), axis=-1)


def span_loss(
    start_logits_BL: jax.Array, end_logits_BL: jax.Array, start_B: jax.Array, end_B: jax.Array
) -> jax.Array:
    """loss_B: cross entropy of the first token of the answer plus that of its last."""
    rows = jnp.arange(len(start_B))
    start_likelihood_B = jax.nn.log_softmax(start_logits_BL)[rows, start_B]
    return -(start_likelihood_B + jax.nn.log_softmax(end_logits_BL)[rows, end_B])
