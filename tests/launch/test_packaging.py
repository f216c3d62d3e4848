"""What is imported is declared, what is declared is imported, and all of it is pinned."""

import ast
import configparser
import importlib.metadata
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def setup_requirements(section, key):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = setup[section][key].split("\n")
    return {canonicalize_name(r.name): r for r in map(Requirement, filter(str.strip, lines))}


def optional_requirements():
    """What the extras add: imported where it is used, with a sentence where it is missing."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    names = set()
    for extra in setup["options.extras_require"]:
        names |= setup_requirements("options.extras_require", extra).keys()
    return names - setup_requirements("options", "install_requires").keys()


def pins():
    pinned = {}
    for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            pinned[canonicalize_name(name)] = version
    return pinned


def imported_distributions(*folders):
    providers = importlib.metadata.packages_distributions()
    ours = {"orqa_jax", "experiments", "__future__"}
    found = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                tops = {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names
                found |= {
                    canonicalize_name(name) for top in tops for name in providers.get(top, [top])
                }
    return found


def test_imports_and_declared_requirements_are_the_same():
    declared = set(setup_requirements("options", "install_requires"))
    imported = imported_distributions("orqa_jax", "experiments")
    extras = optional_requirements()
    assert imported - extras == declared


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("options", "install_requires"),
        ("options.extras_require", "dev"),
        ("options.extras_require", "scann"),
        ("options.extras_require", "serve"),
    ],
)
def test_pins_satisfy_the_declared_bounds_and_are_complete(section, key):
    pinned = pins()
    for name, requirement in setup_requirements(section, key).items():
        assert pinned[name] in requirement.specifier
    seen, waiting = set(), list(setup_requirements(section, key))
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        assert name in pinned, f"{name} would be installed without a pin"
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(needed.name))
