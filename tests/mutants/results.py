"""Results of mutants, in a file that later runs read: one line of JSON per mutant and state of its files."""

import ast
import functools
import hashlib
import json
import pathlib

from tests.mutants.mutant import Mutant


class Results:
    """Results by the hash of all that they depend on; `fresh` ignores what an earlier run wrote."""

    def __init__(self, path: pathlib.Path, *, fresh: bool = False):
        self.path = path
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {entry["key"]: entry for entry in map(json.loads, lines)}

    def get(self, key: str) -> dict | None:
        """Returns the entry of this state of the files, or None."""
        return self.known.get(key)

    def add(self, key: str, name: str, verdict: str, seconds: float) -> None:
        """Appends an entry, at once, so that an interrupted run loses only its current step."""
        self.known[key] = {"key": key, "name": name, "verdict": verdict, "seconds": round(seconds, 1)}
        with self.path.open("a") as file:
            file.write(json.dumps(self.known[key]) + "\n")


def mutant_key(root: pathlib.Path, mutant: Mutant) -> str:
    """Hashes a mutant, the file that it edits, its tests' files and what they import of `tests`."""
    fields = (mutant.name, mutant.file, mutant.old, mutant.new, *mutant.tests)
    return _digest(repr(fields), _contents(root, [root / mutant.path, *test_files(root, mutant.tests)]))


def tests_key(root: pathlib.Path, tests) -> str:
    """Hashes tests as they run without a mutant: they depend on all of the package, its C++ and data too."""
    package = sorted(path for path in (root / "jaxspec").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return _digest(repr(tuple(tests)), _contents(root, [*package, *test_files(root, tests)]))


def file_of(test: str) -> str:
    """Returns the file of a test's name, such as `tests/core/test_tree.py::test_a_chain`."""
    return test.partition("::")[0]


def test_files(root: pathlib.Path, tests) -> list[pathlib.Path]:
    """Returns the files of tests, and all of `tests` and `jaxspec.testing` that they and `conftest.py` import."""
    return imported_files(root, [root / "tests" / "conftest.py", *(root / file_of(test) for test in tests)])


def imported_files(root: pathlib.Path, paths) -> list[pathlib.Path]:
    """Returns files, and all of `tests` and `jaxspec.testing` that they import, directly or not, but `conftest.py`."""
    found, pending = set(), list(paths)
    while pending:
        path = pending.pop()
        if path not in found and path.exists():
            found.add(path)
            pending += [each for each in _imported(root, path) if each.name != "conftest.py"]
    return sorted(found)


@functools.cache
def _imported(root: pathlib.Path, path: pathlib.Path) -> list[pathlib.Path]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
            dotted = ast.unparse(node)
            names += [dotted] if dotted.startswith("jaxspec.testing.") else []
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    public = _public(root)
    names = [public.get(name, name) for name in names if name != "jaxspec.testing"]
    parts = [name.split(".") for name in names if name.startswith(("tests.", "jaxspec.testing."))]
    files = [root.joinpath(*part[:-1], f"{part[-1]}.py") for part in parts]
    return [path for path in [*files, *(root.joinpath(*part, "__init__.py") for part in parts)] if path.exists()]


@functools.cache
def _public(root: pathlib.Path) -> dict[str, str]:
    """Returns the module of each public name of `jaxspec.testing`, as dotted paths."""
    path = root / "jaxspec" / "testing" / "__init__.py"
    tree = ast.parse(path.read_text() if path.exists() else "")  # the tests of this have other packages
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {f"jaxspec.testing.{alias.name}": str(node.module) for node in imports for alias in node.names}


def _contents(root: pathlib.Path, paths) -> str:
    return "".join(f"{path.relative_to(root)}\n{path.read_text()}\n" for path in paths)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
