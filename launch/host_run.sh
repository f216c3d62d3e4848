#!/usr/bin/env bash
# Runs a command of orqa for a run, on this host; several hosts run it at the same time.
#   host_run.sh ict|index|finetune RUN [settings of the command]
# RUN is a run folder that all hosts see, or the URL of one (gs://BUCKET/RUN). From a URL the inputs
# are copied to this host (to $ORQA_DISK), checkpoints are written there by themselves, and the rest
# of the results is copied there every few minutes and at the end.
# Stopped by SIGTERM it ends with status 75 (try again), once the state of the training is saved.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_commands.sh"

(($# >= 2)) || fail "What and where is needed, such as: ict runs/wiki"
command=$1 run=${2%/}
[[ $run == *://* ]] || run=$(realpath -- "$run")
shift 2
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
orqa=$root/.venv/bin/orqa

folder=$run
[[ $run != *://* ]] || folder=${ORQA_DISK:-$HOME/orqa-run}
case $command in
  ict) inputs=(corpus encoder) settings=(--encoder "$folder/encoder") ;;
  index) inputs=(corpus ict/model) settings=() ;;
  finetune)
    inputs=(corpus encoder ict/model index train.jsonl)
    settings=(--encoder "$folder/encoder" --train "$folder/train.jsonl")
    ;;
  *) fail "There is no command $command here, only ict, index and finetune." ;;
esac

if [[ $run == *://* ]]; then
  if [[ $command == index && ${JAX_NUM_PROCESSES:-1} != 1 ]]; then
    fail "Several hosts index into a folder that all of them see, not into $run."
  fi
  mkdir -p -- "$folder"
  for input in "${inputs[@]}"; do
    "$orqa" copy "$run/$input" "$folder/$input"
  done
  # The lines of an earlier start; at the first start there are none.
  "$orqa" copy "$run/$command" "$folder/$command" || echo "$command begins in $run." >&2
  [[ $command == index ]] || settings+=(--checkpoints "$run/checkpoints/$command")
fi

copy_results() {
  local result
  [[ $run != *://* ]] && return
  for result in "$command" bm25; do
    [[ $result == bm25 && $command != index ]] && continue
    if [[ -d $folder/$result ]]; then
      "$orqa" copy "$folder/$result" "$run/$result"
    fi
  done
}

copy_now_and_then() {
  local sleeper
  trap 'kill "$sleeper"; exit' TERM
  while true; do
    sleep "${ORQA_COPY_SECONDS:-300}" &
    sleeper=$!
    wait "$sleeper"
    copy_results || true
  done
}

"$orqa" "$command" --run "$folder" "${settings[@]}" "$@" &
child=$!
stopped=''
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
copier=''
if [[ $run == *://* ]]; then
  copy_now_and_then &
  copier=$!
fi
# A signal ends `wait`, but not yet the training.
status=0
while true; do
  wait "$child" && status=0 || status=$?
  kill -0 "$child" 2>/dev/null || break
done
if [[ $copier ]]; then
  kill "$copier"
  wait "$copier" || true
fi
copy_results
if [[ $stopped && $status == 0 ]]; then
  exit "${ORQA_STOPPED_STATUS:-75}"
fi
exit "$status"
