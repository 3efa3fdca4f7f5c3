"""Finds a round in a compiled program, and says how often its loops of unknown length run there."""

import math

from jaxspec.bench.ahead_of_time import Case
from jaxspec.bench.hlo import Instruction, Program

# What is counted of a loop that no scope names: it is reported, and the reader may scale it.
_OTHER = 1


def round_of(program: Program) -> str:
    """Returns the name of the computation of one round.

    Raises:
      ValueError: the program has not exactly one loop over rounds.
    """
    rounds = [loop for loop in program.loops(program.entry) if loop.scope.endswith("rounds/while")]
    if len(rounds) != 1:
        raise ValueError(f"the compiled program has {len(rounds)} loops over rounds, expected 1")
    return rounds[0].computation("body")


def name_of(loop: Instruction) -> str:
    """Returns the innermost scope that a loop was traced in."""
    return loop.scope.removesuffix("/while").rsplit("/", 1)[-1]


def trips(case: Case, loop: Instruction) -> int:
    """Returns how often a round's loop runs whose length depends on data, by the scope it was traced in.

    In the round that is counted every row drafts all it can and the whole context is live. Of a loop that is none of
    those that a round is known to have, one trip is counted.
    """
    known = {
        "catch_up": 0,
        # What the last round left is taken in where the round drafts, what others left before that.
        "take_in": 1 if "/first_draft/" in loop.scope else 0,
        "first_draft": 1,
        "further_drafts": case.k - 1,
        "with_drafts": 1,
        "without_drafts": 0,
    }
    known["in_place"] = 1  # a write of a kernel
    name = name_of(loop)
    if name.startswith("history_by_"):
        return math.ceil(case.context / int(name.removeprefix("history_by_")))
    return known.get(name, _OTHER)
