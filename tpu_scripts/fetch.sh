#!/usr/bin/env bash
# Copies the results of all workers of all slices into a new local folder.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
fetch.sh --name NAME --zone ZONE --project PROJECT --to FOLDER [OPTION...]

  --to FOLDER   a new folder; receives SLICE/worker-W/... for every worker
  --label NAME  only the run with that label  [default: all]
  --slices N    as given to create.sh  [default: 1]
  --dry-run     show the commands, run none
END
}

to="" label=""
while (($#)); do
  [[ $1 != --?*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
  case $1 in
    --to) take to "$@" && shift 2 ;;
    --label) take label "$@" && shift 2 ;;
    *) common_option "$@" && shift "$taken" ;;
  esac
done
check_common
[[ -n $to ]] || bad "no --to" "a local folder" "--to FOLDER"
# gcloud would read the part before a colon as a machine.
[[ $to != *:* && $to != -* ]] || bad "--to '$to'" "a path without ':' that does not begin with '-'" "--to FOLDER"
[[ ! -e $to && ! -L $to ]] ||
  bad "--to $to, which exists" "a new folder, because nothing is overwritten" "--to ANOTHER_FOLDER"
[[ -z $label ]] || matches "$label" '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$' ||
  bad "--label '$label'" "a label of run.sh" "--label such as first-run"
from=jaxspec-results${label:+/$label}

begin
find_workers
if [[ $dry_run == true ]]; then
  for slice in $(slice_names); do
    run mkdir -p -- "$to/$slice/worker-W"
    run gcloud compute tpus tpu-vm scp "$slice:$from" "$to/$slice/worker-W" "${place[@]}" --worker=W --recurse
  done
  say "  for every worker W of each slice"
  exit
fi
mkdir -p -- "$(dirname -- "$to")"
# Fails if it was created in the meantime.
mkdir -- "$to"
say "If this stops halfway, $to keeps the files copied so far; fetch again into another folder."
for slice in $(slice_names); do
  count=${workers[$slice]}
  for ((worker = 0; worker < count; worker++)); do
    folder=$to/$slice/worker-$worker
    mkdir -p -- "$folder"
    # gcloud copies from one worker at a time.
    run gcloud compute tpus tpu-vm scp "$slice:$from" "$folder" "${place[@]}" --worker="$worker" --recurse
    [[ -n $(find "$folder" -type f -print -quit) ]] ||
      fail "got no file from worker $worker of $slice, expected results in $from; run run.sh first"
  done
done
say "Fetched from $total_workers worker(s) into $to."
