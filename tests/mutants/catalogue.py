"""Every mutant, from the files beside this one that list them by topic."""

import importlib
import pathlib

_TOPICS = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("*.py"))
_OTHERS = {"catalogue", "mutant", "run", "test_mutants"}

MUTANTS = tuple(
    mutant
    for topic in _TOPICS
    if topic not in _OTHERS
    for mutant in importlib.import_module(f"tests.mutants.{topic}").MUTANTS
)
