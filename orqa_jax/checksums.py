"""Checksums of the files of a finished artefact: kept in its manifest, compared by `orqa check`.

They are MurmurHash3 (128 bits), at the speed of the disk: they tell damage, not forgery.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import mmh3

from orqa_jax.errors import OrqaError

_PART_BYTES = 1 << 22


def checksum(path: Path, read: Callable[[int], Any] = lambda count: None) -> str:
    """The checksum of a file's content, 32 hexadecimal digits; ``read`` is told of progress."""
    digest = mmh3.mmh3_x64_128()
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            read(len(part))
    return digest.digest().hex()


def describe_files(folder: Path, names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """What a manifest says of files below ``folder``, of all by default: their bytes and checksum.

    The keys are paths from ``folder`` with forward slashes.
    """
    if names is None:
        files = (path for path in folder.rglob("*") if path.is_file())
        names = sorted(path.relative_to(folder).as_posix() for path in files)
    return {
        name: {"bytes": (folder / name).stat().st_size, "checksum": checksum(folder / name)}
        for name in names
    }


def check_files(
    folder: Path,
    described: Mapping[str, Mapping[str, Any]],
    read: Callable[[int], Any] = lambda count: None,
) -> None:
    """Compares files below ``folder`` with what a manifest says of them.

    Raises:
      OrqaError: One is missing, cannot be read, is of another size, or holds something else.
    """
    for name, expected in described.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != expected["bytes"]:
                raise OrqaError(f"{path} has {size} bytes, {expected['bytes']} were written")
            found = checksum(path, read)
        except OSError as error:
            raise OrqaError(f"{path} cannot be read ({error.strerror})") from error
        if found != expected["checksum"]:
            raise OrqaError(
                f"{path} has the checksum {found[:12]}, that of what was written is "
                f"{expected['checksum'][:12]}"
            )
