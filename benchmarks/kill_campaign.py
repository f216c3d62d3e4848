"""Kills `orqa fit` (SIGKILL) at random moments until it is through, again and again.

    python -m benchmarks.kill_campaign OUT --kills 200 --seed 0

A small made-up world is fitted once undisturbed; that one is the reference. Then run after run is
killed at random moments and continued by the same call, in a new process each time. After each kill
`orqa check` has to find nothing bad and no checkpoint may have gone; each finished run has to have
the same corpus, index, vectors, parameters to the bit, predictions and choice as the reference.
Steps between checkpoints are few, so that every stage is killed on both sides of one. A line a
kill; the last lines are the table of stages. Stops with status 1 at the first difference.
"""

import argparse
import collections
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tiny_world import documents, questions, vocabulary, write_bert, write_jsonl

from orqa_jax import fit
from orqa_jax.check import check_folder
from orqa_jax.checksums import checksum
from orqa_jax.cli import start_logging
from orqa_jax.fit import FitConfig
from orqa_jax.text.wordpiece import WordPiece

# What the log says when a stage begins.
STAGES = {
    "Blocks:": "blocks",
    "BM25.": "bm25",
    "Inverse Cloze": "ict",
    "Index:": "index",
    "Fine-tuning:": "finetune",
    "Evaluation on": "evaluation",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="folder to work in; a campaign there goes on")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Nothing of jax runs in this process, only in those that it forks.
    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(out / "programs")
    # A process that is killed after seconds should not have spent them on optimising programs.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    if not (out / "encoder").exists():
        write_jsonl(out / "documents.jsonl", documents())
        write_jsonl(out / "questions.jsonl", questions())
        write_bert(out / "encoder", WordPiece.from_vocab(vocabulary()))
    if not (out / "reference" / "fit.json").exists():
        assert wait(start(out, out / "reference"), 3600) == 0, "the reference failed"
    expected = contents(out / "reference")
    if not (out / "seconds.json").exists():
        # The programs are compiled now: this is what a disturbed run takes from its start.
        shutil.rmtree(out / "timed", ignore_errors=True)
        started = time.monotonic()
        assert wait(start(out, out / "timed"), 3600) == 0, "the second reference failed"
        (out / "seconds.json").write_text(json.dumps(time.monotonic() - started))
        same(expected, contents(out / "timed"))
    whole = json.loads((out / "seconds.json").read_text("utf-8"))
    print(f"undisturbed: {whole:.1f} s, the same twice", flush=True)

    rng = random.Random(options.seed)
    kills: collections.Counter[str] = collections.Counter()
    finished = 0
    while sum(kills.values()) < options.kills:
        run = out / "run"
        shutil.rmtree(run, ignore_errors=True)
        steps: dict[str, int] = {}
        while True:
            log = out / "log.txt"
            log.write_text("")
            # Most kills come early: a run needs several, and what was done is not done again.
            moment = rng.expovariate(4 / whole)
            ended = wait(start(out, run, log), moment)
            if ended is not None:
                assert ended == 0, log.read_text()
                same(expected, contents(run))
                finished += 1
                print(f"run {finished} is the same as the undisturbed one", flush=True)
                break
            stage = stage_of(log.read_text())
            kills[stage] += 1
            steps = nothing_lost(run, steps)
            print(f"kill {sum(kills.values())} after {moment:.2f} s in {stage}", flush=True)
    print(f"{sum(kills.values())} kills, {finished} finished runs, nothing lost")
    for stage, count in kills.most_common():
        print(f"  {stage}: {count}")


def start(out: Path, run: Path, log: Path | None = None) -> int:
    """Fits in a process of its own, forked before jax has started; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        target = os.open(log or out / "reference.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(target, 1)
        os.dup2(target, 2)
        start_logging()
        for name in ("ict_config", "finetune_config"):
            setattr(fit, name, with_few_steps(getattr(fit, name)))
        documents, questions, encoder = (
            str(out / name) for name in ("documents.jsonl", "questions.jsonl", "encoder")
        )
        fit.fit(FitConfig(documents, str(run), questions, encoder, hours=1.0))
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def with_few_steps(make):
    """Checkpoints every three steps, and so tries at the held-out pairs between them."""

    def made(*arguments):
        return dataclasses.replace(make(*arguments), checkpoint_every=3, log_every=2)

    return made


def wait(child: int, seconds: float) -> int | None:
    """The exit status of a process; None if it had to be killed after ``seconds``, with all its."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its group yet
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def stage_of(log: str) -> str:
    found = "start"
    for line in log.splitlines():
        for beginning, stage in STAGES.items():
            if line.startswith(beginning):
                found = stage
    return found


def nothing_lost(run: Path, steps: dict[str, int]) -> dict[str, int]:
    """Checks the run as the kill left it; returns the newest checkpoint of each training."""
    if not run.exists():
        return {}
    if any(run.rglob("manifest.json")):
        # In a process of its own: this one has to stay without jax's threads, to be forked.
        checker = os.fork()
        if not checker:
            bad = [str(finding) for finding in check_folder(run) if finding.status == "bad"]
            print("\n".join(bad), end="", flush=True)
            os._exit(bool(bad))
        assert wait(checker, 600) == 0, "orqa check found what is above"
    newest = {}
    for stage in ("ict", "finetune"):
        saved = (run / stage / "checkpoints" / "steps").glob("*")
        newest[stage] = max([int(path.name) for path in saved if path.name.isdigit()], default=0)
    for stage, step in steps.items():
        assert newest[stage] >= step, f"{stage}: step {step} was saved, now {newest}"
    return newest


def contents(run: Path) -> dict[str, object]:
    """All that a run has to have in common with another of the same settings."""
    found: dict[str, object] = {}
    for path in fixed_files(run):
        found[path.relative_to(run).as_posix()] = checksum(path)
    for name, key in (
        ("corpus/manifest.json", "fingerprint"),
        ("ict/model/model.json", "weights_fingerprint"),
        ("finetune/model/model.json", "weights_fingerprint"),
        ("fit.json", "system"),
        ("fit.json", "held_out"),
    ):
        found[f"{name}:{key}"] = json.loads((run / name).read_text("utf-8"))[key]
    for stage in ("ict", "finetune"):
        lines = (run / stage / "metrics.jsonl").read_text("utf-8").splitlines()
        found[f"{stage} losses"] = [(line["step"], line["loss"]) for line in map(json.loads, lines)]
    return found


def fixed_files(run: Path) -> Iterator[Path]:
    yield from (run / "corpus").glob("*.arrow")
    yield run / "index" / "embeddings.npy"
    yield from (path for path in (run / "bm25").iterdir() if path.name != "manifest.json")
    yield from sorted((run / "predictions").glob("*[a-z0-9].jsonl"))
    yield from (run / "train.jsonl", run / "held_out.jsonl")


def same(expected: dict[str, object], found: dict[str, object]) -> None:
    differing = [name for name in expected if found.get(name) != expected[name]]
    assert not differing, f"not as undisturbed: {', '.join(differing)}"
    assert expected.keys() == found.keys()


if __name__ == "__main__":
    main()
