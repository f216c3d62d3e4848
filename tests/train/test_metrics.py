import json
import struct
import time

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from orqa_jax.train.metrics import TENSORBOARD, MetricsLog, mean_of, read_metrics


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


def crc32c(content):
    """CRC-32C bit by bit, from its polynomial."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def masked(content):
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events_of(path):
    """The events of a TFRecord file, with every checksum checked."""
    content, events = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert struct.unpack("<I", content[8:12]) == (masked(content[:8]),)
        body = content[12 : 12 + length]
        assert struct.unpack("<I", content[12 + length : 16 + length]) == (masked(body),)
        events.append(Event.FromString(body))
        content = content[16 + length :]
    return events


def curves(path):
    """As TensorBoard shows them: a start hides what was written for its step and later ones."""
    points = {}
    for file in sorted((path.parent / TENSORBOARD).iterdir()):
        version, *events = events_of(file)
        assert version.file_version == "brain.Event:2"
        for event in events:
            if event.session_log.status == SessionLog.START:
                points = {k: v for k, v in points.items() if k[1] < event.step}
            for value in event.summary.value:
                points[value.tag, event.step] = value.simple_value
    return points


def test_crc32c_of_the_oracle():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the catalogue of CRCs


def test_tensorboard_has_the_numbers_of_the_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    feed(path, [1.0, 2.0, 4.0, np.nan, 16.0])
    lines = read_metrics(path)
    expected = {
        (key, line["step"]): np.nan if value is None else np.float32(value)
        for line in lines
        for key, value in line.items()
        if key != "step"
    }
    found = curves(path)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_equal(np.float32(found[key]), value, err_msg=str(key))
    assert found["loss", 2] == 1.5


def test_tensorboard_shows_the_steps_of_a_resumed_run_once(tmp_path):
    losses = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    path = tmp_path / "metrics.jsonl"
    feed(path, [*losses[:2], 100.0, 100.0], total=6)
    feed(path, losses, first_step=2)
    assert len(list((tmp_path / TENSORBOARD).iterdir())) == 2
    shown = {step: value for (tag, step), value in curves(path).items() if tag == "loss"}
    assert shown == {2: 1.5, 4: 6.0, 6: 24.0}


def test_shares_of_the_time_of_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, name="test", first_step=0, total=4, every=2, batch_size=8)
    for step in range(1, 5):
        began = time.perf_counter()
        time.sleep(0.05)
        waited = time.perf_counter() - began
        log.spend("input_wait", waited)
        log.spend("flops_share", waited / 4 if step > 2 else None)
        log.add(step, {"loss": (jnp.float32(1.0), jnp.float32(1.0))})
    log.close()
    first, second = read_metrics(path)
    assert "flops_share" not in first
    assert second["flops_share"] == pytest.approx(second["input_wait"] / 4, abs=2e-6)
    for line in (first, second):
        # Almost all the time was waiting, and an idle machine does little else.
        assert 0.3 < line["input_wait"] <= 1.0
        assert line["examples_per_second"] == pytest.approx(8 / line["seconds_per_step"], rel=2e-3)
