"""Prints the test files of what changed since a commit: `python .ci/touched.py COMMIT`.

    jaxspec/drafters/suffix.py    tests/drafters/test_suffix.py, or all of tests/drafters where there is no such file
    tests/drafters/test_x.py      itself
    tests/contracts/verifier.py   the test files that import it, by whatever way

Those of the fewest changed files come last: where a budget cuts, what a change is about has run.
"""

import collections
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.mutants.results import test_files  # noqa: E402


def main(base: str) -> None:
    """Prints the test files that are there, without repeats."""
    changed = subprocess.run(
        ["git", "-C", str(ROOT), "diff", "--name-only", base, "HEAD"], capture_output=True, text=True, check=True
    ).stdout.split()
    all_tests = sorted(ROOT.glob("tests/**/test_*.py"))
    uses = {path: set(test_files(ROOT, [path.relative_to(ROOT).as_posix()])) for path in all_tests}
    counts: collections.Counter[pathlib.Path] = collections.Counter()
    for name in changed:
        counts.update(tests_of(ROOT / name, uses))
    for path, _ in counts.most_common():
        print(path.relative_to(ROOT).as_posix())


def tests_of(path: pathlib.Path, uses: dict[pathlib.Path, set[pathlib.Path]]) -> list[pathlib.Path]:
    """Returns the test files of one changed file."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "tests":
        return [test for test, used in uses.items() if path in used and path.name != "conftest.py"]
    if parts[0] != "jaxspec":
        return []
    mirrored = ROOT.joinpath("tests", *parts[1:-1], f"test_{path.stem}.py")
    if mirrored in uses:
        return [mirrored]
    room = ROOT.joinpath("tests", *parts[1:-1])
    return [test for test in uses if test.parent == room] if room != ROOT / "tests" else []


if __name__ == "__main__":
    main(sys.argv[1])
