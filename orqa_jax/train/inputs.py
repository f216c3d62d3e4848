"""Padded encoder inputs from wordpieces, the one place where [CLS], [SEP] and padding are set; and
the order in which batches of them are made ahead of the step that needs them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grain
import numpy as np
from absl import flags

from orqa_jax.corpus.store import BlockStore, Ragged
from orqa_jax.text.wordpiece import WordPiece

Inputs = dict[str, np.ndarray]


def question_inputs(tokenizer: WordPiece, questions: Sequence[np.ndarray], length: int) -> Inputs:
    """``[CLS] question [SEP]``: ``token_ids`` int32 and ``mask`` bool, both [B, length].

    A question longer than ``length - 2`` wordpieces loses its end.
    """
    token_ids_BL = np.full((len(questions), length), tokenizer.pad_id, np.int32)
    mask_BL = np.zeros((len(questions), length), bool)
    for row, ids in enumerate(questions):
        ids = ids[: length - 2]
        token_ids_BL[row, 0] = tokenizer.cls_id
        token_ids_BL[row, 1 : 1 + len(ids)] = ids
        token_ids_BL[row, 1 + len(ids)] = tokenizer.sep_id
        mask_BL[row, : len(ids) + 2] = True
    return {"token_ids": token_ids_BL, "mask": mask_BL}


def pair_inputs(tokenizer: WordPiece, firsts: Ragged, seconds: Ragged, length: int) -> Inputs:
    """``[CLS] first [SEP] second [SEP]``, padded to ``length``.

    Returns ``token_ids``, ``mask``, ``segment_ids`` and ``second_mask``, all [B, length].
    ``segment_ids`` is 1 on the second part and its [SEP]; ``second_mask`` is
    True on the wordpieces of the second part alone. What is too long loses the end of its second
    part. No loop over rows: this is on the hot path of encoding and of fine-tuning.
    """
    first_length_B = np.minimum(np.diff(firsts.offsets), length - 3)
    second_length_B = np.minimum(np.diff(seconds.offsets), length - 3 - first_length_B)
    second_start_B = first_length_B + 2
    end_B = second_start_B + second_length_B
    position_L = np.arange(length)
    in_first_BL = (position_L >= 1) & (position_L < 1 + first_length_B[:, None])
    in_second_BL = (position_L >= second_start_B[:, None]) & (position_L < end_B[:, None])

    token_ids_BL = np.full(in_first_BL.shape, tokenizer.pad_id, np.int32)
    token_ids_BL[:, 0] = tokenizer.cls_id
    rows = np.arange(len(token_ids_BL))
    token_ids_BL[rows, 1 + first_length_B] = tokenizer.sep_id
    token_ids_BL[rows, end_B] = tokenizer.sep_id
    first_start_B = np.ones_like(second_start_B)
    for inside_BL, part, start_B in (
        (in_first_BL, firsts, first_start_B),
        (in_second_BL, seconds, second_start_B),
    ):
        row, column = np.nonzero(inside_BL)
        token_ids_BL[row, column] = part.values[part.offsets[row] + column - start_B[row]]
    segment_ids_BL = (position_L >= second_start_B[:, None]) & (position_L <= end_B[:, None])
    return {
        "token_ids": token_ids_BL,
        "mask": position_L <= end_B[:, None],
        "segment_ids": segment_ids_BL.astype(np.int32),
        "second_mask": in_second_BL,
    }


def block_inputs(store: BlockStore, tokenizer: WordPiece, ids: np.ndarray, length: int) -> Inputs:
    """``[CLS] title [SEP] block [SEP]`` of the blocks ``ids`` [B], see ``pair_inputs``."""
    inputs = pair_inputs(tokenizer, store.titles(ids), store.tokens(ids), length)
    del inputs["second_mask"]
    return inputs


def ragged(rows: Sequence[np.ndarray]) -> Ragged:
    """Packs a list of arrays into one flat array with offsets."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return Ragged(values.astype(np.int32), offsets)


# Batches that wait ready for their step, and threads that make them where no processes do.
_BATCHES_AHEAD = 4


def batch_iterator(
    batch: Callable[[int], Any], steps: range, *, workers: int = 0
) -> Iterator[dict[str, Any]]:
    """Yields ``batch(step)`` for each of ``steps`` in their order, made ahead of time.

    With ``workers``, so many processes make them; ``batch`` is then sent there by pickle, and must
    not touch jax.
    """
    order: Any = (
        grain.MapDataset.source(steps)
        .map(batch)
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=_BATCHES_AHEAD))
    )
    if workers:
        if (
            not flags.FLAGS.is_parsed()
        ):  # Grain asks for flags of its own, which only absl's app sets
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
        order = order.mp_prefetch(options)
    return iter(order)


def timed(batches: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """Yields each batch and the seconds for which the loop waited for it.

    The devices still work on the step before at that time, so their own wait is shorter.
    """
    asked = time.perf_counter()
    for batch in batches:
        yield batch, time.perf_counter() - asked
        asked = time.perf_counter()
