# shellcheck shell=bash
# Shared by the scripts: options, errors, commands that are shown before they run, and the reminder to delete.

set -euo pipefail

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "error: got bash $BASH_VERSION, expected 4.4 or newer; pass the script to a newer bash" >&2
  exit 1
fi

scripts=$(dirname -- "$0")
name="" zone="" project="" slices="" dry_run=false
poll=${JAXSPEC_TPU_POLL_SECONDS:-30}
scratch=""
remind=false
# worker.sh prints this last.
finished="jaxspec-tpu: done"

# Messages go to descriptor 3, outside pipes and substitutions.
exec 3>&1

say() { printf '%s\n' "$*" >&3; }

# bad GOT EXPECTED PASS: exits for wrong usage. Nothing has been called yet.
bad() {
  printf 'error: got %s, expected %s; pass %s\n' "$1" "$2" "$3" >&2
  exit 2
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

show() {
  local words
  printf -v words ' %q' "$@"
  say "+$words"
}

# Shows a command and runs it; with --dry-run, only shows it.
run() {
  show "$@"
  [[ $dry_run == true ]] || "$@"
}

matches() {
  local LC_ALL=C # [a-z] is ASCII
  [[ $1 =~ $2 ]]
}

# take VARIABLE OPTION VALUE...: stores an option's value, which must be nonempty and given once.
take() {
  local -n variable=$1
  (($# >= 3)) || bad "$2 without a value" "one" "$2 VALUE"
  [[ -n $3 ]] || bad "an empty $2" "a value" "$2 VALUE"
  [[ -z $variable ]] || bad "$2 twice" "it once" "one of $variable and $3"
  # shellcheck disable=SC2034  # a reference
  variable=$3
}

# Reads one shared option from the front of the arguments; the caller shifts by $taken.
# shellcheck disable=SC2034
common_option() {
  taken=2
  case $1 in
    --name) take name "$@" ;;
    --zone) take zone "$@" ;;
    --project) take project "$@" ;;
    --slices) take slices "$@" ;;
    --dry-run) dry_run=true taken=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) bad "the argument '$1'" "an option of $(basename -- "$0")" "--help to see them" ;;
  esac
}

check_number() { # OPTION VALUE
  matches "$2" '^[1-9][0-9]{0,4}$' || bad "$1 $2" "a whole number from 1 to 99999" "$1 2"
}

check_common() {
  local longest=63
  [[ -n $name ]] || bad "no --name" "the TPU's name" "--name NAME"
  [[ -n $zone ]] || bad "no --zone" "the zone to find it in" "--zone ZONE, such as us-central1-a"
  [[ -n $project ]] || bad "no --project" "the project that pays" "--project PROJECT"
  slices=${slices:-1}
  check_number --slices "$slices"
  # Each slice's machine is called NAME-0, NAME-1, ...
  ((slices == 1)) || longest=$((63 - 1 - ${#slices}))
  if ! matches "$name" '^[a-z]([-a-z0-9]*[a-z0-9])?$' || ((${#name} > longest)); then
    bad "--name '$name'" "at most $longest of a-z, 0-9 and '-', beginning with a letter, not ending with '-'" \
      "--name such as jaxspec-1"
  fi
  matches "$zone" '^[a-z]+-[a-z]+[0-9]+-(ai[0-9]+)?[a-z]$' ||
    bad "--zone '$zone'" "a zone, which ends with a letter" "--zone such as us-central1-a"
  matches "$project" '^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$' ||
    bad "--project '$project'" "a project id: 6 to 30 of a-z, 0-9 and '-'" "--project such as my-project-1"
  matches "$poll" '^[0-9]{1,4}$' ||
    bad "JAXSPEC_TPU_POLL_SECONDS=$poll" "whole seconds" "JAXSPEC_TPU_POLL_SECONDS=30"
  place=(--project="$project" --zone="$zone")
}

# From here on the machine may exist: every exit prints how to delete it.
begin() {
  if [[ $dry_run == true ]]; then
    say "Dry run: nothing is called. It would run:"
  else
    command -v gcloud >/dev/null || fail "got no gcloud on PATH, expected the Google Cloud command line;" \
      "see https://cloud.google.com/sdk/docs/install"
    scratch=$(mktemp -d)
  fi
  remind=true
}

delete_command() {
  local words
  printf -v words '%q ' "$scripts/delete.sh" --name "$name" "${place[@]}"
  printf '  %s\n' "${words% }"
}

finish() {
  local status=$?
  trap - EXIT
  [[ -z $scratch ]] || rm -rf -- "$scratch"
  if [[ $remind == true ]]; then
    ((status == 0)) || echo "error: stopped with exit status $status" >&2
    echo "The machine costs money until it is deleted. This deletes it, and may be repeated:" >&2
    delete_command >&2
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ask VARIABLE COMMAND...: stores the output of a command; leaves it empty with --dry-run.
ask() {
  local -n answer=$1
  shift
  show "$@"
  # shellcheck disable=SC2034  # a reference
  [[ $dry_run == true ]] || answer=$("$@")
}

list_machines() { # VARIABLE: stores a line for each TPU VM of the zone
  ask "$1" gcloud compute tpus tpu-vm list "${place[@]}" \
    --format='csv[no-heading](name.basename(),queuedResource.basename(),state,networkEndpoints.len())'
}

slice_names() {
  local index
  if ((slices == 1)); then
    echo "$name"
  else
    for ((index = 0; index < slices; index++)); do echo "$name-$index"; done
  fi
}

# Sets `workers` (counts by slice) and `total_workers`; fails unless exactly the expected slices are ready.
declare -A workers=()
total_workers=0
find_workers() {
  local listing="" slice node owner state count requested=0
  list_machines listing
  if [[ $dry_run == true ]]; then
    total_workers=WORKERS
    return
  fi
  for slice in $(slice_names); do
    while IFS=, read -r node owner state count; do
      [[ $node == "$slice" ]] || continue
      [[ $state == READY ]] || fail "got $slice in the state $state, expected READY;" \
        "if it was preempted, run delete.sh and create.sh again"
      matches "$count" '^[1-9][0-9]*$' || fail "got '$count' workers of $slice, expected a number; run gcloud" \
        "compute tpus tpu-vm describe $slice ${place[*]}"
      workers[$slice]=$count
    done <<<"$listing"
    [[ -n ${workers[$slice]:-} ]] || fail "got no TPU VM $slice in $zone of $project, expected $slices slice(s)" \
      "of $name; pass the --name, --zone, --project and --slices of create.sh"
    total_workers=$((total_workers + workers[$slice]))
  done
  while IFS=, read -r node owner state count; do
    [[ $owner != "$name" ]] || requested=$((requested + 1))
  done <<<"$listing"
  ((requested == 0 || requested == slices)) ||
    fail "got --slices $slices, expected $requested as created; pass --slices $requested"
}

# on_all_workers COMMAND: runs a shell command on every worker of every slice at once.
on_all_workers() {
  local call reached
  if ((slices == 1)); then
    call=(gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker=all --command="$1")
  else
    # The default, consecutive batches of 64, would hang: the processes wait for each other.
    call=(gcloud compute tpus queued-resources ssh "$name" "${place[@]}" --node=all --worker=all
      --batch-size=all --command="$1")
  fi
  show "${call[@]}"
  [[ $dry_run == false ]] || return 0
  "${call[@]}" | tee "$scratch/output"
  # gcloud only warns when it cannot reach a slice.
  reached=$(grep -cF "$finished" "$scratch/output" || true)
  ((reached == total_workers)) || fail "got $reached worker(s) that finished, expected $total_workers; see above"
}
