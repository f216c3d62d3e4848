#!/usr/bin/env bash
# A TPU slice: asks for it, waits until it is there, and installs orqa on all of its hosts.
#   tpu_create.sh --name NAME --zone ZONE --type v5litepod-16 [--spot] [--version RUNTIME]
#   tpu_create.sh --name NAME --zone ZONE --logs FOLDER    fetches the log of every host
#   tpu_create.sh --name NAME --zone ZONE --delete         gives the slice back
# Everywhere: [--project PROJECT] [--dry-run], which prints each command and runs none.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_tpu.sh"

read_options "$@"
if [[ $delete ]]; then
  delete
elif [[ $logs ]]; then
  mkdir -p -- "$logs"
  run_command gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all \
    --command='cat orqa.log' --output-directory="$logs"
else
  ensure_active
  install
fi
