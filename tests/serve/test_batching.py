import asyncio
import contextlib
import itertools
import threading

import pytest

from orqa_jax.serve.batching import Batcher, QueueFull
from orqa_jax.serve.metrics import Metrics


@contextlib.asynccontextmanager
async def running(work, *, max_batch=4, max_wait=0.05, max_queue=10):
    batcher = Batcher(
        work, max_batch=max_batch, max_wait=max_wait, max_queue=max_queue, metrics=Metrics()
    )
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Worker:
    """Doubles numbers; notes its batches, and can be held up."""

    def __init__(self, held=False):
        self.batches = []
        self.go = threading.Event()
        self.entered = threading.Event()
        if not held:
            self.go.set()

    def __call__(self, jobs):
        self.batches.append(list(jobs))
        self.entered.set()
        assert self.go.wait(10)
        if 13 in jobs:
            raise ValueError("thirteen")
        return [2 * job for job in jobs]


async def until_entered(worker):
    await asyncio.to_thread(worker.entered.wait, 10)


def test_jobs_of_many_callers_share_batches_and_get_their_own_results():
    async def run():
        worker = Worker()
        async with running(worker) as batcher:
            found = await asyncio.gather(*(batcher.submit([n, n + 100]) for n in range(5)))
        assert found == [[2 * n, 2 * n + 200] for n in range(5)]
        assert [len(batch) for batch in worker.batches] == [4, 4, 2]
        assert [*itertools.chain(*worker.batches)] == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]

    asyncio.run(run())


def test_a_lone_job_waits_for_others_as_long_as_it_may_and_no_longer():
    async def run():
        loop, worker = asyncio.get_running_loop(), Worker()
        async with running(worker, max_wait=0.3) as batcher:
            started = loop.time()
            first = asyncio.create_task(batcher.submit([1]))
            await asyncio.sleep(0.1)
            assert await batcher.submit([2]) == [4]
            assert await first == [2]
            assert worker.batches == [[1, 2]]
            assert 0.3 <= loop.time() - started < 2

            started = loop.time()
            await batcher.submit([1, 2, 3, 4])  # a full batch does not wait
            assert loop.time() - started < 0.25

    asyncio.run(run())


def test_what_arrives_during_a_batch_makes_the_next_one_without_waiting():
    async def run():
        worker = Worker(held=True)
        async with running(worker, max_wait=0.02) as batcher:
            first = asyncio.create_task(batcher.submit([1]))
            await until_entered(worker)
            others = [asyncio.create_task(batcher.submit([n])) for n in (2, 3)]
            await asyncio.sleep(0.05)
            worker.go.set()
            assert await asyncio.gather(first, *others) == [[2], [4], [6]]
            assert worker.batches == [[1], [2, 3]]

    asyncio.run(run())


def test_a_job_that_cannot_be_done_fails_alone(caplog):
    async def run():
        worker = Worker()
        async with running(worker) as batcher:
            requests = [batcher.submit([n]) for n in (12, 13, 14)]
            found = await asyncio.gather(*requests, return_exceptions=True)
        assert found[0] == [24]
        assert found[2] == [28]
        assert isinstance(found[1], ValueError)
        assert worker.batches == [[12, 13, 14], [12], [13], [14]]

    asyncio.run(run())


def test_what_does_not_fit_is_refused_whole():
    async def run():
        worker = Worker(held=True)
        async with running(worker, max_batch=1, max_wait=0, max_queue=3) as batcher:
            first = asyncio.create_task(batcher.submit([0]))
            await until_entered(worker)  # so it does not wait any more
            second = asyncio.create_task(batcher.submit([1, 2]))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull) as refused:
                await batcher.submit([3, 4])
            assert refused.value.retry_after == 1  # nothing is known yet of how long a job takes
            third = asyncio.create_task(batcher.submit([5]))
            await asyncio.sleep(0)
            worker.go.set()
            assert await asyncio.gather(first, second, third) == [[0], [2, 4], [10]]
            assert worker.batches == [[0], [1], [2], [5]]

    asyncio.run(run())


def test_when_to_come_back_follows_from_what_a_job_takes():
    async def run():
        worker = Worker(held=True)
        async with running(worker, max_batch=1, max_wait=0, max_queue=30) as batcher:
            first = asyncio.create_task(batcher.submit([0]))
            await until_entered(worker)
            await asyncio.sleep(0.5)
            worker.go.set()
            await first
            worker.go.clear()
            worker.entered.clear()
            others = asyncio.create_task(batcher.submit(list(range(20, 50))))
            await until_entered(worker)
            with pytest.raises(QueueFull) as refused:
                await batcher.submit([1, 2, 3])
            # A fifth of the last job's half second, for each of the 29 that wait.
            assert 3 <= refused.value.retry_after <= 10
            worker.go.set()
            await others

    asyncio.run(run())


def test_jobs_that_nobody_waits_for_are_not_done():
    async def run():
        worker = Worker(held=True)
        async with running(worker, max_batch=2, max_wait=0) as batcher:
            first = asyncio.create_task(batcher.submit([0]))
            await until_entered(worker)
            gone = asyncio.create_task(batcher.submit([1, 2]))
            stays = asyncio.create_task(batcher.submit([3]))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.sleep(0)
            worker.go.set()
            assert await asyncio.gather(first, stays) == [[0], [6]]
            assert worker.batches == [[0], [3]]

    asyncio.run(run())
