#!/usr/bin/env bash
# Measures the TPU of this machine and writes the file for `jaxspec compile-report --calibration`. Runs on the TPU.
set -euo pipefail

source_folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=${JAXSPEC_PYTHON:-$HOME/jaxspec-env/bin/python}
[[ -x $python ]] || python=python3
PYTHONPATH=$source_folder${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m tests.benchmarks.calibrate "$@"
