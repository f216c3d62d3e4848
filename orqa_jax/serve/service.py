"""The run that is being served: opened, watched, and exchanged for a newer one."""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from orqa_jax.errors import OrqaError
from orqa_jax.serve.batching import Batcher
from orqa_jax.serve.config import ServeConfig
from orqa_jax.serve.engine import Engine, RunState, open_engine, run_state
from orqa_jax.serve.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Job:
    """One question: to be answered, or to retrieve ``k`` blocks for."""

    kind: Literal["answer", "retrieve"]
    question: str
    k: int = 0


class NotReady(Exception):
    """The run is not loaded yet."""


class Service:
    """Answers by the newest state of a run that could be loaded.

    Answering happens on one worker thread. A newer state is loaded on another one meanwhile, has to
    answer a question, and only then takes the place of the old one, between two batches.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config, self.metrics = config, Metrics()
        self.engine: Engine | None = None
        self.last_failure: str | None = None
        self.batcher: Batcher[Job, dict[str, Any]] = Batcher(
            self._work,
            max_batch=config.max_batch,
            max_wait=config.max_wait_ms / 1000,
            max_queue=config.max_queue,
            metrics=self.metrics,
        )
        self._run = Path(config.run)
        self._tried: RunState = frozenset()
        self._loading = asyncio.Lock()

    async def ask(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """One result a job.

        Raises:
          NotReady: Nothing is loaded yet.
          QueueFull: Too many questions are waiting.
        """
        if self.engine is None:
            raise NotReady
        answers = self.batcher.submit(jobs)
        self.metrics.questions.inc(len(jobs))
        return await answers

    def _work(self, jobs: list[Job]) -> list[dict[str, Any]]:
        engine = self.engine
        assert engine is not None
        results: dict[int, dict[str, Any]] = {}
        asked = [place for place, job in enumerate(jobs) if job.kind == "answer"]
        if asked:
            answers = engine.answer([jobs[place].question for place in asked])
            results |= zip(asked, answers, strict=True)
        searched = [place for place, job in enumerate(jobs) if job.kind == "retrieve"]
        if searched:
            most = max(jobs[place].k for place in searched)
            found = engine.retrieve([jobs[place].question for place in searched], most)
            for place, one in zip(searched, found, strict=True):
                cut = {name: best[: jobs[place].k] for name, best in one["retrieved"].items()}
                results[place] = one | {"retrieved": cut}
        return [results[place] for place in range(len(jobs))]

    async def load(self) -> None:
        """Loads the run as it is now; what is being served stays until that has succeeded.

        Raises:
          OrqaError: It cannot be loaded.
        """
        async with self._loading:
            started = time.perf_counter()
            self._tried = run_state(self._run)
            try:
                engine = await asyncio.to_thread(
                    open_engine,
                    self._run,
                    system=self.config.system,
                    search=self.config.search,
                    max_batch=self.config.max_batch,
                )
            except Exception as error:
                # Damaged files fail in as many ways as there are libraries that read them.
                self.metrics.loads.labels("failed").inc()
                self.last_failure = str(error) or repr(error)
                if isinstance(error, OrqaError):
                    raise
                raise OrqaError(f"{self._run} cannot be loaded ({error!r}).") from error
            self.engine, self.last_failure = engine, None
            self.metrics.loads.labels("done").inc()
            self.metrics.ready.set(1)
            about = engine.about()
            self.metrics.model.clear()
            names = ("system", "weights_fingerprint", "corpus_fingerprint")
            self.metrics.model.labels(*(about[name] for name in names)).set(1)
            logger.info(
                "loaded %s in %.1f s: system %s, %d blocks, weights %s",
                engine.run,
                time.perf_counter() - started,
                engine.system,
                about["blocks"],
                about["weights_fingerprint"][:12],
            )

    async def reload(self) -> None:
        """As `load`, but a failure only leaves a line in the log."""
        try:
            await self.load()
        except OrqaError as error:
            logger.warning("the model that is being served stays: %s", error)

    async def watch(self) -> None:
        """Loads the run again whenever its files have changed, until this is cancelled.

        Files that are still changing are left alone until they have stayed the same from one look
        to the next.
        """
        before = self._tried
        while True:
            await asyncio.sleep(self.config.watch_seconds)
            with contextlib.suppress(OSError):
                now = await asyncio.to_thread(run_state, self._run)
                if now == before and now != self._tried:
                    await self.reload()
                before = now
