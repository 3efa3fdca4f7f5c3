"""Tells copies of caches from weights that are fetched ahead, in the compiled program of a round.

A program moves whole arrays for three reasons: it lays one out anew, in the main memory or on the chip (waste); it
takes a cache to the chip and back (a read of it at best, and a write of far more than was fresh); or it fetches a
weight ahead of its product, which has to read it in any case (wanted). A weight is what no round changes.
"""

import dataclasses
from collections.abc import Iterable

from jaxspec.bench.hlo import Array, Instruction, Program, Step

# An array below this is no weight and no cache.
LARGE = 2**19
_VIEWS = ("bitcast", "copy", "copy-start", "copy-done", "reshape", "opt-barrier")


@dataclasses.dataclass(frozen=True)
class Copies:
    """Gives the bytes of large arrays that one round, or plain step, moves whole on one device.

    Attributes:
      main: read and written by copies within the main memory, or from the chip into another layout there.
      chip: results of copies that lie on the chip.
      carried: arrays that a round changes, such as caches, moved between main memory and chip as they are.
      fetched: weights that are fetched ahead to the chip.
    """

    main: int
    chip: int
    carried: int
    fetched: int


def copies(program: Program, computation: str, steps: Iterable[Step]) -> Copies:
    """Sums up the large arrays that the steps of a round move whole.

    Args:
      program: the compiled program.
      computation: that of the round.
      steps: those that it runs.
    """
    origins = _Origins(program, computation)
    sums: dict[str, int] = dict.fromkeys(("main", "chip", "carried", "fetched"), 0)
    for step in steps:
        one = step.instruction
        if one.arrays and one.arrays[0].size >= LARGE and (kind := _kind(program, origins, one)):
            sums[kind] += step.times * (step.bytes if kind == "main" else _moved(one).size)
    return Copies(**sums)


def _kind(program: Program, origins: "_Origins", one: Instruction) -> str | None:
    """Returns which field of `Copies` an instruction belongs to, if it moves an array whole."""
    if one.opcode == "copy" or (one.opcode == "fusion" and program.is_view(one)):
        return "chip" if one.arrays[0].local else "main"
    if one.opcode == "copy-start" and one.arrays[0].local == one.arrays[1].local:
        return "chip" if one.arrays[0].local else "main"
    if one.opcode in ("copy-start", "slice-start") and _moved(one).local and origins.is_weight(one):
        return "fetched"
    return "carried" if one.opcode == "copy-start" else None  # a slice of a cache is read, no more


def _moved(one: Instruction) -> Array:
    """Returns what it yields; an asynchronous slice names its source first, an asynchronous copy its destination."""
    return one.arrays[1 if one.opcode == "slice-start" else 0]


class _Origins:
    """Follows arrays back to where a round gets them from."""

    def __init__(self, program: Program, computation: str):
        self._computations = program.computations
        self._round = computation
        self._home = {id(one): name for name, inside in program.computations.items() for one in inside.values()}
        self._callers: dict[str, Instruction] = {}
        self._passed: dict[tuple[str, int], bool] = {}
        for inside in program.computations.values():
            for one in inside.values():
                for name in (one.computation("body"), *one.branches):
                    self._callers[name] = one

    def is_weight(self, one: Instruction) -> bool:
        """Returns whether what an instruction moves is left as it was by every round."""
        return self._is_kept(self._home[id(one)], self._place(self._home[id(one)], one.operands[0]))

    def _is_kept(self, computation: str, place: int | None) -> bool:
        """Returns whether no round changes an element of a computation's parameter."""
        if place is None:
            return False
        caller = self._callers.get(computation)
        if computation == self._round or caller is None:
            return self._passes_on(computation, place)
        outside, loops = self._home[id(caller)], caller.opcode == "while"
        if loops and not self._passes_on(computation, place):
            return False
        given = caller.operands[0 if loops else 1 + caller.branches.index(computation)]
        return self._is_kept(outside, self._place_of_element(outside, given, place))

    def _passes_on(self, body: str, place: int) -> bool:
        """Returns whether a loop's body hands an element of its carry on as it got it."""
        if (key := (body, place)) not in self._passed:
            root = next(one for one in self._computations[body].values() if one.root)
            self._passed[key] = root.opcode == "tuple" and self._place(body, root.operands[place]) == place
        return self._passed[key]

    def _place(self, computation: str, name: str) -> int | None:
        """Returns which element of its computation's parameter a value is; `None` if it was made here."""
        one = self._computations[computation].get(name)
        if one is not None and one.opcode in _VIEWS:
            return self._place(computation, one.operands[0])
        if one is None or one.opcode != "get-tuple-element":
            return None
        return self._place_of_element(computation, one.operands[0], int(one.find(r"index=(\d+)") or 0))

    def _place_of_element(self, computation: str, name: str, index: int) -> int | None:
        """Returns the same of an element of a tuple."""
        one = self._computations[computation][name]
        if one.opcode == "parameter":
            return index
        if one.opcode == "tuple":
            return self._place(computation, one.operands[index])
        if one.opcode == "while" and self._passes_on(one.computation("body"), index):
            return self._place_of_element(computation, one.operands[0], index)
        return None
