"""The state of a training run and the optimiser that advances it."""

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from orqa_jax.train.mesh import path_name

Params = dict[str, Any]
OptimizerName = Literal["adamw", "bert"]

# BERT decays neither biases nor LayerNorm parameters (Devlin et al. 2019, released optimiser).
_NOT_DECAYED = re.compile(r".*/(norm_)?(bias|scale)")


@flax.struct.dataclass
class TrainState:
    """What one step turns into the next: steps done so far, parameters, optimiser state."""

    step: jax.Array
    params: Params
    optimizer_state: optax.OptState


@flax.struct.dataclass
class CarryingState(TrainState):
    """A training state, and what the host carries from one step to the next beside it.

    Attributes:
      carried: "question_BP" where fine-tuning is ``stale_by_one``: vectors of the questions of the
        next step, by the parameters before the last one; a run that continues retrieves by them.
        "towers" with ``refresh_every``, see ``train.refresh``.
    """

    carried: dict[str, Any]


def linear_schedule(peak: float, warmup_steps: int, steps: int) -> optax.Schedule:
    """Learning rate that rises linearly to ``peak``, then falls linearly to 0 at ``steps``."""
    rise = optax.linear_schedule(0.0, peak, max(warmup_steps, 1))
    fall = optax.linear_schedule(peak, 0.0, max(steps - warmup_steps, 1))
    return optax.join_schedules([rise, fall], [warmup_steps])


def bert_schedule(peak: float, warmup_steps: int, steps: int) -> optax.Schedule:
    """The schedule of BERT's released optimiser, which ORQA's release trains with.

    Unlike `linear_schedule`, the fall starts at step 0 and is only hidden by the rise: where that
    ends, the rate drops from ``peak`` to ``peak * (1 - warmup_steps / steps)``.
    """

    def schedule(step: Any) -> Any:
        rise = peak * step / max(warmup_steps, 1)
        fall = peak * (1.0 - jnp.minimum(step, steps) / steps)
        return jnp.where(step < warmup_steps, rise, fall)

    return schedule


SCHEDULES = {"adamw": linear_schedule, "bert": bert_schedule}


def release_warmup(steps: int, share: float = 0.1) -> int:
    """Warm-up steps in ORQA's release: a share of all, but 100 to 10,000."""
    return min(10_000, max(100, int(share * steps)))


class _Moments(NamedTuple):
    first: Params
    second: Params


def scale_by_bert_adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6) -> Any:
    """Adam without bias correction, as in BERT's released optimiser.

    Its first steps are up to three times those of Adam: the second moment starts at 0, and is
    taken as it is.
    """

    def init(params: Params) -> _Moments:
        return _Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(gradients: Params, moments: _Moments, params: Any = None) -> Any:
        del params
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments.first, gradients)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, moments.second, gradients)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), first, second)
        return updates, _Moments(first, second)

    return optax.GradientTransformation(init, update)


def make_optimizer(
    schedule: optax.Schedule,
    *,
    name: OptimizerName = "adamw",
    weight_decay: float = 0.01,
    frozen: Sequence[str] = (),
    faster: Sequence[str] = (),
    faster_factor: float = 1.0,
) -> optax.GradientTransformation:
    """AdamW with the constants of BERT, clipped to a global gradient norm of 1.

    Args:
      schedule: Learning rate of a step.
      name: "bert" leaves out Adam's bias correction, as BERT's released optimiser does.
      weight_decay: Decoupled decay, on every parameter but biases and LayerNorm scales.
      frozen: Regular expressions of parameter paths that never change (and cost no memory).
      faster: Regular expressions of the parameters that were not pre-trained; their learning
        rate is ``faster_factor`` times the schedule's.
    """

    def adam(factor: float) -> optax.GradientTransformation:
        return optax.chain(
            optax.scale_by_adam(eps=1e-6) if name == "adamw" else scale_by_bert_adam(eps=1e-6),
            optax.add_decayed_weights(
                weight_decay,
                lambda params: _label(params, lambda path: not _NOT_DECAYED.fullmatch(path)),
            ),
            optax.scale_by_learning_rate(lambda step: factor * schedule(step)),
        )

    def group(path: str) -> str:
        if any(re.fullmatch(pattern, path) for pattern in frozen):
            return "frozen"
        return "faster" if any(re.fullmatch(pattern, path) for pattern in faster) else "pretrained"

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
