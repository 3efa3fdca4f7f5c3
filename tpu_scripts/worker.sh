#!/usr/bin/env bash
# Runs on each worker; setup.sh and run.sh call it through ssh.
set -euo pipefail

source_folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$HOME/jaxspec-env/bin/python
host=${HOSTNAME:-$(uname -n)}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

install() {
  # The machines' Python is too old for jaxspec; uv installs a newer one.
  export PATH=$HOME/.local/bin:$PATH
  command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
  rm -rf -- "$HOME/jaxspec-env"
  uv venv --quiet --python 3.12 "$HOME/jaxspec-env"
  uv pip install --quiet --python "$python" "${source_folder}[tpu]"
}

check() { # WORKERS
  "$python" "$source_folder/tpu_scripts/on_worker.py" "$1" check
}

run() { # LABEL MINUTES WORKERS COMMAND ARGUMENT...
  local results=$HOME/jaxspec-results/$1 minutes=$2 workers=$3 status
  mkdir -p -- "$HOME/jaxspec-results"
  # gcloud repeats a command after a lost connection: it must neither run twice nor overwrite.
  mkdir -- "$results" || fail "got the label $1, which has results on $host, expected a new one; pass --label"
  shift 3
  printf '%q ' "$@" >"$results/command.txt"
  set +e
  (
    cd -- "$results" || exit
    exec timeout --kill-after=30 "${minutes}m" "$python" "$source_folder/tpu_scripts/on_worker.py" "$workers" "$@"
  ) 2>&1 </dev/null | tee "$results/output.txt" | sed -u "s/^/[$host] /"
  status=${PIPESTATUS[0]}
  set -e
  echo "$status" >"$results/exit_status.txt"
  [[ $status != 124 && $status != 137 ]] || fail "$host: got no end within $minutes minutes; pass more --minutes"
  # gcloud reads 255 as a broken connection and would repeat the command.
  ((status == 0)) || fail "$host: got the exit status $status, expected 0; see above"
}

case ${1:-} in
  install | check | run) "$@" ;;
  *) fail "got the command '${1:-}', expected install, check or run; pass one of them" ;;
esac
echo "[$host] jaxspec-tpu: done"
