"""The launch scripts against stand-ins for gcloud, srun, kubectl and orqa that take notes.

A stand-in writes down its arguments and answers as the test's script of answers says. Nothing here
reaches a cloud; what was run on real hardware is said in docs/pods.md.
"""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]

# Answers by the first rule whose text is in the command line. Of several rules with one text each
# answers once, and the last one from then on.
STAND_IN = f"""#!{sys.executable}
import fcntl, json, os, pathlib, sys

folder = pathlib.Path(os.environ["STAND_IN_FOLDER"])
line = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
with (folder / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with (folder / "notes").open("a") as notes:
        notes.write(json.dumps(line) + "\\n")
    rules = json.loads((folder / "rules").read_text())
    found = [rule for rule in rules if rule[0] in " ".join(line)]
    if len([rule for rule in found if rule[0] == found[0][0]]) > 1:
        rules.remove(found[0])
        (folder / "rules").write_text(json.dumps(rules))
if "--filename=-" in line:
    (folder / "stdin").write_text(sys.stdin.read())
if found:
    text, answer, status = found[0]
    sys.stdout.write(answer)
    sys.exit(status)
"""


@dataclasses.dataclass
class Desk:
    """A machine on whose PATH the stand-ins come first."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        for name in ("gcloud", "kubectl", "srun", "scontrol"):
            path = self.folder / "bin" / name
            path.write_text(STAND_IN)
            path.chmod(0o755)
        self.answer()

    def answer(self, *rules: tuple[str, str, int]) -> None:
        (self.folder / "rules").write_text(json.dumps(rules))

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "STAND_IN_FOLDER": str(self.folder),
            "ORQA_POLL_SECONDS": "0",
            "SLURM_SUBMIT_DIR": str(ROOT),
        }

    def run(self, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "launch" / script, *map(str, arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def notes(self) -> list[list[str]]:
        path = self.folder / "notes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self) -> list[str]:
        """What was asked of gcloud, one word each."""
        words = ("list", "create", "delete", "scp", "ssh", "ls")
        return [next(word for word in words if word in line) for line in self.notes]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk")


SLICE = ("--name", "mine", "--zone", "us-west4-a", "--type", "v5litepod-16")
WHERE = "--zone=us-west4-a"
RUN = ("--run", "gs://bucket/run")
LIST = "queued-resources list"
RESULT = "storage ls gs://bucket/run/ict/model/model.json"


# --- TPU slices -----------------------------------------------------------------------------------


def test_a_slice_is_asked_for_awaited_and_installed(desk):
    desk.answer(
        (LIST, "", 0),
        (LIST, "WAITING_FOR_RESOURCES\n", 0),
        (LIST, "PROVISIONING\n", 0),
        (LIST, "ACTIVE\n", 0),
    )
    done = desk.run("tpu_create.sh", *SLICE, "--spot", "--project", "ours")
    assert done.returncode == 0, done.stderr
    assert desk.verbs() == ["list", "create", "list", "list", "list", "scp", "ssh"]
    listed, created, *_, copied, installed = desk.notes
    where = [WHERE, "--project=ours"]
    resources = ["gcloud", "compute", "tpus", "queued-resources"]
    assert listed == [
        *[*resources, "list", *where, "--filter=name~/mine$", "--format=value(state.state)"]
    ]
    kind = ["--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"]
    assert created == [*resources, "create", "mine", *where, "--node-id=mine", *kind, "--spot"]
    vms = ["gcloud", "compute", "tpus", "tpu-vm"]
    assert copied[:5] == [*vms, "scp"]
    assert copied[6:] == ["mine:orqa.tar.gz", *where, "--worker=all"]
    assert installed[:-1] == [*vms, "ssh", "mine", *where, "--worker=all"]
    flock, lock, *shell = shlex.split(installed[-1].removeprefix("--command="))
    assert (flock, lock, shell[:2]) == ("flock", "orqa.lock", ["sh", "-c"])
    assert shell[2].endswith("&& orqa/launch/host_install.sh tpu,gcs")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_what_is_brought_to_the_hosts_is_the_committed_state(desk, tmp_path):
    kept = tmp_path / "kept.tar.gz"
    scp = desk.folder / "bin" / "gcloud"
    scp.write_text(
        f'#!/bin/bash\n[[ $* != *scp* ]] || cp "$5" {shlex.quote(str(kept))}\necho ACTIVE\n'
    )
    assert desk.run("tpu_create.sh", *SLICE).returncode == 0
    names = subprocess.run(["tar", "-tzf", kept], capture_output=True, text=True).stdout.split()
    assert {"launch/host_install.sh", "requirements.txt", "orqa_jax/cli.py"} <= set(names)


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("v4-32", "tpu-ubuntu2204-base"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-16", "v2-alpha-tpuv6e"),
    ],
)
def test_the_hosts_software_follows_from_the_chip(desk, kind, version):
    desk.answer((LIST, "", 0), (LIST, "ACTIVE\n", 0))
    desk.run("tpu_create.sh", "--name", "mine", "--zone", "z", "--type", kind)
    assert f"--runtime-version={version}" in desk.notes[1]


def test_logs_of_every_host_and_giving_back(desk, tmp_path):
    logs = tmp_path / "logs"
    assert desk.run("tpu_create.sh", *SLICE[:4], "--logs", logs).returncode == 0
    assert logs.is_dir()
    assert desk.notes[-1][-3:] == [
        "--worker=all",
        "--command=cat orqa.log",
        f"--output-directory={logs}",
    ]
    assert desk.run("tpu_create.sh", *SLICE[:4], "--delete").returncode == 0
    assert desk.notes[-1][4:] == ["delete", "mine", WHERE, "--force", "--quiet"]


def test_a_run_starts_on_all_hosts_and_ends_with_its_result(desk):
    desk.answer((LIST, "ACTIVE\n", 0))
    done = desk.run("tpu_ict.sh", *SLICE, *RUN, "--", "--steps", "9", "--config", "my file.py")
    assert done.returncode == 0, done.stderr
    assert desk.verbs() == ["list", "scp", "ssh", "ssh", "ls"]
    started = desk.notes[3]
    assert "--worker=all" in started
    command = shlex.split(started[-1].removeprefix("--command="))
    assert command == [
        *["flock", "orqa.lock", "env", "JAX_NUM_PROCESSES=auto", "orqa/launch/host_run.sh", "ict"],
        *["gs://bucket/run", "--steps", "9", "--config", "my file.py", ">>orqa.log", "2>&1"],
    ]


def test_fine_tuning_asks_for_its_own_result(desk):
    desk.answer((LIST, "ACTIVE\n", 0))
    assert desk.run("tpu_finetune.sh", *SLICE, *RUN).returncode == 0
    assert "host_run.sh finetune gs://bucket/run" in desk.notes[3][-1]
    assert desk.notes[-1][-1] == "gs://bucket/run/finetune/model/model.json"


def test_a_preempted_run_goes_on_by_itself(desk):
    desk.answer(
        (LIST, "ACTIVE\n", 0),
        ("host_run.sh", "", 255),
        ("host_run.sh", "", 0),
        (RESULT, "", 1),
        (RESULT, "", 0),
        (LIST, "SUSPENDING\n", 0),
        (LIST, "SUSPENDED\n", 0),
        (LIST, "", 0),
        (LIST, "ACTIVE\n", 0),
    )
    done = desk.run("tpu_ict.sh", *SLICE, "--spot", *RUN)
    assert done.returncode == 0, done.stderr
    first = ["list", "scp", "ssh", "ssh", "ls", "list"]
    again = ["list", "delete", "list", "create", "list", "scp", "ssh", "ssh", "ls"]
    assert desk.verbs() == first + again


def test_hosts_index_into_a_share_that_all_of_them_mount(desk):
    desk.answer((LIST, "ACTIVE\n", 0), ("test -e", "", 1), ("test -e", "", 0))
    share = ["--filestore", "10.0.0.2:/orqa", "--run", "/mnt/orqa/wiki"]
    done = desk.run("tpu_index.sh", *SLICE, *share)
    assert done.returncode == 0, done.stderr
    start = ["scp", "ssh", "ssh", "ssh"]  # code, installation, mount, orqa
    assert desk.verbs() == ["list", *start, "ssh", "list", "list", *start, "ssh"]
    mounted, started, asked = desk.notes[3:6]
    assert "sudo mount -t nfs 10.0.0.2:/orqa /mnt/orqa" in mounted[-1]
    assert "host_run.sh index /mnt/orqa/wiki" in started[-1]
    assert asked[-2:] == ["--worker=0", "--command=test -e /mnt/orqa/wiki/index/manifest.json"]


def test_a_run_with_a_fault_is_not_started_for_ever(desk):
    desk.answer((LIST, "ACTIVE\n", 0), ("host_run.sh", "", 2), (RESULT, "", 1))
    done = desk.run("tpu_ict.sh", *SLICE, *RUN)
    assert done.returncode == 1
    assert "ict ended 3 times without a result" in done.stderr
    assert sum("host_run.sh" in " ".join(line) for line in desk.notes) == 3


def test_a_run_that_was_stopped_for_maintenance_is_started_again(desk):
    desk.answer((LIST, "ACTIVE\n", 0), (RESULT, "", 1), (RESULT, "", 0))
    assert desk.run("tpu_ict.sh", *SLICE, *RUN).returncode == 0
    assert sum("host_run.sh" in " ".join(line) for line in desk.notes) == 2


def test_a_request_that_failed_ends_the_wait(desk):
    desk.answer((LIST, "FAILED\n", 0))
    done = desk.run("tpu_create.sh", *SLICE)
    assert done.returncode == 1
    assert "has failed" in done.stderr


@pytest.mark.parametrize("text", [LIST, "create"])
def test_what_gcloud_refuses_ends_the_script(desk, text):
    desk.answer((text, "", 1))
    done = desk.run("tpu_create.sh", *SLICE)
    assert done.returncode == 1
    assert desk.verbs()[-1] == text.split()[-1]


@pytest.mark.parametrize(
    ("script", "arguments", "told"),
    [
        ("tpu_create.sh", ["--name", "mine"], "--zone are needed"),
        ("tpu_create.sh", ["--name"], "--name needs a value"),
        ("tpu_create.sh", [*SLICE, "--spots"], "no option --spots"),
        ("tpu_create.sh", [*SLICE[:4], "--type", "v9-1"], "--version is needed"),
        ("tpu_ict.sh", [*SLICE, "--run", "/runs/wiki"], "has to be in a bucket"),
        ("tpu_ict.sh", [*SLICE, "--run", "/mnt/orqa/wiki"], "with --filestore"),
        ("tpu_index.sh", [*SLICE, *RUN], "a folder that all of them see"),
        ("gke.sh", ["ict"], "--name and what to do"),
        ("gke.sh", ["--name", "x", "ict"], "--image and --run"),
        ("gke.sh", ["--name", "x", "frob"], "no option frob"),
        ("gpu_node.sh", ["ict"], "What and where"),
        ("slurm.sbatch", ["ict"], "What and where"),
        ("host_run.sh", ["ict"], "What and where"),
        ("host_run.sh", ["frob", "/runs"], "no command frob"),
        ("host_run.sh", ["index", "gs://bucket/run"], "a folder that all of them see"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_sentence(desk, script, arguments, told, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "auto")
    done = desk.run(script, *arguments)
    assert done.returncode == 2
    (sentence,) = (line for line in done.stderr.splitlines() if not line.startswith("+ "))
    assert told in sentence
    assert not any("create" in line for line in desk.notes)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("tpu_create.sh", SLICE),
        ("tpu_create.sh", [*SLICE, "--delete"]),
        ("tpu_ict.sh", [*SLICE, *RUN, "--", "--steps", "9"]),
        ("tpu_finetune.sh", [*SLICE, *RUN]),
        ("tpu_index.sh", [*SLICE, "--filestore", "a:/b", "--run", "/mnt/orqa/wiki"]),
        ("gpu_node.sh", ["ict", "gs://bucket/run"]),
        ("slurm.sbatch", ["ict", "/runs/wiki"]),
        ("gke.sh", ["--name", "x", "--image", "i", *RUN, "ict"]),
        ("gke.sh", ["--name", "x", "logs"]),
    ],
)
def test_a_dry_run_prints_commands_and_runs_none(desk, script, arguments):
    place = 0 if script in ("gpu_node.sh", "slurm.sbatch") else len(arguments)
    if "--" in arguments:
        place = list(arguments).index("--")
    done = desk.run(script, *arguments[:place], "--dry-run", *arguments[place:])
    assert done.returncode == 0, done.stderr
    printed = [shlex.split(line[2:]) for line in done.stderr.splitlines()]
    assert all(line.startswith("+ ") for line in done.stderr.splitlines())
    assert printed
    assert desk.notes == []


# --- Kubernetes -----------------------------------------------------------------------------------


def test_a_jobset_with_everything_filled_in(desk):
    options = ["--topology", "4x8", "--hosts", "8", "--service-account", "trainer"]
    settings = ["--", "--steps", "9", "--config", 'a "b" \\c.py']
    done = desk.run(
        "gke.sh", "--name", "wiki", "--image", "x/y:1", *RUN, *options, "ict", *settings
    )
    assert done.returncode == 0, done.stderr
    assert desk.notes == [["kubectl", "apply", "--filename=-"]]
    text = (desk.folder / "stdin").read_text()
    assert "__" not in text
    jobset = yaml.safe_load(text)
    assert jobset["kind"] == "JobSet"
    assert jobset["metadata"]["name"] == "wiki"
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 100}
    (job,) = jobset["spec"]["replicatedJobs"]
    hosts = job["template"]["spec"]
    assert (hosts["parallelism"], hosts["completions"], hosts["backoffLimit"]) == (8, 8, 0)
    pod = hosts["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x8",
    }
    assert pod["serviceAccountName"] == "trainer"
    (container,) = pod["containers"]
    assert container["image"] == "x/y:1"
    assert container["args"] == ["ict", "gs://bucket/run", *settings[1:]]
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert {"name": "JAX_NUM_PROCESSES", "value": "auto"} in container["env"]


def test_the_image_holds_what_the_jobset_calls():
    dockerfile = (ROOT / "launch" / "Dockerfile").read_text()
    jobset = yaml.safe_load((ROOT / "launch" / "gke_jobset.yaml").read_text())
    (job,) = jobset["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    (script,) = container["command"]
    assert script == "/orqa/launch/host_run.sh"
    assert "WORKDIR /orqa\n" in dockerfile
    for line in dockerfile.splitlines():
        if line.startswith("COPY "):
            *copied, _ = line.split()[1:]
            assert all((ROOT / name).exists() for name in copied)


def test_logs_and_end_of_a_jobset(desk):
    desk.run("gke.sh", "--name", "wiki", "logs")
    desk.run("gke.sh", "--name", "wiki", "delete")
    logs, delete = desk.notes
    assert logs[:3] == ["kubectl", "logs", "--selector=jobset.sigs.k8s.io/jobset-name=wiki"]
    assert delete == ["kubectl", "delete", "jobset", "wiki", "--ignore-not-found"]


# --- Slurm ----------------------------------------------------------------------------------------


def batch(desk: Desk, run: Path, *, result: str = "") -> subprocess.CompletedProcess[str]:
    if result:
        (run / result).parent.mkdir(parents=True)
        (run / result).touch()
    return subprocess.run(
        ["bash", ROOT / "launch" / "slurm.sbatch", "ict", run, "--steps", "9"],
        env=desk.environment | {"SLURM_JOB_ID": "42"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_slurm_job_runs_a_task_for_each_gpu(desk, tmp_path):
    done = batch(desk, tmp_path / "run", result="ict/model/model.json")
    assert done.returncode == 0, done.stderr
    assert desk.notes == [
        [
            *["srun", "--kill-on-bad-exit=1"],
            "--export=ALL,JAX_NUM_PROCESSES=auto,ORQA_STOPPED_STATUS=0",
            *[str(ROOT / "launch" / "host_run.sh"), "ict", str(tmp_path / "run"), "--steps", "9"],
        ]
    ]
    script = (ROOT / "launch" / "slurm.sbatch").read_text()
    options = [line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"--requeue", "--signal=TERM@300", "--open-mode=append"} <= set(options)
    assert not any("gpus-per-task" in option or "gpu-bind" in option for option in options)


def test_a_slurm_job_that_was_stopped_is_queued_again(desk, tmp_path):
    assert batch(desk, tmp_path / "run").returncode == 0
    assert desk.notes[-1] == ["scontrol", "requeue", "42"]


def test_a_slurm_job_that_died_is_not(desk, tmp_path):
    desk.answer(("srun", "", 9))
    assert batch(desk, tmp_path / "run").returncode == 9
    assert len(desk.notes) == 1


def test_a_slurm_job_that_slurm_has_queued_again_is_no_failure(desk, tmp_path):
    desk.answer(("scontrol", "", 1))
    assert batch(desk, tmp_path / "run").returncode == 0


# --- On a host ------------------------------------------------------------------------------------


ORQA = f"""#!{sys.executable}
import json, os, pathlib, signal, sys, time

