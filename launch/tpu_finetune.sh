#!/usr/bin/env bash
# Fine-tuning on a TPU slice, continued through preemptions until the model is there.
#   tpu_finetune.sh --name NAME --zone ZONE --type v5litepod-16 [--spot] --run gs://BUCKET/RUN \
#     [--dry-run] [-- settings of orqa finetune]
# The run folder in the bucket holds corpus/, encoder/, ict/model/, index/ and train.jsonl;
# finetune/ and checkpoints/ are written there.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_tpu.sh"

read_options "$@"
run_until_finished finetune finetune/model/model.json
