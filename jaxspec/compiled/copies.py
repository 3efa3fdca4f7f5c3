"""Distinguishes copies of caches from prefetches of weights in the compiled program of a round.

A program moves whole arrays for three reasons. It changes a layout, in main memory or on the chip (waste). It
carries a cache to the chip and back (at best a read of it, and a write of far more than is new). Or it prefetches a
weight, which the product has to read in any case (wanted). A weight is an array that no round changes.
"""

import dataclasses
from collections.abc import Iterable

from jaxspec.compiled.hlo import Array, Instruction, Program, Step

# Bytes of an array below which it is neither a weight nor a cache.
LARGE = 2**19
_VIEWS = ("bitcast", "copy", "copy-start", "copy-done", "reshape", "opt-barrier")


@dataclasses.dataclass(frozen=True)
class Copies:
    """Counts the bytes of large arrays that one round or plain step moves whole on one device.

    Attributes:
      main: bytes read and written by copies within main memory, or from the chip into another layout there.
      chip: bytes of copies whose results lie on the chip.
      carried: bytes of arrays that a round changes, such as caches, moved unchanged between main memory and chip.
      fetched: bytes of weights prefetched to the chip.
    """

    main: int
    chip: int
    carried: int
    fetched: int


def copies(program: Program, computation: str, steps: Iterable[Step]) -> Copies:
    """Sums up the large arrays that the steps of a round move whole.

    Args:
      program: compiled program.
      computation: name of the round's computation.
      steps: steps that the round runs.
    """
    origins = _Origins(program, computation)
    sums: dict[str, int] = dict.fromkeys(("main", "chip", "carried", "fetched"), 0)
    for step in steps:
        one = step.instruction
        if one.arrays and one.arrays[0].size >= LARGE and (kind := _kind(program, origins, one)):
            sums[kind] += step.times * (step.bytes if kind == "main" else _moved(one).size)
    return Copies(**sums)


def _kind(program: Program, origins: "_Origins", one: Instruction) -> str | None:
    """Returns the field of `Copies` that counts an instruction; `None` if it moves no whole array."""
    if one.opcode == "copy" or (one.opcode == "fusion" and program.is_view(one)):
        return "chip" if one.arrays[0].local else "main"
    if one.opcode == "copy-start" and one.arrays[0].local == one.arrays[1].local:
        return "chip" if one.arrays[0].local else "main"
    if one.opcode in ("copy-start", "slice-start") and _moved(one).local and origins.is_weight(one):
        return "fetched"
    return "carried" if one.opcode == "copy-start" else None  # a slice of a cache is only read


def _moved(one: Instruction) -> Array:
    """Returns the resulting array; an asynchronous slice names its source first, an asynchronous copy its result."""
    return one.arrays[1 if one.opcode == "slice-start" else 0]


class _Origins:
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
        """Returns whether no round changes the array that an instruction moves."""
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
        """Returns whether a loop's body returns an element of its carry unchanged."""
        if (key := (body, place)) not in self._passed:
            root = next(one for one in self._computations[body].values() if one.root)
            self._passed[key] = root.opcode == "tuple" and self._place(body, root.operands[place]) == place
        return self._passed[key]

    def _place(self, computation: str, name: str) -> int | None:
        """Returns the index of a value in its computation's parameter; `None` if it was computed."""
        one = self._computations[computation].get(name)
        if one is not None and one.opcode in _VIEWS:
            return self._place(computation, one.operands[0])
        if one is None or one.opcode != "get-tuple-element":
            return None
        return self._place_of_element(computation, one.operands[0], int(one.find(r"index=(\d+)") or 0))

    def _place_of_element(self, computation: str, name: str, index: int) -> int | None:
        """Returns the index of a tuple's element in its computation's parameter; `None` if it was computed."""
        one = self._computations[computation][name]
        if one.opcode == "parameter":
            return index
        if one.opcode == "tuple":
            return self._place(computation, one.operands[index])
        if one.opcode == "while" and self._passes_on(one.computation("body"), index):
            return self._place_of_element(computation, one.operands[0], index)
        return None
