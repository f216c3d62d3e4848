"""Metrics as (sum, count) pairs: exact over any number of devices, divided once on the host."""

import json
import logging
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c
from tqdm import tqdm

# Pairs (sum, count), of arrays on devices or of plain numbers.
Metrics = dict[str, tuple[Any, Any]]

TENSORBOARD = "tensorboard"

# What a line says about time, in which no two runs agree.
TIMINGS = (
    *("seconds_per_step", "examples_per_second", "input_wait", "flops_share"),
    *("search_share", "gather_share", "labels_share"),
)

logger = logging.getLogger(__name__)


def mean_of(values: jax.Array, where: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Returns the pair (sum, count) of ``values``, over the places where ``where`` is True."""
    values = values.astype(jnp.float32)
    if where is None:
        where = jnp.ones(values.shape, bool)
    return jnp.sum(jnp.where(where, values, 0.0)), jnp.sum(where.astype(jnp.float32))


class MetricsLog:
    """Adds up metrics between two log lines and appends their means to a JSONL file.

    Event files for TensorBoard, in ``tensorboard/`` beside it, hold the same numbers.
    The metrics of a step are read when the next step has been dispatched, so that logging never
    makes the devices wait. ``total`` is the number of steps of the whole run, for the time left;
    with ``batch_size``, the examples of a step, a line has ``examples_per_second``. Of several
    processes, which all have the same metrics, the first one writes.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        first_step: int,
        total: int,
        every: int,
        batch_size: int | None = None,
    ) -> None:
        self._path = path
        self._every = every
        self._batch_size = batch_size
        # The first step whose loss was NaN or infinite; known once the loss has been read.
        self.diverged: int | None = None
        self._pending: tuple[int, Metrics] | None = None
        self._sums: dict[str, np.ndarray] = {}
        self._seconds: dict[str, float] = {}
        self._steps_since_line = 0
        self._started = time.perf_counter()
        self._writes = jax.process_index() == 0
        self._events = path.parent / TENSORBOARD / f"events.out.tfevents.{time.time_ns()}"
        if self._writes:
            self._events.parent.mkdir(parents=True, exist_ok=True)
            _drop_lines_after(path, first_step)
            # At this sign TensorBoard forgets the steps that are about to be repeated.
            start = Event(step=first_step + 1, session_log=SessionLog(status=SessionLog.START))
            _append_events(self._events, [Event(file_version="brain.Event:2"), start])
        self._bar = tqdm(
            total=total,
            initial=first_step,
            desc=name,
            unit="step",
            dynamic_ncols=True,
            disable=not (self._writes and sys.stderr.isatty()),
        )
        self._name, self._total = name, total

    def add(self, step: int, metrics: Metrics) -> None:
        """Takes the device metrics of ``step`` (counted from 1) and reads those of the last one."""
        self._read_pending()
        self._pending = (step, metrics)
        self._steps_since_line += 1
        self._bar.update(1)
        if step % self._every == 0 or step == self._total:
            self._read_pending()
            self._write_line(step)

    def spend(self, name: str, seconds: float | None) -> None:
        """Adds time of the step that ``add`` gets next; a line has its share of all the time.

        For what the host waits (``input_wait``), and for the time that the arithmetic of a step
        would take at the peak rate of the devices (``flops_share``); None where it is not known.
        """
        if seconds is not None:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def _read_pending(self) -> None:
        if self._pending is None:
            return
        step, metrics = self._pending
        for key, pair in jax.device_get(metrics).items():
            if key == "loss" and self.diverged is None and not np.isfinite(pair).all():
                self.diverged = step
            self._sums[key] = self._sums.get(key, np.zeros(2)) + np.asarray(pair, np.float64)
        self._pending = None

    def _write_line(self, step: int) -> None:
        elapsed = time.perf_counter() - self._started
        seconds = elapsed / self._steps_since_line
        means = {key: float(s / c) for key, (s, c) in self._sums.items() if c}
        line: dict[str, Any] = {"step": step, "seconds_per_step": round(seconds, 4)}
        if self._batch_size is not None:
            line["examples_per_second"] = round(self._batch_size / seconds, 3)
        line |= {name: round(spent / elapsed, 6) for name, spent in self._seconds.items()}
        # JSON has no NaN; null shows that there was one.
        line |= {k: round(value, 6) if np.isfinite(value) else None for k, value in means.items()}
        if self._writes:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            numbers = {k: np.nan if v is None else v for k, v in line.items() if k != "step"}
            values = [Summary.Value(tag=k, simple_value=v) for k, v in numbers.items()]
            _append_events(self._events, [Event(step=step, summary=Summary(value=values))])
        self._show(step, seconds, means)
        self._sums, self._seconds, self._steps_since_line = {}, {}, 0
        self._started = time.perf_counter()

    def _show(self, step: int, seconds: float, means: Mapping[str, float]) -> None:
        shown = {key: f"{value:.3f}" for key, value in means.items()}
        if not self._bar.disable:
            self._bar.set_postfix(shown)
        elif self._writes:
            left = seconds * (self._total - step)
            text = ", ".join(f"{key} {value}" for key, value in shown.items())
            logger.info(
                "%s: step %d of %d, %.2f s a step, %.0f s left; %s",
                *(self._name, step, self._total, seconds, left, text),
            )

    def close(self) -> None:
        self._bar.close()


def _append_events(path: Path, events: Sequence[Event]) -> None:
    """Appends to a file of TensorBoard's: each event between its length and checksums.

    The library's own writer keeps events in a queue, and what is in it when the process is killed
    is lost; here they are in the file when this returns, as a line of the JSONL file is.
    """
    with path.open("ab") as file:
        for event in events:
            event.wall_time = time.time()
            content = event.SerializeToString()
            for part in (struct.pack("<Q", len(content)), content):
                file.write(part + struct.pack("<I", masked_crc32c(part)))


def _drop_lines_after(path: Path, step: int) -> None:
    """Forgets lines of steps that are about to be repeated, and a half-written last line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(kept), encoding="utf-8")
    partial.replace(path)


def read_metrics(path: Path) -> list[Mapping[str, float]]:
    """Reads a metrics JSONL file that ``MetricsLog`` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
