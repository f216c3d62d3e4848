"""The loop of every training: steps in their order, watched, saved, and stopped on request."""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from orqa_jax.errors import OrqaError
from orqa_jax.train.checkpoint import Checkpoints
from orqa_jax.train.inputs import timed
from orqa_jax.train.mesh import place_batch
from orqa_jax.train.metrics import Metrics, MetricsLog
from orqa_jax.train.state import TrainState
from orqa_jax.train.stop import stop_request
from orqa_jax.train.watch import StepCosts, profiled

Observe = Callable[[int, TrainState, MetricsLog], Metrics]
Prepare = Callable[[int, TrainState], TrainState]


def nothing_more(step: int, state: TrainState, log: MetricsLog) -> Metrics:
    """What there is to observe where a training has nothing of its own."""
    return {}


def as_it_is(steps_done: int, state: TrainState) -> TrainState:
    """What there is to prepare where a step needs nothing but its batch."""
    return state


def run_steps(
    name: str,
    state: TrainState,
    step_function: Any,
    batches_from: Callable[[int], Iterable[Any]],
    key: jax.Array,
    *,
    mesh: Mesh,
    out: Path,
    described: dict[str, Any],
    total: int,
    batch_size: int,
    checkpoint_every: int,
    log_every: int,
    checkpoints: str = "",
    profile: str = "",
    trace: Any = None,
    prepare: Prepare = as_it_is,
    observe: Observe = nothing_more,
) -> TrainState:
    """Runs the steps that are left of ``total``, from the newest checkpoint on where there is one.

    Args:
      name: Of the training, in its log.
      state: That of step 0, where it is to lie.
      step_function: ``(state, batch, key) -> (state, metrics)``, jitted; the given state is used
        up. Of its metrics, "loss" tells the best checkpoint.
      batches_from: From the number of steps done to the batches of the others, this process's rows.
      key: For dropout, the same for every step.
      mesh: Where the batches are placed.
      out: Folder for metrics, and for checkpoints.
      described: Settings and fingerprints; checkpoints of others are refused.
      total: Steps of the whole training.
      batch_size: Examples of a step, of all processes.
      checkpoint_every: Steps between two checkpoints.
      log_every: Steps between two lines of metrics.
      checkpoints: Folder or URL for checkpoints; "" for checkpoints/ in ``out``.
      profile: Folder for a trace of a few steps; "" for none.
      trace: Traces the program of a step, for its costs; that of ``step_function`` by default.
      prepare: Called before each step with the number of steps done; returns the state for it. It
        sees a saved state as it was saved, not prepared.
      observe: Called after each step; returns further metrics, or adds to the time spent.

    Returns:
      The state after the last step.

    Raises:
      KeyboardInterrupt: After a SIGINT, with the state saved.
      SystemExit: After a SIGTERM, with the state saved and status 0.
      OrqaError: A checkpoint is of other settings; or a loss, or what was to be saved, is NaN or
        infinite, and the checkpoints are those of before.
    """
    saved = Checkpoints(checkpoints or out / "checkpoints", config=described)
    state = saved.restore(state)
    first_step = int(state.step)
    log = MetricsLog(
        out / "metrics.jsonl",
        name=name,
        first_step=first_step,
        total=total,
        every=log_every,
        batch_size=batch_size,
    )
    # A loss is read one step late, so the batch of the step before is kept too.
    recent: dict[int, Any] = {}
    costs = StepCosts(name, mesh, batch_size, trace or step_function.trace)
    order = profiled(timed(batches_from(first_step)), profile)
    with stop_request() as stop:
        # A save that has begun is finished also where the loop ends by an error.
        with contextlib.closing(saved), contextlib.closing(log):
            for step, (batch, waited) in enumerate(order, first_step + 1):
                state = prepare(step - 1, state)
                log.spend("input_wait", waited)
                placed = place_batch(mesh, batch)
                log.spend("flops_share", costs.seconds_at_peak(state, placed, key))
                state, metrics = step_function(state, placed, key)
                saved.add_loss(metrics["loss"])
                log.add(step, metrics | observe(step, state, log))
                recent = {step - 1: recent.get(step - 1), step: batch}
                stopping = stop.reached(step)
                saving = step % checkpoint_every == 0 or step == total or stopping
                diverged = log.diverged
                if diverged is None and saving and not saved.save(step, state):
                    diverged = step
                if diverged is not None:
                    raise _diverged(out, diverged, recent[diverged], saved)
                if stopping:
                    break
        stop.leave(f"step {int(state.step)} is saved")
    return state


def _diverged(out: Path, step: int, batch: Any, saved: Checkpoints) -> OrqaError:
    """Keeps the rows of the batch that this process had, and says what is left."""
    path = out / f"diverged-{step}-{jax.process_index()}.npz"
    arrays: dict[str, Any] = {
        jax.tree_util.keystr(key): np.asarray(array)
        for key, array in jax.tree_util.tree_flatten_with_path(batch)[0]
    }
    np.savez(path, **arrays)
    kept = "no state was saved before"
    if saved.latest is not None:
        kept = f"the state of step {saved.latest} is kept in {saved.folder}"
    return OrqaError(
        f"The loss or the parameters became NaN or infinite in step {step}; {kept}, the batch in "
        f"{path}. The same settings would do so again: lower learning_rate or raise the warm-up, "
        "with another output folder."
    )
