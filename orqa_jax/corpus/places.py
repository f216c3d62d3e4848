"""Which blocks hold a place of a document."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orqa_jax.corpus.store import BlockStore


def blocks_of_documents(store: BlockStore, documents: Collection[str]) -> dict[str, list[int]]:
    """The blocks of each of `documents` in order; those that the corpus does not have are absent.

    One pass over the ids of all blocks, so ask for many at once.
    """
    wanted = pa.array(list(documents), pa.string())
    found: dict[str, list[int]] = {}
    for shard in store.shards:
        ids = shard.batch.column("document_id")
        for row in np.flatnonzero(pc.is_in(ids, value_set=wanted)).tolist():
            found.setdefault(ids[row].as_py(), []).append(shard.first_block + row)
    return found


def block_at(store: BlockStore, blocks: Collection[int], start: int) -> int | None:
    """Which of `blocks`, all of one document, holds character `start` of its text."""
    for block in blocks:
        if 0 <= start - store.document_start(block) < len(store.text(block)):
            return block
    return None
