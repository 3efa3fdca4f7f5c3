"""Wrong usage of any of the scripts, and their help."""

import re
import shutil
import subprocess

import pytest

from tests.tpu_scripts.cloud import COMMANDS, CREATE, SCRIPTS, WHO, replaced, without

BAD = [
    *[("delete.sh", without(option), f"no {option}") for option in ("--name", "--zone", "--project")],
    *[
        ("delete.sh", replaced("--name", name), "--name")
        for name in ("Jax", "1jax", "jax-", "-jax", "jax_1", "jax 1", "a" * 64, "", "jax;ls", "jäx", "jax\n")
    ],
    *[
        ("delete.sh", replaced("--zone", zone), "--zone")
        for zone in ("us-central1", "us-central1-a1", "x", "us-central1-A")
    ],
    *[
        ("delete.sh", replaced("--project", name), "--project")
        for name in ("My-project", "short", "a" * 31, "my-project-")
    ],
    ("delete.sh", (*WHO, "--force"), "the argument '--force'"),
    ("delete.sh", (*WHO, "extra"), "the argument 'extra'"),
    ("delete.sh", (*WHO, "--yes=no"), "the argument 'no'"),
    ("delete.sh", (*WHO, "--slices", "2"), "--slices"),
    ("delete.sh", (*WHO, "--name", "other"), "--name twice"),
    ("delete.sh", (*WHO[:-1],), "--project without a value"),
    ("create.sh", WHO, "no --type"),
    *[
        ("create.sh", (*WHO, "--type", kind), "--type")
        for kind in ("v5e-8", "v5litepod", "v5litepod-0", "v5litepod-x", "v5p-7", "v9-8", "tpu7x-8", "gpu")
    ],
    ("create.sh", (*WHO, "--type", "v5p-8", "--topology", "2x2x1"), "--type 'v5p-8' with --topology"),
    *[
        ("create.sh", (*WHO, "--type", "v5p", "--topology", shape), "--topology")
        for shape in ("2", "2x", "0x2", "2x2x2x2", "2X2", "8")
    ],
    ("create.sh", (*CREATE, "--version", "a b"), "--version"),
    ("create.sh", (*CREATE, "--slices", "2"), "--slices 2 without --queued"),
    ("create.sh", (*CREATE, "--wait-minutes", "2"), "--wait-minutes without --queued"),
    ("create.sh", (*CREATE, "--queued", "--wait-minutes", "0"), "--wait-minutes 0"),
    *[("create.sh", (*CREATE, "--queued", "--slices", n), "--slices") for n in ("0", "-1", "two", "1.5", "08")],
    ("create.sh", (*replaced("--name", "a" * 62), "--type", "v6e-8", "--queued", "--slices", "2"), "--name"),
    ("create.sh", (*WHO, "--type", "v3-8", "--queued", "--slices", "2"), "--slices 2 with v3-8"),
    ("create.sh", (*CREATE, "--reserved"), "the argument '--reserved'"),
    ("setup.sh", (*WHO, "--worker", "1"), "the argument '--worker'"),
    ("setup.sh", (*WHO, "--", "x"), "the argument '--'"),
    ("run.sh", (), "the command ''"),
    ("run.sh", (*WHO,), "the command '--name'"),
    ("run.sh", ("train", *WHO), "the command 'train'"),
    *[("run.sh", (name, *WHO), f"no arguments for {name}") for name in ("generate", "benchmark", "profile")],
    ("run.sh", ("generate", *WHO, "--"), "no arguments for generate"),
    ("run.sh", ("generate", *WHO, "The sea"), "the argument 'The sea'"),
    ("run.sh", ("generate", *WHO, "--", "-"), "'-'"),
    ("run.sh", ("generate", *WHO, "--minutes", "x", "--", "a"), "--minutes x"),
    *[
        ("run.sh", ("generate", *WHO, "--label", n, "--", "a"), "--label")
        for n in ("../x", ".", "a/b", "a b", "x" * 64)
    ],
    ("fetch.sh", WHO, "no --to"),
    ("fetch.sh", (*WHO, "--to", "machine:results"), "--to"),
    ("fetch.sh", (*WHO, "--to", "new", "--label", "../x"), "--label"),
]


@pytest.mark.parametrize(("script", "arguments", "got"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_wrong_usage(cloud, script, arguments, got):
    result = cloud.run(script, *arguments)
    assert result.returncode == 2 and cloud.calls == []
    assert re.match(r"error: got .*, expected .*; pass .*\n", result.stderr, re.DOTALL), result.stderr
    # The text before "expected" names the wrong value.
    assert got in result.stderr.split(", expected")[0]
    assert result.stdout == "" and "delete" not in result.stderr.split("pass ")[1]


def test_a_wrong_poll_interval(cloud):
    result = cloud.run("create.sh", *CREATE, JAXSPEC_TPU_POLL_SECONDS="often")
    assert result.returncode == 2 and cloud.calls == [] and "JAXSPEC_TPU_POLL_SECONDS=often" in result.stderr


@pytest.mark.parametrize("zone", ["us-central1-a", "northamerica-northeast1-c", "us-south1-ai1b"])
def test_zones_that_exist(cloud, zone):
    result = cloud.run("delete.sh", *replaced("--zone", zone), "--dry-run")
    assert result.returncode == 0 and f"--zone={zone}" in result.stdout


@pytest.mark.parametrize("script", COMMANDS)
def test_help(cloud, script):
    result = cloud.run(script, "--help")
    assert result.returncode == 0 and result.stdout.startswith(script) and "--dry-run" in result.stdout
    assert cloud.calls == []


def test_without_gcloud(cloud):
    tools = cloud.folder / "tools"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "basename", "mktemp", "rm"):
        (tools / name).symlink_to(shutil.which(name))
    bash = [tools / "bash", SCRIPTS / "create.sh", *CREATE]
    result = subprocess.run(bash, env={"PATH": str(tools)}, text=True, capture_output=True)
    assert result.returncode == 1 and "got no gcloud on PATH" in result.stderr
