"""The dual encoder: questions and blocks as vectors whose inner product is the retrieval score.

Lee et al. 2019 (arXiv:1906.00300), section 3: ``S_retr(b, q) = h_q . h_b`` with
``h_q = W_q BERT_Q(q)[CLS]`` and ``h_b = W_b BERT_B(b)[CLS]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.traverse_util import flatten_dict

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Bert, BertConfig, LayerNorm, Params

Pooling = Literal["cls", "mean", "pooler"]


@dataclasses.dataclass(frozen=True)
class RetrieverConfig:
    """Shape of the dual encoder.

    `pooling` makes one vector of a sequence: "cls" takes the last hidden state of [CLS], "mean"
    the mean over real wordpieces, "pooler" the tanh layer of BERT's next sentence prediction (the
    2019 release). `layer_norm` normalises the projection (the 2019 release, whose Keras layer has
    the default `projection_norm_eps`; REALM's is 1e-12). `projection_dropout` falls on the finished
    vector. `projection_init` is how a fresh projection starts: "orthogonal" (see
    `init_dual_encoder`), or "glorot_uniform" (the 2019 release).
    """

    bert: BertConfig
    projection_size: int = 128
    pooling: Pooling = "cls"
    shared_towers: bool = False
    layer_norm: bool = False
    projection_dropout: float = 0.0
    projection_norm_eps: float = 1e-3
    projection_init: Literal["orthogonal", "glorot_uniform"] = "orthogonal"

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise OrqaError(
                f"pooling is {self.pooling!r}; choose one of {', '.join(get_args(Pooling))}"
            )
        if self.projection_size < 1:
            raise OrqaError(f"projection_size is {self.projection_size}; it must be at least 1")
        if not 0.0 <= self.projection_dropout < 1.0:
            raise OrqaError(
                f"projection_dropout is {self.projection_dropout}; it must lie in [0, 1)"
            )

    @property
    def has_dropout(self) -> bool:
        """Whether training draws random numbers at all."""
        rates = (
            self.bert.hidden_dropout_prob,
            self.bert.attention_probs_dropout_prob,
            self.projection_dropout,
        )
        return any(rates)


class Tower(nn.Module):
    """One encoder of the two: BERT, pooling, projection."""

    config: RetrieverConfig
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
        """Vectors [B, P] in float32; arguments as for `Bert`."""
        config = self.config
        bert = Bert(config.bert, self.dtype, self.frozen_layers, name="bert")
        hidden_BLH = bert(token_ids_BL, mask_BL, segment_ids_BL, deterministic=deterministic)
        match config.pooling:
            case "cls":
                pooled_BH = hidden_BLH[:, 0]
            case "mean":
                pooled_BH = mean_pool(hidden_BLH, mask_BL)
            case "pooler":
                pooled_BH = bert.pool(hidden_BLH)
        # Scores sum 128 products: the last steps are cheap, so they stay in float32.
        kernel_init = getattr(nn.initializers, config.projection_init)()
        vector_BP = nn.Dense(config.projection_size, kernel_init=kernel_init, name="projection")(
            pooled_BH.astype(jnp.float32)
        )
        if config.layer_norm:
            vector_BP = LayerNorm(config.projection_norm_eps, name="norm")(vector_BP)
        return nn.Dropout(config.projection_dropout)(vector_BP, deterministic=deterministic)


class DualEncoder(nn.Module):
    """Question tower and block tower.

    Parameters are ``{"question_encoder": tower, "block_encoder": tower}``, or for shared towers
    ``{"encoder": tower}``, with ``tower = {"bert": ..., "projection": ..., "norm": ...}``. Each
    method reads only its own tower, so one can be frozen, dropped or replaced without the other:
    ``model.apply({"params": {"block_encoder": tower}}, ..., method="encode_blocks")``.

    `frozen_layers` is that of both towers (see `Bert`).
    """

    config: RetrieverConfig
    dtype: Any = jnp.float32
    frozen_layers: int = 0

    def setup(self) -> None:
        arguments = (self.config, self.dtype, self.frozen_layers)
        if self.config.shared_towers:
            self.encoder = Tower(*arguments)
        else:
            self.question_encoder = Tower(*arguments)
            self.block_encoder = Tower(*arguments)

    def encode_questions(
        self, token_ids_BL: jax.Array, mask_BL: jax.Array, *, deterministic: bool = True
    ) -> jax.Array:
        """question_BP in float32, of ``[CLS] question [SEP]``."""
        tower = self.encoder if self.config.shared_towers else self.question_encoder
        segment_ids_BL = jnp.zeros_like(token_ids_BL)
        return tower(token_ids_BL, mask_BL, segment_ids_BL, deterministic=deterministic)

    def encode_blocks(
        self,
        token_ids_BL: jax.Array,
        mask_BL: jax.Array,
        segment_ids_BL: jax.Array,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """block_BP in float32, of ``[CLS] title [SEP] block [SEP]`` (segments 0 and 1)."""
        tower = self.encoder if self.config.shared_towers else self.block_encoder
        return tower(token_ids_BL, mask_BL, segment_ids_BL, deterministic=deterministic)


def tower_names(config: RetrieverConfig) -> tuple[str, ...]:
    """Top-level names of a dual encoder's parameters."""
    return ("encoder",) if config.shared_towers else ("question_encoder", "block_encoder")


def question_tower(params: Params) -> str:
    """Which of the top-level names of a dual encoder's parameters is that of the question tower."""
    return "encoder" if "encoder" in params else "question_encoder"


def init_dual_encoder(
    config: RetrieverConfig, key: jax.Array, bert_params: Params | None = None
) -> dict[str, Any]:
    """Fresh parameters of a `DualEncoder`, around pretrained BERT weights where given.

    The projection starts orthogonal, so that inner products of the pooled vectors survive it as
    well as P dimensions allow, at their own scale. Separate towers start from equal values, since
    two independent projections would make the first scores noise; they share no buffer, so the
    parameters can be donated.

    Raises:
      OrqaError: pooling is "pooler" and `bert_params` has none.
    """
    tower = init_around_bert(Tower(config), key, bert_params)
    return {name: jax.tree.map(jnp.copy, tower) for name in tower_names(config)}


def init_around_bert(
    module: nn.Module, key: jax.Array, bert_params: Params | None
) -> dict[str, Any]:
    """Fresh parameters of a `Tower` or `SpanReader`, its "bert" taken from `bert_params` if given.

    Raises:
      OrqaError: see `pretrained_bert`.
    """

    def init(key: jax.Array) -> Params:
        token_ids_BL = jnp.zeros((1, 1), jnp.int32)
        mask_BL = jnp.ones((1, 1), bool)
        params: Params = module.init(key, token_ids_BL, mask_BL, token_ids_BL)["params"]
        return params

    if bert_params is None:
        return dict(jax.jit(init)(key))

    @jax.jit
    def init_the_rest(key: jax.Array) -> Params:
        # Inside jit what is not returned is not drawn: a BERT's worth of random numbers.
        return {name: value for name, value in init(key).items() if name != "bert"}

    shapes = jax.eval_shape(init, key)
    return {**init_the_rest(key), "bert": pretrained_bert(shapes["bert"], bert_params)}


def pretrained_bert(fresh: Params, pretrained: Params) -> dict[str, Any]:
    """The pretrained values of exactly the weights that `fresh` has (arrays or their shapes).

    Raises:
      OrqaError: there is no pretrained pooler but one is needed, or the shapes differ.
    """
    if "pooler" in fresh and "pooler" not in pretrained:
        raise OrqaError(
            'The BERT weights have no pooler, which pooling "pooler" needs; '
            'choose pooling "cls" or "mean", or other weights'
        )
    chosen = {name: pretrained[name] for name in fresh if name in pretrained}
    shapes, expected = (
        {name: value.shape for name, value in flatten_dict(tree, sep="/").items()}
        for tree in (chosen, fresh)
    )
    wrong = sorted(name for name in shapes | expected if shapes.get(name) != expected.get(name))
    if wrong:
        raise OrqaError(
            f"The BERT weights do not fit the BERT config at {', '.join(wrong)}; "
            "give the config that they were loaded with"
        )
    return jax.tree.map(jnp.asarray, chosen)


def mean_pool(hidden_BLH: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """Mean of the hidden states where the mask is True, in float32; 0 where it never is."""
    weight_BL = mask_BL.astype(jnp.float32)
    total_BH = jnp.einsum("blh,bl->bh", hidden_BLH.astype(jnp.float32), weight_BL)
    return total_BH / jnp.maximum(weight_BL.sum(axis=1, keepdims=True), 1.0)


def retriever_config_from_dict(values: Mapping[str, Any]) -> RetrieverConfig:
    """The inverse of `dataclasses.asdict` on a `RetrieverConfig`."""
    return RetrieverConfig(**{**values, "bert": BertConfig.from_dict(values["bert"])})
