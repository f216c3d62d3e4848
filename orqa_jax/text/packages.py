"""Data that installed packages carry."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package_folder(name: str) -> Path | None:
    """Where an installed package keeps its files; None where it is not installed.

    It is found, not imported: such packages import dependencies that their data does not need.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])
