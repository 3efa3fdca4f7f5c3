"""Applies each mutant to a copy of the package and checks that the tests see it.

    python tests/mutants/run.py everything       all of them; hours on two cores, and may be interrupted
    python tests/mutants/run.py NAME...          those whose name or topic has one of these words
    python tests/mutants/run.py --touched BASE   those whose code or tests a change since BASE made or edited
    python tests/mutants/run.py --turn NUMBER    a tenth of all; ten numbers that follow each other have all

Prints a line a mutant and a summary. Exits with 1 if a mutant survives, if tests fail without it, if tests cannot run
(BROKEN), if only slow tests kill a mutant that does not say `slow=True`, or if a touched one was not run within the
budget. Killed mutants are written to `--results` with the hash of the mutant, its file and its tests, and are not run
again; `--fresh` starts over.
"""

import argparse
import functools
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Set

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants import choose, forks, results  # noqa: E402
from tests.mutants.mutant import Mutant  # noqa: E402

KILLED, SLOW, SURVIVES, BROKEN = "killed", "killed, slow", "SURVIVES", "BROKEN"
PASSES, NOT_RUN = "passes", "not run"
QUICK_TESTS = "not slow and not smollm2 and not reference"  # within the README's command
SLOW_TESTS = "slow and not smollm2 and not reference"


def main(arguments: list[str]) -> int:
    """Runs what the command line chooses, and returns the exit status."""
    options = _parser().parse_args(arguments)
    from tests.mutants.catalogue import TOPICS

    touched = choose.touched_by(TOPICS, options.touched, ROOT) if options.touched else []
    print(f"{len(touched)} mutants are touched", flush=True)
    chosen = choose.mutants(TOPICS, options.words, touched=touched, turn=options.turn)
    kept = results.Results(options.results, fresh=options.fresh)
    forks.warm()
    found = run(chosen, ROOT, kept, workers=options.workers, budget=options.budget)
    return summary(chosen, found, needed={mutant.name for mutant in touched})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="`everything`, or parts of names or topics")
    parser.add_argument("--touched", metavar="BASE", help="those whose code or tests changed since the commit BASE")
    parser.add_argument("--turn", type=int, metavar="NUMBER", help="a tenth of all, which differs by the number")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which none is started")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / ".mutants.jsonl")
    return parser


def run(mutants, root: pathlib.Path, kept: results.Results, *, workers: int = 2, budget: float = float("inf")):
    """Returns the verdict on each mutant by its name; each test first passes without them."""
    found: dict[str, str] = {}
    end = time.monotonic() + budget
    with tempfile.TemporaryDirectory(prefix="jaxspec-mutants-") as folder:
        folders = [forks.copy(root, pathlib.Path(folder).resolve() / str(worker)) for worker in range(workers)]
        keys = {mutant: results.mutant_key(folders[0], mutant) for mutant in mutants}
        known = {mutant: entry for mutant in mutants if (entry := kept.get(keys[mutant]))}
        found |= {mutant.name: entry["verdict"] for mutant, entry in known.items()}
        if found:
            print(f"{len(found)} were killed by an earlier run", flush=True)
        groups = choose.by_test_files([mutant for mutant in mutants if mutant not in known])
        _share(folders, [functools.partial(Group, group, keys, found, kept, end) for group in groups])
    return found


def _share(folders, groups) -> None:
    """Runs all groups, one at a time in each copy of the package."""
    waiting, running = iter(groups), {}
    free = list(folders)
    while free or running:
        while free and (group := next(waiting, None)):
            _advance(running, free, folder := free.pop(), group(folder).steps(), None)
        if not running:
            return
        child, status = forks.wait()
        _advance(running, free, *running.pop(child), status)


def _advance(running, free, folder, steps, status) -> None:
    """Starts what a group runs next; if it has ended, its copy is free."""
    try:
        running[forks.start(folder, *steps.send(status))] = folder, steps
    except StopIteration:
        free.append(folder)


