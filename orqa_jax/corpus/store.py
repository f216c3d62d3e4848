"""The block store: a folder of memory-mapped Arrow files and a manifest.

Layout of the folder::

    manifest.json        schema version, fingerprints, counts, the list of shards
    blocks-00000.arrow   Arrow IPC file, uncompressed, one record batch; then 00001, ...
    tokenizer/           the tokenizer that made the wordpieces

A block's number is its row, counted over the shards in order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orqa_jax.errors import OrqaError
from orqa_jax.text.languages import DEFAULT

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer"

_WORDPIECES = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [
        pa.field("title", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("title_ids", _WORDPIECES, nullable=False),
        pa.field("token_ids", _WORDPIECES, nullable=False),
        pa.field("sentence_starts", _WORDPIECES, nullable=False),
        pa.field("document_id", pa.string(), nullable=False),
        pa.field("document_start", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, end to end: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: int32 [total].
        offsets: int64 [rows + 1].
    """

    values: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """Consecutive blocks in one memory-mapped file, for scans over the whole corpus.

    Block ``first_block + i`` has the wordpieces ``token_values[token_offsets[i]:token_offsets[i +
    1]]``; likewise for its title and its sentence starts. All arrays are views of the file.

    Attributes:
        first_block: number of the shard's first block.
        batch: the Arrow record batch, with the columns of `SCHEMA`.
        token_values, title_values, sentence_values: int32 [total].
        token_offsets, title_offsets, sentence_offsets: int32 [blocks of the shard + 1].
    """

    first_block: int
    batch: pa.RecordBatch
    token_values: npt.NDArray[np.int32]
    token_offsets: npt.NDArray[np.int32]
    title_values: npt.NDArray[np.int32]
    title_offsets: npt.NDArray[np.int32]
    sentence_values: npt.NDArray[np.int32]
    sentence_offsets: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return self.batch.num_rows


