import os
import signal
import subprocess
import sys
import threading

import pytest

from orqa_jax.train.stop import stop_request


def test_nothing_happens_unasked():
    with stop_request() as stop:
        assert not stop.reached(1)
        stop.leave("all is kept")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_is_a_request_until_the_loop_leaves(number, raised):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with stop_request() as stop:
        assert not stop.reached(1)
        os.kill(os.getpid(), number)
        assert stop.reached(2)
        with pytest.raises(raised) as stopped:
            stop.leave("all is kept")
    if raised is SystemExit:
        assert stopped.value.code == 0
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    signal.signal(signal.SIGINT, before[0])
    assert signal.getsignal(signal.SIGTERM) == before[1]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_request() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert not stop.reached(1)
    assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN


def test_a_thread_leaves_the_signals_alone():
    found = []

    def loop():
        with stop_request() as stop:
            found.append((signal.getsignal(signal.SIGTERM), stop.reached(1)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert found == [(before, False)]


def test_a_second_ctrl_c_ends_the_process_at_once():
    code = """
import os, signal
from orqa_jax.train.stop import stop_request
signal.signal(signal.SIGINT, signal.default_int_handler)
with stop_request() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    print("first", stop.reached(1), flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("second", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "first True\n"
    assert done.returncode == -signal.SIGINT
