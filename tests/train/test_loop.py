import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orqa_jax.errors import OrqaError
from orqa_jax.train.loop import run_steps
from orqa_jax.train.mesh import make_mesh, tree_shardings
from orqa_jax.train.metrics import mean_of, read_metrics
from orqa_jax.train.state import TrainState

KEY = jax.random.key(0)


@jax.jit
def step(state, batch, key):
    """Adds what the batch holds; the loss is the sum so far."""
    total = state.params["total"] + batch["value"].sum()
    loss = mean_of(total[None])
    return TrainState(state.step + 1, {"total": total}, state.optimizer_state), {"loss": loss}


def run(out, total, *, stop_at=None, asked=None, step_function=step, **settings):
    def batches_from(first):
        if asked is not None:
            asked.append(first)
        for number in range(first, total):
            if number == stop_at:
                raise InterruptedError
            yield {"value": np.full(8, number, np.float32)}

    mesh = make_mesh()
    state = TrainState(jnp.int32(0), {"total": jnp.float32(0)}, ())
    state = jax.device_put(state, tree_shardings(mesh, state))
    return run_steps(
        "toy",
        state,
        step_function,
        batches_from,
        KEY,
        mesh=mesh,
        out=out,
        described={"setting": 1},
        total=total,
        batch_size=8,
        checkpoint_every=2,
        log_every=1,
        **settings,
    )


def test_every_step_has_its_batch(tmp_path):
    state = run(tmp_path, 5)
    assert (int(state.step), float(state.params["total"])) == (5, 8 * 10)
    losses = [line["loss"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert losses == [0, 8, 24, 48, 80]


def test_each_step_gets_its_state_prepared_and_a_checkpoint_the_one_before(tmp_path):
    prepared = []

    def prepare(steps_done, state):
        assert int(state.step) == steps_done
        prepared.append((steps_done, float(state.params["total"])))
        return dataclasses.replace(state, params={"total": state.params["total"] + 1})

    with pytest.raises(InterruptedError):
        run(tmp_path, 5, stop_at=2, prepare=prepare)
    state = run(tmp_path, 5, prepare=prepare)
    assert prepared == [(0, 0), (1, 1), (2, 10), (3, 27), (4, 52)]
    assert float(state.params["total"]) == 8 * 10 + 5


def test_a_broken_run_continues_after_its_last_checkpoint(tmp_path):
    asked = []
    with pytest.raises(InterruptedError):
        run(tmp_path, 7, stop_at=5, asked=asked)
    state = run(tmp_path, 7, asked=asked)
    assert asked == [0, 4]
    assert float(state.params["total"]) == 8 * 21
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [*range(1, 8)]
    assert run(tmp_path, 7, asked=asked).step == 7
    assert asked == [0, 4, 7]


def test_what_is_observed_stands_in_the_metrics(tmp_path):
    seen = []

    def observe(step, state, log):
        seen.append((step, float(state.params["total"])))
        log.spend("search_share", 0.0)
        return {"half": (float(step), 2.0)}

    run(tmp_path, 3, observe=observe, checkpoints=str(tmp_path / "elsewhere"))
    assert seen == [(1, 0), (2, 8), (3, 24)]
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["half"] for line in lines] == [0.5, 1.0, 1.5]
    assert all(line["search_share"] == 0.0 for line in lines)
    assert (tmp_path / "elsewhere" / "steps").is_dir()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("bad_step", "number", "kept"),
    [
        (5, np.nan, "the state of step 4 is kept in"),
        (6, np.inf, "the state of step 4 is kept in"),  # the step after which is saved
        (2, -np.inf, "no state was saved before"),
    ],
)
def test_a_training_that_diverges_stops_with_the_last_good_state(tmp_path, bad_step, number, kept):
    def poisoned(state, batch, key):
        value = jnp.where(state.step + 1 == bad_step, number, batch["value"])
        return step(state, batch | {"value": value}, key)

    with pytest.raises(OrqaError, match=rf"infinite in step {bad_step}; {kept}") as raised:
        run(tmp_path, 8, step_function=jax.jit(poisoned))
    path = tmp_path / f"diverged-{bad_step}-0.npz"
    assert f"the batch in {path}" in str(raised.value)
    np.testing.assert_array_equal(np.load(path)["['value']"], np.full(8, bad_step - 1, np.float32))
    saved = [int(p.name) for p in (tmp_path / "checkpoints/steps").iterdir() if p.name.isdigit()]
    assert saved == ([2, 4] if bad_step > 4 else [])
    # What is kept is good: the same training without the poison goes on from it to the end.
    state = run(tmp_path, 8)
    assert float(state.params["total"]) == 8 * 28


def test_a_state_that_overflows_under_a_finite_loss_is_not_saved(tmp_path):
    def overflowing(state, batch, key):
        state, metrics = step(state, batch, key)
        params = {"total": jnp.where(state.step == 4, jnp.inf, state.params["total"])}
        return dataclasses.replace(state, params=params), metrics

    with pytest.raises(OrqaError, match=r"infinite in step 4; the state of step 2 is kept"):
        run(tmp_path, 8, step_function=jax.jit(overflowing))
    assert float(run(tmp_path, 8).params["total"]) == 8 * 28
