#!/usr/bin/env bash
# Inverse Cloze Task on a TPU slice, continued through preemptions until the model is there.
#   tpu_ict.sh --name NAME --zone ZONE --type v5litepod-16 [--spot] --run gs://BUCKET/RUN \
#     [--dry-run] [-- settings of orqa ict]
# The run folder in the bucket holds corpus/ and encoder/; ict/ and checkpoints/ are written there.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_tpu.sh"

read_options "$@"
run_until_finished ict ict/model/model.json
