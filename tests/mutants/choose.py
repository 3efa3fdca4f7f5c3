"""Chooses mutants: by words, a fixed few of each topic, or those that a change touches."""

import hashlib
import pathlib
import subprocess

from tests.mutants.mutant import Mutant
from tests.mutants.results import file_of

FIXED_PER_TOPIC = 2


def mutants(topics, words, *, fixed: bool, changed: str | None, root: pathlib.Path) -> list[Mutant]:
    """Returns what the command line asks for, without repeats."""
    named = [
        mutant
        for topic, listed in topics.items()
        for mutant in listed
        if any(word in ("everything", topic) or word in mutant.name for word in words)
    ]
    found = [*named, *(fixed_set(topics) if fixed else ()), *(touched(topics, changed, root) if changed else ())]
    if not found and not changed:
        raise SystemExit("no mutant was chosen: pass `everything`, parts of names, --fixed or --changed BASE")
    return list(dict.fromkeys(found))


def fixed_set(topics) -> list[Mutant]:
    """Returns a few quick mutants of each topic; which ones hangs on their names alone."""
    quick = {topic: [mutant for mutant in listed if not mutant.slow] for topic, listed in topics.items()}
    return [mutant for listed in quick.values() for mutant in sorted(listed, key=_order)[:FIXED_PER_TOPIC]]


def touched(topics, base: str, root: pathlib.Path) -> list[Mutant]:
    """Returns mutants that are new, or whose file or tests changed since the merge base with `base`."""
    start = _git(root, "merge-base", base, "HEAD").strip()
    changed = set(_git(root, "diff", "--name-only", start).split())
    found = []
    for topic, listed in topics.items():
        before = _git(root, "show", f"{start}:tests/mutants/{topic}.py", check=False)
        for mutant in listed:
            paths = {mutant.path, *files(mutant.tests)}
            if paths & changed or mutant.name not in before.replace('\\"', '"'):
                found.append(mutant)
    return sorted(found, key=_order)


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
