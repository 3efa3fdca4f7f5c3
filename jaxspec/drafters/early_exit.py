"""Drafts with the target's own first layers; verification resumes from their results for the drafts.

text       a  b  c  d  e             e is committed and unfed; the target's cache holds a b c d
drafting   e -> x -> y -> z          the first layers alone, over the first layers of that cache
           e  x  y  z                their keys, values and states wait outside the cache
verify     [e x y z]                 the other layers alone
"""

import dataclasses
from typing import Any, Protocol, Self, cast, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.bit_exact import check_whole
from jaxspec.core.model import Model, ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.random import Rng
from jaxspec.core.sampling import Policy
from jaxspec.core.state import Context, Proposal
from jaxspec.core.tree import positive
from jaxspec.draft_length.base import NUMBER_IS_STATIC, DraftLength
from jaxspec.drafters.base import DrafterInfo
from jaxspec.drafters.chain import ChainDrafter
from jaxspec.drafters.draft_model import DraftState, Hidden, SelfDraft, Window, check_capture
from jaxspec.drafters.draft_vocabulary import Vocabulary
from jaxspec.nn.cache import KVCache
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Partial


@runtime_checkable
class ExitHead(Protocol):
    """Specifies a trained exit, such as those of `jaxspec.contrib.exit_head`.

    Attributes:
      layers: the number of the target's layers before the exit.
      width: the size of the states that it reads.
      ids: the tokens that it guesses, increasing; `None` means all of the target's.
    """

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def ids(self) -> Int[Array, "n"] | None: ...

    def __call__(self, target: Any, hidden: Float[Array, "b t d"]) -> Float[Array, "b t n"]:
        """Returns logits over the draft vocabulary, float32, for states `[b, t, width]`."""
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Fed:
    """Holds the tokens fed through the first layers in a round: the last committed token, then drafts.

    Attributes:
      partial: the results of the first layers, in a buffer for one round.
      count: the number of tokens fed; later slots are stale.
    """

    partial: Partial
    count: Int[Array, ""]

    def append(self, fresh: Partial) -> Self:
        """Appends one more token a row."""
        return type(self)(self.partial.put(fresh, self.count), self.count + 1)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EarlyExitDraft(SelfDraft):
    """Drafts up to `k` tokens with the first layers of `target`, and its final norm and head, or a trained exit."""

    target: LanguageModel
    layers: int = dataclasses.field(metadata={"static": True})
    k: int = dataclasses.field(metadata={"static": True})
    head: ExitHead | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        ids = None if self.head is None else self.head.ids
        return Vocabulary(self.target.vocab_size, ids, self.target.placement)

    def check(self, name: str, target: Model) -> None:
        if not (isinstance(target, LanguageModel) and target.traits.resumes):
            raise TypeError(
                f"{name} stops and resumes the passes of a LanguageModel over a jaxspec.nn.Transformer, got a target "
                f"of type {type(target).__name__}; load the target with jaxspec.load, or pass another drafter"
            )
        check_whole(target)
        most = target.module.config.num_layers - 1
        if not 1 <= self.layers <= most:
            raise ValueError(
                f"{name} needs at least one layer to draft with and one to verify with, got layers={self.layers} of a "
                f"target of {most + 1}; pass layers between 1 and {most}"
            )
        if self.head is not None:
            check_capture(name, target, (self.layers,), self.head.width)

    def catch_up(self, state: Any, context: Context, will_draft: Bool[Array, ""]) -> DraftState:
        shape = (context.length.shape[0], self.k + 1)
        whole = jax.ShapeDtypeStruct(shape, jnp.int32)
        cache = cast(KVCache, context.cache)  # that of a LanguageModel
        _, partial = jax.eval_shape(lambda tokens: self.target.begin(tokens, cache, self.layers), whole)
        return DraftState(Fed(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), partial), jnp.int32(0)))

    def first(self, state: DraftState, context: Context) -> tuple[Window, DraftState]:
        logits, partial = self.feed(context, context.last, state.cache)
        return Window(logits[:, 0], state.cache, partial, ()), DraftState(state.cache.append(partial))

    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Any, **tree: Any) -> ModelOutput:
        logits, partial = self.feed(context, tokens, cache)
        return ModelOutput(logits, cast(Any, partial))  # no cache takes it: `Fed.append` does

    def feed(self, context: Context, tokens: Int[Array, "b 1"], fed: Fed) -> tuple[Float[Array, "b 1 n"], Partial]:
        """Runs the first layers over one more token, which attends to the text and the tokens fed before it."""
        room = jnp.arange(self.k + 1, dtype=jnp.int32)
        mask = jnp.pad(room < fed.count, (0, 1), constant_values=True)
        offsets = jnp.append(room, fed.count)
        logits, partial = self.target.begin(
            tokens,
            cast(KVCache, context.cache),  # that of a LanguageModel
            self.layers,
            mask=jnp.broadcast_to(mask, (tokens.shape[0], 1, self.k + 2)),
            positions=context.length[:, None] - 1 + offsets[None],
            pending=fed.partial.entries,
        )
        if self.head is not None:  # the compiler removes the unused logits
            logits = self.target.placement.logits(self.head(self.target, partial.hidden))
        return logits, partial


