"""setup.sh, in a separate checkout."""

import pathlib
import shutil
import tarfile

import pytest

from tests.tpu_scripts.cloud import DELETE, DONE, LIST, PLACE, SCRIPTS, SHELL, WHO, ssh, tpus

INSTALL = (
    "rm -rf jaxspec-source && mkdir jaxspec-source && tar -xzf jaxspec-source.tar.gz -C jaxspec-source "
    "&& bash jaxspec-source/tpu_scripts/worker.sh install"
)


def test_setup(cloud, checkout):
    (checkout / "tpu_scripts" / "README.md").write_text("not committed")
    cloud.answer(
        {
            "tpu-vm list": [[0, "other,,READY,9\njax-1,,READY,2\njax-10,,CREATING,0\n"]],
            "tpu-vm scp": [[0, "", "keep"]],
            "tpu-vm ssh": [[0, DONE * 2], [0, DONE * 2]],
        }
    )
    result = cloud.run("setup.sh", *WHO)
    assert result.returncode == 0, result.stderr
    assert "uncommitted changes are not copied" in result.stdout and DELETE in result.stderr
    listing, copy, *commands = cloud.calls
    assert listing == LIST
    assert copy[4].endswith("/jaxspec-source.tar.gz") and not pathlib.Path(copy[4]).exists()
    assert copy == tpus("tpu-vm", "scp", copy[4], "jax-1:", *PLACE, "--worker=all")
    assert commands == [ssh(INSTALL), ssh("bash jaxspec-source/tpu_scripts/worker.sh check 2")]
    with tarfile.open(cloud.folder / "kept") as archive:
        assert archive.extractfile("tpu_scripts/README.md").read() == (SCRIPTS / "README.md").read_bytes()
        assert set(SHELL) <= {pathlib.Path(name).name for name in archive.getnames()}


def test_setup_of_slices(cloud, checkout):
    cloud.answer(
        {
            "tpu-vm list": [[0, "jax-1-0,jax-1,READY,2\njax-1-1,jax-1,READY,2\n"]],
            "queued-resources scp": [[0, ""]],
            "queued-resources ssh": [[0, DONE * 4], [0, DONE * 4]],
        }
    )
    result = cloud.run("setup.sh", *WHO, "--slices", "2")
    assert result.returncode == 0, result.stderr
    listing, copy, *commands = cloud.calls
    assert listing == LIST
    assert copy == tpus("queued-resources", "scp", copy[4], "jax-1:", *PLACE, "--node=all", "--worker=all")
    check = "bash jaxspec-source/tpu_scripts/worker.sh check 4"
    assert commands == [ssh(INSTALL, slices=2), ssh(check, slices=2)]


@pytest.mark.parametrize(
    ("key", "status", "calls"), [("tpu-vm list", 3, 1), ("tpu-vm scp", 4, 2), ("tpu-vm ssh", 5, 3)]
)
def test_failures_of_setup(cloud, checkout, key, status, calls):
    answers = {"tpu-vm list": [[0, "jax-1,,READY,1\n"]], "tpu-vm scp": [[0, ""]], "tpu-vm ssh": [[0, DONE]]}
    cloud.answer(answers | {key: [[status, ""]]})
    result = cloud.run("setup.sh", *WHO)
    assert result.returncode == status and len(cloud.calls) == calls
    assert DELETE in result.stderr and "is set up" not in result.stdout


def test_setup_outside_a_checkout(cloud, tmp_path):
    cloud.scripts = shutil.copytree(SCRIPTS, tmp_path / "elsewhere" / "tpu_scripts")
    result = cloud.run("setup.sh", *WHO, GIT_CEILING_DIRECTORIES=str(tmp_path))
    assert result.returncode == 2 and cloud.calls == [] and "expected a git checkout" in result.stderr
