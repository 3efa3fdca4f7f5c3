"""The environment of the tests of the scripts."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.tpu_scripts.cloud import FAKE, ROOT, SCRIPTS, Cloud, write_program

# These tests are of a checkout, in which the scripts must be there.
if not SCRIPTS.exists() and not (ROOT / "jaxspec").exists():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A PATH that begins with a `gcloud` that answers and a `sleep` that does not wait."""
    folder = tmp_path_factory.mktemp("bin")
    write_program(folder / "gcloud", f"#!{sys.executable} -IS\n{FAKE}")
    write_program(folder / "sleep", '#!/bin/sh\necho "$1" >>"$FAKE_GCLOUD/slept"\n')
    found = f"{folder}:{os.environ['PATH']}"
    assert shutil.which("gcloud", path=found) == str(folder / "gcloud")
    return found


@pytest.fixture
def cloud(tmp_path, path):
    return Cloud(tmp_path, path)


@pytest.fixture
def checkout(cloud, tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("setup.sh archives a commit, and git is not installed")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    # No user's hooks or signatures.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "checkout"
    shutil.copytree(SCRIPTS, folder / "tpu_scripts", ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    cloud.scripts = folder / "tpu_scripts"
    return folder
