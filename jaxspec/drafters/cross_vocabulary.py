"""Drafts with a model that has another tokenizer, among the tokens that both vocabularies have.

Its distribution over the intersection of the two vocabularies, renormalized, is the distribution that is reported, so
the target's distribution is kept as with any draft, at any temperature: TLI, Timor et al. 2502.05202, algorithm 4.
Nothing is decoded to a string: the whole round stays on the device.

The draft model reads the text token by token as `TokenMap.pieces` spells it, never a string tokenized anew. Tokens are
often cut otherwise than its own tokenizer would cut the whole text, which costs some acceptance; but what it has read
never changes with what follows, so its cache only grows, and an accepted draft is read as it was fed:

    text of the target    The  Ġunbeliev  able     then drafts  Ġ.  Ġ.
    text of the draft     The  Ġun believ able                  Ġ.  Ġ.     one token each: the intersection

That makes drafting the same as with one vocabulary, over a longer text. `ModelDraft` does it, and is told of the
draft's text in place of the target's.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jaxspec.core import validate
from jaxspec.core.layout import placement_of
from jaxspec.core.model import Model
from jaxspec.core.prefill import CATCH_UP_CHUNK, Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.chain import ChainDrafter
from jaxspec.drafters.draft_model import Draft, Hidden, ModelDraft, check_is_model
from jaxspec.drafters.token_map import TokenMap


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DraftText:
    """Holds the committed text in the draft's tokens.

    Attributes:
      tokens: `tokens[b, :length[b]]` is final; `s` is the draft's room, not the target's.
      length: how many there are, at least 1.
      read: how many of the target's tokens they stand for. Fewer than there are where no more fit: such a row is not
        drafted for any longer.
    """

    tokens: Int[Array, "b s"]
    length: Int[Array, "b"]
    read: Int[Array, "b"]

    @classmethod
    def begin(cls, start: Int[Array, "n"], batch: int, slots: int) -> "DraftText":
        """Returns a text of the draft's first tokens alone."""
        count = start.shape[0]
        tokens = jnp.zeros((batch, slots), jnp.int32).at[:, :count].set(start[None])
        zero = jnp.zeros(batch, jnp.int32)
        return cls(tokens, zero + count, zero)

    def extend(self, token_map: TokenMap, text: Int[Array, "b t"], length: Int[Array, "b"], most: int) -> "DraftText":
        """Appends what the target's text has gained since, up to `most` tokens of the draft's a row."""
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
        # Ends rise, so those that fit are the first ones; no token is read in part.
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
    """Holds the draft's text, and the state of the chain that is drawn over it."""

    text: DraftText
    chain: Any


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossVocabularyDraft(ModelDraft):
    """Reads its own vocabulary with a language model, and guesses in the target's."""

    token_map: TokenMap

    @property
    def vocab_size(self) -> int:
        return self.token_map.target_vocab_size

    def check(self, name, target):
        check_is_model(name, self.model)
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
        return placement_of(context.target).logits(self.token_map.restrict(logits))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossVocabularyDrafter(ChainDrafter):
    """Draws up to `k` tokens from a draft model with another tokenizer: token-level intersection.

    The draft's distribution is that of `model` over the tokens that both vocabularies have; tokens of the target alone
    are never drafted, and come from the verifier. The smaller the share of text that the intersection covers, the
    fewer drafts are accepted.

    Attributes:
      model: any `Model`.
      token_map: of the target's vocabulary and the draft's.
      k: the most drafted tokens a round. Give a `DraftLength` in its place to draft as many as pay.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's own, row by row. It
        applies to the distribution over the intersection.
      room: how many tokens of the draft's there is room for, as a multiple of the target's. A row whose text takes
        more, or more than the draft model's context, is decoded on without drafts.

    References:
      Token-level intersection (TLI): Timor et al. (2025), arXiv:2502.05202, algorithm 4.

    Example:
      >>> token_map = jaxspec.drafters.TokenMap.between(target.tokenizer, draft.tokenizer,
      ...     target_size=target.vocab_size, draft_size=draft.vocab_size)
      >>> drafter = jaxspec.CrossVocabularyDrafter(draft, token_map, k=3)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "cross-vocabulary"
    model: Model
    token_map: TokenMap
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None
    room: float = dataclasses.field(default=2.0, metadata={"static": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.in_range("CrossVocabularyDrafter", room=(self.room, 1, math.inf))

    @property
    def shared_tokens(self) -> tuple[int, int]:
        return self.token_map.shared(), self.token_map.target_vocab_size

    @property
    def network(self) -> Model:
        return self.model

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        return model.draft_model(self.model)

    def draft(self, target: Model) -> Draft:
        return CrossVocabularyDraft(self.model, self.token_map)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> CrossVocabularyState:
        slots = self._slots(slots)
        text = DraftText.begin(self.token_map.start, context.tokens.shape[0], slots)
        text = self._read(text, context)
        return CrossVocabularyState(text, super().init(_in_draft_tokens(context, text), prefilled, slots))

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
        """Returns the slots of the draft's text: at least enough for a first token and a round of drafts."""
        most = math.ceil(slots * self.room)
        if self.model.context_length is not None:
            most = min(most, self.model.context_length)
        return max(most, self.token_map.start.shape[0] + self.token_map.pieces.shape[1] + self.max_drafts + 1)

    def _read(self, text: DraftText, context: Context) -> DraftText:
        # Behind the text there must be slots for the drafts of a round.
        most = text.tokens.shape[1] - self.max_drafts - 1
        return text.extend(self.token_map, context.tokens, context.length, most)


def _in_draft_tokens(context: Context, text: DraftText) -> Context:
    """Returns the context in the tokens of the draft model; rows that it cannot read to their end are done for it."""
    behind = text.read < context.length
    return dataclasses.replace(context, tokens=text.tokens, length=text.length, done=context.done | behind)
