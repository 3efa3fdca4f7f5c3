"""The runner recognizes a mutant that is killed, one that changes nothing, and one whose tests cannot run."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import jaxspec
from tests.mutants import results
from tests.mutants.mutant import Mutant
from tests.mutants.run import summary

ROOT = pathlib.Path(__file__).parents[2]
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "--import-mode=importlib"\n'
    'markers = ["slow", "smollm2", "reference"]\n',
    "jaxspec/__init__.py": "",
    "jaxspec/number.py": "ONE = 1\nTWO = 2\nTHREE = 3\n",
    "tests/test_number.py": "import pytest\nfrom jaxspec import number\n"
    "def test_one():\n    assert number.ONE == 1\n"
    "@pytest.mark.slow\ndef test_two():\n    assert number.TWO == 2\n",
    "tests/test_wrong.py": "def test_it_fails_without_a_mutant():\n    assert False\n",
}
DRIVER = """
import json, pathlib, sys
from tests.mutants import forks, results, run
from tests.mutants.mutant import Mutant
root = pathlib.Path(sys.argv[1])
mutants = [Mutant(*fields, tests=(test,), slow=slow) for *fields, test, slow in json.loads(sys.argv[2])]
forks.warm(("pytest",))
found = run.run(mutants, root, results.Results(root / "results"))
print(json.dumps([found, run.summary(mutants, found)]))
"""
ONE, TWO = "tests/test_number.py::test_one", "tests/test_number.py::test_two"
KILLED = ["killed", "number.py", "ONE = 1", "ONE = 2", ONE, False]
SLOW = ["slow", "number.py", "TWO = 2", "TWO = 3", TWO, True]
SAME = ["same", "number.py", "THREE = 3", "THREE = 3  # as before", ONE, False]


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(root, *mutants):
    """Returns the verdicts by name, the exit status and the lines that were printed."""
    command = [sys.executable, "-c", DRIVER, str(root), json.dumps(mutants)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    return *json.loads(last), lines


@pytest.mark.slow
def test_verdicts(root):
    found, status, lines = run(root, KILLED, SLOW, SAME)
    assert found == {"killed": "killed", "slow": "killed, slow", "same": "SURVIVES"}
    assert status == 1 and "2 of 3 mutants killed" in lines
    assert (root / "jaxspec" / "number.py").read_text() == FILES["jaxspec/number.py"]


def test_a_touched_mutant_that_was_not_run_fails(capsys):
    """Another that a budget leaves out does not."""
    mutants = [Mutant(name, "number.py", "ONE = 1", "ONE = 2", (ONE,)) for name in ("touched", "other")]
    found = {"touched": "not run", "other": "not run"}
    assert summary(mutants, found) == 0
    assert summary(mutants, found, needed={"touched"}) == 1
    assert "1 of them were touched, so that this run fails:\n  touched\n" in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_killed_is_not_run_again_until_a_file_changes(root):
    assert run(root, KILLED, SLOW)[1] == 0
    found, status, lines = run(root, KILLED, SLOW)
    assert "2 were killed by an earlier run" in lines and status == 0 and set(found) == {"killed", "slow"}
    (root / "tests" / "test_number.py").write_text("def test_one():\n    pass\n")
    assert run(root, KILLED)[:2] == ({"killed": "SURVIVES"}, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "test"),
    [
        (("ONE = 1", "ONE = "), ONE),
        (("ONE = 1", "ONE = 2"), "tests/test_number.py::test_that_is_not_there"),
        (("ONE = 1", "ONE = 2"), "tests/test_wrong.py::test_it_fails_without_a_mutant"),
    ],
)
def test_tests_that_cannot_run_kill_nothing(root, edit, test):
    assert run(root, ["broken", "number.py", *edit, test, False])[:2] == ({"broken": "BROKEN"}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [[*KILLED[:-1], True], [*SLOW[:-1], False]])
def test_what_a_mutant_says_of_slow_tests_is_checked(root, mutant):
    assert run(root, mutant)[1] == 1


def test_the_key_of_tests_depends_on_every_file_of_the_package(root):
    """Of every kind that the package has: an edit of a native kernel makes earlier results void, too."""
    suffixes = {path.suffix for path in pathlib.Path(jaxspec.__file__).parent.rglob("*") if path.is_file()} - {".pyc"}
    assert suffixes >= {".py", ".cpp", ".h"}
    for suffix in sorted(suffixes):
        source = root / "jaxspec" / "native" / f"kernel{suffix}"
        source.parent.mkdir(exist_ok=True)
        source.write_text("before")
        before = results.tests_key(root, [ONE])
        source.write_text("after")
        assert results.tests_key(root, [ONE]) != before, suffix
