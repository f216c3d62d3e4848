"""Imports go down the floors of the design only, and the lower floors stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import orqa_jax

PACKAGE = Path(orqa_jax.__file__).parent
FLOORS = {
    **dict.fromkeys(["errors"], -1),
    **dict.fromkeys(["checksums", "locks", "storage"], 0),
    **dict.fromkeys(["text"], 0),
    **dict.fromkeys(["eval"], 1),
    **dict.fromkeys(["corpus", "qa"], 2),
    **dict.fromkeys(["models", "losses"], 3),
    **dict.fromkeys(["index"], 4),
    **dict.fromkeys(["train", "report"], 5),
    **dict.fromkeys(["check", "predict"], 6),
    **dict.fromkeys(["baselines", "fit"], 7),
    **dict.fromkeys(["serve"], 8),
    **dict.fromkeys(["cli"], 9),
}
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "torch", "tensorflow"}
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)


def floor(module: str) -> int:
    return FLOORS[module.split(".")[1]]


def path_of(module: str) -> Path:
    folder = PACKAGE.parent / Path(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def imported(module: str) -> set[str]:
    """Full names of all that a module imports, at any depth of its code."""
    names = set()
    for node in ast.walk(ast.parse(path_of(module).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_every_module_has_a_floor() -> None:
    rooms = {module.split(".")[1] for module in MODULES if "." in module}
    assert rooms <= FLOORS.keys()
    assert imported("orqa_jax") == set()


@pytest.mark.parametrize("module", [module for module in MODULES if "." in module])
def test_imports_go_down(module: str) -> None:
    for name in imported(module):
        parts = name.split(".")
        if parts[0] == "orqa_jax" and parts[1] in FLOORS:
            own_room = parts[1] == module.split(".")[1]
            assert own_room or floor(name) < floor(module), f"{module} imports {name}"
        # Models and losses know arrays; of the corpus, of questions and scores they know nothing.
        if parts[0] == "orqa_jax" and parts[1] in FLOORS and floor(module) == 3:
            assert floor(name) in (-1, 0, 3), f"{module} imports {name}"
        if floor(module) <= 2:
            assert parts[0] not in HEAVY, f"{module} imports {name}"


def test_lower_floors_do_not_load_jax() -> None:
    light = [module for module in MODULES if "." in module and floor(module) <= 2]
    code = f"import sys, {', '.join(light)}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert HEAVY.isdisjoint(loaded.stdout.split())
