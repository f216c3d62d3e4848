#!/usr/bin/env bash
# A run on a TPU slice of a Google Kubernetes Engine cluster, as launch/gke_jobset.yaml says.
#   gke.sh --name NAME --image IMAGE --run gs://BUCKET/RUN [options] ict|finetune [-- settings]
#   gke.sh --name NAME logs      prints the log of every host
#   gke.sh --name NAME delete
# Options: --accelerator tpu-v5-lite-podslice --topology 4x4 --hosts 4 --chips 4 (a host)
#   --service-account default --restarts 100 --dry-run, which prints what would be done.
# The image is made by: docker build --file launch/Dockerfile --tag IMAGE . && docker push IMAGE
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_commands.sh"
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
name='' image='' run='' dry_run='' action=''
accelerator=tpu-v5-lite-podslice topology=4x4 hosts=4 chips=4
service_account=default restarts=100
settings=()

# A list of strings in JSON, which is YAML too.
as_list() {
  local each list=''
  for each; do
    each=${each//\\/\\\\}
    list+=", \"${each//\"/\\\"}\""
  done
  echo "[${list#, }]"
}

manifest() {
  local text arguments
  text=$(<"$root/launch/gke_jobset.yaml")
  arguments=$(as_list "$action" "$run" "${settings[@]}")
  text=${text//__NAME__/"$name"}
  text=${text//__IMAGE__/"$image"}
  text=${text//__HOSTS__/"$hosts"}
  text=${text//__CHIPS__/"$chips"}
  text=${text//__ACCELERATOR__/"$accelerator"}
  text=${text//__TOPOLOGY__/"$topology"}
  text=${text//__SERVICE_ACCOUNT__/"$service_account"}
  text=${text//__RESTARTS__/"$restarts"}
  echo "${text//__ARGUMENTS__/"$arguments"}"
}

while (($#)); do
  case $1 in
    --name | --image | --run | --accelerator | --topology | --hosts | --chips | \
      --service-account | --restarts)
      (($# > 1)) || fail "$1 needs a value."
      option=${1#--}
      printf -v "${option//-/_}" '%s' "$2"
      shift
      ;;
    --dry-run) dry_run=yes ;;
    --)
      shift
      settings=("$@")
      break
      ;;
    ict | finetune | logs | delete) action=$1 ;;
    *) fail "There is no option $1; settings of orqa come after --." ;;
  esac
  shift
done
[[ $name && $action ]] || fail "--name and what to do (ict, finetune, logs, delete) are needed."
case $action in
  logs)
    run_command kubectl logs --selector="jobset.sigs.k8s.io/jobset-name=$name" --prefix --tail=-1 \
      --max-log-requests=256
    ;;
  delete) run_command kubectl delete jobset "$name" --ignore-not-found ;;
  *)
    [[ $image && $run == gs://* ]] || fail "--image and --run gs://BUCKET/RUN are needed."
    [[ ! $dry_run ]] || manifest
    run_command kubectl apply --filename=- < <(manifest)
    ;;
esac
