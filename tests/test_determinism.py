"""The same commands give the same parameters, to the bit, run after run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import FINETUNE_SETTINGS, ICT_SETTINGS, flags, world

from orqa_jax.checksums import checksum

ROOT = Path(__file__).parent.parent


def orqa(*arguments: object, hash_seed: int) -> None:
    """Runs a command as a process of its own, on one device, with a seed for Python's hashes."""
    more = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed), "XLA_FLAGS": ""}
    command = [sys.executable, "-m", "orqa_jax.cli", *map(str, arguments)]
    subprocess.run(command, env=os.environ | more, check=True, timeout=500)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_runs_are_equal_whatever_prepares_their_input(tmp_path: Path) -> None:
    sums = []
    for number, workers in enumerate((1, 4, 0)):
        run = tmp_path / f"run{number}"
        run.mkdir()
        (run / "corpus").symlink_to(world().store.folder)
        encoder = ["--run", run, "--encoder", world().encoder]
        ict = {**ICT_SETTINGS, "dropout": 0.1, "workers": workers}
        fine = {**FINETUNE_SETTINGS, "dropout": 0.1}
        orqa("ict", *encoder, *flags(ict), hash_seed=number)
        orqa("index", "--run", run, hash_seed=number)
        train = ["--train", world().questions]
        orqa("finetune", *encoder, *train, *flags(fine), hash_seed=number)
        made = (run / "ict" / "model", run / "finetune" / "model")
        files = [*(folder / "weights.safetensors" for folder in made), *run.glob("index/*.npy")]
        assert len(files) > len(made)
        sums.append({str(file.relative_to(run)): checksum(file) for file in files})
    assert sums[0] == sums[1] == sums[2]
