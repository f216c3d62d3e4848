"""The losses of ORQA (Lee et al. 2019, arXiv:1906.00300) as functions of float32 scores.

Each returns one value for each question; weighting and averaging are the caller's.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def in_batch_softmax_loss(
    question_BP: jax.Array,
    block_MP: jax.Array,
    target_B: jax.Array,
    allowed_BM: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Inverse Cloze Task: tell the own block from M - 1 others (section 4).

    Args:
      question_BP: float32 vectors of the pseudo-questions.
      block_MP: float32 vectors of the M blocks.
      target_B: int32, the row of each question's own block.
      allowed_BM: bool, False takes a block out of a question's negatives (a duplicate of its own
        block, say). All are allowed by default; the own block always is.

    Returns:
      loss_B: float32, the cross entropy of the own block.
      correct_B: bool, True where every other allowed block scores lower; a tie is not correct.
    """
    # Full precision costs nothing beside the encoders, and accelerators would round to bfloat16.
    scores_BM = jnp.einsum("bp,mp->bm", question_BP, block_MP, precision=jax.lax.Precision.HIGHEST)
    own_BM = jnp.arange(block_MP.shape[0])[None, :] == target_B[:, None]
    others_BM = ~own_BM if allowed_BM is None else ~own_BM & allowed_BM
    log_likelihood_B, _ = marginal_log_likelihood(scores_BM, own_BM, own_BM | others_BM)
    own_score_B = jnp.max(scores_BM, axis=1, where=own_BM, initial=-jnp.inf)
    best_other_B = jnp.max(scores_BM, axis=1, where=others_BM, initial=-jnp.inf)
    return -log_likelihood_B, own_score_B > best_other_B


def marginal_log_likelihood(
    scores_BX: jax.Array, correct_BX: jax.Array, mask_BX: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log probability that a softmax over candidates gives to the correct ones together.

    Section 6: X is the C blocks of the early update, or all spans of the K blocks that are read.

    Args:
      scores_BX: float32. Where the mask is False they may be anything, NaN and infinity included.
      correct_BX: bool; correct candidates outside the mask do not count.
      mask_BX: bool, the candidates.

    Returns:
      log_likelihood_B: float32, at most 0; exactly 0, with a gradient of exactly 0, where no
        candidate is correct.
      has_signal_B: bool, True where a candidate is correct.
    """
    correct_BX = correct_BX & mask_BX
    has_signal_B = correct_BX.any(axis=1)
    # A row without signal is replaced before the logarithms, not after: the derivative of a
    # discarded log(0) is NaN all the same.
    signal_B1 = has_signal_B[:, None]
    scores_BX = jnp.where(mask_BX & signal_B1, scores_BX, 0.0)
    mask_BX = mask_BX | ~signal_B1
    correct_BX = correct_BX | ~signal_B1
    # Both sums share one shift, so that large scores do not cancel in the difference of logarithms.
    top_B = jax.lax.stop_gradient(jnp.max(scores_BX, axis=1, where=mask_BX, initial=-jnp.inf))
    shifted_BX = scores_BX - top_B[:, None]

    def log_sum(where_BX: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(jnp.where(where_BX, shifted_BX, -jnp.inf), axis=1)

    log_likelihood_B = log_sum(correct_BX) - log_sum(mask_BX)
    return jnp.where(has_signal_B, log_likelihood_B, 0.0), has_signal_B
