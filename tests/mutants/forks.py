"""Runs pytest on a copy of the package, in a fork of a process that has imported what tests need.

A run of a mutant takes most of its time to start Python and import JAX. The parent imports everything but `jaxspec`
and the tests once, and starts no JAX backend, so that a fork may edit the package, then import it.
"""

import contextlib
import importlib
import os
import pathlib
import shutil
import signal
import sys
import warnings

FAILED, NO_TESTS = 1, 5  # pytest's exit statuses for failed tests and for none; others mean that it could not run them
FOREIGN = 99  # the exit status of a run that imported another copy of the package
LOG = "output.txt"
LIMIT = 1800  # seconds after which a run is ended: an edit may make a loop endless
WARM = (
    *("numpy", "scipy.stats", "jax", "jax.numpy", "jax.experimental.pallas", "jaxtyping", "beartype", "flax.linen"),
    *("optax", "orbax.checkpoint", "tokenizers", "transformers", "safetensors.numpy", "gguf", "huggingface_hub"),
    *("typer.testing", "rich.console", "jinja2", "matplotlib.figure", "pytest", "_pytest.doctest", "xdist.plugin"),
)


def warm(modules=WARM) -> None:
    """Imports what tests import, and checks that no JAX backend was started by it."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    os.environ["JAXSPEC_CHECK_TYPES"] = "1"
    for name in modules:
        importlib.import_module(name)
    if "jax" in sys.modules:
        from jax._src import xla_bridge

        assert not xla_bridge._backends, "a fork of a process with a JAX backend hangs"
    assert "jaxspec" not in sys.modules, "a fork would test this package, not its copy"


def copy(root: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Copies the package, its tests and pytest's options to `folder`."""
    folder.mkdir()
    for name in ("jaxspec", "tests", "models", "tpu_scripts"):
        if (root / name).exists():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        if (root / name).exists():
            shutil.copy(root / name, folder)
    return folder


@contextlib.contextmanager
def edited(path: pathlib.Path, old: str, new: str):
    """Replaces `old` in a file; its compiled forms go before and after, so that no stale one is read."""
    original = path.read_text()
    assert original.count(old) == 1, f"the text to replace is in {path.name} {original.count(old)} times, not once"
    try:
        _write(path, original.replace(old, new))
        yield
    finally:
        _write(path, original)


def _write(path: pathlib.Path, text: str) -> None:
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def start(folder: pathlib.Path, tests, marks: str) -> int:
    """Starts those of `tests` that `marks` selects in a fork, and returns its process id."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks; this process has started no backend
        child = os.fork()
    if child:
        return child
    status = 70
    try:
        signal.alarm(LIMIT)
        status = _in_child(folder, folder / LOG, [*tests, "-m", marks])
    finally:
        os._exit(status)


def wait() -> tuple[int, int]:
    """Returns the process id and the exit status of the next fork that ends."""
    child, ended = os.waitpid(-1, 0)
    return child, os.waitstatus_to_exitcode(ended)


def _in_child(folder: pathlib.Path, log: pathlib.Path, arguments: list[str]) -> int:
    """Points the process at the copy, runs pytest there, and returns its exit status."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "jaxspec")]:
        del sys.modules[name]
    here = pathlib.Path(__file__).resolve().parents[2]
    sys.path[:] = [str(folder), *(path for path in sys.path if path and pathlib.Path(path).resolve() != here)]
    importlib.invalidate_caches()

    import pytest

    status = int(pytest.main(["-x", "-p", "no:cacheprovider", "--tb=line", "--disable-warnings", *arguments]))
    package = sys.modules.get("jaxspec")
    if package is not None and not pathlib.Path(package.__file__ or "").is_relative_to(folder):
        print(f"{package.__file__} was tested, not its copy in {folder}")
        return FOREIGN
    sys.stdout.flush()
    return status
