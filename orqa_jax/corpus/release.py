"""The corpus of the 2019 release: `blocks.tfr`, `titles.tfr` and `examples.tfr` as a block store.

The i-th record of each file belongs to block i: its text, its title, and its wordpieces with those
of the title and the sentence breaks. Blocks keep their numbers, so that the released block
embeddings fit.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from orqa_jax.corpus.build import StoreWriter, check_out, partial_folder
from orqa_jax.corpus.store import MANIFEST_NAME, SCHEMA, SCHEMA_VERSION, TOKENIZER_NAME, BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.text.protobuf import read_fields, unpack_varints
from orqa_jax.text.wordpiece import WordPiece

logger = logging.getLogger(__name__)

# Blocks written, and reported, together.
_BATCH = 50_000
# Blocks whose wordpieces are compared with those of the tokenizer at hand, and how many may differ:
# the release's own tokenizer treats a few characters otherwise.
_CHECKED, _MAY_DIFFER = 100, 10


def import_release_corpus(folder: Path, out: Path, tokenizer: WordPiece) -> BlockStore:
    """Turns the three files into a block store.

    A document's id is its title, and its text its blocks with a space between them.

    Args:
        folder: holds blocks.tfr, titles.tfr and examples.tfr.
        out: folder to make.
        tokenizer: of the BERT that the release was made for (uncased, English).

    Raises:
        OrqaError: a file is missing, damaged or of another length than the others, or more than
            a tenth of the first 100 blocks are other wordpieces under this tokenizer.
    """
    out = out.absolute()
    check_out(out, [folder])
    names = ("blocks.tfr", "titles.tfr", "examples.tfr")
    paths = [folder / name for name in names]
    with partial_folder(out) as partial:
        tokenizer.save(partial / TOKENIZER_NAME)
        writer = StoreWriter(partial)
        documents, longest, last_title, offset = 0, 0, None, 0
        rows: list[tuple[Any, ...]] = []

        def write_rows() -> None:
            if not writer.blocks:
                _check_tokenizer(folder, rows[:_CHECKED], tokenizer)
            writer.add(_record_batch(rows))
            rows.clear()

        records = tqdm(
            zip_longest(*map(read_tfrecords, paths)),
            unit="block",
            disable=not sys.stderr.isatty(),
            file=sys.stderr,
        )
        with records:
            for number, (block, title_bytes, example) in enumerate(records):
                if None in (block, title_bytes, example):
                    raise OrqaError(
                        f"The files {', '.join(names)} in {folder} are not of the same length: one "
                        f"of them ends after {number:,} blocks; copy all three again."
                    )
                text = _decode(paths[0], number, block)
                title = _decode(paths[1], number, title_bytes)
                ids = _example(paths[2], number, example)
                if title != last_title:
                    documents, last_title, offset = documents + 1, title, 0
                longest = max(longest, len(ids["title_ids"]) + len(ids["token_ids"]) + 3)
                sentences = ids["sentence_starts"]
                rows.append(
                    (title, text, ids["title_ids"], ids["token_ids"], sentences, title, offset)
                )
                offset += len(text) + 1
                if len(rows) == _BATCH:
                    write_rows()
                    if records.disable:
                        logger.info("%s blocks", f"{writer.blocks:,}")
        if rows:
            write_rows()
        if not writer.blocks:
            raise OrqaError(f"{paths[0]} holds no blocks; copy it again.")
        shards, fingerprint = writer.finish()
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": fingerprint,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "max_wordpieces": longest,
            "documents": documents,
            "skipped": {},
            "blocks": writer.blocks,
            "wordpieces": writer.wordpieces,
            "sources": [str(path) for path in paths],
            "shards": shards,
        }
        (partial / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        os.rename(partial, out)
    logger.info("%s: %s blocks of %s documents.", out, f"{writer.blocks:,}", f"{documents:,}")
    return BlockStore(out)


def read_tfrecords(path: Path) -> Iterator[bytes]:
    """Yields the records of a TFRecord file. The checksums of the contents are not computed.

    Raises:
        OrqaError: the file is missing, or ends within a record.
    """
    try:
        with path.open("rb", buffering=1 << 20) as file:
            number = 0
            while header := file.read(12):
                number += 1
                if len(header) < 12:
                    raise OrqaError(f"{path} ends within record {number}; copy it again.")
                (length,) = struct.unpack("<Q", header[:8])
                # The lengths' checksums are left alone as well; no record is as long as this.
                if length > 1 << 30:
                    raise OrqaError(
                        f"{path} is no TFRecord file, or damaged at record {number}; copy it again."
                    )
                # Asked for more than there is, Python takes the memory for it first.
                content = b""
                if length + 4 <= path.stat().st_size - file.tell():
                    content = file.read(length + 4)
                if len(content) != length + 4:
                    raise OrqaError(f"{path} ends within record {number}; copy it again.")
                yield content[:-4]
    except OSError as error:
        raise OrqaError(
            f"{path} cannot be read ({error.strerror}); give the folder of the three files."
        ) from error


def _decode(path: Path, number: int, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OrqaError(
            f"{path} is not UTF-8 in record {number + 1} ({error.reason}); copy it again."
        ) from error


def _example(path: Path, number: int, content: bytes) -> dict[str, np.ndarray]:
    """The integer features of a tf.train.Example."""
    found = {}
    try:
        (features,) = read_fields(content)[1]
        for entry in read_fields(features)[1]:
            named = read_fields(entry)
            for values in read_fields(named[2][0]).get(3, []):
                packed = b"".join(read_fields(values).get(1, [])) if values else b""
                found[named[1][0].decode()] = unpack_varints(packed).astype(np.int32)
        return {name: found[name] for name in ("title_ids", "token_ids", "sentence_starts")}
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise OrqaError(
            f"{path} has no example of title_ids, token_ids and sentence_starts in record "
            f"{number + 1} ({error!r}); copy it again."
        ) from error


def _check_tokenizer(folder: Path, rows: list[tuple[Any, ...]], tokenizer: WordPiece) -> None:
    encoded = tokenizer.encode([text for _, text, *_ in rows])
    differ = sum(
        not np.array_equal(ours.ids, token_ids)
        for ours, (_, _, _, token_ids, *_) in zip(encoded, rows, strict=True)
    )
    if differ > len(rows) * _MAY_DIFFER / _CHECKED:
        raise OrqaError(
            f"Of the first {len(rows)} blocks in {folder}, {differ} are other wordpieces under "
            "this tokenizer; give the one of the uncased English BERT that the release was made "
            "with."
        )


def _record_batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)
