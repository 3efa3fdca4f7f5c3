"""Applies each mutant to a copy of the package and shows that the tests see it.

    python -m tests.mutants.run            every mutant
    python -m tests.mutants.run cache      those whose name has "cache"
    python -m tests.mutants.run 2/3        the second of three parts

Prints a table; exits with 1 if a mutant survives, or if its tests fail without it. Each core has a
copy of its own; all of them take over an hour on two.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.catalogue import MUTANTS  # noqa: E402

FAILED = 1  # pytest's exit status for failed tests; others mean that it could not run them


def main(words: list[str]) -> int:
    """Runs the mutants of a part, or whose name has one of `words`; all by default."""
    chosen = _choose(words)
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="jaxspec-mutants-") as folder:
        copies = [_copy(pathlib.Path(folder) / str(worker)) for worker in range(workers)]
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            sound = list(pool.map(_passes, copies, [tests[worker::workers] for worker in range(workers)]))
            if not all(sound):
                return 1
            shares = [chosen[worker::workers] for worker in range(workers)]
            killed = pool.map(lambda copy, share: [(m.name, _killed(copy, m)) for m in share], copies, shares)
            survivors = [name for share in killed for name, dead in share if not dead]
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    return 1 if survivors else 0


def _choose(words: list[str]) -> list:
    if len(words) == 1 and (part := re.fullmatch(r"(\d+)/(\d+)", words[0])):
        number, parts = map(int, part.groups())
        assert 1 <= number <= parts, f"there is no part {words[0]}"
        return MUTANTS[number - 1 :: parts]
    return [m for m in MUTANTS if not words or any(word in m.name for word in words)]


def _passes(copy: pathlib.Path, tests: list[str]) -> bool:
    """Whether tests pass without a mutant."""
    if not tests:
        return True
    status, seconds, output = _pytest(copy, tests)
    print(f"{'unchanged':66} {'passes' if status == 0 else 'FAILS':9} {seconds:6.1f} s", flush=True)
    if status != 0:
        print(output)
    return status == 0


def _killed(copy: pathlib.Path, mutant) -> bool:
    path = copy / "jaxspec" / mutant.file
    original = path.read_text()
    assert original.count(mutant.old) == 1, f"{mutant.name}: its old text is not in {mutant.file} exactly once"
    path.write_text(original.replace(mutant.old, mutant.new))
    status, seconds, output = _pytest(copy, mutant.tests)
    path.write_text(original)
    verdict = {0: "SURVIVES", FAILED: "killed"}.get(status, "BROKEN")
    print(f"{mutant.name:66} {verdict:9} {seconds:6.1f} s", flush=True)
    if verdict == "BROKEN":
        print(output)
    return verdict == "killed"


def _copy(folder: pathlib.Path) -> pathlib.Path:
    ignore = shutil.ignore_patterns("__pycache__")
    folder.mkdir()
    for name in ("jaxspec", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _pytest(copy: pathlib.Path, tests) -> tuple[int, float, str]:
    """Exit status, seconds and output. No bytecode is written, so no stale one is read."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-p", "no:cacheprovider", "--tb=line", "-m", ""]  # no marks: slow tests too
    command = [sys.executable, "-m", "pytest", *options, *tests]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, time.perf_counter() - start, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
