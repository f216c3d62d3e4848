"""BERT (Devlin et al. 2019, arXiv:1810.04805) in Flax Linen, equal to the torch `BertModel`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from orqa_jax.errors import OrqaError

Params = Mapping[str, Any]

_INITIALIZER = nn.initializers.truncated_normal(0.02)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and rates of a BERT encoder, under the names of its Hugging Face `config.json`."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # Without layers an encoder is its input layer: static word vectors.
            least = 0 if field.name == "num_hidden_layers" else 1
            if field.type == "int" and not (type(value) is int and value >= least):
                raise OrqaError(
                    f"BERT config: {field.name} must be a positive integer, not {value!r}"
                )
            if field.type == "float" and not (isinstance(value, (int, float)) and 0 <= value < 1):
                raise OrqaError(f"BERT config: {field.name} must lie in [0, 1), not {value!r}")
        if self.hidden_act not in _ACTIVATIONS:
            raise OrqaError(
                f"BERT config: hidden_act is {self.hidden_act!r}, but only "
                f"{' and '.join(map(repr, _ACTIVATIONS))} are supported"
            )
        if self.hidden_size % self.num_attention_heads:
            raise OrqaError(
                f"BERT config: hidden_size {self.hidden_size} does not divide into "
                f"num_attention_heads {self.num_attention_heads} equal heads"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BertConfig:
        """Reads the contents of a Hugging Face `config.json`; keys that do not shape BERT are left.

        Raises:
          OrqaError: a size is missing, or the config describes something other than plain BERT.
        """
        for key, supported in _SUPPORTED.items():
            if values.get(key, supported) not in (supported, None):
                raise OrqaError(
                    f"BERT config: {key} is {values[key]!r}, but only {supported!r} is supported"
                )
        fields = dataclasses.fields(cls)
        required = [field.name for field in fields if field.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise OrqaError(f"BERT config: {', '.join(missing)} missing; add it to the config")
        return cls(**{field.name: values[field.name] for field in fields if field.name in values})

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`; written to `config.json` it opens as a `BertModel`."""
        return {**_SUPPORTED, **dataclasses.asdict(self)}


def exact_gelu(inputs: jax.Array) -> jax.Array:
    """The GELU of BERT, by the error function, computed in float32.

    `jax.nn.gelu` takes its complement, which XLA compiles for minutes on TPU, and which takes three
    to five times as long on CPU.
    """
    values = inputs.astype(jnp.float32)
    return (0.5 * values * (1.0 + jax.lax.erf(values * 0.5**0.5))).astype(inputs.dtype)


# "gelu" is the exact one (erf); "gelu_new" the approximation by tanh that BERT's TensorFlow code
# came to use, and with it REALM.
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": exact_gelu,
    "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
}
_SUPPORTED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


