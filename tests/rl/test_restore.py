"""`Rollouts.restore`: what a damaged file or another state leaves as it was."""

import numpy as np
import pytest

from jaxspec.core import FileFormatError
from jaxspec.rl import History, Rollouts


def made(calls):
    rollouts = Rollouts(history=History())
    rollouts.calls = calls
    for _ in range(calls):
        rollouts.history.add([1], [calls, 3])
    return rollouts


@pytest.mark.parametrize("damage", ["text", "half", "flipped", "array", "missing"])
def test_damaged_files_are_named_and_replace_nothing(tmp_path, damage):
    path, rollouts = tmp_path / "rollouts.npz", made(calls=1)
    made(calls=2).save(path)
    whole = path.read_bytes()
    at = len(whole) // 2
    if damage == "array":
        np.save(path.with_suffix(".npy"), np.zeros(3))
        path.with_suffix(".npy").rename(path)
    elif damage == "missing":
        path.unlink()
    else:
        middle = whole.index(b"calls.npy") + 140
        flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        path.write_bytes({"text": b"no rollouts", "half": whole[:at], "flipped": flipped}[damage])
    with pytest.raises(FileFormatError, match=r"rollouts.npz: .*; pass a file that Rollouts.save wrote"):
        rollouts.restore(path)
    assert rollouts.calls == 1 and rollouts.history.state()["tokens"].tolist() == [1, 3]


@pytest.mark.parametrize("calls", ["two", 1.5, -1, np.zeros(2, np.int64)])
def test_calls_that_are_no_number_replace_nothing(calls):
    rollouts = made(calls=1)
    with pytest.raises(ValueError, match="calls of the state must be a number of calls"):
        rollouts.load_state(made(calls=2).state() | {"calls": calls})
    assert rollouts.calls == 1 and rollouts.history.state()["tokens"].tolist() == [1, 3]


def test_a_file_is_restored(tmp_path):
    rollouts = made(calls=1)
    made(calls=2).save(tmp_path / "rollouts.npz")
    rollouts.restore(tmp_path / "rollouts.npz")
    assert rollouts.calls == 2 and rollouts.history.state()["tokens"].tolist() == [2, 3, 2, 3]
