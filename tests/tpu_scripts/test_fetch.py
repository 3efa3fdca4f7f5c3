"""fetch.sh: results are never overwritten."""

import pytest

from tests.tpu_scripts.cloud import DELETE, LIST, PLACE, WHO, tpus


def scp(node, worker, folder, source="jaxspec-results"):
    target = f"{folder}/{node}/worker-{worker}"
    return tpus("tpu-vm", "scp", f"{node}:{source}", target, *PLACE, f"--worker={worker}", "--recurse")


def test_fetch(cloud):
    cloud.answer({"tpu-vm list": [[0, "jax-1,,READY,2\n"]], "tpu-vm scp": [[0, "", "fill"]] * 2})
    result = cloud.run("fetch.sh", *WHO, "--to", "my results/new")
    assert result.returncode == 0, result.stderr
    assert cloud.calls == [LIST, scp("jax-1", 0, "my results/new"), scp("jax-1", 1, "my results/new")]
    files = sorted((cloud.folder / "my results" / "new").rglob("output.txt"))
    folders = [path.relative_to(cloud.folder / "my results" / "new").parts[:3] for path in files]
    assert folders == [("jax-1", f"worker-{index}", "jaxspec-results") for index in (0, 1)]
    assert DELETE in result.stderr


def test_fetch_from_slices(cloud):
    listing = "jax-1-0,jax-1,READY,1\njax-1-1,jax-1,READY,2\n"
    cloud.answer({"tpu-vm list": [[0, listing]], "tpu-vm scp": [[0, "", "fill"]] * 3})
    result = cloud.run("fetch.sh", *WHO, "--slices", "2", "--to", "new", "--label", "first")
    source = "jaxspec-results/first"
    copies = [scp(node, worker, "new", source) for node, worker in (("jax-1-0", 0), ("jax-1-1", 0), ("jax-1-1", 1))]
    assert cloud.calls == [LIST, *copies]
    assert result.returncode == 0 and "from 3 worker(s)" in result.stdout


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "dangling link"])
def test_fetch_never_overwrites(cloud, kind):
    target = cloud.folder / "old"
    if kind == "file":
        target.write_text("mine")
    elif kind == "dangling link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
    if kind == "folder":
        (target / "output.txt").write_text("mine")
    before = sorted(path.name for path in cloud.folder.rglob("*"))
    result = cloud.run("fetch.sh", *WHO, "--to", "old")
    assert result.returncode == 2 and cloud.calls == [] and "which exists" in result.stderr
    assert sorted(path.name for path in cloud.folder.rglob("*")) == before
    assert kind != "folder" or (target / "output.txt").read_text() == "mine"


def test_failures_of_fetch(cloud):
    cloud.answer({"tpu-vm list": [[0, "jax-1,,READY,2\n"]] * 2, "tpu-vm scp": [[0, "", "fill"], [5, ""], [0, ""]]})
    result = cloud.run("fetch.sh", *WHO, "--to", "half")
    assert result.returncode == 5 and DELETE in result.stderr and "Fetched" not in result.stdout
    assert len(list((cloud.folder / "half").rglob("output.txt"))) == 1
    result = cloud.run("fetch.sh", *WHO, "--to", "nothing")
    assert result.returncode == 1 and "got no file from worker 0 of jax-1" in result.stderr
