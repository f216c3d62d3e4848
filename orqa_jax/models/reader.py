"""The span reader: a score for each span of a block, given the question.

Lee et al. 2019 (arXiv:1906.00300), section 3: ``S_read(b, s, q) = MLP([h_start; h_end])`` over
``BERT_R(q, b)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Bert, BertConfig, Params
from orqa_jax.models.retriever import init_around_bert

# Of the Keras layer in the 2019 release.
_SPAN_NORM_EPS = 1e-3
_PAST_THE_END = -1e9
_INITIALIZER = nn.initializers.truncated_normal(0.02)


@dataclasses.dataclass(frozen=True)
class ReaderConfig:
    """Shape of the span reader: spans of 1 to `max_span_wordpieces` wordpieces (W)."""

    bert: BertConfig
    span_hidden_size: int = 256
    max_span_wordpieces: int = 10

    def __post_init__(self) -> None:
        for name in ("span_hidden_size", "max_span_wordpieces"):
            if getattr(self, name) < 1:
                raise OrqaError(f"{name} is {getattr(self, name)}; it must be at least 1")


class SpanReader(nn.Module):
    """Reads ``[CLS] question [SEP] title [SEP] block [SEP]`` and scores spans.

    Parameters are ``{"bert", "endpoints", "span_score"}``. `frozen_layers` is that of `Bert`.
    """

    config: ReaderConfig
    dtype: Any = jnp.float32
    frozen_layers: int = 0

    @nn.compact
    def __call__(
        self,
        token_ids_BL: jax.Array,
        mask_BL: jax.Array,
        segment_ids_BL: jax.Array,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """span_logits_BLW in float32: entry [b, s, w] scores the wordpieces s to s + w, inclusive.

        Spans that run past L score -1e9; which of the others are candidates `span_mask_BLW` says.
        The remaining arguments are those of `Bert`.
        """
        config = self.config
        hidden_BLH = Bert(config.bert, self.dtype, self.frozen_layers, name="bert")(
            token_ids_BL, mask_BL, segment_ids_BL, deterministic=deterministic
        )
        # One dense layer on [h_start; h_end] is the sum of one on each.
        start_BLD, end_BLD = jnp.split(
            nn.Dense(
                2 * config.span_hidden_size,
                dtype=self.dtype,
                kernel_init=_INITIALIZER,
                name="endpoints",
            )(hidden_BLH),
            2,
            axis=-1,
        )
        return SpanScore(config.max_span_wordpieces, name="span_score")(start_BLD, end_BLD)


class SpanScore(nn.Module):
    """ReLU, LayerNorm and a dense layer to one logit, over the sum of both endpoints of each span.

    D is the span hidden size. The [B, L, W, D] activations are never stored: with LayerNorm and
    the dense layer written as three sums over D, one width of spans at a time is computed, and
    computed again for the gradient. On two cores, gradient included, that takes a seventh of the
    time of the plain formula.
    """

    width: int

    @nn.compact
    def __call__(self, start_BLD: jax.Array, end_BLD: jax.Array) -> jax.Array:
        """span_logits_BLW in float32."""
        size = start_BLD.shape[-1]
        scale_D = self.param("norm_scale", nn.initializers.ones, (size,))
        offset_D = self.param("norm_bias", nn.initializers.zeros, (size,))
        kernel_D = self.param("kernel", _INITIALIZER, (size, 1))[:, 0]
        bias = self.param("bias", nn.initializers.zeros, (1,))[0]
        weight_D = scale_D * kernel_D
        length = start_BLD.shape[1]
        padded_end_BXD = jnp.pad(end_BLD, ((0, 0), (0, self.width - 1), (0, 0)))

        @jax.checkpoint
        def normalised_dot(shift: jax.Array) -> jax.Array:
            shifted_BLD = jax.lax.dynamic_slice_in_dim(padded_end_BXD, shift, length, axis=1)
            hidden_BLD = jax.nn.relu(start_BLD + shifted_BLD).astype(jnp.float32)
            mean_BL = hidden_BLD.mean(axis=-1)
            variance_BL = jnp.square(hidden_BLD).mean(axis=-1) - jnp.square(mean_BL)
            dot_BL = (hidden_BLD * weight_D).sum(axis=-1) - mean_BL * weight_D.sum()
            return dot_BL * jax.lax.rsqrt(jnp.maximum(variance_BL, 0.0) + _SPAN_NORM_EPS)

        shifts_W = jnp.arange(self.width)
        dot_BLW = jnp.moveaxis(jax.lax.map(normalised_dot, shifts_W), 0, -1)
        fits_LW = jnp.arange(length)[:, None] + shifts_W < length
        return jnp.where(fits_LW, dot_BLW + (offset_D @ kernel_D + bias), _PAST_THE_END)


def init_reader(
    config: ReaderConfig, key: jax.Array, bert_params: Params | None = None
) -> dict[str, Any]:
    """Fresh parameters of a `SpanReader`, around (copied) pretrained BERT weights where given."""
    # A copy, so that the parameters can be donated.
    return jax.tree.map(jnp.copy, init_around_bert(SpanReader(config), key, bert_params))


def span_mask_BLW(block_mask_BL: Any, starts_word_BL: Any, ends_word_BL: Any, width: int) -> Any:
    """Which spans are candidates: bool [B, L, W], True where s and s + w may bound an answer.

    Works on numpy arrays and on jax arrays, and returns the same kind.

    Args:
      block_mask_BL: True on the wordpieces of the block's own text, which lie side by side.
      starts_word_BL: True where a span may start (all True to let spans cut words, as in 2019).
      ends_word_BL: True where a span may end.
      width: W, the longest span in wordpieces.
    """
    xp = block_mask_BL.__array_namespace__()
    start_BL = block_mask_BL & starts_word_BL
    end_BL = block_mask_BL & ends_word_BL
    past_the_end = xp.zeros((end_BL.shape[0], width - 1), dtype=bool)
    length = end_BL.shape[1]
    padded_end = xp.concat([end_BL, past_the_end], axis=1)
    end_BLW = xp.stack([padded_end[:, w : w + length] for w in range(width)], axis=-1)
    return start_BL[..., None] & end_BLW


def reader_config_from_dict(values: Mapping[str, Any]) -> ReaderConfig:
    """The inverse of `dataclasses.asdict` on a `ReaderConfig`."""
    return ReaderConfig(**{**values, "bert": BertConfig.from_dict(values["bert"])})
