"""One process that serves one run: sockets, signals, and the order of starting and stopping."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import jax
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from orqa_jax.errors import OrqaError
from orqa_jax.serve.app import make_app
from orqa_jax.serve.config import ServeConfig
from orqa_jax.serve.service import Service

logger = logging.getLogger(__name__)

# A request whose first line and headers are not there by then is not waited for.
_HEAD_SECONDS = 10
_KEEP_ALIVE_SECONDS = 30
# When stopping, accepted requests get this long.
_STOP_SECONDS = 120
_CONNECTIONS = 1024


def serve(config: ServeConfig) -> None:
    """Serves until SIGTERM or SIGINT; requests that were accepted by then are still answered.

    SIGHUP loads the run again.

    Raises:
      OrqaError: The address cannot be listened on, or the run cannot be loaded.
    """
    with _bind(config.host, config.port) as listener:
        _start_log()
        _keep_compiled_programs()
        asyncio.run(_serve(config, listener))


async def _serve(config: ServeConfig, listener: socket.socket) -> None:
    service = Service(config)
    server = _Server(
        uvicorn.Config(
            make_app(service),
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(config.trust_proxy),
            forwarded_allow_ips=list(config.trust_proxy),
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            limit_concurrency=_CONNECTIONS,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    tasks: set[asyncio.Task[Any]] = set()

    def start(coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    serving = start(server.serve(sockets=[listener]))
    start(service.batcher.run())
    logger.info("listening at %s, loading %s", _address(listener), config.run)
    loading = start(service.load())
    try:
        await asyncio.wait({loading, serving}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            loop.add_signal_handler(signal.SIGHUP, lambda: start(service.reload()))
            if config.watch_seconds:
                start(service.watch())
            logger.info("ready: ask at %s", _address(listener))
            await serving
            logger.info("stopped; every accepted request was answered")
    finally:
        server.should_exit = True
        await asyncio.wait({serving})
        for task in tuple(tasks):
            task.cancel()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `_serve`; uvicorn would die of them once it has stopped."""
        yield


class _Protocol(H11Protocol):
    """Closes connections that dribble: uvicorn waits for ever for the first line of a request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.close)


def _bind(host: str, port: int) -> socket.socket:
    """A socket to listen on.

    Raises:
      OrqaError: The name is unknown, or the address is in use or not of this machine.
    """
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with contextlib.ExitStack() as unless_bound:
            listener = unless_bound.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            unless_bound.pop_all()
    except OSError as error:
        raise OrqaError(
            f"Cannot listen on port {port} of {host} ({error.strerror}); choose others with --host "
            "and --port."
        ) from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _start_log() -> None:
    """Lines of the service begin with the time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    ours = logging.getLogger("orqa_jax.serve")
    ours.addHandler(handler)
    ours.propagate = False


def _keep_compiled_programs() -> None:
    """Programs that were compiled once are read from the user's cache at the next start."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(cache / "orqa_jax" / "compiled"))
        jax.config.update("jax_compilation_cache_max_size", 1 << 30)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
