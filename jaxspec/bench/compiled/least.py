"""Counts the bytes that no program of a round could save: each weight once a pass of its model, and the live cache."""

from typing import Any

from jaxspec.bench.ahead_of_time import Case, Compiled
from jaxspec.bench.compiled.heads import parse
from jaxspec.bench.plan.roofline import pass_bytes
from jaxspec.core.memory import size_of


def least_bytes(case: Case, compiled: Compiled) -> float:
    """Counts each weight once a pass and the live cache, as they are stored, split evenly over all devices.

    A pass is one of the target, and those that its drafter has in a round: `k` of a draft model or an EAGLE head, one
    of a DFlash or Medusa head, with their output heads. Drafters without weights of their own count for nothing.

    Args:
      case: what was compiled.
      compiled: its program, or that of a round that does not fit.

    Returns:
      Bytes of one device.
    """
    target: Any = compiled.target
    total = pass_bytes(target, case.batch, case.context)
    drafter: Any = compiled.drafter
    if (found := parse(case.draft)) is not None:
        kind, _ = found
        once = sum(size_of(drafter.head.params[name]) for name in kind.once)
        total += once + kind.passes(case.k) * (size_of(drafter.head.params) - once + _cached(drafter.head, case))
    elif (model := getattr(drafter, "model", None)) is not None:
        total += case.k * pass_bytes(model, case.batch, case.context)
    return total / compiled.devices


def _cached(head: Any, case: Case) -> int:
    """Returns the bytes of the live cache that a pass of a head reads; Medusa's has none."""
    config = head.module.config
    if not hasattr(config, "num_kv_heads"):
        return 0
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * head.module.dtype.itemsize
    return case.batch * case.context * slot
