"""Runs the real scripts in a copy of the repository, with a pip that only takes notes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted((ROOT / "launch").glob("*.sh")), ROOT / ".ci" / "run"]
PIP_THAT_TAKES_NOTES = """\
import pathlib, sys
with open({notes!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
sys.exit(pathlib.Path({broken!r}).exists())
"""
QUICKSTART = "import os, sys; print(sys.argv[1:], os.getcwd())"


class Checkout:
    """A copy with an environment whose interpreter is real and whose pip installs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.elsewhere = folder.parent / "elsewhere"
        (self.elsewhere / "experiments").mkdir(parents=True)  # must not be taken for ours
        (self.elsewhere / "experiments" / "quickstart.py").write_text("raise SystemExit(9)")
        shutil.copytree(ROOT / "launch", folder / "launch")
        for name in ("requirements.txt", "setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        (folder / "experiments").mkdir()
        (folder / "experiments" / "quickstart.py").write_text(QUICKSTART)
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True
        )
        self.broken = folder.parent / "pip is broken"
        self._notes = folder.parent / "notes"
        pip = next((folder / ".venv" / "lib").glob("python3.*")) / "site-packages" / "pip"
        pip.mkdir()
        (pip / "__main__.py").write_text(
            PIP_THAT_TAKES_NOTES.format(notes=str(self._notes), broken=str(self.broken))
        )

    def quickstart(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "launch" / "quickstart.sh", *arguments],
            cwd=self.elsewhere,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def installed(self) -> list[str]:
        """What pip was asked for since the last call."""
        notes = self._notes.read_text().splitlines() if self._notes.exists() else []
        self._notes.unlink(missing_ok=True)
        return notes


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a folder with spaces")


def test_the_second_run_installs_nothing(checkout):
    first = checkout.quickstart("--run", "my runs/one")
    assert first.returncode == 0, first.stderr
    asked = checkout.installed()
    assert len(asked) == 3
    assert asked[0].endswith("requirements.txt")
    assert "--no-deps" in asked[1]
    assert "--editable" in asked[2]

    second = checkout.quickstart("--run", "my runs/one")
    assert checkout.installed() == []
    assert second.stderr == ""
    assert second.stdout == f"['--run', 'my runs/one'] {checkout.elsewhere}\n"


@pytest.mark.parametrize("name", ["requirements.txt", "setup.cfg"])
def test_changed_requirements_are_installed(checkout, name):
    checkout.quickstart()
    checkout.installed()
    with (checkout.folder / name).open("a") as file:
        file.write("# changed\n")
    assert checkout.quickstart().returncode == 0
    assert len(checkout.installed()) == 3


def test_an_interrupted_installation_is_repeated(checkout):
    checkout.broken.touch()
    failed = checkout.quickstart()
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert len(checkout.installed()) == 1

    checkout.broken.unlink()
    assert checkout.quickstart().returncode == 0
    assert len(checkout.installed()) == 3


def test_a_moved_repository_installs_itself_again(checkout):
    checkout.quickstart()
    checkout.installed()
    checkout.folder = checkout.folder.rename(checkout.folder.parent / "moved")
    assert checkout.quickstart().returncode == 0
    assert len(checkout.installed()) == 3


def test_a_machine_without_a_fitting_python_is_told_so(checkout, tmp_path):
    shutil.rmtree(checkout.folder / ".venv")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "cmp", "dirname", "rm", "mv"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # as any other version answers
    (tools / "python3").chmod(0o755)

    told = subprocess.run(
        [tools / "bash", checkout.folder / "launch" / "quickstart.sh"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
    )

    assert told.returncode == 1
    assert "No Python 3.11, 3.12 or 3.13" in told.stderr
    assert told.stderr.count("\n") == 1
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_can_be_started(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK) != script.name.startswith("_")
