#!/usr/bin/env bash
# From nothing to cited answers about Wikipedia: installs what is missing, then pre-trains, indexes,
# fine-tunes, evaluates and answers. Options go to experiments/quickstart.py, such as --run FOLDER.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_environment.sh"

# Huge pages: XLA allocates and frees gigabytes a step, which costs a tenth of it in page faults.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
# -P keeps folders of the place where the script is called from being imported.
export PYTHONPATH=$root
exec "$python" -P -m experiments.quickstart "$@"
