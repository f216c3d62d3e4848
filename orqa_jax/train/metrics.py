"""Metrics as (sum, count) pairs: exact over any number of devices, divided once on the host."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

Metrics = dict[str, tuple[jax.Array, jax.Array]]

logger = logging.getLogger(__name__)


def mean_of(values: jax.Array, where: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Returns the pair (sum, count) of ``values``, over the places where ``where`` is True."""
    values = values.astype(jnp.float32)
    if where is None:
        where = jnp.ones(values.shape, bool)
    return jnp.sum(jnp.where(where, values, 0.0)), jnp.sum(where.astype(jnp.float32))


class MetricsLog:
    """Adds up metrics between two log lines and appends their means to a JSONL file.

    The metrics of a step are read when the next step has been dispatched, so that logging never
    makes the devices wait. ``total`` is the number of steps of the whole run, for the time left.
    """

    def __init__(self, path: Path, *, name: str, first_step: int, total: int, every: int) -> None:
        self._path = path
        self._every = every
        self._pending: Metrics | None = None
        self._sums: dict[str, np.ndarray] = {}
        self._steps_since_line = 0
        self._started = time.perf_counter()
        # All processes have the same metrics, and the first one writes.
        self._writes = jax.process_index() == 0
        if self._writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_lines_after(path, first_step)
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
        self._pending = metrics
        self._steps_since_line += 1
        self._bar.update(1)
        if step % self._every == 0 or step == self._total:
            self._read_pending()
            self._write_line(step)

    def _read_pending(self) -> None:
        if self._pending is None:
            return
        for key, pair in jax.device_get(self._pending).items():
            self._sums[key] = self._sums.get(key, np.zeros(2)) + np.asarray(pair, np.float64)
        self._pending = None

    def _write_line(self, step: int) -> None:
        seconds = (time.perf_counter() - self._started) / self._steps_since_line
        means = {key: float(s / c) for key, (s, c) in self._sums.items() if c}
        line: dict[str, Any] = {"step": step, "seconds_per_step": round(seconds, 4)}
        # JSON has no NaN; null shows that there was one.
        line |= {k: round(value, 6) if np.isfinite(value) else None for k, value in means.items()}
        if self._writes:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        shown = {key: f"{value:.3f}" for key, value in means.items()}
        if self._bar.disable and self._writes:
            left = seconds * (self._total - step)
            text = ", ".join(f"{key} {value}" for key, value in shown.items())
            logger.info(
                "%s: step %d of %d, %.2f s a step, %.0f s left; %s",
                *(self._name, step, self._total, seconds, left, text),
            )
        self._bar.set_postfix(shown)
        self._sums, self._steps_since_line = {}, 0
        self._started = time.perf_counter()

    def close(self) -> None:
        self._bar.close()


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
