"""The list of mutants still fits the source; `python tests/mutants/run.py` shows them killed."""

import ast
import collections
import functools
import pathlib

import jaxspec
from tests.mutants.catalogue import MUTANTS

PACKAGE = pathlib.Path(jaxspec.__file__).parent
TESTS = pathlib.Path(__file__).parents[1]
MOST_SLOW = 0.15  # of all mutants: the README's command finds the rest in five minutes


def test_all_can_be_applied():
    wrong = {mutant.name: problem for mutant in MUTANTS if (problem := _cannot_be_applied(mutant))}
    assert not wrong, "\n".join(f"{name}: {problem}" for name, problem in wrong.items())


def test_all_name_tests_that_exist():
    missing = [(mutant.name, test) for mutant in MUTANTS for test in mutant.tests if not _exists(test)]
    assert not missing, "\n".join(map(str, missing))


def test_names_are_unique():
    repeated = [name for name, count in collections.Counter(mutant.name for mutant in MUTANTS).items() if count > 1]
    assert not repeated


def test_few_need_a_slow_test():
    """`run.py` fails for a mutant that only a slow test kills and that does not say so."""
    slow = [mutant.name for mutant in MUTANTS if mutant.slow]
    assert len(slow) <= MOST_SLOW * len(MUTANTS), slow
    undeclared = [mutant.name for mutant in MUTANTS if not mutant.slow and all(map(_marked_slow, mutant.tests))]
    assert not undeclared, "\n".join(undeclared)


def _path(mutant) -> pathlib.Path:
    # The package that is tested may be installed elsewhere.
    return TESTS.parent / mutant.path if mutant.path.startswith("tests/") else PACKAGE / mutant.file


def _cannot_be_applied(mutant) -> str:
    path = _path(mutant)
    if not path.exists():
        return f"there is no {mutant.file}"
    source = path.read_text()
    if (count := source.count(mutant.old)) != 1:
        return f"its old text is in {mutant.file} {count} times"
    if mutant.new == mutant.old:
        return "it changes nothing"
    if mutant.file.endswith(".py"):
        try:
            compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")
        except SyntaxError as error:
            return str(error)
    return ""


@functools.cache
def _definitions(path: pathlib.Path) -> dict[str, list[ast.AST]]:
    """Returns the classes and functions of a file by name."""
    found = collections.defaultdict(list)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name].append(node)
    return found


@functools.cache
def _inherited() -> set[str]:
    """Returns the names of the tests that contracts and fixtures hand down."""
    return {
        name
        for folder in (TESTS / "_fixtures", TESTS.parent / "jaxspec" / "testing" / "contracts")
        for file in folder.glob("*.py")
        for name in _definitions(file)
    }


def _exists(test: str) -> bool:
    path, *names = test.split("::")
    if not (TESTS.parent / path).exists():
        return False
    known = _definitions(TESTS.parent / path).keys() | _inherited()
    return all(name.partition("[")[0] in known for name in names)


def _marked_slow(test: str) -> bool:
    """Whether a decorator marks the test, or its class, as slow."""
    path, *names = test.split("::")
    nodes = [node for name in names for node in _definitions(TESTS.parent / path).get(name.partition("[")[0], [])]
    return any(
        "mark.slow" in ast.unparse(mark)
        for node in nodes
        for mark in node.decorator_list
        if "parametrize" not in ast.unparse(mark)
    )
