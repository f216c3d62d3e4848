"""Checkpoints under gs:// URLs, against a stand-in for Google Cloud Storage on this machine.

Needs the extra gcs and the package gcp-storage-emulator, and is skipped without them.
"""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import ICT_SETTINGS, equal_trees, flags, ict_config, metrics_of, world

from orqa_jax.errors import OrqaError
from orqa_jax.storage import copy
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import load_model

ROOT = Path(__file__).parents[2]

pytest.importorskip("gcsfs", reason="the extra gcs is not installed")
server = pytest.importorskip("gcp_storage_emulator.server", reason="there is no stand-in for gs://")

# Those of the store's libraries; what they do wrong shows in what is written.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]


@pytest.fixture
def bucket(monkeypatch, unused_tcp_port):
    address = f"http://127.0.0.1:{unused_tcp_port}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)  # of gcsfs
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
    running = server.create_server(
        "127.0.0.1", unused_tcp_port, in_memory=True, default_bucket="bucket"
    )
    running.start()
    yield "gs://bucket"
    running.stop()


@pytest.fixture
def unused_tcp_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


KILL = """
import json, os, signal, sys, time
from etils import epath
from orqa_jax.train import ict, metrics

config = ict.ICTConfig(**json.loads(sys.argv[1]))
saved = epath.Path(config.checkpoints) / "steps" / "4" / "commit_success.txt"
add = metrics.MetricsLog.add


def add_or_die(log, step, measured):
    if step == 6:
        while not saved.exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    add(log, step, measured)


metrics.MetricsLog.add = add_or_die
ict.pretrain(config)
"""


def test_a_killed_run_continues_from_a_bucket(bucket, tmp_path):
    whole, killed = ict_config(tmp_path / "whole"), ict_config(tmp_path / "killed")
    killed = dataclasses.replace(killed, checkpoints=f"{bucket}/run/checkpoints/ict")
    ict.pretrain(whole)
    died = subprocess.run(
        [sys.executable, "-c", KILL, json.dumps(dataclasses.asdict(killed))], timeout=200
    )
    assert died.returncode == -signal.SIGKILL
    assert not (Path(killed.out) / "checkpoints").exists()
    ict.pretrain(killed)
    params = [load_model(Path(c.out) / "model", kind=ict.MODEL_KIND)[1] for c in (whole, killed)]
    equal_trees(*params)
    assert metrics_of(Path(killed.out)) == metrics_of(Path(whole.out))

    changed = dataclasses.replace(killed, out=str(tmp_path / "other"), learning_rate=0.5)
    with pytest.raises(OrqaError, match=r"gs://bucket/run/checkpoints/ict was made with other"):
        ict.pretrain(changed)


def test_a_host_trains_for_a_run_in_a_bucket(bucket, tmp_path):
    url = f"{bucket}/run"
    copy(str(world().store.folder), f"{url}/corpus")
    copy(str(world().encoder), f"{url}/encoder")
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    orqa = tmp_path / ".venv" / "bin" / "orqa"
    orqa.parent.mkdir(parents=True)
    orqa.write_text(f'#!/bin/bash\nexec {sys.executable} -m orqa_jax.cli "$@"\n')
    orqa.chmod(0o755)

    def host(disk):
        environment = {"ORQA_DISK": str(tmp_path / disk), "PYTHONPATH": str(ROOT)}
        settings = flags(ICT_SETTINGS | {"log_every": 1})
        done = subprocess.run(
            [tmp_path / "launch" / "host_run.sh", "ict", url, *settings],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "ict begins in gs://bucket/run" in host("first")
    copy(f"{url}/ict", str(tmp_path / "result"))
    ict.pretrain(ict_config(tmp_path / "local", log_every=1))
    found = [load_model(tmp_path / n / "model", kind=ict.MODEL_KIND) for n in ("result", "local")]
    equal_trees(found[0][1], found[1][1])
    assert metrics_of(tmp_path / "result") == metrics_of(tmp_path / "local")
    # A host that comes later finds everything done.
    assert "step" not in host("second")


def test_copies_there_and_back(bucket, tmp_path):
    folder = tmp_path / "corpus"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "blocks.arrow").write_bytes(bytes(range(256)) * 40_000)
    (folder / "tokenizer" / "vocab.txt").write_text("owl\n")
    assert copy(str(folder), f"{bucket}/run/corpus") == 3
    assert copy(f"{bucket}/run/corpus", str(tmp_path / "back")) == 3
    assert (tmp_path / "back" / "blocks.arrow").read_bytes() == bytes(range(256)) * 40_000
    assert copy(f"{bucket}/run/corpus", str(tmp_path / "back")) == 0
    assert copy(str(tmp_path / "back"), f"{bucket}/run/corpus") == 0
    with pytest.raises(OrqaError, match="There is nothing at gs://bucket/nowhere"):
        copy(f"{bucket}/nowhere", str(tmp_path / "x"))
