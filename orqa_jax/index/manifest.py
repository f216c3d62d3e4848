"""The manifest of an index folder: what it was made from, and whether that is what is asked for."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orqa_jax.checksums import describe_files
from orqa_jax.errors import OrqaError

NAME = "manifest.json"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes `value` so that `path` holds the whole of it or what it held before."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_manifest(folder: Path, manifest: Mapping[str, Any], *, name: str = NAME) -> None:
    """Writes the manifest of a folder that is complete but for it, with checksums of its files."""
    write_json(folder / name, {**manifest, "files": describe_files(folder)})


def read_manifest(
    folder: Path, what: str, *, schema: int, fingerprints: Mapping[str, str], remedy: str
) -> dict[str, Any]:
    """The manifest in `folder`, known to be complete and of what is at hand.

    Args:
      folder: holds `manifest.json`, written last.
      what: names the thing in messages, such as "block embeddings".
      schema: the version this code reads.
      fingerprints: from a word such as "corpus" to the fingerprint that `<word>_fingerprint` in the
        manifest must equal.
      remedy: how to make the thing again, as an imperative.

    Raises:
      OrqaError: nothing finished is there, it has another schema or another fingerprint.
    """
    path = folder / NAME
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = {word: manifest[f"{word}_fingerprint"] for word in fingerprints}
        found_schema = manifest["schema"]
    except FileNotFoundError:
        raise OrqaError(
            f"{folder} has no {NAME} of {what} (missing or unfinished): {remedy}."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OrqaError(f"{path} is not a manifest of {what} ({error!r}): {remedy}.") from error
    if found_schema != schema:
        raise OrqaError(
            f"{folder} holds {what} of schema {found_schema}, but this version of orqa_jax reads"
            f" schema {schema}: {remedy}."
        )
    for word, expected in fingerprints.items():
        if found[word] != expected:
            raise OrqaError(
                f"{folder} holds {what} made from {word} {str(found[word])[:16]}, not from {word}"
                f" {expected[:16]} as now in use: {remedy}, or use the earlier {word}."
            )
    return manifest


def open_array(
    path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, *, remedy: str
) -> npt.NDArray[Any]:
    """The array in a .npy file, as a read-only memory map of the shape and type of its manifest.

    Raises:
      OrqaError: the file cannot be read, or holds another array.
    """
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise OrqaError(f"{path} cannot be read ({error}): {remedy}.") from error
    if array.shape != shape or array.dtype != dtype:
        raise OrqaError(
            f"{path} holds {array.dtype} {array.shape}, but its manifest says"
            f" {np.dtype(dtype)} {shape}: {remedy}."
        )
    return array