@register_dataclass
@dataclasses.dataclass(frozen=True)
class EarlyExitDrafter(ChainDrafter):
    """Draws a chain of tokens from the target's first layers, through its own final norm and head.

    There is no second model and no second cache: the first layers use the target's keys and values of the text, and
    verification resumes from their results for the drafts. A round of `k` drafts costs `k + 1` passes of the first
    layers over one token, and one pass of the remaining layers over `k + 1`. Only targets that were trained to exit
    early (`jaxspec train early-exit --whole-model`), or that have a trained exit (`head`), guess well this way.

    Attributes:
      layers: the number of the target's layers to draft with.
      k: the largest number of drafts a round. Pass a `DraftLength` to choose it round by round.
      sampling: the policy to draw drafts with, shared by all rows; `None` uses each row's target policy.
      head: an exit trained for this target and this number of layers, from `jaxspec.load_head`; `None` uses the
        target's final norm and head.

    References:
      LayerSkip: Elhoushi et al. (2024), arXiv:2404.16710, section 4.3.

    Example:
      >>> drafter = jaxspec.EarlyExitDrafter(layers=1, k=3)
      >>> jaxspec.generate(target, drafter, prompt, max_new_tokens=8).tokens.shape
      (2, 8)
    """

    layers: int = dataclasses.field(metadata={"static": True})
    k: int | DraftLength = dataclasses.field(default=4, metadata=NUMBER_IS_STATIC)
    sampling: Policy | None = None
    head: ExitHead | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("layers", self.layers)
        # JAX may rebuild the pytree with a placeholder here.
        if isinstance(self.head, ExitHead) and self.head.layers != self.layers:
            raise ValueError(
                f"layers is {self.layers}, but the head was trained for layers={self.head.layers}; pass that"
            )

    def check(self, target: Model) -> None:
        if self.head is not None:
            validate.instance("head", self.head, ExitHead, "pass one from jaxspec.load_head, or None")
        super().check(target)

    @property
    def info(self) -> DrafterInfo:
        return DrafterInfo(self.head, costs=lambda model, _: model.first_layers(self.layers), variant=str(self.layers))

    def draft(self, target: Model) -> EarlyExitDraft:
        own = cast(LanguageModel, target)  # `EarlyExitDraft.check` refuses others
        return EarlyExitDraft(own, self.layers, self.max_drafts, self.head)

    def propose(self, rng: Rng, state: Any, context: Context) -> tuple[Proposal, Any]:
        proposal, state = super().propose(rng, state, context)
        if self.max_drafts == 0:
            return proposal, state
        fed, draft = state.draft_state.cache, self.draft(context.target)
        # All drafts but the last have been fed; verification needs the last one too.
        tokens = jnp.concatenate([context.last, proposal.tokens], axis=1)
        newest = jax.lax.dynamic_slice_in_dim(tokens, fed.count, 1, axis=1)
        last = lambda _, fed: fed.append(draft.feed(context, newest, fed)[1])  # noqa: E731
        # If no row drafts, verification starts at the first layer, as one whole pass is cheaper than two halves.
        trips = jnp.any(proposal.valid) if self.lengths[0] == 0 else True
        with jax.named_scope("last_draft"):
            fed = jax.lax.fori_loop(jnp.int32(0), jnp.int32(trips), last, fed)
        return dataclasses.replace(proposal, partial=fed.partial), dataclasses.replace(
            state, draft_state=DraftState(())
        )