folder = pathlib.Path(os.environ["STAND_IN_FOLDER"])
with (folder / "notes").open("a") as notes:
    notes.write(json.dumps(["orqa", *sys.argv[1:]]) + "\\n")
if sys.argv[1] == "copy":
    sys.exit(0 if os.environ.get("COPIES") != "fail" else 2)
run = pathlib.Path(sys.argv[3])
(run / sys.argv[1]).mkdir(parents=True, exist_ok=True)
if os.environ.get("WAITS"):
    def save(*_):
        time.sleep(0.5)
        (folder / "saved").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    (folder / "waiting").touch()
    time.sleep(30)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@dataclasses.dataclass
class Host:
    """A repository on a host, whose orqa takes notes."""

    folder: Path

    def __post_init__(self) -> None:
        shutil.copytree(ROOT / "launch", self.folder / "launch")
        orqa = self.folder / ".venv" / "bin" / "orqa"
        orqa.parent.mkdir(parents=True)
        orqa.write_text(ORQA)
        orqa.chmod(0o755)

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.folder / "launch" / "host_run.sh", *map(str, arguments)],
            env=os.environ
            | {"STAND_IN_FOLDER": str(self.folder), "ORQA_DISK": str(self.folder / "disk")}
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object, **environment: str) -> int:
        process = self.start(*arguments, **environment)
        process.communicate(timeout=60)
        return process.returncode

    @property
    def notes(self) -> list[list[str]]:
        path = self.folder / "notes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "a host")


