"""Scores texts that are there already: the log-probabilities that `generate` returned for the same tokens."""

import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import check_policy, processing, validate
from jaxspec.core.bit_exact import as_bit_exact, by_position, rows_of
from jaxspec.core.kernels import kernels_of
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Cache, Model, chunk_of
from jaxspec.core.parts import over_devices
from jaxspec.core.prefill import in_chunks
from jaxspec.core.sampling import Greedy, Policy
from jaxspec.core.scores import Scores
from jaxspec.core.sums import log_sum_exp
from jaxspec.core.values import is_concrete, to_int32
from jaxspec.decoding.arguments import StopTokens, TokenIds, as_array, check_target, policy_by_row
from jaxspec.decoding.room import PerRow

# The cache, the states of the policy's processors, and what was written down.
_Carry: TypeAlias = tuple[Cache, tuple[Any, ...], Scores]
# What the texts, and how many tokens of a row count, are called.
_LENGTH, _PROMPT = ("tokens", "length"), ("tokens", "prompt_length")


def score(
    model: Model,
    tokens: TokenIds,
    *,
    length: PerRow | None = None,
    prompt_length: PerRow = 1,
    sampling: Policy = Greedy(),  # noqa: B008 (frozen and stateless)
    stop_tokens: StopTokens = (),
    bit_exact: bool = False,
    rows: int | None = None,
) -> Scores:
    """Computes the log-probability of every token of given texts, by as few passes as there can be.

    With `bit_exact` the numbers of tokens behind the prompt are those that `generate` returned for them, to the bit, if
    it ran with `bit_exact` and the same `rows` and prompts, on the same machine with as many rows in its batch. So a
    trainer's old log-probabilities are the sampler's own. Works in the caller's `jax.jit`; has no gradient.

    Args:
      model: the model, as `generate` takes it.
      tokens: `[b, t]` texts, prompt and answer; shorter rows are padded on the right.
      length: the tokens of each row that count, one integer or `[b]`; `None` is all.
      prompt_length: the tokens of each row that were its prompt, one integer or `[b]`: they are fed as prompts are.
      sampling: the policy of `warped_log_probs`; under `Greedy()` they are 0 for the most likely token and -inf else.
        Its processors are for answers: prompts are scored without.
      stop_tokens: those that `generate` was called with, which `MinNewTokens` reads.
      bit_exact: as in `generate`.
      rows: as in `generate`.

    Returns:
      `Scores`, `[b, t]` each, float32.

    Raises:
      TypeError, ValueError: for arguments that do not fit each other. Of lengths that are traced those out of range
        are moved into it.

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
        raise ValueError("prompt_length must be one integer or one a row, got None; pass 1 where there was no prompt")
    batch, width = ids.shape
    _check_prompt_length(prompt_length, width if length is None else length)
    validate.prompt(ids, prompt_length, model.vocab_size, _PROMPT)
    check_policy.policy(sampling, batch, model.vocab_size)
    validate.fits(width, 0, None, model.context_length)
    stops = validate.stop_tokens(stop_tokens, batch, model.vocab_size)
    spread = lambda value: jnp.broadcast_to(to_int32(value), (batch,))  # noqa: E731
    model = as_bit_exact(model, bit_exact, rows)
    lengths = spread(width if length is None else length), spread(prompt_length)
    return _score(model, to_int32(ids), *lengths, stops, policy_by_row(sampling, batch))


def _check_prompt_length(prompt_length: PerRow, length: PerRow) -> None:
    """Raises `ValueError` unless each row's prompt ends in its text."""
    if is_concrete(prompt_length) and is_concrete(length):
        prompts, lengths = np.broadcast_arrays(np.asarray(prompt_length), np.asarray(length))
        if (prompts > lengths).any():
            raise ValueError(
                f"prompt_length must be at most the length of its row, got {prompts.tolist()} for rows of "
                f"{lengths.tolist()}"
            )


@jax.jit
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
    step = min(rows_of(model) or chunk_of(model), slots)
    length = jnp.clip(length, 1, width)
    prompt = jnp.clip(prompt_length, 1, length) - 1
    cache = model.init_cache(batch, slots + step)
    empty = jnp.zeros((batch, width), jnp.float32)
    carry = cache, states, Scores(empty, empty)
    feed = functools.partial(_feed, model, tokens, length)

    def feed_prompt(index, carry):
        # As in `prefill`: at these positions, or moved back where the model asks for no fixed ones.
        start = jnp.minimum(index * chunk, slots - chunk)
        cache, states, scores = carry
        without = processing.with_processors(policy, ())
        cache, _, scores = feed(without, (cache, (), scores), jnp.full((batch,), start, jnp.int32), chunk)
        return cache, states, scores

    def feed_answer(carry):
        held = carry[0].length
        cache, states, scores = feed(policy, carry, held, step)
        return cache.truncate(jnp.minimum(held + step, jnp.maximum(length - 1, held))), states, scores

    chunks = (jnp.max(prompt) + chunk - 1) // chunk
    with over_devices(placement_of(model)), kernels_of(model):
        cache, states, scores = jax.lax.fori_loop(jnp.zeros((), chunks.dtype), chunks, feed_prompt, carry)
        carry = cache.truncate(prompt), states, scores
        return jax.lax.while_loop(lambda carry: jnp.any(carry[0].length < length - 1), feed_answer, carry)[2]


def _feed(
    model: Model,
    tokens: Int[Array, "b s"],
    length: Int[Array, "b"],
    policy: Policy,
    carry: _Carry,
    start: Int[Array, "b"],
    count: int,
) -> _Carry:
    """Feeds `count` tokens of each row from its start on, and writes down how likely the tokens behind them were."""
    cache, states, scores = carry
    at = start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    take = lambda places: jnp.take_along_axis(tokens, places, axis=1, mode="clip")  # noqa: E731
    cache = cache.truncate(start)
    output = model(take(at), cache)
    following, fixed = take(at + 1), rows_of(model)
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


def _processed(
    policy: Policy,
    states: tuple[Any, ...],
    logits: Float[Array, "b t v"],
    following: Int[Array, "b t"],
    there: Bool[Array, "b t"],
) -> tuple[tuple[Any, ...], Float[Array, "b t v"]]:
    """Returns the states after the tokens that are there, and the logits that each was drawn from, processed."""
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
