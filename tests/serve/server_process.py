"""Real servers for tests: `orqa serve` in a process of its own, on a port that was free."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

CODE = "import sys; from orqa_jax.cli import main; sys.exit(main())"
SECONDS_TO_START = 120


@dataclasses.dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclasses.dataclass(frozen=True)
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8")

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """One request on a connection of its own; underscores in header names become dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, **headers)

    def post(self, path: str, value: Any, **headers: str) -> Reply:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.send("POST", path, body, **{"Content_Type": "application/json"} | headers)

    def metrics(self) -> dict[tuple[str, str], float]:
        """Samples by name and the values of their labels, in the order of the labels' names."""
        families = text_string_to_metric_families(self.get("/metrics").body.decode())
        return {
            (
                sample.name,
                " ".join(value for _, value in sorted(sample.labels.items())),
            ): sample.value
            for family in families
            for sample in family.samples
        }


@contextlib.contextmanager
def serving(run: Path, *flags: Any) -> Iterator[Server]:
    """Starts a server and waits until it is ready; at the end it is stopped if it still runs."""
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        log_file = Path(folder, "log")
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", CODE, "serve", str(run), "--port", "0", *map(str, flags)],
                env=os.environ | {"PYTHONPATH": str(root)},
                stderr=log,
            )
        try:
            until = time.monotonic() + SECONDS_TO_START
            while not (
                found := re.search(r"ready: ask at http://\S+:(\d+)/", log_file.read_text())
            ):
                assert process.poll() is None, log_file.read_text()
                assert time.monotonic() < until, log_file.read_text()
                time.sleep(0.05)
            yield Server(process, int(found[1]), log_file)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def wait_until(condition: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
