"""A stand-in for `gcloud` that records its calls and answers from a list."""

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / "tpu_scripts"
COMMANDS = ("create.sh", "setup.sh", "run.sh", "fetch.sh", "delete.sh")
SHELL = sorted(path.name for path in SCRIPTS.glob("*.sh"))
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

# A job in the background ignores interruptions, and so does what it starts; Python, besides, ignores closed pipes.
HEEDING_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGPIPE):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def write_program(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@dataclasses.dataclass
class Cloud:
    """Answers and recorded calls of the stand-in, in a folder that the scripts run in."""

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
            [sys.executable, "-IS", "-c", HEEDING_SIGNALS, self.scripts / script, *arguments],
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
DELETE_QUEUED = tpus("queued-resources", "delete", "jax-1", *PLACE, "--force", "--quiet")
DESCRIBE = tpus("queued-resources", "describe", "jax-1", *PLACE, "--format=value(state.state)")


def delete_vm(node):
    return tpus("tpu-vm", "delete", node, *PLACE, "--quiet")


def ssh(command, *, slices=1):
    if slices == 1:
        return tpus("tpu-vm", "ssh", "jax-1", *PLACE, "--worker=all", f"--command={command}")
    several = ("--node=all", "--worker=all", "--batch-size=all")
    return tpus("queued-resources", "ssh", "jax-1", *PLACE, *several, f"--command={command}")


def replaced(option, value):
    return (*WHO[: WHO.index(option) + 1], value, *WHO[WHO.index(option) + 2 :])


def without(option):
    return (*WHO[: WHO.index(option)], *WHO[WHO.index(option) + 2 :])


CREATE = (*WHO, "--type", "v5litepod-8")
