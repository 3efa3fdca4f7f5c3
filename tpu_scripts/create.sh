#!/usr/bin/env bash
# Creates a TPU VM, or requests one or several slices as a queued resource and waits for them.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
create.sh --name NAME --zone ZONE --project PROJECT --type TYPE [OPTION...] [-- GCLOUD_OPTION...]

  --type TYPE          v2-N, v3-N, v4-N, v5p-N (N cores, 2 per chip), v5litepod-N or v6e-N (N chips)
  --topology AxB[xC]   chips in each direction; --type then has no number, such as v5p
  --version VERSION    runtime version  [default: the documented version for the type]
  --spot               cheaper, and may be preempted at any time
  --queued             wait in a queue instead of failing when there is no capacity
  --slices N           with --queued: N slices that work together  [default: 1]
  --wait-minutes N     with --queued: let the request expire after N minutes  [default: 60]
  --dry-run            show the commands, run none
  -- GCLOUD_OPTION...  more options of `gcloud compute tpus ... create`, such as --reserved
END
}

type="" topology="" version="" wait_minutes="" spot=false queued=false more=()
while (($#)); do
  [[ $1 != --?*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
  case $1 in
    --type) take type "$@" && shift 2 ;;
    --topology) take topology "$@" && shift 2 ;;
    --version) take version "$@" && shift 2 ;;
    --wait-minutes) take wait_minutes "$@" && shift 2 ;;
    --spot) spot=true && shift ;;
    --queued) queued=true && shift ;;
    --)
      more=("${@:2}")
      break
      ;;
    *) common_option "$@" && shift "$taken" ;;
  esac
done
check_common

[[ -n $type ]] || bad "no --type" "a type of TPU" "--type TYPE, such as v5litepod-8"
generation=${type%-*}
types='v2|v3|v4|v5litepod|v5p|v6e' track=()
if [[ -n $topology ]]; then
  matches "$type" "^($types)\$" ||
    bad "--type '$type' with --topology" "one of ${types//|/, }" "--type such as v5p"
  matches "$topology" '^[1-9][0-9]{0,2}x[1-9][0-9]{0,2}(x[1-9][0-9]{0,2})?$' ||
    bad "--topology '$topology'" "chips in two or three directions" "--topology such as 2x4 or 2x2x2"
  chips=$((${topology//x/*}))
  shape=(--type="$type" --topology="$topology")
  # The released command takes a topology only for v2 to v4; the alpha command takes all types.
  [[ $type == v[234] ]] || track=(alpha)
else
  matches "$type" "^($types|tpu7x)-[1-9][0-9]{0,4}\$" ||
    bad "--type '$type'" "v2-N, v3-N, v4-N, v5litepod-N, v5p-N or v6e-N" "--type such as v5litepod-8"
  chips=${type##*-}
  case $generation in
    v5litepod | v6e) ;;
    *)
      ((chips % 2 == 0)) || bad "--type $type" "an even number of cores, 2 to a chip" "--type such as $generation-8"
      chips=$((chips / 2))
      ;;
  esac
  shape=(--accelerator-type="$type")
fi

if [[ -z $version ]]; then
  case $generation in
    v2 | v3 | v4) version=tpu-ubuntu2204-base ;;
    v5litepod) version=v2-alpha-tpuv5-lite ;;
    v5p) version=v2-alpha-tpuv5 ;;
    v6e) version=v2-alpha-tpuv6e ;;
    *) bad "--type $type" "a type up to v6e: the Cloud TPU API has no documented support for later ones" \
      "another --type, or --version if your project has one for it" ;;
  esac
fi
matches "$version" '^[a-z0-9][-a-z0-9.]*$' ||
  bad "--version '$version'" "a runtime version" "--version such as v2-alpha-tpuv5-lite"

if [[ $queued == false ]]; then
  ((slices == 1)) || bad "--slices $slices without --queued" "a queued resource for several slices" "--queued too"
  [[ -z $wait_minutes ]] || bad "--wait-minutes without --queued" "a queue to wait in" "--queued too"
elif ((slices > 1)) && [[ $generation == v[23] ]]; then
  bad "--slices $slices with $type" "v4 or later for several slices" "another --type"
fi
wait_minutes=${wait_minutes:-60}
check_number --wait-minutes "$wait_minutes"

option=() kind="on demand"
[[ $spot == false ]] || { option=(--spot) kind=spot; }
create() { # tpu-vm|queued-resources OPTION...
  run gcloud "${track[@]}" compute tpus "$1" create "$name" "${place[@]}" "${shape[@]}" "${@:2}" "${more[@]}"
}

begin
say "$name: $slices slice(s) of $type${topology:+ $topology}, $kind, $version, in $zone of $project."
say "Cost: $((chips * slices)) chips x hours x price of a chip-hour; https://cloud.google.com/tpu/pricing"

if [[ $queued == false ]]; then
  create tpu-vm --version="$version" "${option[@]}"
  [[ $dry_run == true ]] || say "$name is ready."
  exit
fi

nodes=(--node-id="$name")
((slices == 1)) || nodes=(--node-count="$slices" --node-prefix="$name")
# The request expires, so that no machine is granted after the script stops waiting.
create queued-resources --runtime-version="$version" "${nodes[@]}" \
  --valid-until-duration="$((wait_minutes * 60))s" "${option[@]}"

describe=(gcloud compute tpus queued-resources describe "$name" "${place[@]}" --format='value(state.state)')
show "${describe[@]}"
say "  every $poll s until ACTIVE, for at most $wait_minutes minutes"
[[ $dry_run == false ]] || exit 0
asked=0 before=""
while :; do
  state=$("${describe[@]}")
  [[ $state == "$before" ]] || say "  $state"
  before=$state
  case $state in
    ACTIVE) break ;;
    FAILED | SUSPENDING | SUSPENDED | DELETING) fail "got the state $state of $name, expected ACTIVE; delete it" \
      "and create it again, in another zone or of another type" ;;
  esac
  asked=$((asked + 1))
  ((asked * (poll > 0 ? poll : 1) < wait_minutes * 60)) ||
    fail "got the state $state of $name after $wait_minutes minutes, expected ACTIVE; delete it and pass" \
      "a longer --wait-minutes, another zone or another type"
  sleep "$poll"
done
say "$name is ready."
