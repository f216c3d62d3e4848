"""Scores of rankings of candidates (Manning et al. 2008, section 8.4)."""

import numpy as np
import numpy.typing as npt


def average_precision(
    scores_RC: npt.ArrayLike, relevant_RC: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Mean, over the relevant candidates, of the precision at the rank of each; ties by position.

    The mean over questions is MAP.

    Args:
        scores_RC: [R, C], one ranking a row, higher is better; -inf pads shorter rankings.
        relevant_RC: bool [R, C].

    Returns:
        float64 [R].

    Raises:
        ValueError: a row without a relevant candidate: it has no average precision.
    """
    ranked_RC = _ranked(scores_RC, relevant_RC)
    counts_RC = np.cumsum(ranked_RC, axis=1)
    if not counts_RC[:, -1].all():
        raise ValueError("average precision needs a relevant candidate in every row")
    precision_RC = counts_RC / np.arange(1, ranked_RC.shape[1] + 1)
    return (precision_RC * ranked_RC).sum(axis=1) / counts_RC[:, -1]


def precision_at_1(scores_RC: npt.ArrayLike, relevant_RC: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """float64 [R]: 1.0 where the best candidate (the first of equals) is relevant, else 0.0."""
    return _ranked(scores_RC, relevant_RC)[:, 0].astype(np.float64)


def _ranked(scores_RC: npt.ArrayLike, relevant_RC: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    order_RC = np.argsort(-np.asarray(scores_RC, np.float64), axis=1, kind="stable")
    return np.take_along_axis(np.asarray(relevant_RC, bool), order_RC, axis=1)
