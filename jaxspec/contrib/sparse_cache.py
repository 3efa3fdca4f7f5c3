"""Drafts with the target itself, attending to a few keys of a long text.

    text        a b c d e f g h i j      j is committed and unfed
    drafting    a b . . . . g h i        the first and the last tokens: all that j and its drafts see
    verify      a b c d e f g h i        everything, for [j and its drafts]

Every draft costs a pass over all weights, so this is worth it where reading the cache takes most of the time: with long
texts and many rows. The keys of drafts depend on less than the target sees, so verification replaces them.
"""

import dataclasses
from typing import cast

import jax

from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import positive
from jaxspec.core.validate import LARGEST
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.chain import ChainDrafter, ChainState
from jaxspec.drafters.draft_model import Draft, DraftState, SelfDraft, Window
from jaxspec.drafters.draft_vocabulary import Vocabulary
from jaxspec.nn.cache import KVCache


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseCacheDraft(SelfDraft):
    """Runs `target` over the first `sinks` and the last `window` tokens of its cache, for up to `k` drafts."""

    target: Model
    sinks: int = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(metadata={"static": True})
    k: int = dataclasses.field(metadata={"static": True})

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.target.vocab_size)

    def check(self, name, target):
        cache = jax.eval_shape(lambda: target.init_cache(1, 1))
        if not isinstance(cache, KVCache):
            raise TypeError(
                f"{name} selects tokens from a jaxspec.nn.cache.KVCache, got a target with a "
                f"{type(cache).__name__}; load the target with jaxspec.load, or pass another drafter"
            )

    def catch_up(self, state, context, will_draft):
        cache = cast(KVCache, context.cache)  # ensured by `check`
        return DraftState(cache.sinks_and_window(self.sinks, self.window, self.k))

    def first(self, state, context):
        output = self.target(context.last, state.cache)
        after = DraftState(state.cache.append(output.entries))
        return Window(output.logits[:, 0], state.cache, output.entries, ()), after

    def next(self, context, tokens, hidden, cache, **tree) -> ModelOutput:
        return self.target(tokens, cache, **tree)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseCacheDrafter(ChainDrafter):
    """Draws a chain of tokens from the target itself, which attends only to the first and last tokens of the text.

    These are attention sinks and a recent window, each at its own position. There is no second model, and no second
    cache between rounds.

    Attributes:
      sinks: the number of first tokens to attend to.
      window: the number of last tokens to attend to, in addition to the unfed one and the drafts.
      k: the largest number of drafts a round. Pass a `DraftLength` to choose it round by round.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.

    Raises:
      ValueError: a number is below 1.

    References:
      MagicDec: Chen et al. (2024), arXiv:2408.11049.
      TriForce: Sun et al. (2024), arXiv:2404.11912, section 4.
      StreamingLLM: Xiao et al. (2023), arXiv:2309.17453 (which tokens are seen).

    Example:
      >>> drafter = jaxspec.contrib.SparseCacheDrafter(sinks=1, window=4, k=3)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    sinks: int = dataclasses.field(default=4, metadata={"static": True})
    window: int = dataclasses.field(default=508, metadata={"static": True})
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None

    def __post_init__(self):
        super().__post_init__()
        positive("sinks", self.sinks, most=LARGEST)
        positive("window", self.window, most=LARGEST)

    def draft(self, target: Model) -> Draft:
        return SparseCacheDraft(target, self.sinks, self.window, self.max_drafts)

    def propose(self, rng: Rng, state: ChainState, context: Context) -> tuple[Proposal, ChainState]:
        proposal, state = super().propose(rng, state, context)
        return proposal, dataclasses.replace(state, draft_state=DraftState(()))
