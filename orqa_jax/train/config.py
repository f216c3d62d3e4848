"""Settings from config files and command lines into the dataclasses of the experiments."""

import dataclasses
import difflib
import importlib.util
import inspect
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from orqa_jax.errors import OrqaError

Config = TypeVar("Config")


def make_config(cls: type[Config], values: Mapping[str, Any]) -> Config:
    """Builds the dataclass ``cls``; nothing is ignored.

    Raises:
      OrqaError: A key is unknown, missing or of the wrong type; the sentence names it.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(fields)}."
            raise OrqaError(f"{cls.__name__} has no setting {key}; {hint}")
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            flag = "--" + name.replace("_", "-")
            raise OrqaError(
                f"{cls.__name__} needs the setting {name}; give it in the config file, or as "
                f"{flag} (a run folder, --run, sets the places within it)."
            )
    return cls(**{key: _checked(key, hints[key], value) for key, value in values.items()})


def _checked(key: str, hint: Any, value: Any) -> Any:
    choices = get_args(hint)
    if choices:
        if value not in choices:
            raise OrqaError(f'{key} is "{value}"; it can be {" or ".join(map(repr, choices))}.')
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise OrqaError(f"{key} is {value!r}, but it must be of type {hint.__name__}.")
    return value


def describe_fields(cls: Any) -> dict[str, str]:
    """What the docstring of a dataclass says of each field under ``Attributes:``, by name."""
    _, _, listed = inspect.getdoc(cls).partition("\nAttributes:\n")  # type: ignore[union-attr]
    found: dict[str, str] = {}
    name = ""
    for line in listed.splitlines():
        if entry := re.fullmatch(r"  (\w+): (.*)", line):
            name, found[entry[1]] = entry[1], entry[2]
        elif line.strip():
            found[name] += " " + line.strip()
    return found


def check_at_least(config: Any, **least: int) -> None:
    """Raises ``OrqaError`` naming the first setting that is below its least value, or infinite."""
    for name, value in least.items():
        if not value <= getattr(config, name) < math.inf:
            raise OrqaError(f"{name} is {getattr(config, name)}; it has to be at least {value}.")


# Settings of several trainings, and what they may be.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "learning_rate": (lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
    "dropout": (lambda value: 0.0 <= value < 1.0, "from 0 to below 1"),
    "epochs": (lambda value: value > 0.0, "above 0"),
    "warmup_share": (lambda value: 0.0 <= value <= 1.0, "between 0 and 1"),
    "mask_rate": (lambda value: 0.0 <= value <= 1.0, "between 0 and 1"),
    "reading_share": (lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
}


def check_ranges(config: Any) -> None:
    """Raises ``OrqaError`` naming the first rate, share or choice that cannot be."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if get_args(hints[field.name]):
            _checked(field.name, hints[field.name], value)
        allowed, told = _RANGES.get(field.name, (lambda value: True, ""))
        if not allowed(value):
            raise OrqaError(f"{field.name} is {value}; it has to be {told}.")


def load_config_file(path: Path) -> dict[str, Any]:
    """Runs ``get_config()`` of a Python config file, as ml_collections does, and returns its keys.

    Raises:
      OrqaError: The file is missing or has no ``get_config``.
    """
    if not path.is_file():
        raise OrqaError(f"There is no config file {path}; give the path of a Python file.")
    spec = importlib.util.spec_from_file_location("orqa_config_file", path)
    if spec is None or spec.loader is None:
        raise OrqaError(f"{path} is not a Python file; a config file ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return dict(module.get_config())
    except OrqaError:
        raise
    except Exception as error:
        raise OrqaError(
            f"The config file {path} failed: {type(error).__name__}: {error}"
        ) from error
