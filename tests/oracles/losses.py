"""The losses in numpy, float64, one question and one candidate at a time."""

import math

import numpy as np


def log_sum_exp(values):
    """log sum exp of a list that may be empty."""
    if not values:
        return -math.inf
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def marginal_log_likelihood(scores, correct, mask):
    log_likelihoods, has_signal = [], []
    for row in range(len(scores)):
        candidates = [float(s) for s, m in zip(scores[row], mask[row], strict=True) if m]
        right = [
            float(s)
            for s, c, m in zip(scores[row], correct[row], mask[row], strict=True)
            if c and m
        ]
        has_signal.append(bool(right))
        top = max(candidates, default=0.0)
        log_likelihoods.append(
            log_sum_exp([s - top for s in right]) - log_sum_exp([s - top for s in candidates])
            if right
            else 0.0
        )
    return np.array(log_likelihoods), np.array(has_signal)


def in_batch_softmax(question, block, target, allowed):
    """Loss and gradient with respect to question and block, and whether the own block wins."""
    question, block = question.astype(np.float64), block.astype(np.float64)
    losses, correct = [], []
    question_gradient, block_gradient = np.zeros_like(question), np.zeros_like(block)
    for b in range(len(question)):
        columns = [m for m in range(len(block)) if m == target[b] or allowed[b][m]]
        scores = {m: float(question[b] @ block[m]) for m in columns}
        total = log_sum_exp(list(scores.values()))
        losses.append(total - scores[target[b]])
        correct.append(all(scores[m] < scores[target[b]] for m in columns if m != target[b]))
        for m in columns:
            residual = math.exp(scores[m] - total) - (m == target[b])
            question_gradient[b] += residual * block[m]
            block_gradient[m] += residual * question[b]
    return np.array(losses), np.array(correct), question_gradient, block_gradient
