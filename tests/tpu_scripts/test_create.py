"""create.sh: machines, queued requests, and their failures."""

import signal

import pytest

from tests.tpu_scripts.cloud import DELETE, DESCRIBE, PLACE, WHO, shown, tpus


def test_create_a_machine(cloud):
    cloud.answer({"tpu-vm create": [[0, ""]]})
    result = cloud.run("create.sh", *WHO, "--type", "v5litepod-8")
    kind = ("--accelerator-type=v5litepod-8", "--version=v2-alpha-tpuv5-lite")
    assert cloud.calls == [tpus("tpu-vm", "create", "jax-1", *PLACE, *kind)]
    assert result.returncode == 0 and "Cost: 8 chips" in result.stdout and "is ready" in result.stdout
    assert DELETE in result.stderr and "error" not in result.stderr


@pytest.mark.parametrize(
    ("kind", "version", "chips"),
    [
        ("v2-8", "tpu-ubuntu2204-base", 4),
        ("v3-32", "tpu-ubuntu2204-base", 16),
        ("v4-8", "tpu-ubuntu2204-base", 4),
        ("v5litepod-16", "v2-alpha-tpuv5-lite", 16),
        ("v5p-8", "v2-alpha-tpuv5", 4),
        ("v6e-1", "v2-alpha-tpuv6e", 1),
    ],
)
def test_versions_and_chips(cloud, kind, version, chips):
    result = cloud.run("create.sh", *WHO, "--type", kind, "--spot", "--dry-run")
    options = (f"--accelerator-type={kind}", f"--version={version}", "--spot")
    assert shown(result) == [tpus("tpu-vm", "create", "jax-1", *PLACE, *options)]
    assert f"Cost: {chips} chips" in result.stdout


def test_a_version_and_more_options_of_gcloud(cloud):
    cloud.answer({"tpu-vm create": [[0, ""]]})
    more = ("--version=v2-mine", "--", "--reserved", "--labels=a=b c")
    result = cloud.run("create.sh", *WHO, "--type=tpu7x-8", *more)
    options = ("--accelerator-type=tpu7x-8", "--version=v2-mine", "--reserved", "--labels=a=b c")
    assert cloud.calls == [tpus("tpu-vm", "create", "jax-1", *PLACE, *options)]
    assert result.returncode == 0


@pytest.mark.parametrize(("kind", "track"), [("v4", []), ("v5p", ["alpha"]), ("v6e", ["alpha"])])
def test_topology(cloud, kind, track):
    """`gcloud compute tpus` takes a topology of v2, v3 and v4; `gcloud alpha compute tpus` of all."""
    cloud.answer({"tpu-vm create": [[0, ""]]})
    result = cloud.run("create.sh", *WHO, "--type", kind, "--topology", "2x2x4")
    (call,) = cloud.calls
    assert call[: -len(PLACE) - 3] == [*track, *tpus("tpu-vm", "create", "jax-1")]
    assert call[-3:-1] == [f"--type={kind}", "--topology=2x2x4"]
    assert "Cost: 16 chips" in result.stdout


def queued(*options):
    kind = ("--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5-lite")
    return tpus("queued-resources", "create", "jax-1", *PLACE, *kind, *options)


def test_queue(cloud):
    states = ["WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    describe = [[0, f"{state}\n"] for state in states]
    cloud.answer({"queued-resources create": [[0, ""]], "queued-resources describe": describe})
    result = cloud.run("create.sh", *WHO, "--type", "v5litepod-8", "--queued")
    create = queued("--node-id=jax-1", "--valid-until-duration=3600s")
    assert cloud.calls == [create, DESCRIBE, DESCRIBE, DESCRIBE, DESCRIBE]
    assert cloud.slept == ["30", "30", "30"]
    assert result.returncode == 0 and "is ready" in result.stdout and DELETE in result.stderr
    assert result.stdout.count("WAITING_FOR_RESOURCES") == 1


def test_several_spot_slices(cloud):
    cloud.answer({"queued-resources create": [[0, ""]], "queued-resources describe": [[0, "ACTIVE\n"]]})
    options = ("--queued", "--slices", "3", "--spot", "--wait-minutes", "5")
    result = cloud.run("create.sh", *WHO, "--type", "v5litepod-8", *options)
    create = queued("--node-count=3", "--node-prefix=jax-1", "--valid-until-duration=300s", "--spot")
    assert cloud.calls == [create, DESCRIBE]
    assert result.returncode == 0 and "Cost: 24 chips" in result.stdout


def test_the_wait_has_an_end(cloud):
    waiting = [[0, "WAITING_FOR_RESOURCES\n"]] * 9
    cloud.answer({"queued-resources create": [[0, ""]], "queued-resources describe": waiting})
    options = ("--type", "v5litepod-8", "--queued", "--wait-minutes", "1")
    result = cloud.run("create.sh", *WHO, *options, JAXSPEC_TPU_POLL_SECONDS="20")
    assert cloud.calls == [queued("--node-id=jax-1", "--valid-until-duration=60s"), *[DESCRIBE] * 3]
    assert cloud.slept == ["20", "20"]
    assert result.returncode == 1 and "after 1 minutes" in result.stderr and DELETE in result.stderr


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDING", "SUSPENDED", "DELETING"])
def test_a_request_that_fails(cloud, state):
    cloud.answer({"queued-resources create": [[0, ""]], "queued-resources describe": [[0, f"{state}\n"]]})
    result = cloud.run("create.sh", *WHO, "--type", "v5litepod-8", "--queued")
    assert result.returncode == 1 and f"got the state {state}" in result.stderr and DELETE in result.stderr


def test_failures_of_create(cloud):
    cloud.answer(
        {"tpu-vm create": [[7, ""]], "queued-resources create": [[0, ""]], "queued-resources describe": [[8, ""]]}
    )
    result = cloud.run("create.sh", *WHO, "--type", "v5litepod-8")
    assert result.returncode == 7 and DELETE in result.stderr and "is ready" not in result.stdout
    result = cloud.run("create.sh", *WHO, "--type", "v5litepod-8", "--queued")
    assert result.returncode == 8 and DELETE in result.stderr and "is ready" not in result.stdout


def test_interrupted(cloud):
    cloud.answer({"queued-resources create": [[0, ""]], "queued-resources describe": [[0, "ACTIVE\n", "interrupt"]]})
    result = cloud.run("create.sh", *WHO, "--type", "v5litepod-8", "--queued")
    assert result.returncode in (130, -signal.SIGINT)
    assert DELETE in result.stderr and "is ready" not in result.stdout