def copies(source: object, target: object, names: Sequence[str]) -> list[list[str]]:
    return [["orqa", "copy", f"{source}/{name}", f"{target}/{name}"] for name in names]


def test_a_run_in_a_bucket_is_copied_here_and_its_results_there(host):
    assert host.run("finetune", "gs://bucket/run/", "--epochs", "2") == 0
    disk, url = host.folder / "disk", "gs://bucket/run"
    inputs = ["corpus", "encoder", "ict/model", "index", "train.jsonl", "finetune"]
    assert host.notes == [
        *copies(url, disk, inputs),
        [
            *["orqa", "finetune", "--run", str(disk), "--encoder", f"{disk}/encoder"],
            *["--train", f"{disk}/train.jsonl", "--checkpoints", f"{url}/checkpoints/finetune"],
            *["--epochs", "2"],
        ],
        *copies(disk, url, ["finetune"]),
    ]


def test_a_run_in_a_folder_is_used_where_it_lies(host, tmp_path):
    run = tmp_path / "shared run"
    run.mkdir()
    assert host.run("ict", run) == 0
    assert host.notes == [["orqa", "ict", "--run", str(run), "--encoder", f"{run}/encoder"]]
    assert host.run("index", run, JAX_NUM_PROCESSES="auto") == 0
    assert host.notes[1:] == [["orqa", "index", "--run", str(run)]]


