#!/usr/bin/env bash
# Builds the documentation's site into site/; warnings are errors. Arguments go to mkdocs build.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_environment.sh"

cd -- "$root"
if ! "$python" -c 'import material, mkdocstrings_handlers.python' 2>/dev/null; then
  "$python" -m pip --disable-pip-version-check install --requirement launch/docs-requirements.txt
fi
"$python" -m docs.reference
exec "$python" -m mkdocs build --strict "$@"
