#!/usr/bin/env bash
# One machine with NVIDIA GPUs: installs orqa for CUDA and runs a command on all of them, again
# when it dies, as a machine that was preempted does after its restart.
#   gpu_node.sh [--dry-run] ict|index|finetune RUN [settings of the command]
# RUN is a run folder with corpus/ and encoder/ (and what the command needs), or gs://BUCKET/RUN.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_commands.sh"
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
most_failures=3

dry_run=''
if [[ ${1-} == --dry-run ]]; then
  dry_run=yes
  shift
fi
(($# >= 2)) || fail "What and where is needed, such as: ict runs/wiki"
run=$2
[[ $run == *://* ]] || run=$(realpath -m -- "$run")
run_command "$root/launch/host_install.sh" cuda,gcs
for ((failures = 1; failures <= most_failures; failures++)); do
  status=0
  run_command "$root/launch/host_run.sh" "$1" "$run" "${@:3}" || status=$?
  case $status in
    0 | 2 | 75 | 130) exit "$status" ;; # finished, refused, stopped
  esac
  echo "${0##*/}: $1 died with status $status, time $failures of $most_failures." >&2
done
exit "$status"
