"""Runs the loop: speculative decoding as one jitted `lax.while_loop` over rounds, or round by round.

Invariants:

1. `tokens[b, :length[b]]` is final. Nothing beyond it is read as history.
2. The target's cache holds exactly `length - 1` tokens: the last committed token is always unfed. A round feeds
   `[last, drafts]` and gets one more row of logits than there are drafts.
3. A model drafter's cache lags the text by at most two tokens, which its first pass feeds. If it did not run in the
   last round, or its drafts were not the accepted ones, it catches up first.
4. Buffers hold `prompt + max_new_tokens + k + 1` slots; tokens that are not emitted are dropped. For a tree, only the
   accepted path, at most `k` nodes, is written.
5. A finished row is frozen: it emits nothing, and changes no other row.
6. A row's output depends on its key, prompt and policy; never on the other rows, its index in the batch or the padding.
   Under `Adaptive`, rows agree on a number of drafts; then this holds for the output's distribution, and for its tokens
   with greedy policies and coupled verification.
7. Whether a drafted token is submitted does not depend on that token. Deterministic drafters are exempt, as their
   drafts are a function of the text.
8. No value leaves the device inside the loop.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh

from jaxspec.core import validate
from jaxspec.core.bit_exact import check_pass_tokens
from jaxspec.core.compiler import traced_for
from jaxspec.core.model import Model
from jaxspec.core.prefill import prefill
from jaxspec.core.programs import Kept
from jaxspec.core.results import Generation, Report
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.core.state import GenerationState, RoundInfo
from jaxspec.core.typed import typed
from jaxspec.core.validate import is_concrete
from jaxspec.decoding.answers import start_each
from jaxspec.decoding.begin import begin, read_by_drafter
from jaxspec.decoding.hints import hinted
from jaxspec.decoding.options import (
    Arguments,
    InitKeywords,
    Options,
    StopTokens,
    TokenIds,
    check_kinds,
    verifier_for,
)
from jaxspec.decoding.room import PerRow
from jaxspec.decoding.round import Round
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.sharding.placement import to_host, under_automatic_axes
from jaxspec.verifiers.base import Verifier

_Result = TypeVar("_Result")


@hinted
def generate(
    target: Model,
    drafter: Drafter | None,
    prompt: TokenIds,
    *,
    prompt_length: PerRow | None = None,
    key: Array | None = None,
    sampling: Policy = Greedy(),  # noqa: B008 (frozen and stateless)
    verifier: Verifier | None = None,
    max_new_tokens: PerRow | None,
    stop_tokens: StopTokens | None = None,
    capacity: int | None = None,
    lossy: bool = False,
    mesh: Mesh | None = None,
    bit_exact: bool = False,
    pass_tokens: int | None = None,
    report: Report = Report(),  # noqa: B008 (frozen and stateless)
    answers: int = 1,
    max_drafts: PerRow | None = None,
    prediction: TokenIds | Sequence[int] | None = None,
) -> Generation:
    """Continues each prompt; for any drafter, the output follows the target's distribution.

    Works outside of `jax.jit`, inside the caller's `jax.jit` and `lax.scan`, and under `jax.vmap`, where a mapped axis
    is folded into the batch. On a mesh over several processes (`jaxspec.sharding.join`), every process makes the same
    call. Outside of `jax.jit`, an exchange of 32 bytes a call checks that their arguments agree; for models this covers
    types, sizes and placements, but not the values of parameters.

    Default temperature: 0.7 with top-p 0.9 in `SpeculativeDecoder` and the command `jaxspec generate`; 1.0 in
    `Sampling()`; 0, which is greedy, in `jaxspec.generate`.

    Args:
      target: the model whose distribution is preserved.
      drafter: drafts tokens; `None` means plain decoding.
      prompt: `[b, t]` token ids, an array or nested lists; shorter rows are padded on the right.
      prompt_length: the number of tokens of each row without padding, one integer or `[b]`; `None` means all.
      key: a JAX key (typed or raw), or one for each row; not needed for greedy decoding.
      sampling: `Greedy()` or `Sampling(...)`.
      verifier: decides which drafts are accepted; `None` uses `BlockVerifier()` for a sampled chain, `TokenVerifier()`
        for a deterministic chain, and `MultiDraftVerifier()` or `TreeVerifier()` for trees. With `CoupledVerifier()`
        the tokens are those of plain decoding (`drafter=None`) with the same key.
      max_new_tokens: the largest number of new tokens, one integer or `[b]`. If it is traced, pass `capacity`. `None`
        fills the target's context, or `capacity` if that is less.
      stop_tokens: ids that end a row: one, `[n]` or `[b, n]` (-1 pads); the stop token is emitted. `None` means the
        end tokens of the model's tokenizer, if the model has one; `()` means none.
      capacity: the number of tokens that a row has room for, prompt included; `None` fits `max_new_tokens`.
      lossy: must be True for a verifier that does not preserve the target's distribution.
      mesh: shards models and rows over devices by `jaxspec.sharding.default_rules` (axes `data` and `model`, both
        optional). Models are then moved in every call: to move them once, or by other rules, pass models placed by
        `jaxspec.shard` and no mesh.
      bit_exact: makes the target's passes agree to the bit, so that greedy and coupled tokens, and all
        log-probabilities, equal those of plain decoding with `bit_exact` (`jaxspec.nn.bit_exact`). Native kernels agree
        without it, except for float32 passes over more than 96 tokens (of all rows).
      pass_tokens: with `bit_exact`, the number of tokens that each pass is padded to; it must be equal in calls to be
        compared. `None` means 16. Native kernels need no padding, and take any number.
      report: optional results: alternatives, logits, kept mass. For log-probabilities of prompts, use `jaxspec.score`.
      answers: the number of answers for each prompt, which is fed once. Answer `i` of prompt `b` is row
        `b * answers + i`, and keys are folded. All other arguments have one value for each prompt.
      max_drafts: the largest number of drafts of each row in a round, one integer or `[b]`; 0 means plain decoding.
        `None` means the drafter's own limit.
      prediction: the expected answer, `[p]` or `[b, p]` token ids (-1 pads, and separates several answers). A lookup
        drafter, or the lookup half of a `HybridDrafter`, copies from it as well as from the text.

    Returns:
      A `Generation`, whose `tokens` have the width of the largest `max_new_tokens`, or `capacity - t` if that is
      traced.

    Raises:
      TypeError, ValueError: arguments are invalid or inconsistent, or memory does not suffice. Traced values cannot
        raise: see `Generation.status`.

    Example:
        >>> result = jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=8)
        >>> result.tokens.shape, result.length.tolist()
        ((2, 8), [8, 8])
        >>> @jax.jit
        ... def sample(target, draft, prompt, key):
        ...     drafter, policy = jaxspec.ModelDrafter(draft, k=3), jaxspec.Sampling(temperature=0.7)
        ...     return jaxspec.generate(target, drafter, prompt, key=key, sampling=policy, max_new_tokens=8).tokens
        >>> sample(target, draft, prompt, key).shape
        (2, 8)
    """
    # The signature has the names of the options.
    given = {name: value for name, value in locals().items() if name not in ("target", "drafter", "prompt")}
    arguments, width = Arguments.check(target, drafter, prompt, Options(**given))
    return cut(run(arguments), width)


def init(target: Model, drafter: Drafter | None, prompt: TokenIds, **options: Unpack[InitKeywords]) -> GenerationState:
    """Returns the state before the first round: the prompt is fed, and nothing is emitted.

    Takes the arguments of `generate`, which describes them, except `verifier`, `lossy`, `mesh`, `bit_exact` and
    `pass_tokens`. Pass the verifier to `step`. Place models with `jaxspec.shard`, or wrap the target with
    `jaxspec.nn.bit_exact`, and pass the same objects to `init` and `step`.

    Raises:
      TypeError, ValueError: as in `generate`.

    Example:
        >>> state = jaxspec.init(target, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=8)
        >>> state.length.tolist(), state.tokens.shape[0]
        ([5, 5], 2)
    """
    names = InitKeywords.__required_keys__ | InitKeywords.__optional_keys__
    arguments, _ = Arguments.check(target, drafter, prompt, Options.of(options, names))
    return start(arguments)


def step(
    target: Model,
    drafter: Drafter | None,
    verifier: Verifier | None,
    state: GenerationState,
    *,
    lossy: bool = False,
) -> tuple[GenerationState, RoundInfo]:
    """Runs one round: propose, verify, commit. Pure; the caller's state stays valid.

    Finished rows emit nothing, so further calls after the end change nothing.

    Args:
      target: the model that `state` was created with.
      drafter: the drafter that `state` was created with; `None` means plain decoding.
      verifier: decides which drafts are accepted; may differ from round to round. `None` uses the default of
        `generate`.
      state: the result of `init` or of the previous step.
      lossy: must be True for a verifier that does not preserve the target's distribution.

    Returns:
      The next state, and the tokens that the round emitted.

    Raises:
      TypeError, ValueError: the arguments are not those that `state` was created with.

    Example:
        >>> drafter = jaxspec.NGramDrafter(k=2)
        >>> state = jaxspec.init(target, drafter, prompt, max_new_tokens=4)
        >>> one_round = jax.jit(lambda state: jaxspec.step(target, drafter, None, state))
        >>> while not state.done.all():
        ...     state, info = one_round(state)
        >>> jaxspec.finish(state).length.tolist()
        [4, 4]
    """
    return round_of_state(target, drafter, verifier, state, lossy).step(state)


def round_of_state(
    target: Model, drafter: Drafter | None, verifier: Verifier | None, state: GenerationState, lossy: bool
) -> Round:
    """Returns the round that goes on from a state; raises as `step` does."""
    drafter = NoDrafter() if drafter is None else drafter
    check_kinds(target, drafter, verifier, state.context.sampling)
    verifier = verifier_for(verifier, drafter, lossy)
    check_pass_tokens(target, drafter.lengths[-1])
    validate.same_draft_length(drafter.max_drafts, state.stats.drafted_at.shape[1])
    return Round(target, drafter, verifier, state.report)


def jit_step(*, donate: bool = False) -> jax.stages.Wrapped:
    """Returns a jitted `step`.

    Args:
      donate: whether to reuse the buffers of the state, which is then consumed: keep no reference to it.

    Example:
        >>> drafter, step = jaxspec.NGramDrafter(k=2), jaxspec.jit_step(donate=True)
        >>> state = jaxspec.init(target, drafter, prompt, max_new_tokens=4)
        >>> state, info = step(target, drafter, None, state)
        >>> bool((info.count >= 1).all())
        True
    """
    validate.flag("donate", donate)
    return _donating_step if donate else _jitted_step


@typed("lossless")
def finish(state: GenerationState, *, lossless: bool | None = None) -> Generation:
    """Returns the tokens generated so far, as `generate` does.

    Under the caller's `jit` the budgets are unknown, so the result is as wide as the buffers.

    Args:
      state: the result of `init` or of any number of steps.
      lossless: whether all verifiers were lossless; `None` reads it from the state, outside of `jit`.

    Returns:
      A `Generation`.

    Raises:
      ValueError: the state is traced and `lossless` is not given.

    Example:
        >>> state = jaxspec.init(target, None, prompt, max_new_tokens=4)
        >>> jaxspec.finish(state).length.tolist()
        [0, 0]
    """
    validate.instance("state", state, GenerationState, "pass the result of jaxspec.init or of jaxspec.step")
    if lossless is None:
        if not is_concrete(state.stats.lossy_rounds):
            raise ValueError(
                "the state is traced, so it cannot say whether all verifiers were lossless; pass lossless="
            )
        lossless = not np.any(to_host(state.stats.lossy_rounds))
    k = state.stats.drafted_at.shape[1]
    result = to_host(_collect(state, state.tokens.shape[1] - k - 1, lossless))
    most = to_host(state.limit - state.prompt_length)
    return cut(result, int(np.max(most))) if is_concrete(most) else result


def run(arguments: Arguments) -> Generation:
    """Decodes to the end in one program; the result is as wide as the buffers."""
    mapped = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments))
    return under_automatic_axes(fold_rows_under_vmap(_run) if mapped else _run, arguments)


@Kept
def _run(arguments: Arguments) -> Generation:
    one, state = round_of(arguments), initial_state(arguments)
    with jax.named_scope("rounds"):
        state = jax.lax.while_loop(lambda state: ~jnp.all(state.done), lambda state: one.run(state)[0], state)
    return arguments.placement.replicate(collect(state, arguments.room.new, one.verifier.lossless))


def round_of(arguments: Arguments) -> Round:
    """Returns the round that a call repeats."""
    return Round(arguments.target, arguments.drafter, arguments.verifier, arguments.options.report)


def fold_rows_under_vmap(function: Callable[[Arguments], _Result]) -> Callable[[Arguments], _Result]:
    """Makes a function fold an axis of `arguments.rows` that `jax.vmap` maps over into the rows' axis.

    Mapped naively, a `lax.cond` becomes a select that runs both branches, and a `while_loop` whose rows end at
    different times copies its whole state each round. Rows of a batch already end and accept independently, so a
    mapped axis becomes more rows: every leaf of `rows` and of the result has the rows as its first axis. If anything
    else in the arguments is mapped, the calls run one after the other instead.
    """
    wrapped = jax.custom_batching.custom_vmap(function)

    @wrapped.def_vmap
    def rule(axis_size, in_batched, arguments):
        (mapped,) = in_batched
        if any(jax.tree.leaves(dataclasses.replace(mapped, rows=None))):
            result = _one_after_the_other(wrapped, axis_size, mapped, arguments)
        else:
            rows = jax.tree.map(
                lambda x, own: x if own else jnp.broadcast_to(x[None], (axis_size, *x.shape)),
                arguments.rows,
                mapped.rows,
            )
            rows = jax.tree.map(lambda x: x.reshape(axis_size * x.shape[1], *x.shape[2:]), rows)
            folded = wrapped(dataclasses.replace(arguments, rows=rows))
            result = jax.tree.map(lambda x: x.reshape(axis_size, x.shape[0] // axis_size, *x.shape[1:]), folded)
        return result, jax.tree.map(lambda _: True, result)

    return wrapped


def _one_after_the_other(wrapped, axis_size, mapped, arguments):
    leaves, tree = jax.tree.flatten(arguments)
    owned = jax.tree.leaves(mapped)

    def call(index):
        chosen = [x[index] if own else x for x, own in zip(leaves, owned, strict=True)]
        return wrapped(jax.tree.unflatten(tree, chosen))

    return jax.lax.map(call, jnp.arange(axis_size, dtype=jnp.int32))


def initial_state(arguments: Arguments) -> GenerationState:
    """Returns the state before the first round: the prompt is fed, and nothing is emitted."""
    return start_each(_one_each, arguments)


def _one_each(arguments: Arguments) -> GenerationState:
    target, drafter, width = arguments.target, arguments.drafter, arguments.rows.prompt.shape[1]
    state = begin(arguments)
    prompt, slots = state.tokens[:, :width], state.tokens.shape[1]
    with traced_for(target):
        prefilled = prefill(target, prompt, state.length, state.cache, drafter.capture)
        context = read_by_drafter(state.context.of(target), prefilled.cache, prompt, state.length)
        drafter_state = bounded.init(drafter, context, prefilled, slots)
    context = dataclasses.replace(state.context, cache=prefilled.cache)
    return dataclasses.replace(state, context=context, drafter_state=drafter_state)


def collect(state: GenerationState, width: int, lossless: bool) -> Generation:
    """Returns the result so far: each row's new tokens, left-aligned in `width` slots and padded with 0."""
    offsets = jnp.arange(width, dtype=jnp.int32)[None]
    length = state.length - state.prompt_length
    new = offsets < length[:, None]
    at = jnp.minimum(state.prompt_length[:, None] + offsets, state.tokens.shape[1] - 1)

    def moved(x: Array) -> Array:
        wide = lambda mask: mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))  # noqa: E731
        return jnp.where(wide(new), jnp.take_along_axis(x, wide(at), axis=1), jnp.zeros((), x.dtype))

    return Generation(
        tokens=moved(state.tokens),
        length=length,
        log_probs=moved(state.log_probs),
        warped_log_probs=moved(state.warped_log_probs),
        from_draft=moved(state.from_draft),
        stop_reason=state.stop_reason,
        status=state.status,
        stats=state.stats,
        reported=jax.tree.map(moved, state.reported),
        lossless=lossless,
    )


def cut(result: Generation, width: int) -> Generation:
    """Truncates the result to at most `width` slots a row."""
    return dataclasses.replace(
        result,
        tokens=result.tokens[:, :width],
        log_probs=result.log_probs[:, :width],
        warped_log_probs=result.warped_log_probs[:, :width],
        from_draft=result.from_draft[:, :width],
        reported=jax.tree.map(lambda x: x[:, :width], result.reported),
    )


@Kept
def start(arguments: Arguments) -> GenerationState:
    """Returns the state before the first round, with `done` replicated for every host to read."""
    state = initial_state(arguments)
    return state.with_done(arguments.placement.replicate(state.done))


_collect = jax.jit(collect, static_argnames=("width", "lossless"))
_jitted_step = jax.jit(step, static_argnames="lossy")
_donating_step = jax.jit(step, static_argnames="lossy", donate_argnames="state")
