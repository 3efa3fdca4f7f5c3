#!/usr/bin/env bash
# Runs generation, a benchmark or a profile on all workers of all slices at once.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
run.sh generate  --name NAME --zone ZONE --project PROJECT [OPTION...] -- ARGUMENT...  of `jaxspec generate`
run.sh benchmark --name NAME --zone ZONE --project PROJECT [OPTION...] -- ARGUMENT...  of `python -m tests.benchmarks`
run.sh profile   --name NAME --zone ZONE --project PROJECT [OPTION...] -- ARGUMENT...  PROMPT [--model M] [--drafter D]
                                     [-k K] [--max-new-tokens N] [--temperature T] [--seed S]

  --slices N    as given to create.sh  [default: 1]
  --label NAME  folder for the results in jaxspec-results on each worker  [default: command and time]
  --minutes N   end a run after N minutes  [default: 60]
  --dry-run     show the commands, run none
END
}

command=${1:-}
case $command in
  generate | benchmark | profile) shift ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) bad "the command '$command'" "generate, benchmark or profile" "one of them first, such as run.sh generate" ;;
esac

label="" minutes="" arguments=()
while (($#)); do
  [[ $1 != --?*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
  case $1 in
    --label) take label "$@" && shift 2 ;;
    --minutes) take minutes "$@" && shift 2 ;;
    --)
      arguments=("${@:2}")
      break
      ;;
    *) common_option "$@" && shift "$taken" ;;
  esac
done
check_common
case $command in
  generate | profile) example='-- "The sea is"' ;;
  benchmark) example="-- speculate" ;;
esac
((${#arguments[@]})) || bad "no arguments for $command" "some after --" "$example"
for argument in "${arguments[@]}"; do
  [[ $argument != - ]] || bad "'-'" "arguments that do not read standard input" "the text itself"
done
minutes=${minutes:-60}
check_number --minutes "$minutes"
label=${label:-$command-$(date -u +%Y%m%d-%H%M%S)}
matches "$label" '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$' ||
  bad "--label '$label'" "at most 63 letters, digits, '.', '_' and '-', beginning with a letter or digit" \
    "--label such as first-run"

begin
find_workers
printf -v words ' %q' run "$label" "$minutes" "$total_workers" "$command" "${arguments[@]}"
say "Interrupting this script leaves the workers running, for at most $minutes minutes."
on_all_workers "bash jaxspec-source/tpu_scripts/worker.sh$words"
[[ $dry_run == false ]] || exit 0
say "Results are in jaxspec-results/$label on every worker. Fetch them:"
printf -v words ' %q' --name "$name" "${place[@]}" --slices "$slices" --label "$label" --to "results/$label"
say "  $scripts/fetch.sh$words"
