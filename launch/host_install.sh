#!/usr/bin/env bash
# Installs orqa with extras ("tpu,gcs") into .venv beside it, on a host that may have any Python.
# What is complete is left as it is.
set -euo pipefail
extras=$1
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"

wanted=$(echo "$extras" && cat requirements.txt setup.cfg)
if [[ -f .venv/installed.txt && $(<.venv/installed.txt) == "$wanted" ]]; then
  exit
fi
if ! python3 -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
  # The hosts of Cloud TPUs have Python 3.10; uv brings its own.
  python3 -m pip install --quiet --user uv
  PATH=$HOME/.local/bin:$PATH uv venv --quiet --seed --clear --python 3.12 .venv
else
  python3 -m venv --clear .venv
fi
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" --requirement requirements.txt
"${pip[@]}" --constraint requirements.txt --editable ".[$extras]"
echo "$wanted" >.venv/installed.txt
