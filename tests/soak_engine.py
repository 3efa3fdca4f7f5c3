"""Sends many short requests through one engine, and compares what it holds then with what it held after the first ones.

    python -m tests.soak_engine --requests 10000 --first 500

Requests of all kinds, some of them cancelled. Exits with 1 if the bytes of arrays, the number of Python's objects or
the memory of the process have grown by more than 1 %.
"""

import argparse
import contextlib
import dataclasses
import gc
import random
import sys
import time

import jax

import jaxspec
from tests import soak
from tests._fixtures import arrivals, text_models

MOST_GROWTH = 0.01
PREFIX_BYTES = 2**20
_AHEAD = 32


@dataclasses.dataclass(frozen=True)
class Held:
    """Counts of what is alive in a process.

    Attributes:
      arrays: the bytes of arrays on devices.
      objects: the number of Python's objects.
      memory: the bytes of the process that are in memory.
    """

    arrays: int
    objects: int
    memory: int

    @classmethod
    def now(cls):
        """Counts after a collection."""
        gc.collect()
        return cls(sum(x.nbytes for x in jax.live_arrays()), len(gc.get_objects()), soak.memory())

    def growth(self, before):
        """Returns the growth of each since `before`, as a share."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(before), strict=True)
        return [now / then - 1 for now, then in pairs]


def run(first, count, *, tell=lambda line: None):
    """Sends `count` requests, and returns what was held after the first ones and at the end."""
    target = text_models.history_models()[0]
    kinds = [{**kind(random.Random(0)), "max_new_tokens": 2} for kind in arrivals.KINDS.values()]
    with jaxspec.Engine(
        target, "ngram", k=2, slots=4, capacity=arrivals.CAPACITY, prefix_bytes=PREFIX_BYTES, kinds=kinds
    ) as engine:
        _send(engine, 3 * len(kinds))  # compiles every program, and makes every table
        while engine._groups.compiling:
            time.sleep(0.05)
        _send(engine, first)
        before = _held(engine)
        for done in range(first, count, 500):
            _send(engine, min(500, count - done), seed=done)
            tell(f"{min(done + 500, count)} requests: {_held(engine).growth(before)}")
        return before, _held(engine)


def _held(engine):
    """Counts what is alive, without kept texts and rows of groups: both are bounded, and chance sets their sizes."""
    before, arrays = None, _unbounded(engine)
    while engine.running or arrays != before:  # a request ends before its row is kept
        time.sleep(0.05)
        before, arrays = arrays, _unbounded(engine)
    assert len(engine._groups.by_signature) == 1
    return dataclasses.replace(Held.now(), arrays=arrays)


def _unbounded(engine):
    """Returns the bytes of arrays that nothing bounds."""
    kept = sum(one.size for one in engine._prefixes._kept)
    assert kept <= PREFIX_BYTES
    rows = jax.tree.leaves([group._slots for group in list(engine._groups.by_signature.values())])
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays()) - kept - sum(x.nbytes for x in rows)


def _send(engine, count, seed=0):
    """Sends requests, a few of them at a time, and waits for each."""
    handles = []
    for prompt, options, fate in arrivals.requests(count, seed):
        handles.append(engine.submit(prompt, **{**options, "max_new_tokens": min(3, options["max_new_tokens"])}))
        if fate is not None:
            handles[-1].cancel()
        if len(handles) == _AHEAD:
            _wait(handles.pop(0))
    for handle in handles:
        _wait(handle)


def _wait(handle):
    with contextlib.suppress(jaxspec.serving.CancelledError):
        handle.result(arrivals.SECONDS)


def main() -> int:
    """Runs by the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_engine", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=500)
    arguments = parser.parse_args()
    before, after = run(arguments.first, arguments.requests, tell=lambda line: print(line, flush=True))
    growth = after.growth(before)
    print(f"arrays {growth[0]:+.2%}, objects {growth[1]:+.2%}, memory {growth[2]:+.2%}")
    return int(max(growth) > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
