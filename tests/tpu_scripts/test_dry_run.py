"""Dry runs, and the commands of the README."""

import re
import subprocess

from tests.tpu_scripts.cloud import (
    COMMANDS,
    CREATE,
    DELETE_QUEUED,
    DONE,
    LIST,
    LIST_QUEUED,
    SCRIPTS,
    WHO,
    delete_vm,
    shown,
)


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
        # Values known only in a real run have names in capitals.
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
