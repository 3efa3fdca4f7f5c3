"""The calibration of a TPU runs on a CPU, says that it is not a TPU, and fits given measurements."""

import json
import os
import subprocess
import sys

import pytest

from jaxspec.compiled.bracket import Constants, Range
from tests.benchmarks import calibrate
from tests.benchmarks.calibrate import fit
from tests.tpu_scripts.cloud import SCRIPTS


def test_constants_are_the_bounds_of_what_was_measured():
    """A read in a chain is a small operation that waits once."""
    small, reads = {"a": 0.1e-6, "b": 0.2e-6}, {"near": 0.7e-6, "far": 0.9e-6}
    found = fit(small, reads, {"x": 6e11, "y": 8e11}, {"s": 3e-6, "t": 4e-6}, 1e12, "here")
    assert found.small_operation == Range(0.1e-6, 0.2e-6)
    assert found.dma_wait == pytest.approx((0.5e-6, 0.8e-6))
    assert found.bandwidth_share == pytest.approx((0.6, 0.8))
    assert found.collective == Range(3e-6, 4e-6) and found.source == "here"
    assert fit(small, reads, {"x": 6e11}, {}, 1e12, "here").collective == Constants().collective


def test_what_is_no_tpu_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        calibrate.main([str(tmp_path / "file.json"), "--tiny"])
    said = capsys.readouterr().err
    assert "expected one of TPU v4, " in said and "on the platform cpu" in said and "pass --any-device" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_script_writes_a_file_that_the_report_reads(tmp_path):
    path = tmp_path / "file.json"
    command = ["bash", str(SCRIPTS / "calibrate.sh"), str(path), "--tiny", "--any-device"]
    environment = os.environ | {"JAXSPEC_PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    subprocess.run(command, check=True, env=environment, timeout=300)
    assert Constants.load(path).source.startswith("meaningless, of no TPU: measured on ")
    found = json.loads(path.read_text())
    assert len(found["measured"]["small"]) == 5 and found["plain_step_seconds"] != 0
    assert [each.name for each in tmp_path.iterdir()] == ["file.json"]
