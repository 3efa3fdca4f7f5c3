"""run.sh: the slices must be there and ready, and every worker must finish."""

import re

import pytest

from tests.tpu_scripts.cloud import DELETE, DONE, LIST, WHO, ssh


@pytest.mark.parametrize(
    ("listing", "slices", "message"),
    [
        ("", 1, "got no TPU VM jax-1 in us-central1-a of my-project"),
        ("jax-10,,READY,1\n", 1, "got no TPU VM jax-1 "),
        ("jax-1,,PREEMPTED,0\n", 1, "got jax-1 in the state PREEMPTED, expected READY"),
        ("jax-1,,READY,\n", 1, "got '' workers of jax-1"),
        ("jax-1-0,jax-1,READY,1\njax-1-1,jax-1,CREATING,0\n", 2, "got jax-1-1 in the state CREATING"),
        ("jax-1-0,jax-1,READY,1\n", 2, "got no TPU VM jax-1-1 "),
        ("jax-1-0,jax-1,READY,1\njax-1-1,jax-1,READY,1\njax-1-2,jax-1,READY,1\n", 2, "got --slices 2, expected 3"),
        ("jax-1-0,jax-1,READY,1\njax-1-1,jax-1,READY,1\n", 1, "got no TPU VM jax-1 "),
    ],
)
@pytest.mark.parametrize("script", ["run.sh", "fetch.sh"])
def test_slices_that_are_not_there(cloud, script, listing, slices, message):
    cloud.answer({"tpu-vm list": [[0, listing]]})
    if script == "run.sh":
        result = cloud.run(script, "generate", *WHO, "--slices", str(slices), "--", "a")
    else:
        result = cloud.run(script, *WHO, "--slices", str(slices), "--to", "new")
    assert result.returncode == 1 and message in result.stderr and DELETE in result.stderr
    assert cloud.calls == [LIST] and not (cloud.folder / "new").exists()


@pytest.mark.parametrize("command", ["generate", "benchmark", "profile"])
@pytest.mark.parametrize("slices", [1, 2])
def test_run(cloud, command, slices):
    listing = "jax-1,,READY,2\n" if slices == 1 else "jax-1-0,jax-1,READY,1\njax-1-1,jax-1,READY,1\n"
    key = "tpu-vm ssh" if slices == 1 else "queued-resources ssh"
    cloud.answer({"tpu-vm list": [[0, listing]], key: [[0, f"[w0] text\n{DONE * 2}"]]})
    options = ("--label", "first", "--minutes", "5", "--slices", str(slices))
    result = cloud.run("run.sh", command, *WHO, *options, "--", "speculate", "--repeats", "3")
    words = f"bash jaxspec-source/tpu_scripts/worker.sh run first 5 2 {command} speculate --repeats 3"
    assert cloud.calls == [LIST, ssh(words, slices=slices)]
    assert result.returncode == 0 and "[w0] text" in result.stdout and DELETE in result.stderr
    (hint,) = [line for line in result.stdout.splitlines() if "fetch.sh" in line]
    assert f"--slices {slices} --label first --to results/first" in hint


def test_the_label_has_the_time(cloud):
    cloud.answer({"tpu-vm list": [[0, "jax-1,,READY,1\n"]], "tpu-vm ssh": [[0, DONE]]})
    cloud.run("run.sh", "profile", *WHO, "--", "The sea")
    assert re.search(r"worker.sh run profile-\d{8}-\d{6} 60 1 profile The\\ sea$", cloud.calls[1][-1])


@pytest.mark.parametrize(("answer", "status"), [([9, DONE * 2], 9), ([0, DONE], 1), ([0, ""], 1)])
def test_a_worker_that_does_not_finish(cloud, answer, status):
    cloud.answer({"tpu-vm list": [[0, "jax-1,,READY,2\n"]], "tpu-vm ssh": [answer]})
    result = cloud.run("run.sh", "generate", *WHO, "--", "a")
    assert result.returncode == status and DELETE in result.stderr and "Results are in" not in result.stdout
    assert status != 1 or "expected 2" in result.stderr
