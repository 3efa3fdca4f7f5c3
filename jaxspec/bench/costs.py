"""Times rounds in steps of plain decoding: at each number of drafts for `Adaptive`, and part by part for a plan."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.cases import PLAIN, Case
from jaxspec.bench.setting import Setting, load_target, policy_at
from jaxspec.bench.timing import interleave
from jaxspec.core import validate
from jaxspec.core.model import Cache, Model
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.core.state import Context, GenerationState
from jaxspec.draft_length.base import DraftLength
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.cost_file import cost_file, save_costs
from jaxspec.named import has_weights, load_drafter
from jaxspec.verifiers.base import Verifier

LENGTHS = (0, 2, 4, 8)
ROUNDS = 8
# Tokens of a text in the middle of an answer.
_TEXT = 256


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Held(DraftLength):
    """Drafts always `count` tokens, traced: all lengths run in the program that `Adaptive` runs in."""

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
    drafters: dict[str, Drafter] = {PLAIN: NoDrafter()}
    drafters |= {str(n): drafter.with_length(_Held(jnp.int32(n), lengths)) for n in lengths}
    begin = functools.partial(_begin, target, batch=batch, text=text, sampling=sampling, drafts=lengths[-1])
    calls = {name: _rounds(target, one, verifier, begin(one)) for name, one in drafters.items()}
    samples = interleave(calls, repeats=repeats)
    return tuple(round(samples.ratio(str(n), PLAIN).median, 3) for n in lengths)


@dataclasses.dataclass(frozen=True)
class RoundCost:
    """Gives times in steps of plain decoding of the same batch, taken turn by turn.

    Attributes:
      round: a round in which every row drafts all it can.
      draft: its drafts, timed alone.
      verify: the target's pass over them, timed alone.
      idle: a round in which no row drafts; `None` for a drafter that drafts in every round.
    """

    round: float
    draft: float
    verify: float
    idle: float | None = None


def measure_parts(
    target: Model, cases: Sequence[Case], *, batch: int, text: int, capacity: int, sampling: Policy, repeats: int
) -> tuple[float, Mapping[str, RoundCost]]:
    """Times the rounds of all cases and their parts in turn; medians over the turns are taken.

    Args:
      target: the model.
      cases: plain decoding first.
      batch: rows.
      text: tokens of each row, at least 8.
      capacity: of the caches in tokens, with room for two rounds at least: some kernels read all of it.
      sampling: the policy.
      repeats: turns that count.

    Returns:
      Seconds of a step of plain decoding, and the cost of each other case by its label.
    """
    most = max(case.drafter.max_drafts for case in cases)
    room = {"drafts": most, "capacity": capacity}
    begin = functools.partial(_begin, target, batch=batch, text=text, sampling=sampling, **room)
    parts = {case.label: _parts(target, case.drafter, begin) for case in cases}
    calls = {f"{part} {label}": call for label, of_case in parts.items() for part, call in of_case.items()}
    samples = interleave(calls, repeats=repeats)
    costs = {
        case.label: RoundCost(
            **{part: samples.ratio(f"{part} {case.label}", f"round {PLAIN}").median for part in parts[case.label]}
        )
        for case in cases[1:]
    }
    return samples.median(f"round {PLAIN}") / ROUNDS, costs


def _parts(target: Model, drafter: Drafter, begin: Callable[..., GenerationState]) -> dict[str, Callable[[], Any]]:
    """Returns what is timed of a case: fields of `RoundCost`, of plain decoding a step alone."""
    state = begin(drafter)
    calls: dict[str, Callable[[], Any]] = {"round": _rounds(target, drafter, None, state)}
    if drafter.max_drafts == 0:
        return calls
    fed = state.tokens[:, : drafter.lengths[-1] + 1]
    calls["draft"] = lambda: [_draft(target, drafter, state) for _ in range(ROUNDS)]
    calls["verify"] = lambda: [_feed(target, fed, state.cache, drafter.capture) for _ in range(ROUNDS)]
    if drafter.lengths[0] == 0:
        calls["idle"] = _rounds(target, drafter, None, begin(drafter, repetitive=False))
    return calls


def _begin(
    target: Model,
    drafter: Drafter,
    *,
    batch: int,
    text: int,
    sampling: Policy,
    drafts: int,
    capacity: int | None = None,
    repetitive: bool = True,
) -> GenerationState:
    """Begins after made-up texts, with room for rounds of so many drafts.

    Their meaning does not matter to the time, but for whether n-grams are found: in each row, or in none.
    """
    tokens = np.tile(np.arange(text, dtype=np.int32) % 4, (batch, 1))
    if not repetitive:
        tokens[:, -1] = 4
    options = {"sampling": sampling, "key": jax.random.key(0), "max_new_tokens": 2 * (drafts + 1)}
    return jaxspec.init(target, drafter, jnp.asarray(tokens), capacity=capacity, **options)


def _rounds(target: Model, drafter: Drafter, verifier: Verifier | None, state: GenerationState) -> Callable[[], Any]:
    return lambda: repeat_round(target, drafter, verifier, state, count=ROUNDS).length


@functools.partial(jax.jit, static_argnames="count")
def repeat_round(target, drafter, verifier, start, *, count: int):
    """Runs the same round `count` times: each begins with the text, the caches and the drafter's state of `start`.

    Caches are rolled back and not put back: that would copy them in every round, which decoding does not do.
    """
    is_cache = lambda x: isinstance(x, Cache)  # noqa: E731
    rolled_back = lambda ours, theirs: ours.truncate(theirs.length) if is_cache(ours) else theirs  # noqa: E731

    def once(_, state):
        after, _ = jaxspec.step(target, drafter, verifier, state)
        return dataclasses.replace(
            after,
            tokens=start.tokens,
            length=start.length,
            done=start.done,
            cache=after.cache.truncate(start.length - 1),
            drafter_state=jax.tree.map(rolled_back, after.drafter_state, start.drafter_state, is_leaf=is_cache),
        )

    return jax.lax.fori_loop(0, count, once, start)


@jax.jit
def _draft(target, drafter, state):
    """Drafts alone: the drafter's new state is left out."""
    context = Context(
        target, state.cache, state.tokens, state.length, state.done, state.sampling, processed=state.processed
    )
    rng = drafter.default_verifier.rng(state.keys, state.length)
    if not drafter.deterministic and len(drafter.lengths) == 1:
        rng = rng.shared(drafter.max_drafts + 1, target.vocab_size)
    return bounded.propose(drafter, rng, state.drafter_state, context)[0].tokens


@functools.partial(jax.jit, static_argnames="capture")
def _feed(target, tokens, cache, capture):
    return jnp.argmax(target(tokens, cache, capture=capture).logits, axis=-1)


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
        dtype = setting.dtype if has_weights(name) else None
        loaded = load_drafter(name, target, target_name=setting.model, dtype=dtype, k="adaptive")
        for drafter, batch in itertools.product((loaded.lookup_part, loaded.model_part), setting.batches):
            if drafter is not None and (length := drafter.draft_length) is not None:
                tell(f"what rounds of {name} cost at {length.lengths}, batch {batch}")
                jax.clear_caches()
                costs = measure_costs(target, drafter, length.lengths, batch=batch, text=_TEXT, sampling=policy)
                save_costs(target, drafter, dict(zip(length.lengths, costs, strict=True)), batch=batch)
    return cost_file()
