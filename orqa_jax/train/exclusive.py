"""A training alone in its output folder, as one process or as the many of one run."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from orqa_jax.errors import OrqaError
from orqa_jax.locks import hold

T = TypeVar("T")


@contextlib.contextmanager
def hold_together(folder: Path) -> Iterator[None]:
    """`hold` for all processes of a run: the first one holds it, and all hear whether it could.

    Raises:
      OrqaError: Another run writes to the folder; in every process.
    """
    with contextlib.ExitStack() as held:
        refused: OrqaError | None = None
        if jax.process_index() == 0:
            try:
                held.enter_context(hold(folder))
            except OrqaError as error:
                refused = error
        if jax.process_count() > 1:
            told = multihost_utils.broadcast_one_to_all(np.int32(refused is not None))
            if told and refused is None:
                refused = OrqaError(
                    f"{folder} is being written by another run; the first process says by which."
                )
        if refused is not None:
            raise refused
        yield


def alone_in_out(train: Callable[[Any], T]) -> Callable[[Any], T]:
    """Lets a function of settings hold their ``out`` while it runs; see `hold_together`."""

    @functools.wraps(train)
    def train_alone(config: Any) -> T:
        with hold_together(Path(config.out)):
            return train(config)

    return train_alone
