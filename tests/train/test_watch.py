"""Costs of a program against hand counts; the rest against real files, traces and compilations."""

import logging
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.train import watch
from orqa_jax.train.mesh import make_mesh
from orqa_jax.train.watch import StepCosts, matmul_flops, profiled, unused_accelerator


def flops(function, *shapes):
    return matmul_flops(jax.jit(function).trace(*(jnp.zeros(s) for s in shapes)).jaxpr)


def test_products_of_matrices_and_of_batches_of_them():
    assert flops(lambda a, b: a @ b, (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert flops(lambda a, b: jnp.einsum("bik,bkj->bij", a, b), (4, 3, 5), (4, 5, 7)) == 840
    assert flops(lambda a: jnp.tanh(a) + a, (3, 5)) == 0


def test_straight_programs_count_as_the_compiler_counts_them():
    def loss(w, v, x):
        return ((x @ w) @ v).sum()

    arguments = jnp.ones((64, 48)), jnp.ones((48, 32)), jnp.ones((96, 64))
    step = jax.jit(jax.grad(loss, argnums=(0, 1)))
    compiled = step.lower(*arguments).compile().cost_analysis()["flops"]
    # The compiler counts sums and broadcasts too, and may leave a product out.
    assert matmul_flops(step.trace(*arguments).jaxpr) == pytest.approx(compiled, rel=0.35)


def test_a_scan_counts_as_often_as_it_runs_and_recomputation_counts_again():
    w = jnp.ones((6, 6))

    def looped(x):
        body = jax.checkpoint(lambda y: jnp.tanh(jnp.tanh(y @ w) @ w))
        return jax.lax.scan(lambda total, y: (total + body(y).sum(), None), 0.0, x)[0]

    one = 2 * 4 * 6 * 6
    assert flops(looped, (5, 4, 6)) == 5 * 2 * one
    # Forward 2 products; again 2, but the last needs none for its own gradient; backward 2.
    assert flops(jax.grad(looped), (5, 4, 6)) in (5 * 5 * one, 5 * 6 * one)


def test_branches_count_the_dearest_and_shards_all_together():
    branch = flops(
        lambda x: jax.lax.cond(x[0, 0] > 0, lambda y: y @ y @ y, lambda y: y @ y, x), (4, 4)
    )
    assert branch == 2 * 2 * 4 * 4 * 4
    mesh = make_mesh()
    rows = PartitionSpec("data")
    sharded = jax.shard_map(
        lambda a, b: a @ b, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows
    )
    assert flops(sharded, (16, 5), (5, 7)) == 2 * 16 * 5 * 7


def test_layers_of_a_module_are_found():
    model = nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(3)])
    params = model.init(jax.random.key(0), jnp.zeros((1, 4)))
    assert flops(lambda x: model.apply(params, x), (10, 4)) == 2 * 10 * (4 * 8 + 8 * 3)


def make_step():
    compiled = []

    @jax.jit
    def step(state, batch):
        compiled.append(batch.shape)
        return state + batch @ batch.T

    return step, compiled


def test_the_first_line_and_one_compilation(caplog, monkeypatch):
    monkeypatch.setitem(watch.PEAK_FLOPS, jax.devices()[0].device_kind, 1e6)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    step, traced = make_step()
    costs = StepCosts("ict", mesh, 24, step.trace)
    state = jax.device_put(jnp.zeros((8, 8)), NamedSharding(mesh, PartitionSpec()))
    batch = jax.device_put(jnp.ones((8, 6)), NamedSharding(mesh, PartitionSpec("data")))
    with caplog.at_level(logging.INFO, "orqa_jax"):
        seconds = costs.seconds_at_peak(state, batch)
        step(state, batch)
        assert costs.seconds_at_peak(state, batch) == seconds
    assert traced == [(8, 6)]
    assert seconds == pytest.approx(2 * 8 * 8 * 6 / 4 / 1e6)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ict")]
    assert line.startswith(
        "ict: devices 4 x cpu, processes 1, mesh data 2 x model 2, global batch 24, memory of a "
    )
    wider = jax.device_put(jnp.ones((8, 12)), NamedSharding(mesh, PartitionSpec("data")))
    assert costs.seconds_at_peak(state, wider) == pytest.approx(2 * seconds)


def test_the_memory_is_that_of_arguments_results_and_what_lies_between(caplog):
    step = jax.jit(lambda state: jnp.tanh(state) @ state, donate_argnums=0)
    state = jnp.zeros((2000, 2000))
    with caplog.at_level(logging.INFO, "orqa_jax"):
        StepCosts("big", make_mesh(jax.devices()[:1]), 1, step.trace).seconds_at_peak(state)
    # 16 MB of state, in place of which the result goes, and 16 to 32 MB of what lies between.
    assert any(f"about 0.0{n} GB" in caplog.text for n in (3, 4, 5))


def test_unknown_devices_have_no_share_of_a_peak():
    step, _ = make_step()
    costs = StepCosts("ict", make_mesh(jax.devices()[:1]), 8, step.trace)
    assert costs.seconds_at_peak(jnp.zeros((8, 8)), jnp.ones((8, 6))) is None


@pytest.mark.parametrize(
    ("files", "environment", "told"),
    [
        ([], {}, None),
        (
            ["dev/nvidia0", "dev/nvidiactl"],
            {},
            "dev/nvidia0 tells of an accelerator: install orqa_jax[cuda]",
        ),
        (["dev/nvidiactl"], {}, None),
        (["dev/accel0"], {}, "orqa_jax[tpu]"),
        ([], {"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_HOSTNAMES tells of an accelerator"),
        (["dev/nvidia0"], {"JAX_PLATFORMS": "cpu"}, None),
    ],
)
def test_training_on_the_cpu_by_accident(tmp_path, files, environment, told):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = unused_accelerator("cpu", tmp_path, environment)
    assert (found is None) if told is None else (told in found)
    assert unused_accelerator("gpu", tmp_path, environment) is None


@pytest.mark.parametrize(("vendor", "told"), [("0x1ae0\n", True), ("0x8086\n", False)])
def test_a_tpu_is_known_by_its_vendor(tmp_path, vendor, told):
    device = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor)
    assert bool(unused_accelerator("cpu", tmp_path, {})) == told


def traces(folder: Path) -> list[Path]:
    return list(folder.rglob("*.xplane.pb"))


def test_a_trace_of_the_steps_in_the_middle(tmp_path):
    seen = []
    for item in profiled(range(6), str(tmp_path), first=2, count=2):
        seen.append(item)
        with jax.profiler.TraceAnnotation(f"work-on-{item}"):
            jnp.ones(3).block_until_ready()
    assert seen == list(range(6))
    (trace,) = traces(tmp_path)
    written = trace.read_bytes()
    assert [b"work-on-%d" % item in written for item in range(6)] == [0, 0, 1, 1, 0, 0]


def test_a_run_that_ends_while_it_is_traced_leaves_a_trace(tmp_path):
    assert list(profiled(range(3), str(tmp_path), first=1, count=5)) == [0, 1, 2]
    assert len(traces(tmp_path)) == 1


def test_without_a_folder_or_with_too_few_steps_nothing_is_written(tmp_path, caplog):
    assert list(profiled(range(9), "")) == list(range(9))
    assert not caplog.records
    assert list(profiled(range(3), str(tmp_path))) == [0, 1, 2]
    assert not traces(tmp_path)
    assert "before its step 4" in caplog.text