class Group:
    """Mutants whose tests are in the same files. `steps` yields tests and marks to run, and is sent the exit status."""

    def __init__(self, mutants, keys, found, kept, end, folder):
        self.folder, self.mutants, self.keys, self.found, self.kept, self.end = folder, mutants, keys, found, kept, end
        self.start = time.monotonic()
        self.failures: dict[str, str] = {}  # what fails without a mutant, by marks: empty where all passes

    def steps(self):
        """Runs the mutants one after another, and writes down what was found."""
        for mutant in self.mutants:
            if time.monotonic() > self.end:
                self.found[mutant.name] = NOT_RUN
                continue
            self.start = time.monotonic()
            verdict, output = yield from self._verdict(mutant)
            self._report(mutant.name, verdict, output)
            self.found[mutant.name] = verdict
            if verdict in (KILLED, SLOW):
                self.kept.add(self.keys[mutant], mutant.name, verdict, time.monotonic() - self.start)

    def _verdict(self, mutant: Mutant):
        """Runs a mutant's quick tests, and where those pass, its slow ones."""
        statuses = []
        for marks, verdict in ((QUICK_TESTS, KILLED), (SLOW_TESTS, SLOW)):
            broken = yield from self._fails_without_mutants(marks)
            if broken:
                return BROKEN, broken
            self.start = time.monotonic()
            with forks.edited(self.folder / mutant.path, mutant.old, mutant.new):
                statuses.append((yield mutant.tests, marks))
            if statuses[-1] == forks.FAILED:
                return verdict, ""
            if statuses[-1] not in (0, forks.NO_TESTS):
                return BROKEN, f"exit status {statuses[-1]}\n{self._output()}"
        return (BROKEN, "it has no tests") if set(statuses) == {forks.NO_TESTS} else (SURVIVES, "")

    def _fails_without_mutants(self, marks: str):
        """Returns what pytest prints where the tests of this group fail as they are, and nothing where they pass."""
        if marks not in self.failures:
            tests = sorted({test for mutant in self.mutants for test in mutant.tests})
            key, name = results.tests_key(self.folder, (*tests, marks)), f"unchanged: {' '.join(choose.files(tests))}"
            self.failures[marks] = ""
            if self.kept.get(key) is None:
                status = yield tests, marks
                if status in (0, forks.NO_TESTS):
                    self.kept.add(key, name, PASSES, time.monotonic() - self.start)
                    self._report(name, PASSES, "")
                else:
                    self.failures[marks] = f"tests fail without a mutant: exit status {status}"
                    self._report(name, "FAIL", self._output())
        return self.failures[marks]

    def _output(self) -> str:
        return (self.folder / forks.LOG).read_text(errors="replace")[-4000:]

    def _report(self, name: str, verdict: str, output: str) -> None:
        print(f"{name:80} {verdict:12} {time.monotonic() - self.start:6.1f} s", flush=True)
        if output:
            print(output, flush=True)


def summary(mutants, found: dict[str, str], needed: Set[str] = frozenset()) -> int:
    """Prints the results, and returns the exit status, which is 1 if a required mutant was not run."""
    named = lambda verdict: [mutant for mutant in mutants if found[mutant.name] == verdict]
    slow, declared = named(SLOW), [mutant for mutant in named(SLOW) if mutant.slow]
    undeclared = [mutant for mutant in slow if not mutant.slow]
    needless = [mutant for mutant in named(KILLED) if mutant.slow]
    for title, those in (
        ("survive", named(SURVIVES)),
        ("are broken: their tests cannot run, or fail without them", named(BROKEN)),
        ("need a slow test, and do not say slow=True", undeclared),
        ("say slow=True, and need no slow test", needless),
        ("need a slow test", declared),
        ("were not run within the budget", named(NOT_RUN)),
    ):
        if those:
            print(f"\n{len(those)} {title}:", *(f"  {mutant.name}" for mutant in those), sep="\n")
    print(f"\n{len(named(KILLED)) + len(slow)} of {len(mutants)} mutants killed")
    late = [mutant.name for mutant in named(NOT_RUN) if mutant.name in needed]
    if late:
        print(f"\n{len(late)} of them were touched, so that this run fails:", *(f"  {name}" for name in late), sep="\n")
    return 1 if named(SURVIVES) or named(BROKEN) or undeclared or needless or late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
