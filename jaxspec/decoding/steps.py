"""Decodes round by round: the same rounds as `generate`, in the caller's own loop."""

import dataclasses
from collections.abc import Generator, Sequence

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxspec.core import validate
from jaxspec.core.bit_exact import check_rows
from jaxspec.core.generation import Generation
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model
from jaxspec.core.report import Report
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.core.state import GenerationState, RoundInfo
from jaxspec.core.values import is_concrete
from jaxspec.decoding.arguments import Arguments, StopTokens, TokenIds, check_kinds
from jaxspec.decoding.generate import collect, cut, initial_state
from jaxspec.decoding.room import PerRow
from jaxspec.decoding.round import run_round
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.sharding.placement import to_host
from jaxspec.verifiers.base import Verifier


def init(
    target: Model,
    drafter: Drafter | None,
    prompt: TokenIds,
    *,
    prompt_length: PerRow | None = None,
    key: Array | None = None,
    sampling: Policy = Greedy(),  # noqa: B008 (frozen and stateless)
    max_new_tokens: PerRow | None,
    stop_tokens: StopTokens = (),
    capacity: int | None = None,
    report: Report = Report(),  # noqa: B008 (frozen and stateless)
    n: int = 1,
    max_drafts: PerRow | None = None,
    prediction: TokenIds | Sequence[int] | None = None,
) -> GenerationState:
    """Returns the state before the first round: the prompt is fed, nothing is emitted.

    Takes the arguments of `generate`, which describes them, but no verifier, which `step` takes, no mesh and
    no `bit_exact`: `jaxspec.shard` the models before, or take `jaxspec.nn.bit_exact(target)`, so that `step` is given
    the same ones.

    Raises:
      TypeError, ValueError: as `generate` does.

    Example:
        >>> state = jaxspec.init(target, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=8)
        >>> state.length.tolist(), state.tokens.shape[0]
        ([5, 5], 2)
    """
    arguments, _ = Arguments.check(
        target,
        drafter,
        prompt,
        prompt_length=prompt_length,
        key=key,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        stop_tokens=stop_tokens,
        capacity=capacity,
        report=report,
        n=n,
        max_drafts=max_drafts,
        prediction=prediction,
    )
    return start(arguments)


def step(
    target: Model,
    drafter: Drafter | None,
    verifier: Verifier | None,
    state: GenerationState,
    *,
    lossy: bool = False,
) -> tuple[GenerationState, RoundInfo]:
    """Runs one round: propose, verify, commit. Pure; the caller's state stays alive.

    Finished rows emit nothing, so calling it after the end changes nothing.

    Args:
      target: the model that `state` was made with.
      drafter: the drafter that `state` was made with; `None` is plain decoding.
      verifier: decides which drafts are accepted; may differ from round to round. `None` is as in `generate`.
      state: from `init` or the step before.
      lossy: must be True for a verifier that does not keep the target's distribution.

    Returns:
      The next state, and the tokens that the round emitted.

    Raises:
      TypeError, ValueError: if the arguments are not those that `state` was made for.

    Example:
        >>> drafter = jaxspec.NGramDrafter(k=2)
        >>> state = jaxspec.init(target, drafter, prompt, max_new_tokens=4)
        >>> one_round = jax.jit(lambda state: jaxspec.step(target, drafter, None, state))
        >>> while not state.done.all():
        ...     state, info = one_round(state)
        >>> jaxspec.finish(state).length.tolist()
        [4, 4]
    """
    drafter = NoDrafter() if drafter is None else drafter
    check_kinds(target, drafter, verifier, state.sampling)
    verifier = drafter.default_verifier if verifier is None else verifier
    verifier.check(drafter)
    validate.lossy_allowed(verifier.lossless, lossy, type(verifier).__name__)
    check_rows(target, drafter.lengths[-1])
    validate.same_draft_length(drafter.max_drafts, state.stats.drafted_at.shape[1])
    state, info = run_round(target, drafter, verifier, state)
    placement = placement_of(target)
    return dataclasses.replace(state, done=placement.replicate(state.done)), placement.replicate(info)


