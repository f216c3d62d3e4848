"""The commands run where nobody may open a connection or look up a name.

An audit hook ends the process at the first attempt in Python; where the system allows it, the
process has a network of its own besides, without any way out, for what native code might try.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import finetune_config, flags, ict_config, world

ROOT = Path(__file__).parent.parent
_ALONE = """
import json, os, sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"tried {event} {arguments[1:]}".encode())
        os._exit(99)

sys.addaudithook(refuse)
from orqa_jax.cli import main
for command in json.loads(sys.argv[1]):
    if status := main(command):
        sys.exit(status)
"""


def run_alone(*commands: list[object]) -> subprocess.CompletedProcess[str]:
    listed = json.dumps([[str(part) for part in command] for command in commands])
    apart = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"]).returncode:
        apart = []
    return subprocess.run(
        [*apart, sys.executable, "-c", _ALONE, listed],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        timeout=290,
    )


def corpus_command(out: Path) -> list[object]:
    size = ["--max-wordpieces", 48, "--workers", 1]
    return ["corpus", world().documents, "--out", out, "--encoder", world().encoder, *size]


def test_an_attempt_would_be_seen():
    attempt = "import socket; socket.create_connection(('::1', 9))"
    code = _ALONE.partition("from orqa_jax")[0] + attempt
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 99
    assert "tried socket.getaddrinfo" in done.stderr


def test_documents_and_questions_without_a_network(tmp_path):
    run = tmp_path / "run"
    done = run_alone(
        corpus_command(run / "corpus"),
        ["answers", run / "corpus", world().questions],
        ["cloze", run / "corpus", "--out", tmp_path / "cloze.jsonl", "--count", 20],
        ["data", "web_questions", world().questions, "--out", tmp_path / "data.jsonl"],
        ["copy", run / "corpus", tmp_path / "copy"],
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_training_and_answering_without_a_network(tmp_path):
    run = tmp_path / "run"
    done = run_alone(
        corpus_command(run / "corpus"),
        ["ict", *flags(dataclasses.asdict(ict_config(run / "ict")))],
        ["index", "--run", run],
        ["finetune", *flags(dataclasses.asdict(finetune_config(run)))],
        ["predict", "--run", run, world().questions, "--out", tmp_path / "predictions.jsonl"],
        ["eval", tmp_path / "predictions.jsonl", world().questions],
        ["report", run, "--out", tmp_path / "report", "--references", world().questions],
        ["check", run],
    )
    assert done.returncode == 0, done.stderr
