"""Every mutant, from the files beside this one that list them by topic."""

import importlib
import pathlib

from tests.mutants.mutant import Mutant

_MACHINERY = {"catalogue", "choose", "forks", "mutant", "results", "run", "test_mutants", "test_run"}
_NAMES = sorted({path.stem for path in pathlib.Path(__file__).parent.glob("*.py")} - _MACHINERY)

TOPICS: dict[str, tuple[Mutant, ...]] = {
    name: tuple(importlib.import_module(f"tests.mutants.{name}").MUTANTS) for name in _NAMES
}
MUTANTS = tuple(mutant for listed in TOPICS.values() for mutant in listed)
