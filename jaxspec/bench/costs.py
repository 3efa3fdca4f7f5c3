"""Measures the cost of rounds at each number of drafts, relative to plain decoding, for `Adaptive`."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.cases import PLAIN, Setting, load_target, policy_at
from jaxspec.bench.timing import interleave
from jaxspec.core import validate
from jaxspec.core.model import Cache, Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.core.state import GenerationState
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters.adapt import with_length
from jaxspec.drafters.base import Drafter, NoDrafter, draft_length_of
from jaxspec.drafters.cost_file import cost_file, save_costs
from jaxspec.drafters.hybrid import halves
from jaxspec.text.names import has_weights, load_drafter
from jaxspec.verifiers.base import Verifier

LENGTHS = (0, 2, 4, 8)
ROUNDS = 8
# The number of tokens of a text in the middle of an answer.
_TEXT = 256


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Held(DraftLength):
    """Always drafts `count` tokens; `count` is traced, so all lengths run the same program as `Adaptive`."""

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

    Rounds of all lengths take turns with plain ones; each cost is the median over the turns. Costs depend on the batch,
    the length of the text and the policy, so measure with the values that you run.

    Args:
      target: the target model.
      drafter: a drafter that takes a `DraftLength` as `k`; its own `k` is ignored.
      lengths: numbers of drafts, increasing.
      batch: the number of rows.
      text: the number of tokens of each row.
      sampling: the sampling policy.
      verifier: the verifier; `None` means the default.
      repeats: the number of turns.

    Returns:
      One cost for each length: `ModelDrafter(model, k=Adaptive(costs, lengths))`.

    Raises:
      TypeError: if the drafter does not take a `DraftLength`.
    """
    lengths = validate.draft_lengths(lengths)
    if draft_length_of(drafter) is None:
        raise TypeError(f"measure_costs needs a drafter that takes a DraftLength, got {type(drafter).__name__}")
    drafters: dict[str, Drafter] = {PLAIN: NoDrafter()}
    drafters |= {str(n): with_length(drafter, _Held(jnp.int32(n), lengths)) for n in lengths}
    begin = functools.partial(_begin, target, batch=batch, text=text, sampling=sampling, drafts=lengths[-1])
    calls = {name: _rounds(target, one, verifier, begin(one)) for name, one in drafters.items()}
    samples = interleave(calls, repeats=repeats)
    return tuple(round(samples.ratio(str(n), PLAIN).median, 3) for n in lengths)


def _begin(target: Model, drafter: Drafter, *, batch: int, text: int, sampling: Policy, drafts: int) -> GenerationState:
    """Returns a state after synthetic texts with repeated n-grams, with room for rounds of `drafts` drafts."""
    tokens = np.tile(np.arange(text, dtype=np.int32) % 4, (batch, 1))
    options = {"sampling": sampling, "key": jax.random.key(0), "max_new_tokens": 2 * (drafts + 1)}
    return jaxspec.init(target, drafter, jnp.asarray(tokens), **options)


def _rounds(target: Model, drafter: Drafter, verifier: Verifier | None, state: GenerationState) -> Callable[[], Any]:
    return lambda: repeat_round(target, drafter, verifier, state, count=ROUNDS).length


@functools.partial(jax.jit, static_argnames="count")
def repeat_round(target, drafter, verifier, start, *, count: int):
    """Runs one round `count` times, each with the text, the caches and the drafter's state of `start`.

    Caches are rolled back where possible, not restored, which would copy them in every round, unlike decoding.
    """
    is_cache = lambda x: isinstance(x, Cache)  # noqa: E731
    rolled_back = lambda ours, theirs: ours.truncate(theirs.length) if is_cache(ours) else theirs  # noqa: E731

    def once(_, state):
        after, _ = jaxspec.step(target, drafter, verifier, state)
        kept = {"tokens": start.tokens, "length": start.length, "done": start.done}
        cache = after.cache.truncate(start.length - 1) if target.traits.rewinds else start.cache
        context = dataclasses.replace(after.context, cache=cache, **kept)
        return dataclasses.replace(
            after,
            context=context,
            drafter_state=jax.tree.map(rolled_back, after.drafter_state, start.drafter_state, is_leaf=is_cache),
        )

    return jax.lax.fori_loop(0, count, once, start)


def keep_costs(setting: Setting, *, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Measures the cost of each drafter's rounds by number of drafts and batch, and saves it to a file.

    `jaxspec generate`, `load_drafter` and `SpeculativeDecoder` then use these costs, for these models on this machine.

    Args:
      setting: model, drafters, batches, dtype and kernels; costs are measured at the first temperature.
      tell: called with a description of each step.

    Returns:
      The path of the file.
    """
    _, target = load_target(setting)
    policy = policy_at(setting.temperatures[0])
    for name in setting.drafters:
        dtype = setting.dtype if has_weights(name) else None
        loaded = load_drafter(name, target, target_name=setting.model, dtype=dtype)
        for drafter, batch in itertools.product(halves(loaded), setting.batches):
            if drafter is not None and (length := draft_length_of(drafter)) is not None:
                lengths = tuple(sorted({*length.lengths, 1}))  # several rows may choose a single draft
                tell(f"what rounds of {name} cost at {lengths}, batch {batch}")
                jax.clear_caches()
                costs = measure_costs(target, drafter, lengths, batch=batch, text=_TEXT, sampling=policy)
                save_costs(target, drafter, dict(zip(lengths, costs, strict=True)), batch=batch)
    return cost_file()
