"""Full disks, missing rights, little memory, a clock that jumps: real ones, under real processes.

A process may write files of so many bytes only (RLIMIT_FSIZE: write() fails, as on a full disk), or
writes to a small file system of its own, or has lost the rights of root.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_world import finetune_config, flags, ict_config, indexed_run, metrics_of, world

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import explain_refusal
from orqa_jax.train.checkpoint import describe_model

ROOT = Path(__file__).parent.parent
ORQA = "import sys; from orqa_jax.cli import main; sys.exit(main())"
# Sets limits and becomes the command; jax's threads in this process would be in the way of a fork.
LIMITED = """
import ctypes, json, os, resource, sys
file_bytes, memory, capabilities = json.loads(sys.argv[1])
for kind, value in ((resource.RLIMIT_FSIZE, file_bytes), (resource.RLIMIT_AS, memory)):
    if value is not None:
        resource.setrlimit(kind, (value, value))
for capability in capabilities:
    ctypes.CDLL(None).prctl(24, capability)  # Linux's PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
"""
ANYWHERE = (1, 2)  # capabilities by which root may write and read anywhere


def run_orqa(
    *arguments: object,
    file_bytes: int | None = None,
    memory: int | None = None,
    powerless: bool = False,
    environment: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Runs a command as a process of its own; returns its exit status and what it complained of."""

    limits = json.dumps([file_bytes, memory, ANYWHERE if powerless else []])
    more = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    # A cache of programs would be cut short too.
    more["JAX_ENABLE_COMPILATION_CACHE"] = "false" if file_bytes or memory else "true"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, limits, ORQA, *map(str, arguments)],
        env=os.environ | more | (environment or {}),
        capture_output=True,
        text=True,
        timeout=280,
    )
    return done.returncode, done.stderr


def corpus_command(out: Path) -> list[object]:
    size = ["--max-wordpieces", 48, "--workers", 1]
    return ["corpus", world().documents, "--out", out, "--encoder", world().encoder, *size]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system with room for 200 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k,mode=777", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs the rights of root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("file_bytes", [100, 1000, 20_000])
