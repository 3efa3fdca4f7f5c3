"""The list of mutants still fits the source; `python -m tests.mutants.run` shows them killed."""

import pathlib

import pytest

import jaxspec
from tests.mutants.catalogue import MUTANTS

PACKAGE = pathlib.Path(jaxspec.__file__).parent
TESTS = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_can_be_applied_and_names_tests_that_exist(mutant):
    source = (PACKAGE / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    assert mutant.new != mutant.old
    if mutant.file.endswith(".py"):
        compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")
    for test in mutant.tests:
        path, *names = test.split("::")
        inherited = "".join(file.read_text() for file in TESTS.glob("[cs]*.py"))
        text = (TESTS.parent / path).read_text() + inherited
        names = [name.partition("[")[0] for name in names]
        assert all(f"def {name}(" in text or f"class {name}(" in text for name in names)


def test_names_are_unique():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
