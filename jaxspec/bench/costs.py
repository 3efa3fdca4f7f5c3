"""Measures what a round costs at each number of drafts, and keeps it for `Adaptive`."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.setting import Setting, load_target, policy_at
from jaxspec.bench.timing import interleave
from jaxspec.core import validate
from jaxspec.core.model import Cache, Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.cost_file import cost_file, save_costs
from jaxspec.named import load_drafter
from jaxspec.verifiers.base import Verifier

LENGTHS = (0, 2, 4, 8)
ROUNDS = 8
# Tokens of a text in the middle of an answer.
_TEXT = 256


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Held(DraftLength):
    """Always `count` drafts, traced: all lengths run in the program that `Adaptive` runs in."""

    count: jax.Array | int
    lengths: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def init(self, batch):
        return jnp.full(batch, self.count, jnp.int32)


def measure_costs(
    target: Model,
    drafter: Drafter,
    lengths: tuple[int, ...] = LENGTHS,
    *,
    batch: int = 1,
    text: int = 64,
    sampling: Policy = Greedy(),  # noqa: B008 (frozen and stateless)
    verifier: Verifier | None = None,
    repeats: int = 5,
) -> tuple[float, ...]:
    """Measures a round's time at each length, relative to a round of plain decoding.

    Rounds of all lengths take turns with plain ones, and the median over the turns counts. Costs
    depend on the batch, the length of the text and the policy: measure what you run.

    Args:
      target: the target.
      drafter: one that takes a `DraftLength` as `k`; its own `k` does not matter.
      lengths: numbers of drafts, rising.
      batch: rows.
      text: tokens of each row.
      sampling: the policy.
      verifier: the verifier; `None` is the default.
      repeats: turns.

    Returns:
      One cost for each length: `ModelDrafter(model, k=Adaptive(costs, lengths))`.

    Raises:
      TypeError: for a drafter that takes no `DraftLength`.
    """
    lengths = validate.draft_lengths(lengths)
    if drafter.draft_length is None:
        raise TypeError(f"measure_costs needs a drafter that takes a DraftLength, got {type(drafter).__name__}")
    # The text repeats itself, so that n-grams are always found.
    prompt = np.tile(np.arange(text, dtype=np.int32) % 4, (batch, 1))
    options = {"sampling": sampling, "key": jax.random.key(0), "max_new_tokens": 2 * (lengths[-1] + 1)}

    def rounds(drafter: Drafter | None):
        state = jaxspec.init(target, drafter, jnp.asarray(prompt), **options)
        return lambda: repeat_round(target, drafter, verifier, state, count=ROUNDS).length

    cases = {"plain": rounds(None)}
    for length in lengths:
        held = _Held(jnp.int32(length), lengths)
        cases[str(length)] = rounds(drafter.with_length(held))
    samples = interleave(cases, repeats=repeats)
    return tuple(round(samples.ratio(str(length), "plain")[1], 3) for length in lengths)


@functools.partial(jax.jit, static_argnames="count")
def repeat_round(target, drafter, verifier, start, *, count: int):
    """Runs the same round `count` times: each begins with the text, the caches and the drafter's state of `start`.

    Caches are rolled back and not put back: that would copy them in every round, which decoding does not do.
    """

    def once(_, state):
        after, _ = jaxspec.step(target, drafter, verifier, state)
        return dataclasses.replace(
            after,
            tokens=start.tokens,
            length=start.length,
            done=start.done,
            cache=after.cache.truncate(start.length - 1),
            drafter_state=_rolled_back(after.drafter_state, start.drafter_state),
        )

    return jax.lax.fori_loop(0, count, once, start)


def _rolled_back(after, start):
    """Returns `start`, but with the caches of `after`, at its lengths."""
    is_cache = lambda x: isinstance(x, Cache)  # noqa: E731
    rolled_back = lambda ours, theirs: ours.truncate(theirs.length) if is_cache(ours) else theirs  # noqa: E731
    return jax.tree.map(rolled_back, after, start, is_leaf=is_cache)


def keep_costs(setting: Setting, *, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Measures what rounds of each drafter cost at each number of drafts, for each batch, and writes it to a file.

    `jaxspec generate`, `load_drafter` and `SpeculativeDecoder` then draft by it, on this machine, with these models.

    Args:
      setting: model, drafters, batches, dtype and kernels; costs are those at its first temperature.
      tell: called with each step, in words.

    Returns:
      The file.
    """
    _, target = load_target(setting)
    policy = policy_at(setting.temperatures[0])
    for name in setting.drafters:
        loaded = load_drafter(name, target, target_name=setting.model, dtype=setting.dtype, k="adaptive")
        for drafter, batch in itertools.product((loaded.lookup_part, loaded.model_part), setting.batches):
            if drafter is not None and (length := drafter.draft_length) is not None:
                tell(f"what rounds of {name} cost at {length.lengths}, batch {batch}")
                jax.clear_caches()
                costs = measure_costs(target, drafter, length.lengths, batch=batch, text=_TEXT, sampling=policy)
                save_costs(target, drafter, dict(zip(length.lengths, costs, strict=True)), batch=batch)
    return cost_file()
