"""What `orqa serve` costs and gains: cold start, latency, and throughput of 1 and 32 clients.

    python -m benchmarks.serve_load runs/quickstart runs/quickstart/test.jsonl

Clients are threads that ask one question after the other, each on one connection, so that load is
as high as they can make it. Peers, in the same run: the same questions one at a time in this
process without a server, and a server that answers each question alone (--max-batch 1). The first
start finds no compiled programs, the second those of the first.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from orqa_jax.qa.examples import load_examples

CLIENTS = 32


@contextlib.contextmanager
def serving(run: Path, cache: str, *flags: str) -> Iterator[tuple[int, float, int]]:
    """Port, seconds until it was ready, and id of a server process."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "orqa_jax.cli", "serve", str(run), "--port", "0", *flags],
        env=os.environ | {"XDG_CACHE_HOME": cache},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = iter(process.stderr)
    for line in lines:
        if found := re.search(r"ready: ask at http://\S+:(\d+)/", line):
            break
    else:
        raise SystemExit("the server did not start")
    seconds = time.perf_counter() - started
    # Its log has to be read, or it would wait.
    reader = threading.Thread(target=lambda: [None for _ in lines])
    reader.start()
    yield int(found[1]), seconds, process.pid
    process.send_signal(signal.SIGTERM)
    process.wait()
    reader.join()


def load(port: int, questions: list[str], clients: int, seconds: float) -> tuple[np.ndarray, float]:
    """Seconds that each answer took, of all that began within the given time; answers a second."""
    began = time.perf_counter()
    until = began + seconds
    taken: list[float] = []

    def ask(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for place in itertools.count(first, clients):
            started = time.perf_counter()
            if started > until:
                return
            body = json.dumps({"question": questions[place % len(questions)]})
            connection.request("POST", "/v1/answer", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            assert response.status == 200, response.status
            taken.append(time.perf_counter() - started)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(taken), len(taken) / (time.perf_counter() - began)


def alone(run: Path, questions: list[str], seconds: float) -> tuple[np.ndarray, float]:
    """The same without a server, one question at a time."""
    from orqa_jax.serve.engine import open_engine

    engine = open_engine(run, system="orqa", search="exact", max_batch=1)
    until, taken = time.perf_counter() + seconds, []
    for question in itertools.cycle(questions):
        started = time.perf_counter()
        if started > until:
            return np.array(taken), len(taken) / seconds
        json.dumps(engine.answer([question]))
        taken.append(time.perf_counter() - started)
    raise AssertionError


def row(name: str, taken: np.ndarray, rate: float) -> str:
    p50, p95, p99 = 1000 * np.quantile(taken, [0.5, 0.95, 0.99])
    return f"| {name} | {rate:.1f} | {p50:.0f} | {p95:.0f} | {p99:.0f} |"


def memory(process: int) -> float:
    """GiB of resident memory at its peak."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("questions", type=Path, help="JSONL")
    parser.add_argument("--seconds", type=float, default=12, help="of each measurement (12)")
    options = parser.parse_args()
    questions = [example.question for example in load_examples(options.questions)]
    length = options.seconds
    with tempfile.TemporaryDirectory() as cache:
        with serving(options.run, cache) as (_, first, _):
            pass
        with serving(options.run, cache) as (port, second, process):
            load(port, questions, CLIENTS, 2)
            one, one_rate = load(port, questions, 1, length)
            many, many_rate = load(port, questions, CLIENTS, length)
            used = memory(process)
        with serving(options.run, cache, "--max-batch", "1") as (port, _, _):
            load(port, questions, CLIENTS, 2)
            single, single_rate = load(port, questions, CLIENTS, length)
    direct, direct_rate = alone(options.run, questions, length)
    print(
        f"ready after {first:.1f} s with nothing compiled, {second:.1f} s with it; {used:.2f} GiB"
    )
    print("| | questions/s | p50 ms | p95 ms | p99 ms |\n|---|---|---|---|---|")
    print(row("1 client", one, one_rate))
    print(row(f"{CLIENTS} clients", many, many_rate))
    print(row(f"{CLIENTS} clients, no batches", single, single_rate))
    print(row("no server, one at a time", direct, direct_rate))
    print(
        f"{CLIENTS} clients to 1: {many_rate / one_rate:.2f}; batches to none: "
        f"{many_rate / single_rate:.2f}; p50 of a client to that without a server: "
        f"{np.median(one) / np.median(direct):.2f}"
    )


if __name__ == "__main__":
    main()
