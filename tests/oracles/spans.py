"""Span scores and span candidates in numpy, one span at a time."""

import numpy as np
from oracles.bert import layer_norm


def span_logits(start, end, norm_scale, norm_bias, kernel, bias, width):
    """[B, L, W] of start and end projections [B, L, D]; NaN where a span runs past the end."""
    batch, length, _ = start.shape
    logits = np.full((batch, length, width), np.nan)
    for b, s, w in np.ndindex(logits.shape):
        if s + w < length:
            hidden = np.maximum(start[b, s].astype(np.float64) + end[b, s + w], 0.0)
            logits[b, s, w] = (
                layer_norm(hidden, norm_scale, norm_bias, eps=1e-3) @ kernel[:, 0] + bias[0]
            )
    return logits


def span_mask(block_mask, starts_word, ends_word, width):
    batch, length = block_mask.shape
    mask = np.zeros((batch, length, width), bool)
    for b, s, w in np.ndindex(mask.shape):
        mask[b, s, w] = (
            s + w < length
            and bool(block_mask[b, s : s + w + 1].all())
            and bool(starts_word[b, s])
            and bool(ends_word[b, s + w])
        )
    return mask