def test_results_are_copied_while_the_training_runs(host):
    process = host.start("ict", "gs://bucket/run", WAITS="1", ORQA_COPY_SECONDS="0.2")
    deadline = time.monotonic() + 30
    upward = copies(host.folder / "disk", "gs://bucket/run", ["ict"])[0]
    while host.notes.count(upward) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 75


def test_a_stopped_training_saves_first_and_is_to_be_tried_again(host):
    process = host.start("ict", "gs://bucket/run", WAITS="1")
    while not (host.folder / "waiting").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert (host.folder / "saved").exists()
    assert host.notes[-1] == copies(host.folder / "disk", "gs://bucket/run", ["ict"])[0]


def test_the_status_of_a_training_that_died_is_told_after_its_results_are_safe(host):
    assert host.run("ict", "gs://bucket/run", STATUS="9") == 9
    assert host.notes[-1] == copies(host.folder / "disk", "gs://bucket/run", ["ict"])[0]


def test_without_inputs_nothing_is_started(host):
    assert host.run("ict", "gs://bucket/run", COPIES="fail") == 2
    assert len(host.notes) == 1


def test_a_gpu_node_tries_again_and_gives_up_with_the_status(host):
    for name in ("host_install.sh", "host_run.sh"):
        script = host.folder / "launch" / name
        script.write_text(
            f"#!/bin/bash\necho {name} >>{shlex.quote(str(host.folder))}/calls\nexit ${{S-0}}\n"
        )
    install = host.folder / "launch" / "host_install.sh"
    install.write_text(install.read_text().replace("${S-0}", "0"))

    def calls(status: int) -> list[str]:
        (host.folder / "calls").unlink(missing_ok=True)
        done = subprocess.run(
            [host.folder / "launch" / "gpu_node.sh", "ict", "/runs/wiki"],
            env=os.environ | {"S": str(status)},
            capture_output=True,
        )
        assert done.returncode == status
        return (host.folder / "calls").read_text().split()

    assert calls(0) == ["host_install.sh", "host_run.sh"]
    assert calls(9) == ["host_install.sh"] + 3 * ["host_run.sh"]
    assert calls(75) == ["host_install.sh", "host_run.sh"]


