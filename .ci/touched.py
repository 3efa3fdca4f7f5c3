"""Prints the test files of what changed since a commit: `python .ci/touched.py COMMIT`.

    jaxspec/drafters/suffix.py        tests/drafters/test_suffix.py, or all of tests/drafters where there is none
    jaxspec/ops/native/product.cpp    tests/ops/test_native*.py: a folder without tests has those named after it above
    tests/drafters/test_x.py          itself
    tests/contracts/verifier.py       the test files that import it, by whatever way

What makes or checks drafts selects the recorded tokens besides. Those of the fewest changed files come last: where a
budget cuts, what a change is about has run.
"""

import collections
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.mutants.results import test_files  # noqa: E402

LOOP = {"core", "decoding", "drafters", "verifiers", "draft_length"}
GOLDEN = ROOT / "tests" / "golden" / "test_tokens.py"


def main(base: str) -> None:
    """Prints the test files that are there, without repeats."""
    changed = subprocess.run(
        ["git", "-C", str(ROOT), "diff", "--name-only", base, "HEAD"], capture_output=True, text=True, check=True
    ).stdout.split()
    uses = uses_of_tests()
    counts: collections.Counter[pathlib.Path] = collections.Counter()
    for name in changed:
        counts.update(tests_of(ROOT / name, uses))
    for path, _ in counts.most_common():
        print(path.relative_to(ROOT).as_posix())


def uses_of_tests() -> dict[pathlib.Path, set[pathlib.Path]]:
    """Returns each test file with the files of `tests/` that it imports, itself among them."""
    tests = sorted(ROOT.glob("tests/**/test_*.py"))
    return {path: set(test_files(ROOT, [path.relative_to(ROOT).as_posix()])) for path in tests}


def tests_of(path: pathlib.Path, uses: dict[pathlib.Path, set[pathlib.Path]]) -> list[pathlib.Path]:
    """Returns the test files of one changed file."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "tests":
        return [test for test, used in uses.items() if path in used and path.name != "conftest.py"]
    if parts[0] != "jaxspec":
        return []
    found = _mirrored(path.relative_to(ROOT / "jaxspec"), uses)
    return [*found, GOLDEN] if parts[1] in LOOP and GOLDEN not in found else found


def _mirrored(path: pathlib.Path, uses: dict[pathlib.Path, set[pathlib.Path]]) -> list[pathlib.Path]:
    """Returns the tests named after a file, else those of its folder, else those of the nearest folder above."""
    folder = ROOT / "tests" / path.parent
    beside = [test for test in uses if test.parent == folder]
    named = [test for test in beside if f"{test.stem}_".startswith(f"test_{path.stem}_")]
    return named or beside or _mirrored(path.parent, uses)


if __name__ == "__main__":
    main(sys.argv[1])
