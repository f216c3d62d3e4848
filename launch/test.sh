#!/usr/bin/env bash
# Lint, format, types, shell scripts, tests: installs what is missing first. Arguments go to pytest.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_environment.sh"

cd -- "$root"
"$python" -m ruff check
"$python" -m ruff format --check
"$python" -m mypy
.venv/bin/shellcheck --external-sources --source-path=SCRIPTDIR launch/*.sh launch/slurm.sbatch .ci/run
exec "$python" -m pytest "$@"
