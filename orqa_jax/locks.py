"""One writer at a time: a lock beside what is written, which names who holds it.

The operating system keeps the lock (flock), so that of a process that died blocks nobody, however
it died.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from orqa_jax.errors import OrqaError

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Keeps all others who ask from writing ``path`` while the context lasts.

    The lock is the file ``<path>.lock``; its folder is made where it is missing.

    Raises:
      OrqaError: Another process holds it (the message names that one), or the file cannot be made.
    """
    # Where a path leads may be spelt in several ways.
    path = Path(os.path.realpath(path))
    lock = path.with_name(path.name + ".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        opened = _lock_file(lock)
    except BlockingIOError:
        raise OrqaError(
            f"{path} is being written by {_holder(lock)}; wait for it, or choose another folder."
        ) from None
    except OSError as error:
        raise OrqaError(
            f"{lock} cannot be made ({error.strerror}); choose a place that can be written."
        ) from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(opened)


def _lock_file(lock: Path) -> int:
    while True:
        opened = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                    raise
                logger.warning("%s: this file system has no locks, so keep others away.", lock)
            # The one before may have removed the file between our opening and our locking it.
            if _is_at(lock, opened):
                about = {
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                    "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                    "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                }
                os.ftruncate(opened, 0)
                os.pwrite(opened, json.dumps(about).encode(), 0)
                return opened
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)


def _is_at(path: Path, opened: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False


def _holder(lock: Path) -> str:
    """Who holds a lock, for people."""
    try:
        about = json.loads(lock.read_text(encoding="utf-8"))
        return (
            f"process {about['pid']} on {about['host']} "
            f"(`{about['command']}`, since {about['since']})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "another process, which has just begun"
