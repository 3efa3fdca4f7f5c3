"""The native kernels under sanitizers, in a separate process."""

import os
import shutil
import subprocess
import sys

import pytest

from tests._fixtures.processes import ROOT


@pytest.mark.slow
def test_no_sanitizer_finds_anything(tmp_path):
    """In shapes of every kind, right and wrong ones: no access beyond an array, and nothing undefined."""
    find = lambda name: subprocess.run(
        ["g++", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if shutil.which("g++") is None or not all(os.path.isabs(find(name)) for name in ("asan", "ubsan")):
        pytest.skip("g++ with its sanitizers is needed")
    sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    # What is compiled without optimizations takes a quarter of the time.
    wrapper = tmp_path / "compiler"
    wrapper.write_text(f'#!/bin/sh\nexec g++ "$@" -O1 -g1 {sanitizers}\n')
    wrapper.chmod(0o755)
    options = {"CXX": str(wrapper), "JAXSPEC_CACHE": str(tmp_path), "ASAN_OPTIONS": "detect_leaks=0"}
    environment = os.environ | options | {"JAX_PLATFORMS": "cpu", "LD_PRELOAD": f"{find('asan')} {find('ubsan')}"}
    command = [sys.executable, "-m", "tests._fixtures.native_calls"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all calls were made\n"), done.stderr[-4000:]
