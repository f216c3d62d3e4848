"""Questions of many requests, worked on together: one queue, one worker thread."""

import asyncio
import collections
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from orqa_jax.serve.metrics import Metrics

logger = logging.getLogger(__name__)

Job = TypeVar("Job")
Result = TypeVar("Result")

# How much the last batch counts in the estimate of what one job takes.
_NEWEST = 0.2
_LONGEST_RETRY = 60


class QueueFull(Exception):
    """Nothing more is accepted for now; ``retry_after`` seconds from now it may be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__()
        self.retry_after = retry_after


@dataclasses.dataclass(frozen=True)
class _Waiting(Generic[Job, Result]):
    job: Job
    done: "asyncio.Future[Result]"
    since: float


class Batcher(Generic[Job, Result]):
    """Collects jobs into batches.

    A batch starts when it is full, or when its first job has waited for as long as it may; while a
    batch is worked on, jobs gather for the next. Everything but ``work`` itself happens on the
    event loop.

    Args:
      work: From jobs to as many results, on the worker thread. Where it fails for several jobs,
        each is tried alone, so that one that cannot be done fails alone.
      max_batch: Jobs of one batch.
      max_wait: Seconds.
      max_queue: Jobs that may wait.
      metrics: Where queue and batches are counted.
    """

    def __init__(
        self,
        work: Callable[[list[Job]], list[Result]],
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        metrics: Metrics,
    ) -> None:
        self._work, self._metrics = work, metrics
        self._max_batch, self._max_wait, self._max_queue = max_batch, max_wait, max_queue
        self._queue: collections.deque[_Waiting[Job, Result]] = collections.deque()
        self._arrived = asyncio.Event()
        self._seconds_a_job = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="orqa-answers")
        metrics.queue.set_function(lambda: len(self._queue))

    async def submit(self, jobs: Sequence[Job]) -> list[Result]:
        """The results of all jobs, once they are there.

        Raises:
          QueueFull: They do not all fit into the queue; none is accepted.
        """
        if len(self._queue) + len(jobs) > self._max_queue:
            seconds = math.ceil(self._seconds_a_job * len(self._queue))
            raise QueueFull(min(max(seconds, 1), _LONGEST_RETRY))
        loop = asyncio.get_running_loop()
        now = loop.time()
        waiting = [_Waiting(job, loop.create_future(), now) for job in jobs]
        self._queue.extend(waiting)
        self._arrived.set()
        return await asyncio.gather(*(one.done for one in waiting))

    async def run(self) -> None:
        """Works until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                batch = await self._next_batch()
                if not batch:
                    continue
                started = loop.time()
                for one in batch:
                    self._metrics.waited.observe(started - one.since)
                jobs = [one.job for one in batch]
                results = await loop.run_in_executor(self._thread, self._each, jobs)
                spent = (loop.time() - started) / len(batch)
                self._seconds_a_job += (spent - self._seconds_a_job) * _NEWEST
                for one, result in zip(batch, results, strict=True):
                    if one.done.done():  # whoever asked has gone
                        continue
                    if isinstance(result, Exception):
                        one.done.set_exception(result)
                    else:
                        one.done.set_result(result)
        finally:
            self._thread.shutdown(wait=False)

    async def _next_batch(self) -> list[_Waiting[Job, Result]]:
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        loop = asyncio.get_running_loop()
        deadline = self._queue[0].since + self._max_wait
        while len(self._queue) < self._max_batch and loop.time() < deadline:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                break
        batch: list[_Waiting[Job, Result]] = []
        while self._queue and len(batch) < self._max_batch:
            one = self._queue.popleft()
            if not one.done.done():
                batch.append(one)
        return batch

    def _each(self, jobs: list[Job]) -> "list[Result | Exception]":
        started = time.perf_counter()
        try:
            results: list[Result | Exception] = [*self._work(jobs)]
        except Exception as error:
            if len(jobs) == 1:
                logger.exception("a question could not be answered")
                return [error]
            logger.warning("%d questions failed together; each is tried alone", len(jobs))
            return [result for job in jobs for result in self._each([job])]
        self._metrics.batch_size.observe(len(jobs))
        self._metrics.batch_seconds.observe(time.perf_counter() - started)
        return results
