"""worker.sh, run by the stand-in as ssh would."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.tpu_scripts.cloud import DELETE, DONE, ROOT, WHO, write_program

PYTHON = """
import json, os, sys
with open(os.path.expanduser("~/python"), "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
print("said")
print("complained", file=sys.stderr)
sys.exit(int(os.environ.get("EXIT", "0")))
"""


@pytest.fixture
def worker(cloud, tmp_path):
    """A home folder as setup.sh leaves it, with a stand-in for its Python."""
    home = tmp_path / "home"
    (home / "jaxspec-env" / "bin").mkdir(parents=True)
    (home / "jaxspec-source").symlink_to(ROOT)
    (home / "python").touch()
    write_program(home / "jaxspec-env" / "bin" / "python", f"#!{sys.executable} -IS\n{PYTHON}")
    if shutil.which("timeout") is None or subprocess.run(["sed", "-u", "", os.devnull]).returncode:
        pytest.skip("worker.sh is for Linux: needs GNU timeout and sed")
    return home


def python_calls(home):
    return [json.loads(line) for line in (home / "python").read_text().splitlines()]


def run_on_worker(cloud, *arguments, times=1, **environment):
    cloud.answer({"tpu-vm list": [[0, "jax-1,,READY,1\n"]] * times, "tpu-vm ssh": [[0, "", "execute"]] * times})
    return cloud.run("run.sh", "generate", *WHO, "--label", "first", "--", *arguments, **environment)


def test_arguments_arrive_as_they_are(cloud, worker):
    arguments = ['it\'s "$HOME"; `ls` \\ *', "two\nlines  ", "grüße", "", "--stop", "--", "$(exit 3)", "!"]
    result = run_on_worker(cloud, *arguments)
    assert result.returncode == 0, result.stderr
    script = str(worker / "jaxspec-source" / "tpu_scripts" / "on_worker.py")
    (call,) = python_calls(worker)
    assert pathlib.Path(call[0]).resolve() == pathlib.Path(script).resolve()
    assert call[1:] == ["1", "generate", *arguments]
    results = worker / "jaxspec-results" / "first"
    assert sorted((results / "output.txt").read_text().split()) == ["complained", "said"]
    assert (results / "exit_status.txt").read_text() == "0\n"
    assert shlex.split((results / "command.txt").read_text())[0] == "generate"
    assert re.search(r"^\[\S+\] said$", result.stdout, re.MULTILINE)


def test_results_are_not_overwritten(cloud, worker):
    assert run_on_worker(cloud, "a", times=2).returncode == 0
    results = worker / "jaxspec-results" / "first"
    before = {path.name: path.read_text() for path in results.iterdir()}
    result = run_on_worker(cloud, "b", times=2)
    assert result.returncode == 1 and "got the label first, which has results" in result.stderr
    assert {path.name: path.read_text() for path in results.iterdir()} == before
    assert len(python_calls(worker)) == 1


def test_a_program_that_fails_on_the_worker(cloud, worker):
    """Never with 255, which gcloud takes for a broken connection and repeats."""
    result = run_on_worker(cloud, "a", EXIT="255")
    assert result.returncode == 1 and "got the exit status 255" in result.stderr and DELETE in result.stderr
    assert (worker / "jaxspec-results" / "first" / "exit_status.txt").read_text() == "255\n"


def test_a_program_that_takes_too_long(cloud, worker):
    write_program(cloud.folder / "bin" / "timeout", '#!/bin/sh\necho "$@" >"$HOME/timeout"\nexit 124\n')
    result = run_on_worker(cloud, "a")
    assert (worker / "timeout").read_text().startswith("--kill-after=30 60m ")
    assert result.returncode == 1 and "got no end within 60 minutes" in result.stderr


def test_install_on_the_worker(cloud, worker):
    write_program(cloud.folder / "bin" / "uv", '#!/bin/sh\necho "$@" >>"$HOME/uv"\n')
    (worker / "jaxspec-env" / "old").touch()
    environment = cloud.environment | {"HOME": str(worker)}
    command = ["bash", worker / "jaxspec-source" / "tpu_scripts" / "worker.sh"]
    result = subprocess.run([*command, "install"], env=environment, text=True, capture_output=True)
    assert result.returncode == 0 and result.stdout.endswith(DONE)
    assert not (worker / "jaxspec-env").exists()
    venv, install = (worker / "uv").read_text().splitlines()
    assert venv == f"venv --quiet --python 3.12 {worker}/jaxspec-env"
    assert install.startswith(f"pip install --quiet --python {worker}/jaxspec-env/bin/python ")
    assert install.endswith("[tpu]") and pathlib.Path(install.split()[-1][:-5]).resolve() == ROOT
    write_program(cloud.folder / "bin" / "uv", "#!/bin/sh\nexit 6\n")
    result = subprocess.run([*command, "install"], env=environment, text=True, capture_output=True)
    assert result.returncode == 6 and DONE not in result.stdout


def test_check_on_the_worker(cloud, worker):
    environment = cloud.environment | {"HOME": str(worker)}
    command = ["bash", worker / "jaxspec-source" / "tpu_scripts" / "worker.sh"]
    result = subprocess.run([*command, "check", "4"], env=environment, text=True, capture_output=True)
    assert result.returncode == 0 and result.stdout.endswith(DONE)
    assert python_calls(worker)[0][1:] == ["4", "check"]
    failed = subprocess.run([*command, "check", "4"], env=environment | {"EXIT": "1"}, text=True, capture_output=True)
    assert failed.returncode == 1 and DONE not in failed.stdout
    unknown = subprocess.run([*command, "reboot"], env=environment, text=True, capture_output=True)
    assert unknown.returncode == 1 and "got the command 'reboot'" in unknown.stderr
