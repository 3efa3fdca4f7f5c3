"""A killed process loses only the work since its last checkpoint, and the next one's curve is equal to the bit.

Checkpoints, models and downloads that it leaves are complete or absent.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests._fixtures import training_worker as worker

ROOT = pathlib.Path(__file__).parents[2]


def _start(out, *when) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests._fixtures.training_worker", str(out), *map(str, when)]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)


def _end(process: subprocess.Popen, expected: int = 0) -> None:
    _, told = process.communicate(timeout=300)
    assert process.returncode == expected, told.decode()


def _result(out):
    curve = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    without_time = [{name: value for name, value in line.items() if name != "seconds"} for line in curve]
    return without_time, np.load(out / "head" / "table.npy")


@pytest.mark.slow
def test_killed_between_checkpoints(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first, second = _start(whole), _start(killed, 5)
    _end(second, -signal.SIGKILL)
    assert not (killed / "head").exists()
    _end(_start(killed))
    _end(first)
    (curve, table), (expected_curve, expected_table) = _result(killed), _result(whole)
    assert curve == expected_curve and [line["step"] for line in curve] == [2, 3, 4, 6, 8]
    np.testing.assert_array_equal(table, expected_table)


@pytest.mark.slow
@pytest.mark.parametrize("when", [range(worker.STEPS), ["checkpoint"] * 4], ids=["in every update", "in checkpoints"])
def test_killed_again_and_again(tmp_path, when):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first = _start(whole)
    for moment in when:
        process = _start(killed, moment)
        process.communicate(timeout=300)
        # A checkpoint may be whole before its writer is seen.
        assert process.returncode == -signal.SIGKILL or moment == "checkpoint"
    _end(_start(killed))
    _end(first)
    (curve, table), (expected_curve, expected_table) = _result(killed), _result(whole)
    assert curve == expected_curve
    np.testing.assert_array_equal(table, expected_table)


@pytest.mark.parametrize(
    ("task", "kills"),
    [
        ("download", 3),
        *(pytest.param(task, kills, marks=pytest.mark.slow) for task, kills in (("download", 40), ("save", 15))),
        pytest.param("train", 25, marks=pytest.mark.slow),
    ],
)
def test_what_is_there_is_whole_whenever_a_process_is_killed(tmp_path, task, kills):
    """Before any of its steps on disk; kills of compilers are in `tests/ops`."""
    command = [sys.executable, "-m", "tests._fixtures.kills", task, str(tmp_path), str(kills)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith(f"{kills} killed, "), done.stderr[-4000:]
