"""Drafts with the target itself, over a few keys of a long text.

    text        a b c d e f g h i j      j is committed and unfed
    drafting    a b . . . . g h i        the first tokens and the last ones: all that j and its drafts see
    verify      a b c d e f g h i        everything, for [j and its drafts]

Every draft costs a pass over all weights: it pays where reading the cache is what takes time, with long texts
and many rows. Keys of drafts are made from less than the target sees, so verification's take their place.
"""

import dataclasses
from typing import ClassVar, cast

import jax

from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree_arguments import positive
from jaxspec.core.values import LARGEST
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.chain import ChainDrafter, ChainState
from jaxspec.drafters.draft_model import Draft, SelfDraft, Window
from jaxspec.nn.cache import KVCache


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseCacheDraft(SelfDraft):
    """Runs `target` over the first `sinks` and the last `window` tokens of its own cache, for up to `k` drafts."""

    target: Model
    sinks: int = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(metadata={"static": True})
    k: int = dataclasses.field(metadata={"static": True})

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    def check(self, name, target):
        cache = jax.eval_shape(lambda: target.init_cache(1, 1))
        if not isinstance(cache, KVCache):
            raise TypeError(
                f"{name} takes some tokens out of a jaxspec.nn.cache.KVCache, got a target that keeps a "
                f"{type(cache).__name__}; load the target with jaxspec.load, or pass another drafter"
            )

    def catch_up(self, state, context, begins):
        return cast(KVCache, context.cache).sinks_and_window(self.sinks, self.window, self.k)  # as `check` says

    def first(self, state, context):
        output = self.target(context.last, state)
        return Window(output.logits[:, 0], state, output.entries, ()), state.append(output.entries)

    def next(self, context, tokens, hidden, cache, **tree) -> ModelOutput:
        return self.target(tokens, cache, **tree)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseCacheDrafter(ChainDrafter):
    """Draws a chain of tokens from the target itself, which sees the first and the last tokens of the text alone.

    These are attention sinks and a recent window, each at its own position. There is no second model, and between
    rounds no second cache.

    Attributes:
      sinks: how many of the first tokens are seen.
      window: how many of the last ones, besides the unfed one and drafts.
      k: the most drafted tokens a round. Give a `DraftLength` in its place to draft as many as pay.
      sampling: the policy that drafts are drawn with, one for all rows; `None` is the target's
        own, row by row.

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

    name: ClassVar[str] = "sparse-cache"
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
        return proposal, dataclasses.replace(state, draft_state=())
