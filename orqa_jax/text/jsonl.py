"""Text, JSON and JSON Lines files, compressed or not; every defect named by file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orqa_jax.errors import OrqaError

# What fits into memory several times over, and more than any file has that was meant.
LONGEST_LINE = 100_000_000
_LARGEST_JSON = 4 << 30
# What a file raises that is cut short or damaged, compressed or not.
DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error)

_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


def open_bytes(path: Path) -> Any:
    """Opens a file for reading; .gz, .bz2 and .xz are decompressed.

    Raises:
        OrqaError: it cannot be opened.
    """
    try:
        return _OPENERS.get(path.suffix, lambda path: path.open("rb"))(path)
    except OSError as error:
        raise OrqaError(f"{path} cannot be read ({error}); check the path and the file.") from error


def limited_lines(path: str | os.PathLike[str], file: Any) -> Iterator[bytes]:
    """The lines of a file of bytes, a few megabytes of which may stand for gigabytes.

    Raises:
        OrqaError: a line is longer than `LONGEST_LINE`.
    """
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise OrqaError(
                f"{path}:{number} is a line of more than {LONGEST_LINE:,} bytes; the file is "
                "damaged, or not of this kind."
            )
        yield line


def read_limited(path: str | os.PathLike[str], file: Any, most: int) -> bytes:
    """All that is left of a file of bytes, in memory for what there is and not for the most.

    Raises:
        OrqaError: that is more than `most` bytes.
    """
    parts, size = [], 0
    while part := file.read(1 << 20):
        parts.append(part)
        size += len(part)
        if size > most:
            raise OrqaError(f"{path} is a document of more than {most:,} bytes; divide it.")
    return b"".join(parts)


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("file:line", object) for each line that is not blank.

    The file is plain or .gz, .bz2 or .xz; a UTF-8 byte order mark is skipped.

    Raises:
        OrqaError: the file cannot be read, or a line is not a JSON object in UTF-8.
    """
    for where, line in _read_lines(Path(path)):
        if line.strip():
            yield where, _parse(where, line)


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """Yields ("file:line", text) for each line, without its end; see `read_jsonl`.

    Raises:
        OrqaError: the file cannot be read, or is not UTF-8.
    """
    for where, line in _read_lines(Path(path)):
        try:
            yield where, line.decode("utf-8").rstrip("\r\n")
        except ValueError as error:
            raise OrqaError(f"{where} is not UTF-8 ({error}).") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a whole JSON file, plain or .gz, .bz2 or .xz.

    Raises:
        OrqaError: the file cannot be read, or is not JSON in UTF-8.
    """
    path = Path(path)
    try:
        with open_bytes(path) as file:
            content = read_limited(path, file, _LARGEST_JSON)
    except DAMAGE as error:
        raise OrqaError(f"{path} cannot be read ({error}); check the path and the file.") from error
    try:
        return _parse_json(content.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise OrqaError(f"{path} is not JSON in UTF-8 ({error}).") from error


def _parse_json(content: bytes) -> Any:
    text = content.decode("utf-8")
    value = json.loads(text)
    if "\\u" in text:
        # Escapes can spell half a character ("\\ud800"), which nothing could print later.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(limited_lines(path, file), start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                yield f"{path}:{number}", line
    except DAMAGE as error:
        raise OrqaError(f"{path} cannot be read ({error}); check the path and the file.") from error


def _parse(where: str, line: bytes) -> dict[str, Any]:
    try:
        record = _parse_json(line)
    except (ValueError, RecursionError) as error:
        raise OrqaError(
            f"{where} is not JSON in UTF-8 ({error}); the file needs one JSON object a line."
        ) from error
    if not isinstance(record, dict):
        raise OrqaError(
            f"{where} holds a JSON {type(record).__name__}; the file needs one JSON object a line."
        )
    return record


def record_id(where: str, record: dict[str, Any], default: str | None = None) -> str:
    """The `id` of a record as a string; whole numbers are accepted.

    Raises:
        OrqaError: the id is missing without a default, empty, or neither text nor a whole number.
    """
    value = record.get("id")
    if value is None:
        value = default
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise OrqaError(f"{where} needs an 'id' that is a text or a whole number.")
    return value
