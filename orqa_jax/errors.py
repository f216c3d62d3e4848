"""The one exception that is meant for the person at the terminal, and what the machine refuses."""

import errno
from collections.abc import Iterator


class OrqaError(Exception):
    """Something the user can put right.

    The message is one clear sentence that names the thing and the way out. The command line prints
    it without a traceback and exits with status 2.
    """


# A quota and the largest file of a shell's `ulimit -f` are full as a disk is.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
# As libraries have it in their messages; numpy's is "9 requested and 3 written", without a number.
_FULL_WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    " requested and ",
)
_FORBIDDEN_WORDS = ("Permission denied", "Read-only file system", "Operation not permitted")
_MEMORY_WORDS = ("RESOURCE_EXHAUSTED", "Out of memory")


def explain_refusal(error: BaseException, *, lower: str) -> str | None:
    """One sentence for want of memory, of disk or of permission; None for any other error.

    Args:
      error: As it was caught; what caused it counts too.
      lower: The settings that would need less memory, for the sentence.
    """
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        where = f" {cause.filename}" if isinstance(cause, OSError) and cause.filename else ""
        text = str(cause)
        if number in _FULL or any(words in text for words in _FULL_WORDS):
            return (
                f"There is no room left to write{where}: {_first_line(cause)}; free some space, "
                "and the same command continues where it can."
            )
        if number in _FORBIDDEN or any(words in text for words in _FORBIDDEN_WORDS):
            return (
                f"It is not permitted to write or read{where}: {_first_line(cause)}; change the "
                "permissions, or choose another place."
            )
        if isinstance(cause, MemoryError) or any(words in text for words in _MEMORY_WORDS):
            return f"There is not enough memory ({_first_line(cause)}); lower {lower}."
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        cause = waiting.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [c for c in (cause.__context__, cause.__cause__) if c is not None]
        waiting += getattr(cause, "exceptions", ())


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}".rstrip(": ")
