#!/usr/bin/env bash
# The vectors of all blocks on a TPU slice, each host its share of them, continued through
# preemptions until they are there. The hosts write into one file, so they need a common folder.
#   tpu_index.sh --name NAME --zone ZONE --type v5litepod-16 [--spot] \
#     --filestore ADDRESS:/SHARE --run /mnt/orqa/RUN [--dry-run]
# The run folder holds corpus/ and ict/model/; index/ is written there. (BM25 is made by one process:
# by `orqa index --run RUN` on any one machine, which leaves the vectors as they are.)
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_tpu.sh"

read_options "$@"
[[ $run != gs://* ]] || fail "Several hosts index into a folder that all of them see, not $run."
run_until_finished index index/manifest.json
