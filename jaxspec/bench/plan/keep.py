"""Measured costs of rounds, kept for `Adaptive`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from jaxspec.bench.costs import measure_costs
from jaxspec.bench.setting import Setting, policy_at
from jaxspec.checkpoints.load import load
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.cost_file import cost_file, save_costs
from jaxspec.drafters.hybrid import HybridDrafter
from jaxspec.named import load_drafter
from jaxspec.nn.convert import PRODUCTS

# Tokens of a text in the middle of an answer.
_TEXT = 256


def keep_costs(setting: Setting, *, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Measures what rounds of each drafter cost at each number of drafts, for each batch, and keeps it.

    `jaxspec generate`, `load_drafter` and `SpeculativeDecoder` then draft by it, on this machine, with these models.

    Args:
      setting: model, drafters, batches, dtype and products; costs are those at its first temperature.
      tell: is told what is being done.

    Returns:
      The file.
    """
    target = PRODUCTS[setting.products](load(setting.model, dtype=setting.dtype))
    for name in setting.drafters:
        loaded = load_drafter(name, target, target_name=setting.model, dtype=setting.dtype, k="adaptive")
        for drafter in _parts(loaded):
            for batch in setting.batches:
                tell(f"what rounds of {name} cost at {drafter.lengths}, batch {batch}")
                jax.clear_caches()
                lengths = drafter.schedule.lengths
                policy = policy_at(setting.temperatures[0])
                costs = measure_costs(target, drafter, lengths, batch=batch, text=_TEXT, sampling=policy)
                save_costs(target, drafter, dict(zip(lengths, costs, strict=True)), batch=batch)
    return cost_file()


def _parts(drafter: Drafter) -> Iterator[Drafter]:
    """Each that has a schedule of its own."""
    if isinstance(drafter, HybridDrafter):
        yield from (drafter.copying, drafter.model)
    else:
        yield drafter
