"""Every mutant, from the files of this folder, which list them by topic."""

import importlib
import pathlib

from tests.mutants.mutant import Mutant

_MACHINERY = {"catalogue", "changed", "choose", "forks", "mutant", "results", "run"}
_FILES = {path.stem for path in pathlib.Path(__file__).parent.glob("*.py")}
_NAMES = sorted(name for name in _FILES - _MACHINERY if not name.startswith("test_"))

TOPICS: dict[str, tuple[Mutant, ...]] = {
    name: tuple(importlib.import_module(f"tests.mutants.{name}").MUTANTS) for name in _NAMES
}
MUTANTS = tuple(mutant for listed in TOPICS.values() for mutant in listed)