def jit_step(*, donate: bool = False) -> jax.stages.Wrapped:
    """Returns `step`, jitted.

    Args:
      donate: reuses the buffers of the state, which is consumed: keep no reference to it.

    Example:
        >>> drafter, step = jaxspec.NGramDrafter(k=2), jaxspec.jit_step(donate=True)
        >>> state = jaxspec.init(target, drafter, prompt, max_new_tokens=4)
        >>> state, info = step(target, drafter, None, state)
        >>> bool((info.count >= 1).all())
        True
    """
    return _donating_step if donate else _jitted_step


def finish(state: GenerationState, *, lossless: bool | None = None) -> Generation:
    """Returns the tokens generated so far, as `generate` does.

    Inside a caller's `jit` the budgets are not known, so the result is as wide as the buffers.

    Args:
      state: from `init` and any number of steps.
      lossless: whether all verifiers were; `None` reads it from the state, outside of `jit`.

    Raises:
      ValueError: if the state is traced and `lossless` is not given.

    Example:
        >>> state = jaxspec.init(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.finish(state).length.tolist()
        [0, 0]
    """
    if lossless is None:
        if not is_concrete(state.stats.lossy_rounds):
            raise ValueError(
                "the state is traced, so it cannot say whether all verifiers were lossless; pass lossless="
            )
        lossless = not np.any(to_host(state.stats.lossy_rounds))
    k = state.stats.drafted_at.shape[1]
    result = to_host(collect(state, state.tokens.shape[1] - k - 1, lossless))
    most = to_host(state.limit - state.prompt_length)
    return cut(result, int(np.max(most))) if is_concrete(most) else result


def stream(
    target: Model,
    drafter: Drafter | None,
    prompt: TokenIds,
    *,
    prompt_length: PerRow | None = None,
    key: Array | None = None,
    sampling: Policy = Greedy(),  # noqa: B008 (frozen and stateless)
    verifier: Verifier | None = None,
    max_new_tokens: PerRow | None,
    stop_tokens: StopTokens = (),
    capacity: int | None = None,
    lossy: bool = False,
    mesh: Mesh | None = None,
    bit_exact: bool = False,
    rows: int | None = None,
    report: Report = Report(),  # noqa: B008 (frozen and stateless)
    n: int = 1,
    max_drafts: PerRow | None = None,
    prediction: TokenIds | Sequence[int] | None = None,
) -> Generator[list[np.ndarray], None, Generation]:
    """Yields after each round the new token ids of each row, until every row has ended.

    A loop on the host over the jitted `step`. Takes the arguments of `generate`, which describes them, and checks them
    at once. The generator returns the final `Generation` (the value of `yield from`).

    Raises:
      TypeError, ValueError: as `generate` does.

    Example:
        >>> rounds = list(jaxspec.stream(target, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4))
        >>> sum(len(new) for new, _ in rounds)
        4
    """
    arguments, width = Arguments.check(
        target,
        drafter,
        prompt,
        prompt_length=prompt_length,
        key=key,
        sampling=sampling,
        verifier=verifier,
        max_new_tokens=max_new_tokens,
        stop_tokens=stop_tokens,
        capacity=capacity,
        lossy=lossy,
        mesh=mesh,
        bit_exact=bit_exact,
        rows=rows,
        report=report,
        n=n,
        max_drafts=max_drafts,
        prediction=prediction,
    )
    return _stream(arguments, width)


def _stream(arguments: Arguments, width: int) -> Generator[list[np.ndarray], None, Generation]:
    target, drafter, verifier = arguments.target, arguments.drafter, arguments.verifier
    state, advance = start(arguments), jit_step(donate=True)
    replicate = arguments.placement.replicate  # each host reads all rows
    while not np.all(replicate(state.done)):
        state, info = advance(target, drafter, verifier, state, lossy=True)
        tokens, count = jax.device_get(replicate((info.tokens, info.count)))
        yield [row[:n] for row, n in zip(tokens, count, strict=True)]
    result = replicate(collect(state, arguments.max_new, verifier.lossless))
    return cut(result, width)


@jax.jit
def start(arguments: Arguments) -> GenerationState:
    """Returns the state before the first round; each host can read which rows have ended."""
    state = initial_state(arguments)
    return dataclasses.replace(state, done=arguments.placement.replicate(state.done))


_jitted_step = jax.jit(step, static_argnames="lossy")
_donating_step = jax.jit(step, static_argnames="lossy", donate_argnames="state")
