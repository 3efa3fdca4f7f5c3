#!/usr/bin/env bash
# Copies the last commit to all workers of all slices, installs it there, and checks that JAX sees every device.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
setup.sh --name NAME --zone ZONE --project PROJECT [--slices N] [--dry-run]

Copies the last commit to every worker, installs ".[tpu]" in a virtual environment, and checks the devices.
Running it again reinstalls.
END
}

while (($#)); do
  [[ $1 != --?*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
  common_option "$@"
  shift "$taken"
done
check_common

checkout=$scripts/..
# Checked before anything costs money.
git -C "$checkout" cat-file -e HEAD:tpu_scripts/worker.sh 2>/dev/null ||
  bad "no commit with tpu_scripts/worker.sh in $checkout" "a git checkout of jaxspec" "the setup.sh of one"

begin
git -C "$checkout" diff --quiet HEAD || say "Note: uncommitted changes are not copied."
find_workers
archive=${scratch:-SCRATCH}/jaxspec-source.tar.gz
run git -C "$checkout" archive --format=tar.gz --output="$archive" HEAD
if ((slices == 1)); then
  run gcloud compute tpus tpu-vm scp "$archive" "$name:" "${place[@]}" --worker=all
else
  run gcloud compute tpus queued-resources scp "$archive" "$name:" "${place[@]}" --node=all --worker=all
fi
on_all_workers "rm -rf jaxspec-source && mkdir jaxspec-source && tar -xzf jaxspec-source.tar.gz -C jaxspec-source \
&& bash jaxspec-source/tpu_scripts/worker.sh install"
on_all_workers "bash jaxspec-source/tpu_scripts/worker.sh check $total_workers"
[[ $dry_run == true ]] || say "$name is set up: $total_workers worker(s)."
