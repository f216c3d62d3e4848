"""Folders that take the place of others, and copies to object stores and back (fsspec).

gs:// needs the extra ``gcs``.

Block stores, vectors and models are memory-mapped, so they are copied to a local disk before they
are used. Checkpoints are written where they stay; Orbax does that itself.
"""

import contextlib
import datetime
import logging
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec

from orqa_jax.errors import OrqaError

_AT_ONCE = 8

logger = logging.getLogger(__name__)


def is_url(path: str) -> bool:
    """Whether a path names an object store, as gs://bucket/folder does."""
    return "://" in path


def replace_folder(partial: Path, folder: Path) -> None:
    """Puts a finished folder in the place of ``folder``, which is there whole or not at all.

    Killed between two renames, it leaves what was there before as ``<folder>.old``; see
    `recover_folder`.
    """
    old = _old(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Brings back what a killed `replace_folder` had put aside, where nothing took its place."""
    old = _old(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def _old(folder: Path) -> Path:
    return folder.with_name(folder.name + ".old")


def copy(source: str, target: str) -> int:
    """Brings ``target`` up to date with a file or folder; returns how many files were copied.

    Nothing is removed from the target, and a file there that is newer stays, so the hosts of a pod
    may all copy to the same place. A local file gets the time of its original and is there as a
    whole or not at all. Manifests and the like (.json) come last, when what they speak of is there.

    Raises:
      OrqaError: The source is missing, or the store or its library cannot be reached.
    """
    with _explained(f"{source} could not be copied to {target}"):
        from_fs, from_path = fsspec.core.url_to_fs(source)
        to_fs, to_path = fsspec.core.url_to_fs(target)
        if from_fs.isfile(from_path):
            pairs = [(from_path, to_path)]
        else:
            names = sorted(from_fs.find(from_path), key=lambda name: name.endswith(".json"))
            if not names:
                raise OrqaError(f"There is nothing at {source}; check the path.")
            start = len(from_path.rstrip("/")) + 1
            pairs = [(name, posixpath.join(to_path, name[start:])) for name in names]

        def copy_one(pair: tuple[str, str]) -> bool:
            if not _is_older(to_fs, pair[1], from_fs, pair[0]):
                return False
            _copy_file(from_fs, pair[0], to_fs, pair[1])
            return True

        first = [pair for pair in pairs if not pair[0].endswith(".json")]
        last = pairs[len(first) :]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            copied = sum(pool.map(copy_one, first))
        copied += sum(map(copy_one, last))
    logger.info("%s: %d of %d files copied to %s.", source, copied, len(pairs), target)
    return copied


def _is_older(fs: Any, path: str, than_fs: Any, than_path: str) -> bool:
    """Whether the file at ``path`` is missing, older, or as old and of another size."""
    try:
        time, size = _milliseconds(fs.modified(path)), fs.size(path)
    except FileNotFoundError:
        return True
    original = _milliseconds(than_fs.modified(than_path))
    return time < original or (time == original and size != than_fs.size(than_path))


def _milliseconds(time: datetime.datetime) -> int:
    """Time since 1970 as the least exact of the stores keep it."""
    return round(1000 * time.timestamp())


def _copy_file(from_fs: Any, source: str, to_fs: Any, target: str) -> None:
    if not isinstance(to_fs, fsspec.implementations.local.LocalFileSystem):
        to_fs.makedirs(posixpath.dirname(target), exist_ok=True)
        with from_fs.open(source, "rb") as reader, to_fs.open(target, "wb") as writer:
            while part := reader.read(1 << 24):
                writer.write(part)
        return
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    # Hosts that share a disk may copy the same file at the same time.
    partial = Path(f"{target}.partial-{uuid.uuid4().hex}")
    try:
        from_fs.get_file(source, str(partial))
        time = from_fs.modified(source).timestamp()
        os.utime(partial, (time, time))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OrqaError:
        raise
    except ImportError as error:
        raise OrqaError(
            f"{what}: its library is not installed ({error}); gs:// needs "
            "`pip install orqa_jax[gcs]`."
        ) from error
    except Exception as error:  # each store's library has errors of its own
        raise OrqaError(f"{what}: {type(error).__name__}: {error}.") from error
