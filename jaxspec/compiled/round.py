"""Finds a round in a compiled program, the trip counts of its loops, and the bytes that any program must read."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import DictKey

from jaxspec.compiled.ahead_of_time import Case, Compiled
from jaxspec.compiled.heads import parse
from jaxspec.compiled.hlo import Instruction, Program
from jaxspec.core.memory import size_of
from jaxspec.draft_length.costs import read_bytes
from jaxspec.nn.language_model import LanguageModel

# Trip count of a loop without a known scope. It is reported, so readers can scale it.
_OTHER = 1


def round_of(program: Program) -> str:
    """Returns the name of the computation of one round.

    Raises:
      ValueError: if the program does not have exactly one loop over rounds.
    """
    rounds = [loop for loop in program.loops(program.entry) if loop.scope.endswith("rounds/while")]
    if len(rounds) != 1:
        raise ValueError(f"the compiled program has {len(rounds)} loops over rounds, expected 1")
    return rounds[0].computation("body")


def name_of(loop: Instruction) -> str:
    """Returns the innermost scope that a loop was traced in."""
    return loop.scope.removesuffix("/while").rsplit("/", 1)[-1]


def trips(case: Case, loop: Instruction) -> int:
    """Returns the trip count of a loop whose length depends on data, by the scope that it was traced in.

    Every row is assumed to draft as many tokens as possible, with the whole context live. Unknown loops count one
    trip.
    """
    known = {
        "catch_up": 0,
        # The first draft takes in the tokens that the last round left; those of earlier rounds are taken in before.
        "take_in": 1 if "/first_draft/" in loop.scope else 0,
        "first_draft": 1,
        "further_drafts": case.k - 1,
        "with_drafts": 1,
        "without_drafts": 0,
    }
    known["in_place"] = 1  # a kernel's write
    name = name_of(loop)
    if name.startswith("history_by_"):
        return math.ceil(case.context / int(name.removeprefix("history_by_")))
    return known.get(name, _OTHER)


def least_bytes(case: Case, compiled: Compiled) -> float:
    """Counts the stored bytes of each weight once per pass, and of the live cache, split evenly over all devices.

    The passes are one of the target, and the drafter's in a round: `k` of a draft model, an EAGLE head or an MTP
    module, one of other heads, with their output heads. Of tables only rows are read, which count nothing. Drafters
    without weights add nothing.

    Args:
      case: case that was compiled.
      compiled: its program, which need not fit.

    Returns:
      The number of bytes on one device.
    """
    target: Any = compiled.target
    drafts = 0 if compiled.drafter is None else compiled.drafter.lengths[-1]
    total = pass_bytes(target, case.rows, case.context, 1 + drafts)
    drafter: Any = compiled.drafter
    if (found := parse(case.drafter)) is not None:
        kind, _ = found
        params = drafter.head.params
        once = sum(size_of(params[name]) for name in kind.once)
        tables = _size_of_named(params, lambda name: name in kind.tables)
        total += once + kind.passes(case.k) * (size_of(params) - once - tables + _cached(drafter.head, case))
    elif drafter is not None and isinstance(draft := drafter.info.network, LanguageModel):
        total += case.k * pass_bytes(draft, case.rows, case.context)
    return total / compiled.devices


def _cached(head: Any, case: Case) -> int:
    """Returns the bytes of the live cache that a pass of a head reads; Medusa has no cache."""
    config = head.module.config
    if not hasattr(config, "num_kv_heads"):
        return 0
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * head.module.dtype.itemsize
    return case.rows * case.context * slot


def pass_bytes(model: LanguageModel, batch: int, context: int, tokens: int = 1) -> int:
    """Counts the bytes that one pass must read: each weight once, and `context` cached tokens per row.

    Of experts only the chosen ones count, as if no two of the `tokens` of each row chose the same.
    """
    config = model.module.config
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * model.dtype.itemsize
    return read_bytes(model) - _unread_experts(model, batch * tokens) + batch * context * slot


def _unread_experts(model: LanguageModel, tokens: int) -> int:
    """Returns the bytes of experts that no token chooses."""
    if (spec := model.module.config.experts) is None:
        return 0
    stored = _size_of_named(model.params, lambda name: name.startswith("experts_"))
    return stored * max(spec.count - tokens * spec.per_token, 0) // spec.count


def _size_of_named(params: Any, counts: Callable[[str], bool]) -> int:
    """Returns the bytes of the parameters with a name on their path that counts."""
    leaves = jax.tree.leaves_with_path(params)
    named = (x for path, x in leaves if any(counts(key.key) for key in path if isinstance(key, DictKey)))
    return sum(map(size_of, named))
