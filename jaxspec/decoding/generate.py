"""Runs the loop: speculative decoding as one jitted `lax.while_loop` over rounds.

Invariants:

1. `tokens[b, :length[b]]` is final. Nothing beyond it is read as history.
2. The target's cache holds exactly `length - 1` tokens: the last committed token is always
   unfed. A round feeds `[last, drafts]` and gets one row of logits more than there are drafts.
3. A model drafter's cache lags by at most two tokens, which its first pass feeds; one that did
   not run, or whose drafts were not the accepted ones, catches up before.
4. Buffers hold `prompt + max_new_tokens + k + 1` slots; tokens that are not emitted are dropped. Of a
   tree only the accepted path, at most `k` nodes, is written.
5. A finished row is frozen: it emits nothing and changes no other row.
6. What a row emits depends on its key, its prompt and its policy; never on its neighbors, its
   place in the batch or the padding. Under `Adaptive` rows agree on how many tokens they draft;
   then that holds of its distribution, and of its tokens for greedy policies and coupled verification.
7. Whether a drafted token is submitted does not depend on that token (deterministic drafters
   are exempt: there it is a function of the text).
8. No value leaves the device inside the loop.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from jaxspec.core import processing
from jaxspec.core.generation import Generation
from jaxspec.core.kernels import kernels_of
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model
from jaxspec.core.parts import over_devices
from jaxspec.core.prefill import prefill, room_for
from jaxspec.core.report import Report
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.core.state import Context, GenerationState
from jaxspec.core.stats import Stats
from jaxspec.core.status import Status, StopReason, traced_status
from jaxspec.decoding.answers import start_each
from jaxspec.decoding.arguments import Arguments, StopTokens, TokenIds
from jaxspec.decoding.drafting import behind_the_prompt
from jaxspec.decoding.room import PerRow
from jaxspec.decoding.round import run_round
from jaxspec.decoding.vmap import fold_rows_under_vmap
from jaxspec.drafters import bounded
from jaxspec.drafters.base import Drafter
from jaxspec.sharding.auto_axes import under_automatic_axes
from jaxspec.verifiers.base import Verifier

# The fields of a state, and of a result, that have a value for each token.
_BY_TOKEN = ("tokens", "log_probs", "warped_log_probs", "from_draft")


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
) -> Generation:
    """Continues each prompt; the output follows the target's distribution whatever the drafter guesses.

    Works as it is, inside the caller's `jax.jit` and `lax.scan`, and under `jax.vmap` (a mapped
    axis is folded into the batch). On a mesh over several processes (`jaxspec.sharding.join`) each of
    them makes the same call. That their arguments are the same, of models the kinds, sizes and placements
    but not the parameters' values, is checked, outside of `jax.jit`, by one exchange of 32 bytes.

    Args:
      target: the model whose distribution is kept.
      drafter: drafts tokens; `None` is plain decoding.
      prompt: `[b, t]` token ids, an array or nested lists; shorter rows are padded on the right.
      prompt_length: the number of tokens of each row that count, one integer or `[b]`; `None` is all.
      key: a JAX key (typed or raw), or one a row; not needed for greedy decoding.
      sampling: `Greedy()` or `Sampling(...)`.
      verifier: decides which drafts are accepted; `None` is `BlockVerifier()` for a chain that is drawn,
        `TokenVerifier()` for a deterministic one, `MultiDraftVerifier()` or `TreeVerifier()` for
        trees. With `CoupledVerifier()` the tokens are those of plain decoding (`drafter=None`)
        with the same key.
      max_new_tokens: one integer or `[b]`. If it is traced, pass `capacity`. `None` is up to the target's context,
        or to `capacity` if that is less.
      stop_tokens: ids that end a row: one, `[n]` or `[b, n]` (-1 pads); the stop token is emitted.
      capacity: tokens a row may hold, prompt and new ones; `None` fits `max_new_tokens`.
      lossy: must be True for a verifier that does not keep the target's distribution.
      mesh: splits models and rows over devices by `jaxspec.sharding.default_rules` (axes
        `data` and `model`, either may be absent). It moves the models at every call: to do that
        once, or by other rules, pass models that `jaxspec.shard` has placed. Needless then.
      bit_exact: makes the target's passes agree to the bit, so that greedy and coupled tokens, and all
        log-probabilities, are those of plain decoding with `bit_exact` (`jaxspec.nn.bit_exact`). Native kernels agree
        without it, but for passes of more than 96 rows in float32.
      rows: with `bit_exact`, the tokens that each pass is filled up to, the same for what is compared; `None` is 16.
        Native kernels need no filling, and take any number.
      report: what to return beside the tokens: alternatives, logits. Log-probabilities of prompts are those of
        `jaxspec.score`.
      n: answers of each prompt, which is fed once. Those of a prompt are rows next to each other, answer `i` of prompt
        `b` is row `b * n + i`; keys are folded. All other arguments are one a prompt.
      max_drafts: the most drafts of each row in a round, one integer or `[b]`; 0 is plain decoding. `None` is as many
        as the drafter has.
      prediction: what the answer is expected to be, `[p]` or `[b, p]` token ids (-1 pads): a drafter that copies, or
        its half of a `HybridDrafter`, copies from it too, as from the prompt.

    Returns:
      A `Generation`; its `tokens` have the width of the largest `max_new_tokens`, or of
      `capacity - t` if that is traced.

    Raises:
      TypeError, ValueError: for arguments that do not fit each other, or no memory. Values that are traced cannot
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
    return cut(run(arguments), width)


