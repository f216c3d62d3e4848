"""Stopping long work between two steps, in every process after the same one.

An exception out of a signal handler may fall anywhere, also into a callback of jax that swallows
it. So a first SIGINT or SIGTERM only leaves a note, which the loop reads once a step.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

logger = logging.getLogger(__name__)


class StopRequest:
    """Whether this run was asked to stop, and how."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._agreed = False

    def receive(self, number: int, _: FrameType | None) -> None:
        """The signal handler; a second SIGINT ends the process at once."""
        self._received = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            logger.warning("Stopping after this step; Ctrl-C again loses what it did.")
            if jax.process_count() > 1:
                # What jax agrees on between processes is the notice that a SIGTERM is.
                os.kill(os.getpid(), signal.SIGTERM)

    def reached(self, step: int) -> bool:
        """Whether all processes stop after ``step``; to be asked once after every step."""
        if jax.process_count() > 1:
            stopping = multihost_utils.reached_preemption_sync_point(step)
        else:
            stopping = self._received is not None
        self._agreed = stopping
        return stopping

    def leave(self, kept: str) -> None:
        """Ends the program if it was to stop; to be called when all that is to be kept is saved.

        Args:
          kept: What is, for the user: "step 5 is saved".

        Raises:
          KeyboardInterrupt: After a SIGINT.
          SystemExit: After a SIGTERM, with status 0: whoever preempts a run expects no failure.
        """
        if not self._agreed:
            return
        by = "Ctrl-C" if self._received == signal.SIGINT else "SIGTERM"
        logger.info("Stopped by %s; %s, and the same command continues.", by, kept)
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(0)


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Turns SIGINT and SIGTERM into a request while the context lasts.

    Outside the main thread no signal is handled. Where SIGINT is ignored, as in a background shell,
    it stays ignored.
    """
    request = StopRequest()
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Between several processes, SIGTERM is handled by jax.
        one = jax.process_count() == 1
        for number in (signal.SIGINT, signal.SIGTERM) if one else (signal.SIGINT,):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, request.receive)
    try:
        yield request
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
