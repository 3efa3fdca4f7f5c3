"""Processes that load a compiled library; a damaged one may end them by a signal.

Nothing here imports JAX, so that a process starts quickly and may fork.
"""

import ctypes
import json
import logging
import os
import pathlib
import subprocess
import sys

from jaxspec.ops.native.library import NoCompilerError, load, run_compiler
from tests._fixtures.processes import ROOT

KEY, SYMBOLS = "key", ("JaxspecProduct", "JaxspecAttention")
_PR_CAPBSET_DROP, _DAC_OVERRIDE, _DAC_READ_SEARCH = 24, 1, 2


def compiler(path, text):
    """Writes a compiler: a shell script whose last argument is the library to make. Each run adds a line to `runs`."""
    path.write_text(f'#!/bin/sh\nfor library; do :; done\necho run >> "{path.parent}/runs"\n{text}\n')
    path.chmod(0o755)
    return path


def runs(folder):
    """Returns how often the compiler in a folder was run."""
    path = folder / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def load_by(compiler_path, folder):
    """Loads the library of a folder with that compiler."""
    return load(folder, KEY, SYMBOLS, lambda made: run_compiler([str(compiler_path), str(made)], made.parent))


def start(*words, **options):
    """Starts this module as a process."""
    options = {"text": True, "cwd": ROOT, "stdout": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "tests._fixtures.native_cache", *map(str, words)], **options)


def load_all(folders):
    """Loads the library in `native` of each folder with the `compiler` next to it, each in a separate process.

    Returns each one's exit status, negative for a signal, and its output.
    """
    with start("all", *folders) as process:
        return {pathlib.Path(name): tuple(found) for name, found in json.load(process.stdout).items()}


def _obey_permissions():
    """Restarts this process without root's right to read and write everything."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _DAC_OVERRIDE) == 0:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _DAC_READ_SEARCH)
        os.execv(sys.executable, [sys.executable, "-m", "tests._fixtures.native_cache", "each", *sys.argv[2:]])


def _load_forked(folder):
    said = folder / "said"
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        logging.basicConfig(format="jaxspec: %(message)s")
        status = 1
        try:
            library = load_by(folder / "compiler", folder / "native")
            for name in SYMBOLS:
                ctypes.string_at(ctypes.cast(getattr(library, name), ctypes.c_void_p).value, 64)
            status = 0
        except (NoCompilerError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.read_text()


if __name__ == "__main__":
    if sys.argv[1] == "all":
        _obey_permissions()
    if sys.argv[1] == "one":
        load_by(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        print(json.dumps({name: _load_forked(pathlib.Path(name)) for name in sys.argv[2:]}))
