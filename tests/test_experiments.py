import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import indexed_run, world

from experiments.configs import quickstart
from orqa_jax.baselines.drqa.squad import DrqaDecomposeConfig, DrqaSquadConfig
from orqa_jax.predict import CompareConfig
from orqa_jax.train.config import load_config_file, make_config
from orqa_jax.train.encode import EncodeConfig
from orqa_jax.train.finetune import FinetuneConfig
from orqa_jax.train.ict import ICTConfig

ROOT = Path(quickstart.__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("ict", ICTConfig),
        ("ict_pod", ICTConfig),
        ("encode", EncodeConfig),
        ("nq", FinetuneConfig),
        ("evaluate", CompareConfig),
        ("drqa_squad", DrqaSquadConfig),
        ("drqa_decompose", DrqaDecomposeConfig),
    ],
)
def test_every_config_file_makes_its_settings(name, cls):
    values = load_config_file(ROOT / "experiments" / "configs" / f"{name}.py")
    made = dataclasses.asdict(make_config(cls, values))
    assert {key: made[key] for key in values} == values


def test_the_settings_of_the_quickstart():
    config = quickstart.get_config()
    ict = dict.fromkeys(("corpus", "encoder", "out"), "x")
    assert make_config(ICTConfig, ict | dict(config.ict)).steps == config.ict.steps
    finetune = dict.fromkeys(("corpus", "retriever", "index", "encoder", "train", "out"), "x")
    assert make_config(FinetuneConfig, finetune | dict(config.finetune)).epochs > 0


def experiment(name, config, *changes):
    """A script as a person starts it, from the root of the repository."""
    flags = [f"--config=experiments/configs/{config}.py"]
    flags += [f"--config.{change}" for change in changes]
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", *flags],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_script_runs_the_same_function(tmp_path):
    places = {"corpus": "corpus", "retriever": "ict/model", "out": "index"}
    done = experiment(
        "encode_blocks", "encode", *(f"{k}={indexed_run() / v}" for k, v in places.items())
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((indexed_run() / "index" / "manifest.json").read_text())
    assert manifest["corpus_fingerprint"] == world().store.fingerprint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["corpus=/nowhere"], ["error: ", "/nowhere"]),
        (["setps=3"], ["setps"]),
    ],
)
def test_a_mistake_in_a_script_is_named(changes, words):
    done = experiment("ict_pretrain", "ict", *changes)
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr.splitlines()[-1]
