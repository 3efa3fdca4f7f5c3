"""What a calibration file says."""

import json

import pytest

from jaxspec.bench.compiled.constants import Constants, Range
from jaxspec.core.files import FileFormatError


def test_what_was_not_measured_stays_as_it_is_stated(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"source": "TPU v5 lite", "dma_wait": [4e-7, 5e-7], "device": "any"}))
    found, stated = Constants.load(path), Constants()
    assert found == Constants(dma_wait=Range(4e-7, 5e-7), source="TPU v5 lite")
    assert found.collective == stated.collective
    path.write_text(found.as_json(device="any"))
    assert Constants.load(path) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "source: expected a string, got None; write it with tpu_scripts/calibrate.sh"),
        ('{"source": "x", "collective": [2, 1]}', r"collective: expected two rising numbers of at least 0, got \[2, 1"),
        ('{"source": "x", "collective": 1}', "collective: expected two rising numbers"),
        ("no", "write it with tpu_scripts/calibrate.sh"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, text, problem):
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=problem):
        Constants.load(path)
