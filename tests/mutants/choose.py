"""Chooses mutants: by words, those that a change touches, or a share of all that differs each turn."""

import ast
import hashlib
import pathlib
import subprocess
from collections.abc import Sequence

from tests.mutants.changed import Change
from tests.mutants.mutant import Mutant
from tests.mutants.results import file_of

TURNS = 10


def mutants(topics, words, *, touched: Sequence[Mutant] = (), turn: int | None = None) -> list[Mutant]:
    """Returns what the command line asks for, without repeats: those that must run first."""
    listed = [(topic, mutant) for topic, own in topics.items() for mutant in own]
    named = [m for topic, m in listed if any(word in ("everything", topic) or word in m.name for word in words)]
    found = [*named, *touched, *(() if turn is None else of_turn([mutant for _, mutant in listed], turn))]
    if not found and turn is None:
        raise SystemExit("no mutant was chosen: pass `everything`, parts of names, --touched BASE or --turn NUMBER")
    return list(dict.fromkeys(found))


def of_turn(listed: Sequence[Mutant], turn: int) -> list[Mutant]:
    """Returns a share of the mutants, another one each turn; `TURNS` turns have all."""
    return sorted(listed, key=_order)[turn % TURNS :: TURNS]


def touched_by(topics, base: str, root: pathlib.Path) -> list[Mutant]:
    """Returns mutants that are new, and those whose code or tests differ from `base` in more than their place."""
    change, found = Change(root, base), []
    for topic, listed in topics.items():
        before = _calls(_git(root, "show", f"{base}:tests/mutants/{topic}.py", check=False))
        after = _calls((root / "tests" / "mutants" / f"{topic}.py").read_text())
        for mutant in listed:
            new = after.get(mutant.name) not in before.values()
            if new or change.touches(mutant.path, mutant.old) or any(map(change.touches_test, mutant.tests)):
                found.append(mutant)
    return sorted(found, key=_order)


def _calls(source: str) -> dict[str, str]:
    """Returns what each `Mutant(name, file, old, new, ...)` of a file says besides its file, by its name."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) > 3]
    calls = [node for node in calls if ast.unparse(node.func) == "Mutant"]
    return {ast.literal_eval(call.args[0]): " ".join(map(ast.dump, [call.args[0], *call.args[2:4]])) for call in calls}


def by_test_files(chosen) -> list[list[Mutant]]:
    """Groups mutants by their tests' files, so that those run once without a mutant."""
    groups: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in chosen:
        groups.setdefault(files(mutant.tests), []).append(mutant)
    return list(groups.values())


def files(tests) -> tuple[str, ...]:
    """Returns the files of tests, sorted."""
    return tuple(sorted({file_of(test) for test in tests}))


def _order(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.name.encode()).hexdigest()


def _git(root: pathlib.Path, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=check)
    return done.stdout
