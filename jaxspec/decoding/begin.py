"""Creates the state of rows before anything is fed."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core import check_policy, processing
from jaxspec.core.compiler import traced_for
from jaxspec.core.model import Cache
from jaxspec.core.prefill import room_for
from jaxspec.core.results import Status, StopReason
from jaxspec.core.state import Context, GenerationState
from jaxspec.core.stats import Stats
from jaxspec.decoding.options import Arguments, after_the_prompt


def begin(arguments: Arguments) -> GenerationState:
    """Returns the state of rows of which nothing is fed: its cache is empty, and the drafter has no state."""
    target, drafter, rows = arguments.target, arguments.drafter, arguments.rows
    sampling, room = arguments.sampling, arguments.room
    batch, width = rows.prompt.shape
    limit_fits = (rows.max_new_tokens >= 0) & (rows.max_new_tokens <= room.new)
    status = check_policy.traced_status(rows.prompt, rows.prompt_length, limit_fits, sampling, target.vocab_size)
    prompt = jnp.clip(rows.prompt, 0, target.vocab_size - 1)
    length = jnp.clip(rows.prompt_length, 1, width)
    budget = jnp.clip(rows.max_new_tokens, 0, room.new)
    slots = room.tokens + drafter.max_drafts + 1
    cache = target.init_cache(batch, max(slots, room_for(target, width)))
    with traced_for(target):
        processed = processing.init(
            sampling, processing.Prompt(prompt, length, rows.stop_tokens, vocab_size=target.vocab_size)
        )
    failed = status != Status.OK
    done = (budget == 0) | failed
    empty = jnp.zeros((batch, slots), jnp.float32)
    context = Context(
        None,
        cache,
        jnp.pad(prompt, ((0, 0), (0, slots - width))),
        length,
        done,
        sampling,
        processed=processed,
        max_drafts=None if rows.max_drafts is None else jnp.maximum(rows.max_drafts, 0),
        predicted=after_the_prompt(rows.prediction, prompt, length),
    )
    return GenerationState(
        context,
        log_probs=empty,
        warped_log_probs=empty,
        from_draft=jnp.zeros((batch, slots), jnp.bool_),
        prompt_length=length,
        limit=length + budget,
        stop_reason=jnp.select(
            [failed, done],
            [jnp.int32(StopReason.ERROR), jnp.int32(StopReason.MAX_NEW_TOKENS)],
            jnp.int32(StopReason.RUNNING),
        ),
        status=status,
        keys=rows.keys,
        stop_tokens=rows.stop_tokens,
        drafter_state=(),
        stats=Stats.zero(batch, drafter.max_drafts),
        reported=arguments.options.report.empty(batch, slots, target.vocab_size),
        report=arguments.options.report,
    )


def read_by_drafter(context: Context, cache: Cache, tokens: Int[Array, "b s"], length: Int[Array, "b"]) -> Context:
    """Returns the context that a drafter's `init` and `extend` read: a text, in which no row is done.

    Args:
      context: the context of the rows, with the target.
      cache: the target's cache.
      tokens: the text.
      length: the number of its tokens; of these, the target's cache holds all but the last.
    """
    none = jnp.zeros(length.shape, jnp.bool_)
    return Context(context.target, cache, tokens, length, none, context.sampling, processed=context.processed)
