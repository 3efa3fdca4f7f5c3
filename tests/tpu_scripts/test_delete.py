"""delete.sh: anything that remains is an error."""

import pytest

from tests.tpu_scripts.cloud import DELETE, DELETE_QUEUED, LIST, LIST_QUEUED, WHO, delete_vm


def lists(*pairs):
    """Answers of both lists, look after look."""
    return {
        "queued-resources list": [[0, requests] for requests, _ in pairs],
        "tpu-vm list": [[0, machines] for _, machines in pairs],
    }


OTHERS = ("jax-10,ACTIVE\njax,ACTIVE\n", "jax-10,jax-10,READY,1\njax-1-0,jax,READY,1\njax-1,jax,READY,1\n,,READY,1\n")


def test_delete_a_machine(cloud):
    gone = [[0, ""]]
    cloud.answer({**lists(("", "jax-1,,READY,1\njax-10,,READY,1\n"), ("", "jax-10,,READY,1\n")), "tpu-vm delete": gone})
    result = cloud.run("delete.sh", *WHO, "--yes")
    assert cloud.calls == [LIST_QUEUED, LIST, delete_vm("jax-1"), LIST_QUEUED, LIST]
    assert result.returncode == 0 and "Nothing is called jax-1" in result.stdout and result.stderr == ""
    assert cloud.slept == []


def test_delete_a_queued_resource(cloud):
    machines = "jax-1-0,jax-1,READY,1\njax-1-1,jax-1,PREEMPTED,0\n"
    cloud.answer({**lists(("jax-1,ACTIVE\n", machines), ("", ""), ("", "")), "queued-resources delete": [[0, ""]]})
    result = cloud.run("delete.sh", *WHO, "--yes")
    assert cloud.calls == [LIST_QUEUED, LIST, DELETE_QUEUED, *[LIST_QUEUED, LIST] * 2]
    assert result.returncode == 0 and result.stderr == ""
    for line in ("queued resource jax-1, ACTIVE", "TPU VM jax-1-0, READY", "TPU VM jax-1-1, PREEMPTED"):
        assert line in result.stdout


def test_slices_that_outlive_their_request(cloud):
    """Those already being deleted are waited for, the others are deleted."""
    left = "jax-1-0,jax-1,DELETING,1\njax-1-1,jax-1,READY,1\n"
    cloud.answer(
        {
            **lists(("jax-1,ACTIVE\n", left), ("", left), ("", "jax-1-0,jax-1,DELETING,1\n"), ("", "")),
            "queued-resources delete": [[0, ""]],
            "tpu-vm delete": [[0, ""]],
        }
    )
    result = cloud.run("delete.sh", *WHO, "--yes")
    looks = [LIST_QUEUED, LIST]
    assert cloud.calls == [*looks, DELETE_QUEUED, *looks, delete_vm("jax-1-1"), *looks, *looks]
    assert result.returncode == 0 and cloud.slept == ["30"]


def test_delete_what_does_not_exist(cloud):
    cloud.answer(lists(OTHERS, OTHERS))
    for _ in range(2):
        result = cloud.run("delete.sh", *WHO)
        assert result.returncode == 0 and "there is nothing to delete" in result.stdout and result.stderr == ""
    assert cloud.calls == [LIST_QUEUED, LIST] * 2


@pytest.mark.parametrize(
    ("typed", "deleted"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_delete_asks(cloud, typed, deleted):
    cloud.answer({**lists(("", "jax-1,,READY,1\n"), ("", "")), "tpu-vm delete": [[0, ""]]})
    result = cloud.run("delete.sh", *WHO, stdin=typed)
    assert (delete_vm("jax-1") in cloud.calls) == deleted == (result.returncode == 0)
    assert "Delete it? [y/N]" in result.stderr
    assert deleted or ("nothing was deleted" in result.stderr and DELETE in result.stderr)


@pytest.mark.slow
def test_what_stays_is_an_error(cloud):
    deleting = [("jax-1,DELETING\n", "jax-1-0,jax-1,DELETING,1\n")] * 21
    cloud.answer({**lists(("jax-1,ACTIVE\n", ""), *deleting), "queued-resources delete": [[0, ""]]})
    result = cloud.run("delete.sh", *WHO, "--yes", JAXSPEC_TPU_POLL_SECONDS="2")
    assert result.returncode == 1 and cloud.slept == ["2"] * 19
    assert "TPU VM jax-1-0, DELETING" in result.stderr and DELETE in result.stderr
    assert "Deleted" not in result.stdout


@pytest.mark.parametrize("key", ["queued-resources list", "tpu-vm list", "queued-resources delete", "tpu-vm delete"])
def test_failures_of_delete(cloud, key):
    answers = {**lists(("jax-1,ACTIVE\n", "jax-1,jax-1,READY,1\n"), ("", "jax-1,jax-1,READY,1\n"))}
    cloud.answer(answers | {"queued-resources delete": [[0, ""]]} | {key: [[6, ""]]})
    result = cloud.run("delete.sh", *WHO, "--yes")
    assert result.returncode == 6 and DELETE in result.stderr and "Nothing is called" not in result.stdout
