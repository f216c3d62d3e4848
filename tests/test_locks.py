"""Locks between real processes: who is named, who waits for nobody, and that there is only one."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_world import ict_config

from orqa_jax.errors import OrqaError
from orqa_jax.locks import hold
from orqa_jax.train.ict import pretrain

HOLD = """
import sys, time
from pathlib import Path
from orqa_jax.locks import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
COUNT = """
import sys, time
from pathlib import Path
from orqa_jax.errors import OrqaError
from orqa_jax.locks import hold
counter, rounds = Path(sys.argv[1]), int(sys.argv[2])
while rounds:
    try:
        with hold(counter):
            # Two at a time here would lose a count.
            before = int(counter.read_text())
            time.sleep(0.0005)
            counter.write_text(str(before + 1))
        rounds -= 1
    except OrqaError:
        pass
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture
def holder(tmp_path):
    process = start(HOLD, str(tmp_path / "run"))
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_holder_is_named(holder, tmp_path):
    with pytest.raises(OrqaError) as refused, hold(tmp_path / "run"):
        pass
    message = str(refused.value)
    assert f"{tmp_path / 'run'} is being written by process {holder.pid}" in message
    assert f"on {socket.gethostname()} (`-c {tmp_path / 'run'}`, since 20" in message
    # By another name it is the same folder.
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(OrqaError, match="is being written by"), hold(tmp_path / "link"):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_holder_blocks_nobody(holder, tmp_path, how):
    holder.send_signal(how)
    holder.wait()
    # Killed, it has left its file.
    assert (tmp_path / "run.lock").exists()
    with hold(tmp_path / "run"):
        assert f'"pid": {os.getpid()}' in (tmp_path / "run.lock").read_text()
    assert not (tmp_path / "run.lock").exists()


def test_a_stopped_holder_still_holds(holder, tmp_path):
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(OrqaError, match=f"process {holder.pid}"), hold(tmp_path / "run"):
        pass


def test_there_is_never_more_than_one(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [start(COUNT, str(counter), "100") for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert counter.read_text() == "300"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]


def test_a_half_written_name_is_no_error(tmp_path):
    with hold(tmp_path / "run"):
        (tmp_path / "run.lock").write_text('{"pid": 1')
        with (
            pytest.raises(OrqaError, match="by another process, which has just begun"),
            hold(tmp_path / "run"),
        ):
            pass


def test_where_no_lock_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OrqaError, match="choose a place that can be written"),
        hold(tmp_path / "file" / "run"),
    ):
        pass


def test_other_stages_of_one_run_do_not_conflict(tmp_path):
    with hold(tmp_path / "run"), hold(tmp_path / "run" / "ict"), hold(tmp_path / "run" / "bm25"):
        pass


def test_a_training_is_alone_in_its_folder(tmp_path):
    before = time.monotonic()
    with hold(tmp_path / "ict"), pytest.raises(OrqaError, match="ict is being written by process"):
        pretrain(ict_config(tmp_path / "ict"))
    assert time.monotonic() - before < 5
    assert not list(Path(tmp_path).iterdir())