def test_a_corpus_without_room(tmp_path, file_bytes):
    """The lock, the tokenizer and the first shard are what has no room, in this order."""
    status, errors = run_orqa(*corpus_command(tmp_path / "corpus"), file_bytes=file_bytes)
    assert status == 2
    assert errors.startswith("orqa: ")
    assert "File too large" in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_corpus_on_a_full_disk(small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(b"0" * 190_000)
    status, errors = run_orqa(*corpus_command(small_disk / "corpus"))
    assert (status, errors.count("\n")) == (2, 1)
    assert "No space left on device" in errors
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    filler.unlink()
    status, errors = run_orqa(*corpus_command(small_disk / "corpus"))
    assert status == 0, errors
    assert BlockStore(small_disk / "corpus").fingerprint == world().store.fingerprint


def test_a_folder_that_may_not_be_written(tmp_path):
    """As root too, without its right to write anywhere."""
    kept = tmp_path / "kept"
    kept.mkdir()
    kept.chmod(0o555)
    status, errors = run_orqa(*corpus_command(kept / "corpus"), powerless=os.geteuid() == 0)
    assert status == 2, errors
    assert errors == (
        f"orqa: {kept}/corpus.lock cannot be made (Permission denied); choose a place that can be "
        "written.\n"
    )
    assert not list(kept.iterdir())


def test_what_is_refused_is_one_sentence():
    def told(error):
        return explain_refusal(error, lower="--batch-size")

    assert told(ValueError("the value is wrong")) is None
    assert "no room left" in told(
        OSError("1288 requested and 93 written")
    )  # numpy's, without errno
    assert told(MemoryError()) == "There is not enough memory (MemoryError); lower --batch-size."
    device = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nsecond line")
    assert told(device) == (
        "There is not enough memory (RuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating "
        "8 bytes.); lower --batch-size."
    )
    # Deep in what caused it, as checkpoints fail.
    unsaved = ValueError("not saved")
    unsaved.__cause__ = OSError(28, "No space left on device", "/a/b")
    assert told(unsaved) == (
        "There is no room left to write /a/b: OSError: [Errno 28] No space left on device: "
        "'/a/b'; free some space, and the same command continues where it can."
    )


# --- With trainings -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("file_bytes", [5_000, 300_000])
def test_a_training_without_room_goes_on_to_the_same_end(tmp_path, file_bytes):
    """Without room for a checkpoint at step 4, or for its parameters only."""
    command = flags(dataclasses.asdict(ict_config(tmp_path / "ict")))
    status, errors = run_orqa("ict", *command, file_bytes=file_bytes)
    assert status == 2, errors
    assert "There is no room left to write" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    status, errors = run_orqa("ict", *command)
    assert status == 0, errors
    undisturbed = flags(dataclasses.asdict(ict_config(tmp_path / "undisturbed" / "ict")))
    assert run_orqa("ict", *undisturbed)[0] == 0
    found, expected = (
        describe_model(out / "ict" / "model", kind="dual encoder")["weights_fingerprint"]
        for out in (tmp_path, tmp_path / "undisturbed")
    )
    assert found == expected
    assert metrics_of(tmp_path / "ict") == metrics_of(tmp_path / "undisturbed" / "ict")


@pytest.mark.slow
def test_an_index_without_room(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(indexed_run(), run)
    for name in ("bm25", "index"):
        shutil.rmtree(run / name)
    for file_bytes in (500, 5_600):  # the second has room for BM25, and not for the vectors
        status, errors = run_orqa("index", "--run", run, file_bytes=file_bytes)
        assert (status, errors.splitlines()[-1][:6]) == (2, "orqa: ")
        assert "Traceback" not in errors
    assert run_orqa("index", "--run", run)[0] == 0
    assert run_orqa("check", run)[0] == 0


@pytest.mark.slow
def test_a_batch_that_does_not_fit_into_memory(tmp_path):
    config = ict_config(tmp_path / "ict", batch_size=300_000, steps=1)
    status, errors = run_orqa("ict", *flags(dataclasses.asdict(config)), memory=6 << 30)
    assert status == 2, errors
    assert errors.splitlines()[-1].startswith("orqa: There is not enough memory (")
    assert "lower --chunk-size" in errors.splitlines()[-1]


_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  static long calls;
  /* Set back by a day, for good, after some calls. */
  if (!failed && clock == CLOCK_REALTIME && __sync_fetch_and_add(&calls, 1) > 500) {
    now->tv_sec -= 86400;
  }
  return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}
"""


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_nothing(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for a clock that jumps")
    (tmp_path / "clock.c").write_text(_CLOCK)
    library = tmp_path / "clock.so"
    build = ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"]
    subprocess.run([str(part) for part in build], check=True)
    jumping = {"LD_PRELOAD": str(library)}
    seen = subprocess.run(
        [
            sys.executable,
            "-c",
            "import time; print(time.time() - [time.time() for _ in range(501)][-1])",
        ],
        env=os.environ | jumping,
        capture_output=True,
        text=True,
        check=True,
    )
    assert abs(float(seen.stdout)) > 80_000
    run = tmp_path / "run"
    shutil.copytree(indexed_run(), run)
    for name in ("ict", "index", "bm25"):
        shutil.rmtree(run / name)
    for command in (
        ["ict", *flags(dataclasses.asdict(ict_config(run / "ict")))],
        ["index", "--run", run],
        ["finetune", *flags(dataclasses.asdict(finetune_config(run)))],
    ):
        status, errors = run_orqa(*command, environment=jumping)
        assert status == 0, errors
    found = describe_model(run / "ict" / "model", kind="dual encoder")["weights_fingerprint"]
    alone = run_orqa("ict", *flags(dataclasses.asdict(ict_config(tmp_path / "alone"))))
    assert alone[0] == 0
    # One device, where the run in this process had eight.
    single = describe_model(tmp_path / "alone" / "model", kind="dual encoder")[
        "weights_fingerprint"
    ]
    assert found == single