class BlockStore:
    """A finished corpus, opened for reading.

    Opening reads the manifest and the files' footers only; blocks are read when asked for, and the
    arrays of wordpieces are views of the files. `build_corpus` makes the folder.

    Attributes:
        folder: where the store lies.
        manifest: content of manifest.json.
        fingerprint: sha256, in hex, of all blocks in order.
        tokenizer_fingerprint: fingerprint of the `WordPiece` that made the wordpieces.
        tokenizer_folder: folder for `WordPiece.load`.
        max_wordpieces: limit on ``[CLS] title [SEP] block [SEP]``.
        language: of the documents, as `languages.check_language` knows it.
        earlier: for each fingerprint that the store had before it grew, the number of blocks then;
            they are still its first ones.
        shards: the files, in block order.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Opens the store in `folder`.

        Raises:
            OrqaError: there is no finished store, or it is damaged, or from another version.
        """
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        try:
            self._open()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OrqaError(
                f"{self.folder / MANIFEST_NAME} is not as it was written ({error!r}); copy the "
                "folder again, or build the corpus again."
            ) from error

    def _open(self) -> None:
        self.fingerprint: str = self.manifest["fingerprint"]
        self.tokenizer_fingerprint: str = self.manifest["tokenizer_fingerprint"]
        self.tokenizer_folder = self.folder / TOKENIZER_NAME
        self.max_wordpieces: int = self.manifest["max_wordpieces"]
        # Stores from before there was a choice say nothing.
        self.language: str = self.manifest.get("language", DEFAULT)
        self.earlier: dict[str, int] = {
            state["fingerprint"]: state["blocks"] for state in self.manifest.get("earlier", [])
        }
        self.shards: list[Shard] = []
        self._length = 0
        for entry in self.manifest["shards"]:
            self.shards.append(open_shard(self.folder, entry, first_block=self._length))
            self._length += entry["blocks"]
        self._first_blocks = np.array([shard.first_block for shard in self.shards], np.int64)

    def __len__(self) -> int:
        """Number of blocks, N."""
        return self._length

    def title(self, block: int) -> str:
        """The title of a block's document, in full."""
        return self._value("title", block)

    def text(self, block: int) -> str:
        """The text of a block, exactly as it stands in its document."""
        return self._value("text", block)

    def document_id(self, block: int) -> str:
        """The id that a block's document has in its source."""
        return self._value("document_id", block)

    def document_start(self, block: int) -> int:
        """Character offset of a block in the text of its document, as `read_documents` gives it."""
        return self._value("document_start", block)

    def block_tokens(self, block: int) -> npt.NDArray[np.int32]:
        """Wordpieces of a block's text, int32 [L], a view of the file."""
        shard, row = self._locate(block)
        return shard.token_values[shard.token_offsets[row] : shard.token_offsets[row + 1]]

    def title_tokens(self, block: int) -> npt.NDArray[np.int32]:
        """Wordpieces of a block's title (cut to its share of the limit), int32 [L], a view."""
        shard, row = self._locate(block)
        return shard.title_values[shard.title_offsets[row] : shard.title_offsets[row + 1]]

    def sentence_starts(self, block: int) -> npt.NDArray[np.int32]:
        """Index of the first wordpiece of each sentence of a block, int32, a view; first is 0."""
        shard, row = self._locate(block)
        return shard.sentence_values[shard.sentence_offsets[row] : shard.sentence_offsets[row + 1]]

    def tokens(self, blocks: npt.ArrayLike) -> Ragged:
        """Wordpieces of many blocks, copied in the order asked for.

        Args:
            blocks: integers of any shape; taken in row-major order; repeats are fine.

        Raises:
            IndexError: a number is negative or not below N.
        """
        return self._gather(self._token_rows, blocks)

    def titles(self, blocks: npt.ArrayLike) -> Ragged:
        """Wordpieces of many blocks' titles; see `tokens`."""
        return self._gather(self._title_rows, blocks)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Wordpieces of each block's text, int32 [N]."""
        return np.concatenate([np.diff(shard.token_offsets) for shard in self.shards])

    @cached_property
    def title_lengths(self) -> npt.NDArray[np.int32]:
        """Wordpieces of each block's title, int32 [N]."""
        return np.concatenate([np.diff(shard.title_offsets) for shard in self.shards])

    # Arrow's `take` on binary rows copies each row with one memcpy: three times as fast as an
    # index for every wordpiece in numpy, and as `take` on lists.
    @cached_property
    def _token_rows(self) -> list[pa.BinaryArray]:
        return [_as_binary(shard.token_values, shard.token_offsets) for shard in self.shards]

    @cached_property
    def _title_rows(self) -> list[pa.BinaryArray]:
        return [_as_binary(shard.title_values, shard.title_offsets) for shard in self.shards]

    def _gather(self, rows: Sequence[pa.BinaryArray], blocks: npt.ArrayLike) -> Ragged:
        ids = np.asarray(blocks).ravel()
        if not len(ids):
            return Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))
        if ids.min() < 0 or ids.max() >= len(self):
            raise IndexError(
                f"blocks {ids.min()} to {ids.max()} asked for, of a corpus of {len(self)}"
            )
        if len(rows) == 1:
            return _as_ragged(rows[0].take(pa.array(ids)))
        shard_of = np.searchsorted(self._first_blocks, ids, side="right") - 1
        order = np.argsort(shard_of, kind="stable")
        begins = np.searchsorted(shard_of[order], np.arange(len(rows) + 1))
        taken = [
            rows[s].take(pa.array(ids[order[begins[s] : begins[s + 1]]] - self._first_blocks[s]))
            for s in np.flatnonzero(np.diff(begins)).tolist()
        ]
        back = np.empty(len(ids), np.int64)
        back[order] = np.arange(len(ids))
        return _as_ragged(pa.concat_arrays(taken).take(pa.array(back)))

    def _locate(self, block: int) -> tuple[Shard, int]:
        if not 0 <= block < len(self):
            raise IndexError(f"block {block} asked for, of a corpus of {len(self)}")
        shard = self.shards[int(np.searchsorted(self._first_blocks, block, side="right")) - 1]
        return shard, int(block) - shard.first_block

    def _value(self, column: str, block: int) -> Any:
        shard, row = self._locate(block)
        return shard.batch.column(column)[row].as_py()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the finished store in `folder`.

    Raises:
        OrqaError: none is there, or one that cannot be read or is from another version.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise OrqaError(
            f"There is no finished corpus in {folder}; "
            f"build one with `orqa corpus SOURCE... --out {folder}`."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise OrqaError(f"{path} cannot be read ({error}); build the corpus again.") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise OrqaError(
            f"{folder} holds a corpus of schema version {version} where version {SCHEMA_VERSION} "
            "is needed; build it again with this version of orqa."
        )
    return manifest


def open_shard(folder: Path, entry: dict[str, Any], *, first_block: int) -> Shard:
    """Opens the file of one entry of the manifest's list of shards.

    Raises:
        OrqaError: the file is missing, damaged or another one.
    """
    path = folder / entry["file"]
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise OrqaError(
                f"{path} has {size} bytes where the manifest says {entry['bytes']}; "
                "copy the whole folder again, or build the corpus again."
            )
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except (OSError, pa.ArrowInvalid) as error:
        raise OrqaError(
            f"{path} cannot be read ({error}); copy the whole folder again, "
            "or build the corpus again."
        ) from error
    rows = [batch.num_rows for batch in batches]
    if rows != [entry["blocks"]] or batches[0].schema != SCHEMA:
        raise OrqaError(
            f"{path} does not hold the {entry['blocks']} blocks that the manifest says; "
            "build the corpus again."
        )
    (batch,) = batches
    token_values, token_offsets = _list_arrays(batch.column("token_ids"))
    title_values, title_offsets = _list_arrays(batch.column("title_ids"))
    sentence_values, sentence_offsets = _list_arrays(batch.column("sentence_starts"))
    return Shard(
        first_block=first_block,
        batch=batch,
        token_values=token_values,
        token_offsets=token_offsets,
        title_values=title_values,
        title_offsets=title_offsets,
        sentence_values=sentence_values,
        sentence_offsets=sentence_offsets,
    )


def _list_arrays(column: pa.ListArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    return column.values.to_numpy(), column.offsets.to_numpy()


def _as_binary(values: npt.NDArray[np.int32], offsets: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """Sees rows of int32 as rows of bytes, without a copy of the values."""
    buffers = [None, pa.py_buffer(offsets * np.int32(4)), pa.py_buffer(values)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _as_ragged(rows: pa.BinaryArray) -> Ragged:
    _, offsets, values = rows.buffers()
    ends = np.frombuffer(offsets, np.int32, count=len(rows) + 1).astype(np.int64) // 4
    return Ragged(np.frombuffer(values, np.int32, count=ends[-1]), ends)
