import json

import jax.numpy as jnp
import numpy as np
import pytest

from orqa_jax.train.metrics import MetricsLog, mean_of, read_metrics


def feed(path, losses, *, first_step=0, total=None, every=2):
    log = MetricsLog(
        path, name="test", first_step=first_step, total=total or len(losses), every=every
    )
    for step, loss in enumerate(losses[first_step:], first_step + 1):
        log.add(step, {"loss": (jnp.float32(loss), jnp.float32(1.0))})
    log.close()


def lines_of(path):
    return [(line["step"], line["loss"]) for line in read_metrics(path)]


def test_mean_of_counts_only_where_it_is_told_to():
    values = jnp.array([1.0, jnp.nan, 5.0])
    assert [float(x) for x in mean_of(values, jnp.array([True, False, True]))] == [6.0, 2.0]
    assert [float(x) for x in mean_of(jnp.array([True, False, True]))] == [2.0, 3.0]
    assert [float(x) for x in mean_of(values, jnp.zeros(3, bool))] == [0.0, 0.0]


def test_a_line_is_the_mean_since_the_last_line(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    feed(path, [1.0, 2.0, 4.0, 8.0, 16.0])
    assert lines_of(path) == [(2, 1.5), (4, 6.0), (5, 16.0)]


def test_means_weigh_every_example_the_same(tmp_path):
    log = MetricsLog(tmp_path / "m.jsonl", name="test", first_step=0, total=2, every=2)
    log.add(1, {"accuracy": (jnp.float32(1.0), jnp.float32(1.0))})
    log.add(2, {"accuracy": (jnp.float32(0.0), jnp.float32(3.0))})
    log.close()
    assert read_metrics(tmp_path / "m.jsonl")[0]["accuracy"] == 0.25


def test_what_was_never_counted_has_no_mean(tmp_path):
    log = MetricsLog(tmp_path / "m.jsonl", name="test", first_step=0, total=1, every=1)
    log.add(1, {"rare": (jnp.float32(0.0), jnp.float32(0.0)), "loss": mean_of(jnp.ones(2))})
    log.close()
    line = read_metrics(tmp_path / "m.jsonl")[0]
    assert "rare" not in line
    assert line["loss"] == 1.0


def test_a_resumed_run_writes_each_step_once(tmp_path):
    losses = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    feed(tmp_path / "whole.jsonl", losses)
    path = tmp_path / "resumed.jsonl"
    feed(path, losses[:5], total=6)
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # the process died here
    feed(path, losses, first_step=2)
    assert lines_of(path) == lines_of(tmp_path / "whole.jsonl")


@pytest.mark.parametrize("torn", ["{", '{"step": 4', "1", '{"loss": 3}', '"ste'])
def test_a_torn_line_is_dropped(tmp_path, torn):
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"step": 2, "loss": 1.5}) + "\n" + torn)
    feed(path, [0.0, 0.0, 1.0, 3.0], first_step=2)
    assert lines_of(path) == [(2, 1.5), (4, 2.0)]


def test_a_loss_that_is_not_a_number_is_not_hidden(tmp_path):
    feed(tmp_path / "m.jsonl", [1.0, np.nan])
    assert "loss" in read_metrics(tmp_path / "m.jsonl")[0]
