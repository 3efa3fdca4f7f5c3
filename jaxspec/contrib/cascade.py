"""Drafts with a cascade: a cheap drafter drafts for the model that drafts for the target.

    text         ... d e                 e is committed and unfed
    cheap guess          x y z           copied
    draft model    [d e  x y z]          one pass gives its distribution after e, x, y and z
    its drafts           x y w           it drew w after y, so z is dropped; the next pass continues after w

The model draws draft `i` with the noise of offset `i`, as it would alone, and keeps a guess for as long as it equals
its own draw. So the drafts and their distributions are those of the model alone, in fewer of its passes.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core import check_policy, validate
from jaxspec.core.leading import count_leading
from jaxspec.core.model import Cache, Model
from jaxspec.core.parts import argmax
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.drafters.base import Drafter, DrafterInfo
from jaxspec.drafters.draft_model import DraftState, ModelDraft, begin
from jaxspec.drafters.lookup import Guess, LookupDrafter


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CascadeDrafter(Drafter):
    """Drafts the tokens of `ModelDrafter(model, k)`, in fewer passes where `cheap` guesses them.

    Guesses are verified by shared noise instead of rejection, so that neither a draft nor its distribution depends on
    the guesses. This is worth it with many drafts and a model that repeats the text; a pass without guesses is as wide
    as the model's own.

    Attributes:
      model: any `Model` with the target's vocabulary.
      cheap: `NGramDrafter` or `SuffixDrafter`; its draft length is ignored.
      k: the number of drafts a round.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.

    Raises:
      TypeError, ValueError: `cheap` is not a lookup drafter, or `k` is not a positive integer.

    References:
      CS Drafting: Chen et al. (2023), arXiv:2312.11462, section 3.1 (the vertical cascade).
      Coupling by shared noise: Daliri, Musco and Suresh (2024), arXiv:2408.07978.

    Example:
      >>> cascade = jaxspec.contrib.CascadeDrafter(draft, jaxspec.NGramDrafter(k=3), k=4)
      >>> alone = jaxspec.ModelDrafter(draft, k=4)
      >>> texts = [jaxspec.generate(target, one, prompt, max_new_tokens=8).tokens for one in (cascade, alone)]
      >>> bool((texts[0] == texts[1]).all())
      True
    """

    model: Model
    cheap: LookupDrafter
    k: int = dataclasses.field(default=8, metadata={"static": True})
    sampling: Policy | None = None

    def __post_init__(self):
        validate.counts("CascadeDrafter", k=self.k)
        if not isinstance(self.cheap, LookupDrafter) or self.cheap.max_drafts == 0:
            got = type(self.cheap).__name__
            raise TypeError(f"CascadeDrafter needs a lookup drafter as cheap, got {got}; pass NGramDrafter()")

    @property
    def max_drafts(self) -> int:
        return self.k

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(context_length=self.model.context_length)

    def check(self, target: Model) -> None:
        if self.sampling is not None:
            check_policy.draft_policy(self.sampling)
        self._draft.check(type(self).__name__, target)
        self.cheap.check(target)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> DraftState:
        # A pass may have guesses beyond the last draft.
        return begin(self._draft, context, prefilled, slots + self.cheap.max_drafts)

    def held(self, state: DraftState) -> None:
        """Returns no limit, as the cache depends on tokens alone and can be fed any that are missing."""

    def extend(
        self, state: DraftState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> DraftState:
        return self._draft.extend(state, context, prefilled, start)

    def propose(self, rng: Rng, state: DraftState, context: Context) -> tuple[Proposal, DraftState]:
        policy = context.sampling if self.sampling is None else self.sampling
        live = jnp.any(~context.done)
        cache = self._draft.catch_up(state, context, live).cache
        drafts = _Drafts.none(context, self.k, self.cheap.max_drafts, self.model.vocab_size, policy, cache)
        noise = None if policy.greedy else _noise(rng, self.k, self.model.vocab_size)
        unfinished = lambda drafts: jnp.any(drafts.count < self.k)  # noqa: E731
        drafts = jax.lax.while_loop(unfinished, lambda drafts: self._another(drafts, policy, noise, context), drafts)
        at = context.length[:, None] + jnp.arange(self.k, dtype=jnp.int32)[None]
        valid = jnp.broadcast_to(~context.done[:, None], at.shape)
        tokens = jnp.where(valid, jnp.take_along_axis(drafts.text, at, axis=1), 0)
        # The last draft was never fed, and neither was anything of a finished row.
        held = jnp.where(context.done, jnp.minimum(state.cache.length, context.length), context.length + self.k - 1)
        return Proposal(tokens, valid, drafts.log_probs), DraftState(drafts.cache.truncate(held))

    def observe(self, state: DraftState, context: Context, verdict: Verdict, hidden: tuple[Array, ...]) -> DraftState:
        own = jnp.minimum(verdict.accepted, verdict.appended(context))
        return self._draft.observe(state, context, own, verdict, hidden)

    @property
    def _draft(self) -> ModelDraft:
        return ModelDraft(self.model)

    def _another(
        self, drafts: "_Drafts", policy: Policy, noise: Float[Array, "b k v"] | None, context: Context
    ) -> "_Drafts":
        """Runs one pass over the end of the drafts and a guess; each row that is not done gets at least one draft."""
        end = context.length + drafts.count
        guess = self.cheap.guess(drafts.text, end)
        guess = guess.cut(jnp.where(drafts.count < self.k, guess.count, 0))
        text = _write(drafts.text, guess.tokens, end)
        logits, cache = self._score(text, end, guess, drafts.cache)
        if context.processors:
            logits = context.process(logits, _paths(text, context.length, drafts.count, logits.shape[1], self.k))
        places = drafts.count[:, None] + jnp.arange(logits.shape[1], dtype=jnp.int32)[None]
        if noise is None or drafts.log_probs is None:
            log_probs, own = None, argmax(logits)
        else:
            next_log_probs = policy.log_probs(logits)
            # Rows have different numbers of drafts; noise past the last draft is never used.
            of_places = jnp.take_along_axis(noise, jnp.minimum(places, self.k - 1)[..., None], axis=1)
            own = argmax(next_log_probs + of_places)
            log_probs = _lay(drafts.log_probs, next_log_probs, drafts.count)
        meant = guess.places < guess.count[:, None]
        right = count_leading(meant & (guess.tokens == own[:, :-1]))
        count = jnp.minimum(drafts.count + right + 1, self.k)
        return _Drafts(count, _write(drafts.text, own, end), log_probs, cache)

    def _score(self, text, end, guess: Guess, cache: Cache) -> tuple[Float[Array, "b g v"], Cache]:
        """Returns the logits after the text's end and after each guessed token. A pass without guesses is short."""
        width = 2 + self.cheap.max_drafts
        start = jnp.maximum(end - 2, 0)
        at = start[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
        window, cache = jnp.take_along_axis(text, at, axis=1), cache.truncate(start)

        def fed(count: int):
            def run():
                output = self.model(window[:, :count], cache)
                logits = jnp.pad(output.logits, ((0, 0), (0, width - count), (0, 0)))
                return logits, output.entries.pad(width)

            return run

        logits, entries = jax.lax.cond(jnp.any(guess.count > 0), fed(width), fed(2))
        first = (end - 1 - start)[:, None] + jnp.arange(width - 1, dtype=jnp.int32)[None]
        return jnp.take_along_axis(logits, first[..., None], axis=1), cache.append(entries)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Drafts:
    """Holds the drafts of a round so far: `count` a row, stored after the text."""

    count: Int[Array, "b"]
    text: Int[Array, "b s"]
    log_probs: Float[Array, "b k v"] | None
    cache: Cache

    @classmethod
    def none(cls, context: Context, k: int, guessed: int, vocab_size: int, policy: Policy, cache: Any) -> "_Drafts":
        count = jnp.where(context.done, jnp.int32(k), 0)
        text = jnp.pad(context.tokens, ((0, 0), (0, guessed + 2)))
        # Unused positions hold the uniform distribution, so that every row stays normalized.
        shape = (count.shape[0], k, vocab_size)
        log_probs = None if policy.greedy else jnp.full(shape, -jnp.log(jnp.float32(vocab_size)))
        return cls(count, text, log_probs, cache)


def _noise(rng: Rng, k: int, vocab_size: int) -> Float[Array, "b k v"]:
    return jnp.stack([rng.draft_noise(jnp.int32(offset), vocab_size) for offset in range(k)], axis=1)


def _lay(
    log_probs: Float[Array, "b k v"], next_log_probs: Float[Array, "b g v"], count: Int[Array, "b"]
) -> Float[Array, "b k v"]:
    """Replaces the entries of each row from index `count` on.

    Implemented as a gather: for a scatter, XLA would copy all rows to all devices.
    """
    place = jnp.arange(log_probs.shape[1], dtype=jnp.int32)[None] - count[:, None]
    within = (place >= 0) & (place < next_log_probs.shape[1])
    new = jnp.take_along_axis(next_log_probs, jnp.clip(place, 0, next_log_probs.shape[1] - 1)[..., None], axis=1)
    return jnp.where(within[..., None], new, log_probs)


def _paths(
    text: Int[Array, "b s"], length: Int[Array, "b"], count: Int[Array, "b"], width: int, k: int
) -> Int[Array, "b g d"]:
    """Returns the tokens between the committed text and each of `width` places after `count` drafts; -1 pads."""
    offsets, most = jnp.arange(width, dtype=jnp.int32)[None], jnp.arange(k + width, dtype=jnp.int32)[None]
    following = jnp.take_along_axis(text, jnp.minimum(length[:, None] + most, text.shape[1] - 1), axis=1)
    before = most[None] < (count[:, None] + offsets)[..., None]
    return jnp.where(before, following[:, None], -1)


def _write(text: Int[Array, "b s"], tokens: Int[Array, "b g"], end: Int[Array, "b"]) -> Int[Array, "b s"]:
    """Returns the text with `tokens` written after each row's end."""
    rows = jnp.arange(text.shape[0], dtype=jnp.int32)[:, None]
    at = end[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    return text.at[rows, at].set(tokens, mode="drop")
