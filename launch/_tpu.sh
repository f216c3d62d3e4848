# shellcheck shell=bash
# Sourced by launch/tpu_*.sh: options, and the life of one TPU slice as a queued resource.
#
# A queued resource is WAITING_FOR_RESOURCES, PROVISIONING, ... until it is ACTIVE. When a spot
# slice is preempted it becomes SUSPENDED and stays so: it has to be deleted and asked for again.

source "$(dirname -- "${BASH_SOURCE[0]}")/_commands.sh"

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck disable=SC2034 # some are for tpu_create.sh alone
name='' zone='' project='' type='' version='' filestore='' run='' logs=''
# shellcheck disable=SC2034
spot='' delete='' dry_run=''
settings=()
poll=${ORQA_POLL_SECONDS:-30}
# A run that ends this often without being finished, on a slice that is there, has a fault.
most_failures=3

# shellcheck disable=SC2034
read_options() {
  while (($#)); do
    case $1 in
      --name | --zone | --project | --type | --version | --filestore | --run | --logs)
        (($# > 1)) || fail "$1 needs a value."
        printf -v "${1#--}" '%s' "$2"
        shift
        ;;
      --spot) spot=yes ;;
      --delete) delete=yes ;;
      --dry-run) dry_run=yes ;;
      --)
        shift
        settings=("$@")
        break
        ;;
      *) fail "There is no option $1; settings of orqa come after --." ;;
    esac
    shift
  done
  [[ $name && $zone ]] || fail "--name and --zone are needed."
  where=("--zone=$zone")
  [[ ! $project ]] || where+=("--project=$project")
}

# The software of the host by the kind of chip.
default_version() {
  case $type in
    v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) fail "--version is needed for the type '$type'." ;;
  esac
}

# Prints the state of the queued resource, or nothing where there is none.
state() {
  run_command gcloud compute tpus queued-resources list "${where[@]}" \
    --filter="name~/$name\$" --format='value(state.state)'
}

create() {
  [[ $type ]] || fail "--type is needed to ask for a slice, such as v5litepod-16."
  local runtime
  runtime=${version:-$(default_version)}
  run_command gcloud compute tpus queued-resources create "$name" "${where[@]}" \
    --node-id="$name" --accelerator-type="$type" --runtime-version="$runtime" ${spot:+--spot}
}

delete() {
  run_command gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet
}

# Returns when the slice is there; asks for it, and again when it was preempted.
ensure_active() {
  local now
  if [[ $dry_run ]]; then
    state
    create
    return
  fi
  while true; do
    now=$(state)
    case $now in
      ACTIVE) return ;;
      '') create ;;
      SUSPENDED) delete ;;
      FAILED)
        echo "${0##*/}: The request for $name has failed; see why, and give it back by" \
          "tpu_create.sh --delete." >&2
        return 1
        ;;
      *) sleep "$poll" ;;
    esac
  done
}

on_all_hosts() {
  run_command gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all --command="$1"
}

# Brings the committed state of this repository to every host, and installs it there. The lock is
# that of the training: after a lost connection it may still be running.
install() {
  local archive
  archive=$(mktemp -d)/orqa.tar.gz
  run_command git -C "$root" archive --format=tar.gz --output="$archive" HEAD &&
    run_command gcloud compute tpus tpu-vm scp "$archive" "$name:orqa.tar.gz" "${where[@]}" \
      --worker=all &&
    on_all_hosts "flock orqa.lock sh -c 'mkdir -p orqa && tar -xzf orqa.tar.gz -C orqa \
&& orqa/launch/host_install.sh tpu,gcs'"
  local status=$?
  rm -r -- "$(dirname -- "$archive")"
  if [[ $status == 0 && $filestore ]]; then
    on_all_hosts "mountpoint --quiet /mnt/orqa || { sudo apt-get update --quiet \
&& sudo apt-get install --quiet --yes nfs-common && sudo mkdir -p /mnt/orqa \
&& sudo mount -t nfs $filestore /mnt/orqa; }" || status=$?
  fi
  return "$status"
}

# Whether there is a file of the run folder.
is_there() {
  if [[ $run == gs://* ]]; then
    run_command gcloud storage ls "$1"
  else
    run_command gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=0 \
      --command="test -e $(printf %q "$1")"
  fi
}

# Runs a command of orqa on all hosts until its result is in the run folder, through preemptions.
# Arguments: command, what is in the run folder when it is finished.
run_until_finished() {
  [[ $run == gs://* || ($filestore && $run == /mnt/orqa/*) ]] ||
    fail "--run has to be in a bucket, gs://BUCKET/RUN, or with --filestore /mnt/orqa/RUN."
  local command=$1 result=$run/$2 failures=0 remote
  printf -v remote ' %q' "$command" "$run" "${settings[@]}"
  remote="flock orqa.lock env JAX_NUM_PROCESSES=auto orqa/launch/host_run.sh$remote >>orqa.log 2>&1"
  while true; do
    ensure_active
    { install && on_all_hosts "$remote"; } || true
    if is_there "$result"; then
      return
    fi
    # A preemption is seen as a lost connection first.
    sleep "$poll"
    if [[ $(state) != ACTIVE ]]; then
      failures=0
      continue
    fi
    failures=$((failures + 1))
    if ((failures == most_failures)); then
      echo "${0##*/}: $command ended $failures times without a result; see --logs." >&2
      return 1
    fi
  done
}