def run(arguments: Arguments) -> Generation:
    """Decodes to the end, as one program; the result is as wide as the buffers."""
    return under_automatic_axes(fold_rows_under_vmap(_run), arguments)


@jax.jit
def _run(arguments: Arguments) -> Generation:
    target, drafter, verifier = arguments.target, arguments.drafter, arguments.verifier
    state = initial_state(arguments)
    with jax.named_scope("rounds"):
        state = jax.lax.while_loop(
            lambda state: ~jnp.all(state.done),
            lambda state: run_round(target, drafter, verifier, state)[0],
            state,
        )
    return arguments.placement.replicate(collect(state, arguments.max_new, verifier.lossless))


def initial_state(arguments: Arguments) -> GenerationState:
    """Returns the state before the first round: the prompt is fed, nothing is emitted."""
    return start_each(_one_each, arguments)


def _one_each(arguments: Arguments) -> GenerationState:
    target, drafter, rows = arguments.target, arguments.drafter, arguments.rows
    sampling, max_new = arguments.sampling, arguments.max_new
    batch, width = rows.prompt.shape
    limit_fits = (rows.max_new_tokens >= 0) & (rows.max_new_tokens <= max_new)
    status = traced_status(rows.prompt, rows.prompt_length, limit_fits, sampling, target.vocab_size)
    prompt = jnp.clip(rows.prompt, 0, target.vocab_size - 1)
    length = jnp.clip(rows.prompt_length, 1, width)
    budget = jnp.clip(rows.max_new_tokens, 0, max_new)
    slots = width + max_new + drafter.max_drafts + 1
    cache = target.init_cache(batch, max(slots, room_for(target, width)))
    with over_devices(placement_of(target)), kernels_of(target):
        prefilled = prefill(target, prompt, length, cache, drafter.capture)
        processed = processing.init(
            sampling, processing.Prompt(prompt, length, rows.stop_tokens, vocab_size=target.vocab_size)
        )
        none = jnp.zeros((batch,), jnp.bool_)
        context = Context(target, prefilled.cache, prompt, length, none, sampling, processed=processed)
        drafter_state = bounded.init(drafter, context, prefilled, slots)
    done = (budget == 0) | (status != Status.OK)
    failed = status != Status.OK
    empty = jnp.zeros((batch, slots), jnp.float32)
    return GenerationState(
        tokens=jnp.pad(prompt, ((0, 0), (0, slots - width))),
        log_probs=empty,
        warped_log_probs=empty,
        from_draft=jnp.zeros((batch, slots), jnp.bool_),
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
        keys=rows.keys,
        stop_tokens=rows.stop_tokens,
        sampling=sampling,
        processed=processed,
        cache=prefilled.cache,
        drafter_state=drafter_state,
        stats=Stats.zero(batch, drafter.max_drafts),
        max_drafts=None if rows.max_drafts is None else jnp.maximum(rows.max_drafts, 0),
        predicted=behind_the_prompt(rows.prediction, prompt, length),
        reported=arguments.report.empty(batch, slots, target.vocab_size),
        report=arguments.report,
    )


def collect(state: GenerationState, width: int, lossless: bool) -> Generation:
    """Returns the result so far: each row's new tokens moved to the left edge, `width` slots, zeros behind them."""
    offsets = jnp.arange(width, dtype=jnp.int32)[None]
    length = state.length - state.prompt_length
    new = offsets < length[:, None]
    at = jnp.minimum(state.prompt_length[:, None] + offsets, state.tokens.shape[1] - 1)

    def moved(x: Array) -> Array:
        wide = lambda mask: mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))  # noqa: E731
        return jnp.where(wide(new), jnp.take_along_axis(x, wide(at), axis=1), jnp.zeros((), x.dtype))

    return Generation(
        length=length,
        stop_reason=state.stop_reason,
        status=state.status,
        stats=state.stats,
        reported=jax.tree.map(moved, state.reported),
        lossless=lossless,
        **{name: moved(getattr(state, name)) for name in _BY_TOKEN},
    )


def cut(result: Generation, width: int) -> Generation:
    """Returns the result with at most `width` slots a row."""
    by_token = {name: getattr(result, name)[:, :width] for name in _BY_TOKEN}
    return dataclasses.replace(result, reported=jax.tree.map(lambda x: x[:, :width], result.reported), **by_token)
