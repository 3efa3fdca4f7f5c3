"""Scores existing texts: the log-probabilities that `generate` returned for the same tokens."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy, processing, validate
from jaxspec.core.bit_exact import as_bit_exact, by_position
from jaxspec.core.compiler import traced_for
from jaxspec.core.model import Cache, Model, only
from jaxspec.core.native_sampling import log_sum_exp
from jaxspec.core.prefill import after_chunk, before_chunk, in_chunks
from jaxspec.core.programs import Kept
from jaxspec.core.results import Scores
from jaxspec.core.sampling import Greedy, Policy, spread
from jaxspec.core.validate import is_concrete, to_int32
from jaxspec.decoding.options import StopTokens, TokenIds, as_array, check_target, stop_tokens_of
from jaxspec.decoding.room import PerRow

# The cache, the states of the policy's processors, and the scores so far.
_Carry: TypeAlias = tuple[Cache, tuple[Any, ...], Scores]
# The names of the texts and of the lengths in error messages.
_LENGTH, _PROMPT = ("tokens", "length"), ("tokens", "prompt_length")


def score(
    model: Model,
    tokens: TokenIds,
    *,
    length: PerRow | None = None,
    prompt_length: PerRow = 1,
    sampling: Policy = Greedy(),  # noqa: B008 (frozen and stateless)
    stop_tokens: StopTokens | None = None,
    bit_exact: bool = False,
    pass_tokens: int | None = None,
) -> Scores:
    """Computes the log-probability of every token of given texts, in as few passes as possible.

    With `bit_exact`, the scores of tokens after the prompt are those that `generate` returned for them, to the bit. It
    must have run with `bit_exact` and the same `pass_tokens` and prompts, on the same machine, with as many rows. So a
    trainer's old log-probabilities equal the sampler's. Works in the caller's `jax.jit`; has no gradient.

    Args:
      model: the model, as in `generate`.
      tokens: `[b, t]` texts, prompt and answer; shorter rows are padded on the right.
      length: the number of tokens of each row without padding, one integer or `[b]`; `None` means all.
      prompt_length: the number of prompt tokens of each row, one integer or `[b]`; they are fed as prompts are.
      sampling: the policy of `warped_log_probs`, which under `Greedy()` are 0 for the most likely token and -inf for
        others. Its processors only apply to answers: prompts are scored without.
      stop_tokens: the stop tokens of the call of `generate`, which `MinNewTokens` reads.
      bit_exact: as in `generate`.
      pass_tokens: as in `generate`.

    Returns:
      `Scores`, float32 `[b, t]` each.

    Raises:
      TypeError, ValueError: arguments are invalid or inconsistent. Traced lengths out of range are clipped instead.

    Example:
        >>> answer = jaxspec.generate(target, None, prompt, max_new_tokens=8)
        >>> text = jnp.concatenate([prompt, answer.tokens], axis=1)
        >>> scores = jaxspec.score(target, text, prompt_length=prompt.shape[1])
        >>> bool(jnp.allclose(scores.log_probs[:, prompt.shape[1] :], answer.log_probs, atol=1e-4))
        True
    """
    check_target(model, sampling)
    ids = as_array(tokens, _LENGTH)
    validate.prompt(ids, length, model.vocab_size, _LENGTH)
    if prompt_length is None:
        raise ValueError("prompt_length must be one integer or one per row, got None; pass 1 if there was no prompt")
    validate.prompt(ids, prompt_length, model.vocab_size, _PROMPT)
    batch, width = ids.shape
    ends = width if length is None else length
    if is_concrete(prompt_length) and is_concrete(ends):
        prompts, lengths = np.broadcast_arrays(np.asarray(prompt_length), np.asarray(ends))
        if (prompts > lengths).any():
            raise ValueError(
                f"prompt_length must be at most the length of its row, got {prompts.tolist()} for rows of "
                f"{lengths.tolist()}"
            )
    check_policy.policy(sampling, batch, model.vocab_size)
    validate.fits(width, 0, None, model.context_length)
    stops = stop_tokens_of(stop_tokens, batch, model.vocab_size, model.traits.tokenizer)
    by_row = lambda value: jnp.broadcast_to(to_int32(value), (batch,))  # noqa: E731
    model = as_bit_exact(model, bit_exact, pass_tokens)
    lengths = by_row(ends), by_row(prompt_length)
    return _score(model, to_int32(ids), *lengths, stops, spread(sampling, batch))


@Kept
def _score(
    model: Model,
    tokens: Int[Array, "b t"],
    length: Int[Array, "b"],
    prompt_length: Int[Array, "b"],
    stop_tokens: Int[Array, "b n_stop"],
    policy: Policy,
) -> Scores:
    batch, width = tokens.shape
    states = processing.init(policy, processing.Prompt(tokens, prompt_length, stop_tokens, model.vocab_size))
    tokens, chunk = in_chunks(model, tokens)
    slots = tokens.shape[1]
    step = min(model.traits.pass_tokens or model.traits.prompt_chunk, slots)
    length = jnp.clip(length, 1, width)
    prompt = jnp.clip(prompt_length, 1, length) - 1
    cache = model.init_cache(batch, slots + step)
    empty = jnp.zeros((batch, width), jnp.float32)
    carry = cache, states, Scores(empty, empty)

    def feed(policy: Policy, carry: _Carry, start: Int[Array, "b"], count: int) -> _Carry:
        """Feeds `count` tokens of each row from its start on, and records the log-probabilities of the next tokens."""
        cache, states, scores = carry
        at = start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        take = lambda places: jnp.take_along_axis(tokens, places, axis=1, mode="clip")  # noqa: E731
        output = model(only(model, at + 1 < length[:, None], take(at)), cache)
        following, fixed = take(at + 1), model.traits.pass_tokens
        own = jnp.arange(at.shape[0], dtype=jnp.int32)[:, None]
        pick = lambda values: jnp.take_along_axis(values, following[..., None], axis=2)[..., 0]  # noqa: E731
        places = jnp.where(at + 1 < length[:, None], at + 1, scores.log_probs.shape[1])

        write = lambda buffer, values: buffer.at[own, places].set(values, mode="drop")  # noqa: E731
        normalizer = by_position(log_sum_exp, output.logits, fixed)
        states, processed = _processed(policy, states, output.logits, following, at + 1 < length[:, None])
        scored = Scores(
            write(scores.log_probs, pick(output.logits) - normalizer),
            write(scores.warped_log_probs, pick(by_position(policy.log_probs, processed, fixed))),
        )
        return cache.append(output.entries), states, scored

    def feed_prompt(index, carry):
        # Like `prefill`, feeds at these positions, or moves back if the model needs no fixed ones.
        start = jnp.minimum(index * chunk, slots - chunk)
        cache, states, scores = carry
        starts = jnp.full((batch,), start, jnp.int32)
        cache, without = before_chunk(model, cache, starts), processing.with_processors(policy, ())
        cache, _, scores = feed(without, (cache, (), scores), starts, chunk)
        # Scores that were written past the end of a shorter prompt are overwritten below.
        return after_chunk(model, cache, lambda: start + chunk, prompt), states, scores

    def feed_answer(carry):
        held = carry[0].length
        cache, states, scores = feed(policy, carry, held, step)
        return cache.truncate(jnp.minimum(held + step, jnp.maximum(length - 1, held))), states, scores

    chunks = (jnp.max(prompt) + chunk - 1) // chunk
    with traced_for(model):
        cache, states, scores = jax.lax.fori_loop(jnp.zeros((), chunks.dtype), chunks, feed_prompt, carry)
        carry = cache.truncate(prompt), states, scores
        return jax.lax.while_loop(lambda carry: jnp.any(carry[0].length < length - 1), feed_answer, carry)[2]


def _processed(
    policy: Policy,
    states: tuple[Any, ...],
    logits: Float[Array, "b t v"],
    following: Int[Array, "b t"],
    there: Bool[Array, "b t"],
) -> tuple[tuple[Any, ...], Float[Array, "b t v"]]:
    """Returns the processors' states after the tokens that exist, and the processed logits of each position."""
    if not states:
        return states, logits

    def step(states, position):
        logits, token, there = position
        processed = processing.process(policy, states, logits[:, None], processing.no_path(logits[:, None]))
        states = processing.commit(policy, states, token[:, None], there.astype(jnp.int32))
        return states, processed[:, 0]

    by_time = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    states, processed = jax.lax.scan(step, states, (by_time(logits), by_time(following), by_time(there)))
    return states, by_time(processed)
