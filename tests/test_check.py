"""`orqa check` on a real run folder: whole, and with one thing wrong in every place in turn."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_world import indexed_run, orqa, world

from orqa_jax.check import check_folder
from orqa_jax.cli import main
from orqa_jax.errors import OrqaError
from orqa_jax.train.checkpoint import Checkpoints
from orqa_jax.train.mesh import make_mesh, tree_shardings
from orqa_jax.train.state import initial_state


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    """A run before fine-tuning, with predictions and questions beside it."""
    run = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(indexed_run(), run)
    shutil.rmtree(run / "finetune", ignore_errors=True)
    # They take seconds to read, and have a test of their own.
    shutil.rmtree(run / "ict" / "checkpoints")
    shutil.copy(world().questions, run / "held_out.jsonl")
    orqa("index", "--run", run, "--search", "int8")
    return run


@pytest.fixture
def run(whole_run, tmp_path) -> Path:
    shutil.copytree(whole_run, tmp_path / "run")
    return tmp_path / "run"


def findings(run: Path) -> dict[str, str]:
    return {f.path: f"{f.status}: {f.text}" for f in check_folder(run)}


def bad(run: Path) -> dict[str, str]:
    return {f.path: f.text for f in check_folder(run) if f.status == "bad"}


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def test_a_whole_run(run, capsys):
    orqa("check", run)
    lines = capsys.readouterr().out.splitlines()
    kinds = {line.split()[1].rstrip(":"): line for line in lines}
    assert all(line.startswith("ok ") for line in lines)
    assert kinds.keys() == {
        *("corpus", "index", "index/int8", "bm25", "ict/model", "held_out.jsonl"),
    }
    assert f"corpus of {len(world().store)} blocks in 1 files." in kinds["corpus"]


def test_findings_as_json(run, capsys):
    flip(run / "bm25" / "data.csc.index.npy")
    assert main(["check", str(run), "--json"]) == 2
    found = {line["path"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {path: line["status"] for path, line in found.items()} == {
        path: "bad" if path == "bm25" else "ok"
        for path in ("corpus", "index", "index/int8", "bm25", "ict/model", "held_out.jsonl")
    }
    assert "has the checksum" in found["bm25"]["text"]


def test_one_flipped_bit_is_found_wherever_it_is(run):
    """In every file that belongs to an artefact; but for a manifest's own, which may read on."""
    files = [
        path
        for path in run.rglob("*")
        if path.is_file() and path.suffix in (".arrow", ".npy", ".safetensors", ".index")
    ]
    assert len(files) >= 7
    for path in files:
        artefact = path.parent
        for place in (0.0, 0.37, 0.999):
            content = path.read_bytes()
            flip(path, place)
            assert "again" in bad(artefact)["."], path
            path.write_bytes(content)
        assert not bad(artefact)


def test_a_torn_and_a_missing_file(run, capsys):
    shard = run / "corpus" / "blocks-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-100])
    (run / "ict" / "model" / "weights.safetensors").unlink()
    (run / "bm25" / "manifest.json").write_text('{"k1": 1,')
    assert main(["check", str(run)]) == 2
    printed = capsys.readouterr()
    wrong = {line.split()[1]: line for line in printed.out.splitlines() if line.startswith("bad")}
    assert wrong.keys() == {"corpus:", "ict/model:", "bm25:"}
    assert "bytes where the manifest says" in wrong["corpus:"]
    assert "weights.safetensors cannot be read (No such file or directory)" in wrong["ict/model:"]
    assert printed.err == f"orqa: 3 of 6 artefacts in {run} are bad; see above.\n"


def test_parts_of_another_corpus_and_other_weights(run):
    for name, key, where in (
        ("manifest.json", "corpus_fingerprint", "bm25"),
        ("manifest.json", "weights_fingerprint", "index"),
    ):
        path = run / where / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: "0123456789ab0123"}))
    assert {path: text.partition(",")[0] for path, text in bad(run).items()} == {
        "bm25": "BM25 index of corpus 0123456789ab",
        "index": "block vectors of weights 0123456789ab",
    }
    # Where the corpus lies elsewhere, nobody can tell.
    shutil.rmtree(run / "corpus")
    assert bad(run).keys() == {"index"}


def test_a_damaged_checkpoint_and_what_is_left(tmp_path):
    values = np.random.default_rng(0).normal(size=(300, 100)).astype(np.float32)
    mesh = make_mesh()
    checkpoints = Checkpoints(tmp_path, config={})
    for step in (2, 4):
        state = initial_state({"kernel": jnp.asarray(step * values)}, optax.adam(0.1))
        state = jax.device_put(state, tree_shardings(mesh, state))
        checkpoints.add_loss((jnp.float32(1), jnp.float32(1)))
        assert checkpoints.save(step, state)
    checkpoints.close()
    assert findings(tmp_path) == {".": "ok: checkpoints of steps 2, 4."}
    files = (path for path in (tmp_path / "steps" / "4").rglob("*") if path.is_file())
    flip(max(files, key=lambda path: path.stat().st_size))
    text = bad(tmp_path)["."]
    assert "damaged: step 4 (" in text
    assert "that of step 2 is whole. Start the training again" in text


def test_what_an_interruption_left_is_told_and_is_no_fault(run):
    (run / "index" / "embeddings.npy.partial").write_bytes(b"12")
    (run / "bm25.partial").mkdir()
    found = findings(run)
    assert found["bm25.partial"].startswith("unfinished: left by an interruption")
    assert found["index/embeddings.npy.partial"].startswith("unfinished")
    orqa("check", run)


def test_older_artefacts_without_checksums(run):
    for where in ("bm25", "ict/model", "corpus"):
        path = next(p for n in ("manifest.json", "model.json") if (p := run / where / n).exists())
        about = json.loads(path.read_text())
        about.pop("files", None)
        for shard in about.get("shards", []):
            del shard["checksum"]
        path.write_text(json.dumps(about))
    found = findings(run)
    assert found["bm25"].endswith("no checksums, it was made before they were kept.")
    assert found["corpus"].endswith("no checksums, it was made before they were kept.")
    assert not bad(run)
    flip(run / "ict" / "model" / "weights.safetensors", 0.9)
    assert "not those that were saved" in bad(run)["ict/model"]


def test_nothing_to_check(tmp_path):
    with pytest.raises(OrqaError, match="There is no folder"):
        list(check_folder(tmp_path / "nowhere"))
    with pytest.raises(OrqaError, match="holds nothing that orqa wrote"):
        list(check_folder(tmp_path))