class Bert(nn.Module):
    """The encoder: final hidden states of every wordpiece, or the pooled [CLS].

    Parameters are float32. `dtype` is what is computed in; sums, softmax and layer norm statistics
    stay in float32. Dropout falls where BERT has it: on the embeddings, the attention weights, the
    attention output and the feed-forward output.

    With `frozen_layers=n > 0` no gradient reaches the embeddings and the first n layers, and their
    backward pass is never computed.
    """

    config: BertConfig
    dtype: Any = jnp.float32
    frozen_layers: int = 0

    def setup(self) -> None:
        if not 0 <= self.frozen_layers <= self.config.num_hidden_layers:
            raise OrqaError(
                f"frozen_layers is {self.frozen_layers}, but the encoder has "
                f"{self.config.num_hidden_layers} layers"
            )
        self.embeddings = Embeddings(self.config, self.dtype)
        self.layers = [
            Layer(self.config, self.dtype, name=layer_name(index))
            for index in range(self.config.num_hidden_layers)
        ]
        self.pooler = Dense(self.config.hidden_size, self.dtype)

    def __call__(
        self,
        token_ids_BL: jax.Array,
        mask_BL: jax.Array,
        segment_ids_BL: jax.Array,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """Final hidden states.

        Args:
          token_ids_BL: int32 wordpiece ids.
          mask_BL: bool, True on real wordpieces, which stand before the padding.
          segment_ids_BL: int32, 0 for the first segment and 1 for the second.
          deterministic: False turns dropout on, and needs a "dropout" key.

        Returns:
          hidden_BLH in `dtype`. Values at padding are finite and meaningless.

        Raises:
          OrqaError: L is larger than the encoder has position embeddings.
        """
        hidden_BLH = self.embeddings(token_ids_BL, segment_ids_BL, deterministic)
        if self.frozen_layers:
            hidden_BLH = jax.lax.stop_gradient(hidden_BLH)
        for index, layer in enumerate(self.layers):
            hidden_BLH = layer(hidden_BLH, mask_BL, deterministic)
            if index + 1 == self.frozen_layers:
                hidden_BLH = jax.lax.stop_gradient(hidden_BLH)
        return hidden_BLH

    def pool(self, hidden_BLH: jax.Array) -> jax.Array:
        """The pooler of next sentence prediction: tanh of a dense layer on [CLS]; [B, H]."""
        return jnp.tanh(self.pooler(hidden_BLH[:, 0]))


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised; [B, L] -> [B, L, H]."""

    config: BertConfig
    dtype: Any

    @nn.compact
    def __call__(
        self, token_ids_BL: jax.Array, segment_ids_BL: jax.Array, deterministic: bool
    ) -> jax.Array:
        config = self.config
        length = token_ids_BL.shape[1]
        if length > config.max_position_embeddings:
            raise OrqaError(
                f"A sequence of {length} wordpieces does not fit this encoder, which has "
                f"{config.max_position_embeddings} position embeddings; use shorter blocks"
            )

        def table(name: str, rows: int) -> jax.Array:
            return self.param(name, _INITIALIZER, (rows, config.hidden_size))

        hidden_BLH = (
            jnp.take(table("word", config.vocab_size), token_ids_BL, axis=0)
            + table("position", config.max_position_embeddings)[:length]
            + jnp.take(table("segment", config.type_vocab_size), segment_ids_BL, axis=0)
        )
        hidden_BLH = LayerNorm(config.layer_norm_eps, self.dtype, name="norm")(hidden_BLH)
        return nn.Dropout(config.hidden_dropout_prob)(hidden_BLH, deterministic=deterministic)


class Layer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalised after."""

    config: BertConfig
    dtype: Any

    @nn.compact
    def __call__(self, hidden_BLH: jax.Array, mask_BL: jax.Array, deterministic: bool) -> jax.Array:
        config = self.config
        dropout = nn.Dropout(config.hidden_dropout_prob, deterministic=deterministic)
        norm = functools.partial(LayerNorm, config.layer_norm_eps, self.dtype)
        query, key, value = (
            Dense(config.hidden_size, self.dtype, name=name)(hidden_BLH)
            for name in ("query", "key", "value")
        )
        weight_dropout = None
        if config.attention_probs_dropout_prob and not deterministic:
            weight_dropout = functools.partial(
                drop_weights,
                rate=config.attention_probs_dropout_prob,
                key=self.make_rng("dropout"),
            )
        attended_BLH = attend(
            query, key, value, mask_BL, config.num_attention_heads, weight_dropout
        )
        attended_BLH = dropout(
            Dense(config.hidden_size, self.dtype, name="attention_output")(attended_BLH)
        )
        hidden_BLH = norm(name="attention_norm")(hidden_BLH + attended_BLH)

        inner = Dense(config.intermediate_size, self.dtype, name="intermediate")(hidden_BLH)
        inner = _ACTIVATIONS[config.hidden_act](inner)
        output_BLH = dropout(Dense(config.hidden_size, self.dtype, name="output")(inner))
        return norm(name="output_norm")(hidden_BLH + output_BLH)


def attend(
    query_BLH: jax.Array,
    key_BLH: jax.Array,
    value_BLH: jax.Array,
    mask_BL: jax.Array,
    num_heads: int,
    weight_dropout: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Scaled dot-product attention over the keys where the mask is True; [B, L, H].

    On accelerators this is `jax.nn.dot_product_attention`: on NVIDIA GPUs, in bfloat16 or float16,
    as cuDNN's fused kernel, which never writes the weights to memory; elsewhere as XLA fuses it. It
    has no dropout of the weights; with dropout, and on CPU, attention is our own.
    """
    batch, length, hidden = query_BLH.shape

    def heads(array_BLH: jax.Array) -> jax.Array:
        return array_BLH.reshape(batch, length, num_heads, hidden // num_heads)

    own = functools.partial(own_attention, weight_dropout=weight_dropout)
    arrays = (heads(query_BLH), heads(key_BLH), heads(value_BLH), mask_BL)
    if weight_dropout is not None:
        return own(*arrays).reshape(query_BLH.shape)
    fused = {"cuda": cudnn_attention} if _cudnn_takes(*arrays) else {}
    attended = jax.lax.platform_dependent(*arrays, cpu=own, **fused, default=xla_attention)
    return attended.reshape(query_BLH.shape)


def xla_attention(
    query_BLND: jax.Array, key_BLND: jax.Array, value_BLND: jax.Array, mask_BL: jax.Array
) -> jax.Array:
    """The library's attention of N heads of size D, [B, L, N, D], for any accelerator."""
    # It does not trace in bfloat16 where dtype promotion is strict.
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(
            query_BLND, key_BLND, value_BLND, mask=mask_BL[:, None, None, :]
        )


def cudnn_attention(
    query_BLND: jax.Array, key_BLND: jax.Array, value_BLND: jax.Array, mask_BL: jax.Array
) -> jax.Array:
    """The same as cuDNN's fused kernel, which is told of padding by the length of each sequence.

    Raises:
      RuntimeError, NotImplementedError, ValueError: cuDNN is not here, or takes no such arrays.
    """
    length_B = mask_BL.sum(axis=1, dtype=jnp.int32)
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(
            query_BLND,
            key_BLND,
            value_BLND,
            # A constant, which is the default, fails under vmap, where these are made of one row.
            query_seq_lengths=0 * length_B + mask_BL.shape[1],
            key_value_seq_lengths=length_B,
            implementation="cudnn",
        )


def _cudnn_takes(*arrays: jax.Array) -> bool:
    """Whether the fused kernel can be traced here: by cuDNN, dtype, sizes and the GPU's age."""
    try:
        jax.eval_shape(cudnn_attention, *arrays)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def drop_weights(weights_BNLL: jax.Array, *, rate: float, key: jax.Array) -> jax.Array:
    """Dropout of attention weights, equal between two positions however long the sequence is.

    So a sequence without its padding trains as it does with it. The draws for one position come
    from a key of its own, those for the positions it attends to stand first, and jax draws the same
    values for the first rows of an array whatever its number of rows.
    """
    batch, heads, queries, keys = weights_BNLL.shape

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, 1.0 - rate, (keys, heads, batch))

    kept_BNLL = jax.vmap(draw)(jax.random.split(key, queries)).transpose(3, 2, 0, 1)
    return jnp.where(kept_BNLL, weights_BNLL / (1.0 - rate), 0.0)


# --- What is written for XLA on CPU ---------------------------------------------------------------


def own_attention(
    query_BLND: jax.Array,
    key_BLND: jax.Array,
    value_BLND: jax.Array,
    mask_BL: jax.Array,
    *,
    weight_dropout: Callable[[jax.Array], jax.Array] | None,
) -> jax.Array:
    """Attention of N heads of size D, [B, L, N, D].

    On CPU it takes a third to three quarters of the time of the library's: heads before positions,
    so that the [B, N, L, L] weights are never transposed, and the division by their sum after the
    product with the values, so that the weights are read once.
    """
    query, key, value = (x.transpose(0, 2, 1, 3) for x in (query_BLND, key_BLND, value_BLND))
    arrays = (query * query.shape[-1] ** -0.5, key, value, mask_BL)
    if value.dtype == jnp.bfloat16 and weight_dropout is None:
        attended = bfloat16_attention(*arrays)
    else:
        attended, _, _ = _attend(*arrays, weight_dropout=weight_dropout)
    return attended.transpose(0, 2, 1, 3)


def _attend(
    query_BNLD: jax.Array,
    key_BNLD: jax.Array,
    value_BNLD: jax.Array,
    mask_BL: jax.Array,
    *,
    weight_dropout: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Attention of scaled queries, the weights [B, N, L, L], and what they are divided by."""
    logits = _sum_in_float32("bnqd,bnkd->bnqk", query_BNLD, key_BNLD)
    logits += jnp.where(mask_BL, 0.0, -1e9)[:, None, None, :]
    weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))
    total_BNL = weights.sum(axis=-1)
    if weight_dropout is not None:
        weights = weight_dropout(weights)
    weights = weights.astype(value_BNLD.dtype)
    attended = _sum_in_float32("bnqk,bnkd->bnqd", weights, value_BNLD)
    attended /= total_BNL[..., None]
    return attended.astype(value_BNLD.dtype), weights, total_BNL


def _sum_in_float32(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _transpose_in_memory(array: jax.Array) -> jax.Array:
    """The last two dimensions exchanged, not left to the product that reads them."""
    transposed = array.swapaxes(-1, -2)
    # A flat array has one order in memory.
    return jax.lax.optimization_barrier(transposed.reshape(-1)).reshape(transposed.shape)


@jax.custom_vjp
def bfloat16_attention(
    query_BNLD: jax.Array, key_BNLD: jax.Array, value_BNLD: jax.Array, mask_BL: jax.Array
) -> jax.Array:
    """`own_attention` of bfloat16 arrays and scaled queries, heads before positions.

    XLA's own derivative would multiply in float32. Here every product of the gradient is one of
    bfloat16 operands too; see `bfloat16_product`.
    """
    return _attend(query_BNLD, key_BNLD, value_BNLD, mask_BL)[0]


def _attention_and_operands(
    query_BNLD: jax.Array, key_BNLD: jax.Array, value_BNLD: jax.Array, mask_BL: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    arrays = (query_BNLD, key_BNLD, value_BNLD)
    attended, weights, total_BNL = _attend(*arrays, mask_BL)
    return attended, (*arrays, attended, weights, total_BNL)


def _gradients_of_attention(
    kept: tuple[jax.Array, ...], gradient_BNLD: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    query, key, value, attended, weights, total_BNL = kept
    dtype = value.dtype
    # The weights are not divided by their sum, so the gradient is.
    gradient = (gradient_BNLD.astype(jnp.float32) / total_BNL[..., None]).astype(dtype)
    of_weights = _sum_in_float32("bnqd,bnkd->bnqk", gradient, value)
    of_total_BNL = _sum_in_float32("bnqd,bnqd->bnq", gradient, attended)
    of_logits = weights.astype(jnp.float32) * (of_weights - of_total_BNL[..., None])
    of_logits = of_logits.astype(dtype)
    of_query = _sum_in_float32("bnqk,bnkd->bnqd", of_logits, key)
    of_key = _sum_in_float32("bnkq,bnqd->bnkd", _transpose_in_memory(of_logits), query)
    of_value = _sum_in_float32("bnkq,bnqd->bnkd", _transpose_in_memory(weights), gradient)
    return of_query.astype(dtype), of_key.astype(dtype), of_value.astype(dtype), None


bfloat16_attention.defvjp(_attention_and_operands, _gradients_of_attention)


@jax.custom_vjp
def bfloat16_product(inputs: jax.Array, kernel_HF: jax.Array) -> jax.Array:
    """Product over the last dimension, of bfloat16 operands, summed and returned in float32.

    XLA's own derivative would have bfloat16 results, for which it computes in float32 on CPU; the
    processor's instructions for bfloat16 are reached by float32 results alone, and for the weights'
    gradient by inputs that were transposed in memory.

    Args:
      inputs: bfloat16 [..., H].
      kernel_HF: float32.
    """
    return _sum_in_float32("...h,hf->...f", inputs, kernel_HF.astype(jnp.bfloat16))


def _product_and_operands(
    inputs: jax.Array, kernel_HF: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return bfloat16_product(inputs, kernel_HF), (inputs, kernel_HF)


def _gradients_of_product(
    operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    inputs, kernel_HF = operands
    gradient = gradient.astype(jnp.bfloat16)
    of_inputs = _sum_in_float32("...f,hf->...h", gradient, kernel_HF.astype(jnp.bfloat16))
    hidden, features = kernel_HF.shape
    inputs_HM = _transpose_in_memory(inputs.reshape(-1, hidden))
    of_kernel = _sum_in_float32("hm,mf->hf", inputs_HM, gradient.reshape(-1, features))
    return of_inputs.astype(inputs.dtype), of_kernel


bfloat16_product.defvjp(_product_and_operands, _gradients_of_product)


# --- Names and sizes ------------------------------------------------------------------------------


def layer_name(index: int) -> str:
    """Name of a layer's parameters, counted from 0 at the embeddings."""
    return f"layer_{index}"


def with_dropout(config: BertConfig, rate: float, *, attention: bool = True) -> BertConfig:
    """The same encoder with one dropout rate: on hidden states, and on attention weights or not."""
    return dataclasses.replace(
        config,
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate if attention else 0.0,
    )


def truncate_bert(
    config: BertConfig, params: Params, num_layers: int
) -> tuple[BertConfig, dict[str, Any]]:
    """The encoder of the first `num_layers` layers; the arrays are shared, not copied.

    Raises:
      OrqaError: the encoder does not have that many layers.
    """
    if not 0 <= num_layers <= config.num_hidden_layers:
        raise OrqaError(
            f"Cannot keep {num_layers} layers of an encoder that has {config.num_hidden_layers}; "
            f"ask for 0 to {config.num_hidden_layers}"
        )
    dropped = {layer_name(index) for index in range(num_layers, config.num_hidden_layers)}
    kept = {name: value for name, value in params.items() if name not in dropped}
    return dataclasses.replace(config, num_hidden_layers=num_layers), kept


class Dense(nn.Module):
    """`nn.Dense`, but in bfloat16 it multiplies by `bfloat16_product` on CPU.

    The `dot_general` that `nn.Dense` takes would be given the kernel in bfloat16, and so would
    round its gradient.
    """

    features: int
    dtype: Any

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        shape = (inputs.shape[-1], self.features)
        kernel = self.param("kernel", _INITIALIZER, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        inputs = inputs.astype(self.dtype)

        def default(inputs: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
            return jnp.dot(inputs, kernel.astype(self.dtype)) + bias.astype(self.dtype)

        if self.dtype != jnp.bfloat16:
            return default(inputs, kernel, bias)

        def on_cpu(inputs: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
            return (bfloat16_product(inputs, kernel) + bias).astype(self.dtype)

        return jax.lax.platform_dependent(inputs, kernel, bias, cpu=on_cpu, default=default)


class LayerNorm(nn.Module):
    """Layer norm over the last dimension, in float32 whatever the input and the result are.

    The Flax module does not trace in bfloat16 where dtype promotion is strict.
    """

    epsilon: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        size = inputs.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (size,))
        bias = self.param("bias", nn.initializers.zeros, (size,))
        values = inputs.astype(jnp.float32)
        mean = values.mean(axis=-1, keepdims=True)
        variance = jnp.square(values - mean).mean(axis=-1, keepdims=True)
        normed = (values - mean) * jax.lax.rsqrt(variance + self.epsilon)
        return (normed * scale + bias).astype(self.dtype)
