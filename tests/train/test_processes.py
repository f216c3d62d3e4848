"""Several processes on this machine, which talk over sockets, against one."""

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_world import (
    equal_but_for_rounding,
    finetune_config,
    flags,
    ict_config,
    indexed_run,
    metrics_of,
    trained_run,
)

from orqa_jax.errors import OrqaError
from orqa_jax.train.finetune import finetune
from orqa_jax.train.ict import ICTConfig
from orqa_jax.train.mesh import start_processes

# Eight devices in all, as one process has in the tests.
_COMMAND = [sys.executable, "-c", "import sys; from orqa_jax.cli import main; sys.exit(main())"]


def start(config, count, folder):
    command = "ict" if isinstance(config, ICTConfig) else "finetune"
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for number in range(count):
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // count} "
            "--xla_backend_optimization_level=0",
            "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": str(count),
            "JAX_PROCESS_ID": str(number),
        }
        arguments = [*_COMMAND, command, *flags(dataclasses.asdict(config))]
        with (folder / f"process{number}.log").open("w") as log:
            processes.append(
                subprocess.Popen(arguments, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    return processes


def finish(processes, folder, seconds=500):
    """Exit statuses and what was written, once all processes are gone."""
    try:
        statuses = [process.wait(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return statuses, [(folder / f"process{n}.log").read_text() for n in range(len(processes))]


def same_weights(found, expected, steps):
    found, expected = (load_file(f / "model" / "weights.safetensors") for f in (found, expected))
    equal_but_for_rounding(found, expected, steps=steps)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ict_of_several_processes_is_that_of_one(tmp_path, count):
    chunks = {"chunk_size": 1, "chunk_lengths": 2}
    config = ict_config(tmp_path / "ict", corpus=str(indexed_run() / "corpus"), **chunks)
    statuses, logs = finish(start(config, count, tmp_path), tmp_path)
    assert statuses == [0] * count, logs
    for found, expected in zip(
        metrics_of(tmp_path / "ict"), metrics_of(indexed_run() / "ict"), strict=True
    ):
        assert found == pytest.approx(expected, rel=1e-3)
    same_weights(tmp_path / "ict", indexed_run() / "ict", steps=6)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (2, {}),
        (2, {"retrieval": "two_phase"}),
        (4, {}),
        (2, {"retrieval": "two_phase", "stale_by_one": True, "refresh_every": 1}),
    ],
)
def test_finetuning_of_several_processes_is_that_of_one(tmp_path, count, changes):
    config = finetune_config(trained_run(), out=str(tmp_path / "finetune"), **changes)
    statuses, logs = finish(start(config, count, tmp_path), tmp_path)
    assert statuses == [0] * count, logs
    expected = trained_run() / "finetune"
    if config.refresh_every:
        expected = tmp_path / "alone"
        finetune(dataclasses.replace(config, out=str(expected)))
        indexes = [np.load(f / "index/embeddings.npy") for f in (tmp_path / "finetune", expected)]
        np.testing.assert_allclose(*indexes, atol=0.02)
    for found, line in zip(metrics_of(tmp_path / "finetune"), metrics_of(expected), strict=True):
        assert found == pytest.approx(line, rel=1e-3)
    same_weights(tmp_path / "finetune", expected, steps=4)


def wait_for_step(folder, processes):
    deadline = time.monotonic() + 200
    while not list(folder.glob("checkpoints/steps/[0-9]")):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_signal_to_one_stops_all_after_the_same_step(tmp_path):
    config = ict_config(tmp_path / "ict", corpus=str(indexed_run() / "corpus"), steps=5000)
    processes = start(config, 2, tmp_path)
    wait_for_step(tmp_path / "ict", processes)
    processes[1].send_signal(signal.SIGTERM)
    statuses, logs = finish(processes, tmp_path)
    assert statuses == [0, 0], logs
    lines = {log.splitlines()[-1] for log in logs}
    assert len(lines) == 1
    line = lines.pop()
    assert line.startswith("Stopped by SIGTERM; step ")
    step = int(line.split()[4])
    assert (tmp_path / "ict" / "checkpoints" / "steps" / str(step)).exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_when_one_dies_the_others_end_within_a_minute(tmp_path):
    config = ict_config(tmp_path / "ict", corpus=str(indexed_run() / "corpus"), steps=5000)
    processes = start(config, 2, tmp_path)
    wait_for_step(tmp_path / "ict", processes)
    processes[1].kill()
    died = time.monotonic()
    statuses, logs = finish(processes, tmp_path)
    assert time.monotonic() - died < 60
    assert statuses[0] not in (0, None)
    assert statuses[1] == -signal.SIGKILL
    assert "process" in logs[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_when_one_freezes_the_others_end_within_a_minute(tmp_path):
    config = ict_config(tmp_path / "ict", corpus=str(indexed_run() / "corpus"), steps=5000)
    processes = start(config, 2, tmp_path)
    wait_for_step(tmp_path / "ict", processes)
    processes[1].send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    try:
        status = processes[0].wait(timeout=120)
        assert time.monotonic() - frozen < 60
        assert status != 0
        # What wakes up is told that the others are gone.
        processes[1].send_signal(signal.SIGCONT)
        assert processes[1].wait(timeout=120) != 0
    finally:
        finish(processes, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slow_process_changes_nothing_but_the_time(tmp_path):
    config = ict_config(tmp_path / "ict", corpus=str(indexed_run() / "corpus"))
    processes = start(config, 2, tmp_path)
    naps = 0
    while processes[1].poll() is None:
        processes[1].send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        processes[1].send_signal(signal.SIGCONT)
        naps += 1
        time.sleep(0.7)
    statuses, logs = finish(processes, tmp_path)
    assert naps > 10
    assert statuses == [0, 0], logs
    same_weights(tmp_path / "ict", indexed_run() / "ict", steps=6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_goes_on_with_other_devices_and_processes(tmp_path):
    """8 devices, then 1, then 4, then two processes: the trajectory of 8 devices throughout."""
    corpus = str(indexed_run() / "corpus")
    config = ict_config(tmp_path / "ict", corpus=corpus)

    def run(devices, steps_saved):
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} "
            "--xla_backend_optimization_level=0",
        }
        code = _STOP_AT.format(step=steps_saved)
        arguments = [sys.executable, "-c", code, "ict", *flags(dataclasses.asdict(config))]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "ict" / "checkpoints" / "steps" / str(steps_saved)).exists()

    run(8, 1)
    run(1, 2)
    run(4, 4)
    statuses, logs = finish(start(config, 2, tmp_path), tmp_path)
    assert statuses == [0, 0], logs
    assert "Continuing from the checkpoint of step 4." in logs[0]
    same_weights(tmp_path / "ict", indexed_run() / "ict", steps=6)
    shutil.rmtree(tmp_path / "ict")


_STOP_AT = """
import os, signal, sys
from orqa_jax.cli import main
from orqa_jax.train import metrics

add = metrics.MetricsLog.add


def add_and_stop(log, at, measured):
    if at == {step}:
        os.kill(os.getpid(), signal.SIGTERM)
    add(log, at, measured)


metrics.MetricsLog.add = add_and_stop
sys.exit(main())
"""


@pytest.mark.parametrize(
    "environment",
    [
        {"JAX_NUM_PROCESSES": "2"},
        {"JAX_COORDINATOR_ADDRESS": "localhost:1", "JAX_PROCESS_ID": "0"},
        {
            "JAX_COORDINATOR_ADDRESS": "localhost:1",
            "JAX_NUM_PROCESSES": "two",
            "JAX_PROCESS_ID": "0",
        },
        {"JAX_COORDINATOR_ADDRESS": "localhost:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
    ],
)
def test_variables_that_do_not_tell_of_processes_are_named(environment):
    with pytest.raises(OrqaError, match=r"JAX_(NUM_PROCESSES|PROCESS_ID)"):
        start_processes(environment)


def test_without_variables_there_is_one_process():
    start_processes({})
