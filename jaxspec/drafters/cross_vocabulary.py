"""Drafts with a model that has another tokenizer, among the tokens that both vocabularies share.

The draft distribution is the model's, restricted to the intersection of the two vocabularies and renormalized. Since
that is also the distribution reported to the verifier, the target's distribution is preserved at any temperature: TLI,
Timor et al. 2502.05202, algorithm 4. Nothing is decoded to a string: the whole round stays on the device.

The draft model reads the text token by token, as `TokenMap.pieces` spells it; no string is ever tokenized again. The
result often differs from how its own tokenizer would split the whole text, which costs some acceptance. In return,
later text never changes what was read, so the cache only grows, and an accepted draft is read exactly as it was fed:

    text of the target    The  Ġunbeliev  able     then drafts  Ġ.  Ġ.
    text of the draft     The  Ġun believ able                  Ġ.  Ġ.     one token each: the intersection

Drafting then works as with a shared vocabulary, on a longer text: `ModelDraft` does it, given the draft's text instead
of the target's.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core import validate
from jaxspec.core.model import Model
from jaxspec.core.prefill import CATCH_UP_CHUNK, Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.core.typed import check_fields
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.base import DrafterInfo
from jaxspec.drafters.chain import ChainDrafter
from jaxspec.drafters.draft_model import Draft, Hidden, ModelDraft, check_is_model
from jaxspec.drafters.draft_vocabulary import Vocabulary
from jaxspec.drafters.token_map import TokenMap


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DraftText:
    """Holds the committed text in the draft's tokens.

    Attributes:
      tokens: `tokens[b, :length[b]]` is final; `s` is the number of the draft's slots, not the target's.
      length: the number of the draft's tokens, at least 1.
      read: the number of the target's tokens that they spell. It lags the target's text once no more fit; such a row
        is not drafted for any longer.
    """

    tokens: Int[Array, "b s"]
    length: Int[Array, "b"]
    read: Int[Array, "b"]

    @classmethod
    def begin(cls, start: Int[Array, "n"], batch: int, slots: int) -> "DraftText":
        """Returns a text that holds only the draft's start tokens."""
        count = start.shape[0]
        tokens = jnp.zeros((batch, slots), jnp.int32).at[:, :count].set(start[None])
        zero = jnp.zeros(batch, jnp.int32)
        return cls(tokens, zero + count, zero)

    def extend(self, token_map: TokenMap, text: Int[Array, "b t"], length: Int[Array, "b"], most: int) -> "DraftText":
        """Appends the target's new tokens, spelled in the draft's, up to `most` of the draft's tokens a row."""
        missing = jnp.max(length - self.read, initial=0)
        trips = (missing + CATCH_UP_CHUNK - 1) // CATCH_UP_CHUNK
        more = lambda _, self: self._extend_once(token_map, text, length, most)  # noqa: E731
        return jax.lax.fori_loop(jnp.int32(0), trips, more, self)

    def _extend_once(self, token_map: TokenMap, text, length, most: int) -> "DraftText":
        at = self.read[:, None] + jnp.arange(CATCH_UP_CHUNK, dtype=jnp.int32)[None]
        fresh = jnp.take_along_axis(text, jnp.minimum(at, text.shape[1] - 1), axis=1)
        pieces = token_map.pieces[fresh]
        count = jnp.where(at < length[:, None], token_map.count[fresh], 0)
        ends = self.length[:, None] + jnp.cumsum(count, axis=1)
        # Ends increase, so the tokens that fit are a prefix; no token is read in part.
        taken = (at < length[:, None]) & (ends <= most)
        offsets = jnp.arange(pieces.shape[-1], dtype=jnp.int32)[None, None]
        written = taken[..., None] & (offsets < count[..., None])
        slots = jnp.where(written, (ends - count)[..., None] + offsets, self.tokens.shape[1])
        rows = jnp.arange(text.shape[0], dtype=jnp.int32)[:, None, None]
        tokens = self.tokens.at[rows, slots].set(pieces, mode="drop")
        added = jnp.sum(jnp.where(taken, count, 0), axis=1, dtype=jnp.int32)
        return DraftText(tokens, self.length + added, self.read + jnp.sum(taken, axis=1, dtype=jnp.int32))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossVocabularyState:
    """Holds the draft's text, and the state of the chain that drafts after it."""

    text: DraftText
    chain: Any


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossVocabularyDraft(ModelDraft):
    """Reads text in the draft model's vocabulary, and guesses in the target's."""

    token_map: TokenMap

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.token_map.target_vocab_size)

    def check(self, name, target):
        check_is_model(name, self.model)
        validate.instance("token_map", self.token_map, TokenMap, "pass TokenMap.between(...)")
        check_fields(self.token_map)
        for whose, model, size in (
            ("target", target, self.token_map.target_vocab_size),
            ("draft", self.model, self.token_map.draft_vocab_size),
        ):
            if model.vocab_size != size:
                raise ValueError(
                    f"the token map is for a {whose} of {size} tokens, got one of {model.vocab_size}; pass "
                    "target_size= and draft_size= of these models to TokenMap.between"
                )

    def first(self, state, context):
        window, state = super().first(state, context)
        logits = self._restrict(context, window.logits[:, None])[:, 0]
        return dataclasses.replace(window, logits=logits), state

    def next(self, context, tokens, hidden, cache, **tree):
        output = self.model(self.token_map.guessed(tokens), cache, **tree)
        return dataclasses.replace(output, logits=self._restrict(context, output.logits))

    def _restrict(self, context: Context, logits):
        return context.target.traits.placement.logits(self.token_map.restrict(logits))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossVocabularyDrafter(ChainDrafter):
    """Draws up to `k` tokens from a draft model with another tokenizer: token-level intersection.

    The draft distribution is that of `model`, restricted to the tokens that both vocabularies share. Tokens that only
    the target has are never drafted, and come from the verifier. The less of the text the intersection covers, the
    fewer drafts are accepted.

    Attributes:
      model: any `Model`.
      token_map: maps the target's vocabulary to the draft's.
      k: the largest number of drafts a round. Pass a `DraftLength` to choose it round by round.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy. It applies to
        the distribution over the intersection.
      room: the number of the draft's token slots, as a multiple of the target's. A row whose text needs more, or more
        than the draft model's context, continues without drafts.

    References:
      Token-level intersection (TLI): Timor et al. (2025), arXiv:2502.05202, algorithm 4.

    Example:
      >>> token_map = jaxspec.drafters.TokenMap.between(target.tokenizer, draft.tokenizer,
      ...     target_size=target.vocab_size, draft_size=draft.vocab_size)
      >>> drafter = jaxspec.CrossVocabularyDrafter(draft, token_map, k=3)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    model: Model
    token_map: TokenMap
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None
    room: float = dataclasses.field(default=2.0, metadata={"static": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.in_range("CrossVocabularyDrafter", room=(self.room, 1, math.inf))

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(
            self.model,
            costs=lambda model, _: model.draft_model(self.model),
            shared_tokens=lambda: (self.token_map.shared(), self.token_map.target_vocab_size),
        )

    def draft(self, target: Model) -> Draft:
        return CrossVocabularyDraft(self.model, self.token_map)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> CrossVocabularyState:
        slots = self._slots(slots)
        text = self._read(DraftText.begin(self.token_map.start, context.tokens.shape[0], slots), context)
        return CrossVocabularyState(text, super().init(_in_draft_tokens(context, text), prefilled, slots))

    def held(self, state: CrossVocabularyState) -> None:
        """Returns no limit, like a `ChainDrafter` without captured states."""

    def extend(
        self, state: CrossVocabularyState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> CrossVocabularyState:
        batch, slots = state.text.tokens.shape
        same = DraftText.begin(self.token_map.start, batch, slots)
        same = self._read(same, dataclasses.replace(context, length=start))
        text = self._read(same, context)
        # Equal tokens of the target become equal tokens of the draft, so the shared prefix is read in full.
        chain = super().extend(state.chain, _in_draft_tokens(context, text), prefilled, same.length)
        return CrossVocabularyState(text, chain)

    def propose(self, rng: Rng, state: CrossVocabularyState, context: Context) -> tuple[Proposal, CrossVocabularyState]:
        text = self._read(state.text, context)
        proposal, chain = super().propose(rng, state.chain, _in_draft_tokens(context, text))
        return proposal, CrossVocabularyState(text, chain)

    def observe(
        self, state: CrossVocabularyState, context: Context, verdict: Verdict, hidden: Hidden
    ) -> CrossVocabularyState:
        inner = _in_draft_tokens(context, state.text)
        return CrossVocabularyState(state.text, super().observe(state.chain, inner, verdict, hidden))

    def _slots(self, slots: int) -> int:
        """Returns the draft's number of slots: at least enough for the first token and one round of drafts."""
        most = math.ceil(slots * self.room)
        if self.model.context_length is not None:
            most = min(most, self.model.context_length)
        return max(most, self.token_map.start.shape[0] + self.token_map.pieces.shape[1] + self.max_drafts + 1)

    def _read(self, text: DraftText, context: Context) -> DraftText:
        # Leave slots after the text for one round of drafts.
        most = text.tokens.shape[1] - self.max_drafts - 1
        return text.extend(self.token_map, context.tokens, context.length, most)


def _in_draft_tokens(context: Context, text: DraftText) -> Context:
    """Returns the context in the draft's tokens; rows whose text it cannot read in full appear done."""
    lagging = text.read < context.length
    return dataclasses.replace(context, tokens=text.tokens, length=text.length, done=context.done | lagging)
