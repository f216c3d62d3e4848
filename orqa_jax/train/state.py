"""The state of a training run and the optimiser that advances it."""

import re
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from orqa_jax.train.mesh import path_name

Params = dict[str, Any]

# BERT decays neither biases nor LayerNorm parameters (Devlin et al. 2019, released optimiser).
_NOT_DECAYED = re.compile(r".*/(bias|scale)")


@flax.struct.dataclass
class TrainState:
    """What one step turns into the next: steps done so far, parameters, optimiser state."""

    step: jax.Array
    params: Params
    optimizer_state: optax.OptState


def linear_schedule(peak: float, warmup_steps: int, steps: int) -> optax.Schedule:
    """Learning rate that rises linearly to ``peak``, then falls linearly to 0 at ``steps``."""
    rise = optax.linear_schedule(0.0, peak, max(warmup_steps, 1))
    fall = optax.linear_schedule(peak, 0.0, max(steps - warmup_steps, 1))
    return optax.join_schedules([rise, fall], [warmup_steps])


def make_optimizer(
    schedule: optax.Schedule,
    *,
    weight_decay: float = 0.01,
    frozen: Sequence[str] = (),
    faster: Sequence[str] = (),
    faster_factor: float = 1.0,
) -> optax.GradientTransformation:
    """AdamW with the constants of BERT, clipped to a global gradient norm of 1.

    Args:
      schedule: Learning rate of a step.
      weight_decay: Decoupled decay, on every parameter but biases and LayerNorm scales.
      frozen: Regular expressions of parameter paths that never change (and cost no memory).
      faster: Regular expressions of the parameters that were not pre-trained; their learning
        rate is ``faster_factor`` times the schedule's.
    """

    def adam(factor: float) -> optax.GradientTransformation:
        return optax.adamw(
            lambda step: factor * schedule(step),
            eps=1e-6,
            weight_decay=weight_decay,
            mask=lambda params: _label(params, lambda name: not _NOT_DECAYED.fullmatch(name)),
        )

    def group(name: str) -> str:
        if any(re.fullmatch(pattern, name) for pattern in frozen):
            return "frozen"
        return "faster" if any(re.fullmatch(pattern, name) for pattern in faster) else "pretrained"

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.partition(
            {
                "pretrained": adam(1.0),
                "faster": adam(faster_factor),
                "frozen": optax.set_to_zero(),
            },
            lambda params: _label(params, group),
        ),
    )


def _label(params: Params, function: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: function(path_name(path)), params)


def frozen_layer_patterns(prefix: str, frozen_layers: int) -> list[str]:
    """Paths of a BERT's embeddings and first ``frozen_layers`` layers, for ``make_optimizer``."""
    if not frozen_layers:
        return []
    layers = "|".join(str(layer) for layer in range(frozen_layers))
    return [rf"{prefix}/bert/embeddings/.*", rf"{prefix}/bert/layer_({layers})/.*"]


def initial_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Returns the state of step 0."""
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def apply_gradients(
    state: TrainState, gradients: Params, optimizer: optax.GradientTransformation
) -> TrainState:
    """Returns the state one step on."""
    # Optax multiplies floats with its integer step count, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = optimizer.update(gradients, state.optimizer_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, optimizer_state)
