#!/usr/bin/env bash
# Deletes a TPU VM, or a queued resource with its slices, and checks that nothing is left. May be repeated.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
delete.sh --name NAME --zone ZONE --project PROJECT [--yes] [--dry-run]

Finds the queued resource, all its slices and the TPU VM of that name, asks, and deletes them.

  --yes      do not ask
  --dry-run  show the commands, run none
END
}

yes=false
while (($#)); do
  [[ $1 != --?*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
  case $1 in
    --yes) yes=true && shift ;;
    --slices) bad "--slices" "no number, because all slices are deleted" "only --name, --zone and --project" ;;
    *) common_option "$@" && shift "$taken" ;;
  esac
done
check_common

# Sets `request` (the state of the queued resource) and `machines` (states by name).
declare -A machines=()
look() {
  local listing="" node owner state count
  request="" machines=()
  ask listing gcloud compute tpus queued-resources list "${place[@]}" \
    --format='csv[no-heading](name.basename(),state.state)'
  while IFS=, read -r node state; do
    [[ $node != "$name" ]] || request=${state:-UNKNOWN}
  done <<<"$listing"
  list_machines listing
  while IFS=, read -r node owner state count; do
    if [[ -n $node ]] && [[ $owner == "$name" || ($node == "$name" && -z $owner) ]]; then
      machines[$node]=${state:-UNKNOWN}
    fi
  done <<<"$listing"
}

describe() {
  local node
  [[ -z $request ]] || echo "  queued resource $name, $request"
  for node in "${!machines[@]}"; do echo "  TPU VM $node, ${machines[$node]}"; done
}

delete_request=(gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet)
delete_machine() { run gcloud compute tpus tpu-vm delete "$1" "${place[@]}" --quiet; }

begin
look
if [[ $dry_run == true ]]; then
  say "  then, if they exist:"
  show "${delete_request[@]}"
  delete_machine "$name"
  say "  then lists again until both are empty"
  remind=false
  exit
fi
if [[ -z $request && ${#machines[@]} == 0 ]]; then
  say "Nothing is called $name in $zone of $project: there is nothing to delete."
  remind=false
  exit
fi

say "This will be deleted, with all files on it:"
say "$(describe)"
if [[ $yes == false ]]; then
  printf 'Delete it? [y/N] ' >&2
  read -r answer || answer=""
  [[ $answer == [yY] || $answer == [yY]es ]] || fail "got the answer '$answer', expected y; nothing was deleted"
fi

# This deletes its slices too; the loop deletes any that remain.
if [[ -n $request ]]; then
  run "${delete_request[@]}"
  look
fi
for ((attempt = 1; ; attempt++)); do
  for node in "${!machines[@]}"; do
    [[ ${machines[$node]} == DELETING ]] || delete_machine "$node"
  done
  look
  [[ -n $request || ${#machines[@]} != 0 ]] || break
  if ((attempt == 20)); then
    describe >&2
    fail "got the above after $attempt looks, expected nothing; see https://console.cloud.google.com/compute/tpus"
  fi
  sleep "$poll"
done
say "Deleted. Nothing is called $name in $zone of $project."
remind=false
