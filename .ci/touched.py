"""Prints the test files of the changes since a commit: `python .ci/touched.py COMMIT`.

    jaxspec/drafters/suffix.py        tests/drafters/test_suffix.py, or all of tests/drafters if that does not exist
    jaxspec/ops/native/product.cpp    tests/ops/test_native*.py: a folder without tests uses those named after it above
    tests/drafters/test_x.py          itself
    jaxspec/testing/contracts/verifier.py, tests/_fixtures/tiny.py
                                      the test files that import it, directly or indirectly

Code that only moved does not count (`tests/mutants/changed.py`). An edit of `conftest.py`, or of a file that only it
imports, selects no test: all tests use it, and the README's test command runs the quick ones.
Code that makes or checks drafts also selects the recorded tokens. Test files of many changed files come first, so
that a budget cuts those least related to the change.

    python .ci/touched.py --own COMMIT       prints only changed test files, and those named after a changed file
    python .ci/touched.py --files COMMIT     prints the touched files themselves
    python .ci/touched.py --turn NUMBER      prints a tenth of all test files: ten consecutive numbers cover all
"""

import argparse
import collections
import pathlib
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.mutants.changed import Change  # noqa: E402
from tests.mutants.choose import TURNS  # noqa: E402
from tests.mutants.results import imported_files  # noqa: E402

LOOP = {"core", "decoding", "drafters", "verifiers", "draft_length"}
GOLDEN = ROOT / "tests" / "golden" / "test_tokens.py"


def main(base: str, own: bool) -> None:
    """Prints each existing test file once."""
    uses = uses_of_tests()
    counts: collections.Counter[pathlib.Path] = collections.Counter()
    for name in Change(ROOT, base).files:
        counts.update(own_tests(ROOT / name, uses) if own else tests_of(ROOT / name, uses))
    show(path for path, _ in counts.most_common())


def of_turn(turn: int) -> None:
    """Prints a tenth of all test files, a different one each turn."""
    show(sorted(ROOT.glob("tests/**/test_*.py"))[turn % TURNS :: TURNS])


def show(paths: Iterable[pathlib.Path]) -> None:
    """Prints paths, one per line, relative to the root."""
    for path in paths:
        print(path.relative_to(ROOT).as_posix())


def uses_of_tests() -> dict[pathlib.Path, set[pathlib.Path]]:
    """Returns each test file with itself and the files of `tests/` and `jaxspec/testing` that it imports."""
    tests = sorted(ROOT.glob("tests/**/test_*.py"))
    return {path: set(imported_files(ROOT, [path])) for path in tests}


def own_tests(path: pathlib.Path, uses: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """Returns a test file itself, and the test files named after a file of the package."""
    parts = path.relative_to(ROOT).parts
    if parts[0] != "jaxspec":
        return [path] if path in uses else []
    return [test for test in uses if test.parent == ROOT.joinpath("tests", *parts[1:-1]) and _is_named(test, path)]


def tests_of(path: pathlib.Path, uses: dict[pathlib.Path, set[pathlib.Path]]) -> list[pathlib.Path]:
    """Returns the test files to run for one changed file."""
    parts = path.relative_to(ROOT).parts
    users = [test for test, used in uses.items() if path in used]
    if parts[0] == "tests" or users:  # tests import `jaxspec/testing` too
        return users
    if parts[0] != "jaxspec":
        return []
    found = _mirrored(path.relative_to(ROOT / "jaxspec"), uses)
    return [*found, GOLDEN] if parts[1] in LOOP and GOLDEN not in found else found


def _mirrored(path: pathlib.Path, uses: dict[pathlib.Path, set[pathlib.Path]]) -> list[pathlib.Path]:
    """Returns the tests named after a file, else those in its folder, else those in the nearest folder above."""
    folder = ROOT / "tests" / path.parent
    beside = [test for test in uses if test.parent == folder]
    named = [test for test in beside if _is_named(test, path)]
    return named or beside or _mirrored(path.parent, uses)


def _is_named(test: pathlib.Path, path: pathlib.Path) -> bool:
    """Returns whether a test file is named after a file."""
    return f"{test.stem}_".startswith(f"test_{path.stem}_")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", metavar="COMMIT")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--turn", type=int, metavar="NUMBER")
    options = parser.parse_args()
    if options.turn is not None:
        of_turn(options.turn)
    elif options.files:
        show(ROOT / name for name in Change(ROOT, options.base).files)
    else:
        main(options.base, options.own)
