"""The loop. Speculative decoding as one jitted `lax.while_loop` over rounds.

Invariants:

1. `tokens[b, :length[b]]` is final. Nothing beyond it is read as history.
2. The target's cache holds exactly `length - 1` tokens: the last committed token is always
   unfed. A round feeds `[last, drafts]` and gets one row of logits more than there are drafts.
3. A model drafter's cache lags by at most two tokens, which its first pass feeds; one that did
   not run, or whose drafts were not the accepted ones, catches up before.
4. Buffers hold `prompt + max_new_tokens + k + 1` slots; what is not emitted is dropped. Of a
   tree only the accepted path, at most `k` nodes, is written.
5. A finished row is frozen: it emits nothing and changes no other row.
6. What a row emits depends on its key, its prompt and its policy; never on its neighbours, its
   place in the batch or the padding. Under `Adaptive` rows agree on how many tokens they draft;
   then that holds of its distribution, and of its tokens for greedy policies and coupled verification.
7. Whether a drafted token is submitted does not depend on that token (deterministic drafters
   are exempt: there it is a function of the text).
8. No value leaves the device inside the loop.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxspec.core import validate
from jaxspec.core.model import Model, placement_of
from jaxspec.core.prefill import prefill
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.core.state import Context, Generation, GenerationState, RoundInfo
from jaxspec.core.stats import Stats
from jaxspec.core.status import Status, StopReason
from jaxspec.decoding.arguments import Prepared, Request, check_kinds, default_verifier, prepare
from jaxspec.decoding.round import run_round
from jaxspec.decoding.vmap import fold_rows_under_vmap
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.sharding.auto_axes import under_automatic_axes
from jaxspec.sharding.placement import to_host
from jaxspec.verifiers.base import Verifier


def generate(
    target: Model,
    drafter: Drafter | None,
    prompt: Array,
    *,
    prompt_length: Array | int | None = None,
    key: Array | None = None,
    sampling: Policy = Greedy(),  # noqa: B008 (frozen and stateless)
    verifier: Verifier | None = None,
    max_new_tokens: Array | int,
    stop_tokens: Any = (),
    capacity: int | None = None,
    lossy: bool = False,
    mesh: Mesh | None = None,
) -> Generation:
    """Continues each prompt; the output follows the target's distribution whatever the drafter guesses.

    Works as it is, inside the caller's `jax.jit` and `lax.scan`, and under `jax.vmap` (a mapped
    axis is folded into the batch). On a mesh over several processes (`jaxspec.sharding.join`) each of
    them makes the same call. That their arguments are the same, of models the kinds, sizes and placements
    but not the parameters' values, is checked, outside of `jax.jit`, by one exchange of 32 bytes.

    Args:
      target: the model whose distribution is kept.
      drafter: guesses tokens; `None` is plain decoding.
      prompt: `[b, t]` token ids, shorter rows padded on the right.
      prompt_length: how many tokens of each row count, one integer or `[b]`; `None` is all.
      key: a JAX key (typed or raw), or one a row; not needed for greedy decoding.
      sampling: `Greedy()` or `Sampling(...)`.
      verifier: which drafts are kept; `None` is `BlockVerifier()` for a chain that is drawn,
        `TokenVerifier()` for one that is certain, `MultiDraftVerifier()` or `TreeVerifier()` for
        trees. With `CoupledVerifier()` the tokens are those of plain decoding (`drafter=None`)
        with the same key.
      max_new_tokens: one integer or `[b]`. If it is traced, pass `capacity`.
      stop_tokens: ids that end a row, `[n]` or `[b, n]` (-1 pads); the stop token is emitted.
      capacity: tokens a row may hold, prompt and new ones; `None` fits `max_new_tokens`.
      lossy: must be True for a verifier that does not keep the target's distribution.
      mesh: splits models and rows over devices by `jaxspec.sharding.default_rules` (axes
        `data` and `model`, either may be absent). It moves the models at every call: to do that
        once, or by other rules, pass models that `jaxspec.shard` has placed. Needless then.

    Returns:
      A `Generation`; its `tokens` have the width of the largest `max_new_tokens`, or of
      `capacity - t` if that is traced.

    Raises:
      TypeError, ValueError: for arguments that do not fit. Values that are traced cannot raise:
        see `Generation.status`.

    Example:
      >>> target = jaxspec.load("smollm2-135m-instruct")
      >>> prompt = jnp.asarray([target.tokenizer.encode("The sea is")])
      >>> result = jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=32)
      >>> target.tokenizer.decode(result.tokens[0, : result.length[0]])
    """
    prepared = prepare(
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
    )
    request, shared = prepared.request.split_policy()
    run = fold_rows_under_vmap(functools.partial(_generate, max_new=prepared.max_new, placement=prepared.placement))
    players = (prepared.target, prepared.drafter, prepared.verifier, shared)
    return _cut(under_automatic_axes(run, players, request), prepared.width)


def init(target: Model, drafter: Drafter | None, prompt: Array, **options: Any) -> GenerationState:
    """The state before the first round: the prompt is fed, nothing is emitted.

    Takes the arguments of `generate`, but no verifier, which `step` takes, and no mesh: `shard` the models
    before, so that `step` is given the same ones.

    Raises:
      TypeError, ValueError: as `generate` does, and for an unknown option.
    """
    _known(options, "init", leave_out=("verifier", "lossy", "mesh"))
    prepared = prepare(target, drafter, prompt, **(_DEFAULTS | options))
    state = _jit_init(prepared.target, prepared.drafter, prepared.request, max_new=prepared.max_new)
    return dataclasses.replace(state, done=prepared.placement.replicate(state.done))


def step(
    target: Model,
    drafter: Drafter | None,
    verifier: Verifier | None,
    state: GenerationState,
    *,
    lossy: bool = False,
) -> tuple[GenerationState, RoundInfo]:
    """One round: propose, verify, commit. Pure; the caller's state stays alive.

    Finished rows emit nothing, so calling it after the end changes nothing.

    Raises:
      TypeError, ValueError: if the players are not those that `state` was made for.
    """
    drafter = NoDrafter() if drafter is None else drafter
    check_kinds(target, drafter, verifier, state.sampling)
    verifier = default_verifier(drafter) if verifier is None else verifier
    verifier.check(drafter)
    validate.lossy_allowed(verifier.lossless, lossy, type(verifier).__name__)
    validate.same_draft_length(drafter.max_drafts, state.stats.drafted_at.shape[1])
    state, info = run_round(target, drafter, verifier, state)
    placement = placement_of(target)
    return dataclasses.replace(state, done=placement.replicate(state.done)), placement.replicate(info)


def jit_step(*, donate: bool = False):
    """`step`, jitted. With `donate` its buffers are reused: the state passed in is consumed."""
    return _donating_step if donate else _keeping_step


def finish(state: GenerationState, *, lossless: bool | None = None) -> Generation:
    """What has been generated so far, as `generate` returns it.

    Inside a caller's `jit` the budgets are not known, so the result is as wide as the buffers.

    Args:
      state: from `init` and any number of steps.
      lossless: whether all verifiers were; `None` is told by the state, outside of `jit`.

    Raises:
      ValueError: if the state is traced and `lossless` is not given.
    """
    if lossless is None:
        if not validate.is_concrete(state.stats.lossy_rounds):
            raise ValueError(
                "the state is traced, so it cannot say whether all verifiers were lossless; pass lossless="
            )
        lossless = not np.any(to_host(state.stats.lossy_rounds))
    k = state.stats.drafted_at.shape[1]
    result = to_host(_collect(state, state.tokens.shape[1] - k - 1, lossless))
    most = to_host(state.limit - state.prompt_length)
    return _cut(result, int(np.max(most))) if validate.is_concrete(most) else result


def stream(target: Model, drafter: Drafter | None, prompt: Array, **options: Any) -> Iterator[list[np.ndarray]]:
    """Yields after each round the new token ids of each row, until every row has ended.

    A loop on the host over the jitted `step`. Takes the arguments of `generate`, and checks them
    at once. The generator returns the final `Generation` (the value of `yield from`).
    """
    _known(options, "stream")
    return _stream(prepare(target, drafter, prompt, **(_DEFAULTS | options)))


def _stream(prepared: Prepared) -> Iterator[list[np.ndarray]]:
    target = prepared.target
    state = _jit_init(target, prepared.drafter, prepared.request, max_new=prepared.max_new)
    advance = jit_step(donate=True)
    replicate = prepared.placement.replicate  # each host reads all rows
    while not np.all(replicate(state.done)):
        state, info = advance(target, prepared.drafter, prepared.verifier, state, lossy=True)
        tokens, count = jax.device_get(replicate((info.tokens, info.count)))
        yield [row[:n] for row, n in zip(tokens, count, strict=True)]
    result = replicate(_collect(state, prepared.max_new, prepared.verifier.lossless))
    return _cut(result, prepared.width)


_DEFAULTS = {
    "prompt_length": None,
    "key": None,
    "sampling": Greedy(),
    "verifier": None,
    "stop_tokens": (),
    "capacity": None,
    "lossy": False,
    "mesh": None,
}
_keeping_step = jax.jit(step, static_argnames="lossy")
_donating_step = jax.jit(step, static_argnames="lossy", donate_argnames="state")


def _known(options: dict[str, Any], name: str, leave_out: tuple[str, ...] = ()) -> None:
    expected = {*_DEFAULTS, "max_new_tokens"} - set(leave_out)
    if unknown := sorted(set(options) - expected):
        raise TypeError(f"{name} has no option {', '.join(unknown)}; expected some of {', '.join(sorted(expected))}")
    if "max_new_tokens" not in options:
        raise TypeError(f"{name} needs max_new_tokens")


@functools.partial(jax.jit, static_argnames=("max_new", "placement"))
def _generate(players, request: Request, *, max_new: int, placement: Any) -> Generation:
    target, drafter, verifier, shared = players
    if shared is not None:
        request = dataclasses.replace(request, sampling=shared)
    state = _init(target, drafter, request, max_new=max_new)
    with jax.named_scope("rounds"):
        state = jax.lax.while_loop(
            lambda state: ~jnp.all(state.done),
            lambda state: run_round(target, drafter, verifier, state)[0],
            state,
        )
    return placement.replicate(_collect(state, max_new, verifier.lossless))


def _init(target: Model, drafter: Drafter, request: Request, *, max_new: int) -> GenerationState:
    batch, width = request.prompt.shape
    limit_fits = (request.max_new_tokens >= 0) & (request.max_new_tokens <= max_new)
    status = validate.traced_status(
        request.prompt, request.prompt_length, limit_fits, request.sampling, target.vocab_size
    )
    prompt = jnp.clip(request.prompt, 0, target.vocab_size - 1)
    length = jnp.clip(request.prompt_length, 1, width)
    budget = jnp.clip(request.max_new_tokens, 0, max_new)
    slots = width + max_new + drafter.max_drafts + 1
    prefilled = prefill(target, prompt, length, target.init_cache(batch, slots), drafter.capture)
    done = (budget == 0) | (status != Status.OK)
    context = Context(target, prefilled.cache, prompt, length, jnp.zeros_like(done), request.sampling)
    failed = status != Status.OK
    empty = jnp.zeros((batch, slots), jnp.float32)
    return GenerationState(
        tokens=jnp.pad(prompt, ((0, 0), (0, slots - width))),
        log_probs=empty,
        warped_log_probs=empty,
        prompt_length=length,
        length=length,
        limit=length + budget,
        done=done,
        stop_reason=jnp.select(
            [failed, done],
            [jnp.int32(StopReason.ERROR), jnp.int32(StopReason.MAX_NEW_TOKENS)],
            jnp.int32(StopReason.RUNNING),
        ),
        status=status,
        keys=request.keys,
        stop_tokens=request.stop_tokens,
        sampling=request.sampling,
        cache=prefilled.cache,
        drafter_state=drafter.init(context, prefilled, slots),
        stats=Stats.zero(batch, drafter.max_drafts),
    )


_jit_init = jax.jit(_init, static_argnames="max_new")


def _collect(state: GenerationState, width: int, lossless: bool) -> Generation:
    """The new tokens of each row, moved to the left edge; zeros follow them."""
    offsets = jnp.arange(width, dtype=jnp.int32)[None]
    length = state.length - state.prompt_length
    new = offsets < length[:, None]
    at = jnp.minimum(state.prompt_length[:, None] + offsets, state.tokens.shape[1] - 1)
    tokens, log_probs, warped = (
        jnp.where(new, jnp.take_along_axis(x, at, axis=1), jnp.zeros((), x.dtype))
        for x in (state.tokens, state.log_probs, state.warped_log_probs)
    )
    return Generation(tokens, length, log_probs, warped, state.stop_reason, state.status, state.stats, lossless)


def _cut(result: Generation, width: int) -> Generation:
    return dataclasses.replace(
        result,
        tokens=result.tokens[:, :width],
        log_probs=result.log_probs[:, :width],
        warped_log_probs=result.warped_log_probs[:, :width],
    )
