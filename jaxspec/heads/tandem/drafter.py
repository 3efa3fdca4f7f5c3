"""Drafts a chain from a small decoder that also attends to the target's states: Tandem.

    text        ... c  d  e          e is committed and unfed: the target's states end with d's
    cache       ... C  D             what the decoder's layers read of the target's states
    passes                e          -> x, then x -> y, ...: their own keys and values stand behind the context

At the end of a round the decoder's own entries are dropped, and the context of what was accepted takes their place:
verification has its states, whoever drafted. So the decoder is never behind the text, and a pause costs it nothing.
"""

import dataclasses
from typing import Any, ClassVar, cast

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.model import Cache, Model, ModelOutput
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Verdict
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.draft_length.costs import CostModel, DraftCosts
from jaxspec.drafters.capture import check_capture
from jaxspec.drafters.chain import ChainDrafter
from jaxspec.drafters.draft_model import Draft, Hidden, Window
from jaxspec.heads.tandem.head import TandemHead
from jaxspec.nn.cache import KVCache
from jaxspec.nn.language_model import LanguageModel


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TandemDraft(Draft):
    """Drafts chains and trees with a tandem decoder; its cache is all of its state."""

    head: TandemHead

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    @property
    def draft_vocab_size(self) -> int:
        return self.head.ids.shape[0]

    @property
    def context_length(self) -> int | None:
        return self.head.context_length

    @property
    def capture(self) -> tuple[int, ...]:
        return self.head.capture

    def check(self, name: str, target: Model) -> None:
        if isinstance(self.head, type) or not isinstance(self.head, TandemHead):
            raise TypeError(f"{name} needs a TandemHead, got {type(self.head).__name__}; jaxspec.load_head reads one")
        check_capture(name, target, self.head.capture, self.head.config.target_width)
        validate.same_vocabulary(draft=self.head.vocab_size, target=target.vocab_size)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> KVCache:
        assert prefilled is not None  # it captures states
        batch = context.tokens.shape[0]
        entries = self.head.context(prefilled.hidden, jnp.zeros(batch, jnp.int32))
        return self.head.init_cache(batch, slots).append(entries).truncate(context.length - 1)

    def catch_up(self, state: Any, context: Context, begins: Bool[Array, ""]) -> Any:
        return state

    def first(self, state: Any, context: Context) -> tuple[Window, Any]:
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        output = self.next(context, last, (), state)
        cache = state.append(output.entries)
        return Window(output.logits[:, 0], cache, output.entries, ()), cache

    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Any, **tree: Any) -> ModelOutput:
        target = cast(LanguageModel, context.target)  # `check` refuses others
        states, entries = self.head(target.embed(tokens), cache, **tree)
        return ModelOutput(self.head.guesses(states), entries)

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        return self.head.over_vocabulary(logits)

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        return self.head.token_ids(places)

    def cache(self, state: Any) -> Cache:
        return state

    def put(self, state: Any, cache: Cache) -> Any:
        return cache

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        known = context.length - 1
        cache = state.truncate(known).append(self.head.context(hidden, known))
        return cache.truncate(known + jnp.where(context.done, 0, verdict.accepted + 1))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TandemDrafter(ChainDrafter):
    """Drafts a chain of tokens from a small decoder, each layer of which also attends to the target's states.

    The states are those up to the last verified token, and come from verification: a round costs no more passes of the
    target than any other, and the decoder runs over drafts alone. For trees pass the head to `DynamicTreeDrafter` or
    `TreeDrafter`.

    Attributes:
      head: from `jaxspec.load_head`, trained by `jaxspec train tandem`.
      k: the most drafted tokens a round. Give a `DraftLength` in its place to draft as many as pay.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's own, row by row.

    References:
      Tandem: Aishwarya et al. (2024), arXiv:2402.08644.

    Example:
      >>> head = jaxspec.heads.tandem.init(target, key, layers=1, heads=2)
      >>> jaxspec.generate(target, jaxspec.TandemDrafter(head, k=3), prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    name: ClassVar[str] = "tandem"
    head: TandemHead
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the head reads."""
        return self.head.capture

    @property
    def context_length(self) -> int | None:
        return self.head.context_length

    @property
    def network(self) -> TandemHead:
        return self.head

    def draft_costs(self, model: CostModel, k: int) -> DraftCosts:
        return model.layer(self.head, k)

    def draft(self, target: Model) -> Draft:
        return TandemDraft(self.head)