# --- Installation on a host -----------------------------------------------------------------------

PYTHON = """#!/bin/bash
echo "python3 $*" >>"$STAND_IN_FOLDER/calls"
case $* in
  -c*) exit "${TOO_OLD:-0}" ;;
  *venv*)
    mkdir -p .venv/bin
    printf '#!/bin/bash\\necho "venv $*" >>"$STAND_IN_FOLDER/calls"\\nexit "${BROKEN:-0}"\\n' \
      >.venv/bin/python
    chmod +x .venv/bin/python
    ;;
esac
"""


@pytest.fixture
def install(tmp_path):
    """Runs host_install.sh with interpreters that take notes; returns status and notes."""
    root, tools = tmp_path / "repository", tmp_path / "bin"
    shutil.copytree(ROOT / "launch", root / "launch")
    for name in ("requirements.txt", "setup.cfg"):
        shutil.copy(ROOT / name, root)
    tools.mkdir()
    for name in ("python3", "uv"):
        (tools / name).write_text(PYTHON.replace('"python3 ', f'"{name} '))
        (tools / name).chmod(0o755)

    def run(extras="tpu,gcs", **environment):
        calls = tmp_path / "calls"
        calls.write_text("")
        path = f"{tools}:{os.environ['PATH']}"
        done = subprocess.run(
            [root / "launch" / "host_install.sh", extras],
            env=os.environ | {"PATH": path, "STAND_IN_FOLDER": str(tmp_path)} | environment,
            capture_output=True,
            timeout=60,
        )
        lines = calls.read_text().splitlines()
        return done.returncode, [line for line in lines if not line.startswith("python3 -c")]

    run.root = root
    return run


def test_a_host_installs_the_pinned_versions_once(install):
    pip = "venv -m pip install --quiet --disable-pip-version-check"
    assert install() == (
        0,
        [
            "python3 -m venv --clear .venv",
            f"{pip} --requirement requirements.txt",
            f"{pip} --constraint requirements.txt --editable .[tpu,gcs]",
        ],
    )
    assert install() == (0, [])
    assert len(install("cuda,gcs")[1]) == 3
    with (install.root / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    assert len(install("cuda,gcs")[1]) == 3


def test_a_host_with_an_old_python_gets_its_own(install):
    status, calls = install(TOO_OLD="1")
    assert status == 0
    assert calls[:2] == [
        "python3 -m pip install --quiet --user uv",
        "uv venv --quiet --seed --clear --python 3.12 .venv",
    ]


def test_an_interrupted_installation_is_repeated_on_a_host(install):
    assert install(BROKEN="1")[0] == 1
    assert len(install()[1]) == 3
