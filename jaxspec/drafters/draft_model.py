"""Defines `Draft`: a cheap model from which chains and trees of drafts are drawn, one pass after the other.

One kind is a separate language model (`ModelDraft`); another is a head over the target's hidden states
(`jaxspec.heads.eagle.head`). Chains (`jaxspec.drafters.chain`) and trees (`tree`, `dynamic_tree`) work with either.
"""

import abc
import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.leading import take_row
from jaxspec.core.model import Cache, Model, ModelOutput, kind_given
from jaxspec.core.prefill import Prefilled, catch_up, prefill
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context, Verdict
from jaxspec.drafters.draft_vocabulary import Vocabulary

Hidden = tuple[Array, ...]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
    """Holds the result of the pass over the end of the text.

    Attributes:
      logits: the logits of the first draft, over the draft vocabulary.
      cache: a cache that holds the text; an early exit, which has no cache, puts its `Fed` here.
      entries: the cache entries of any pass; buffers take their shapes from it.
      hidden: what the next pass needs of this one besides the cache, `[b, ...]` each; often empty.
    """

    logits: Float[Array, "b n"]
    cache: Any
    entries: Any
    hidden: Hidden


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DraftState:
    """Holds the state of a `Draft`. Larger states have a field `cache` too.

    Attributes:
      cache: the text that the draft has read, followed by its drafts during a round.
    """

    cache: Any


class Draft(abc.ABC):
    """Specifies a cheap model that reads its own guesses. A frozen pytree.

    Its state between rounds is a dataclass with a field `cache`, to which a round appends drafts. It may have a smaller
    vocabulary than the target; logits are then over those tokens alone.
    """

    @property
    @abc.abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The tokens that it can guess."""

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that it reads; `i` is the state entering layer `i`."""
        return ()

    @abc.abstractmethod
    def check(self, name: str, target: Model) -> None:
        """Raises `TypeError` or `ValueError` if the drafter called `name` cannot draft for `target` with this."""

    @abc.abstractmethod
    def init(self, batch: int, slots: int) -> Any:
        """Returns the state before any text.

        Args:
          batch: the number of rows.
          slots: the largest number of cache slots that a row can need.
        """

    @abc.abstractmethod
    def extend(self, state: Any, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]) -> Any:
        """Returns the state before the first round, as `Drafter.extend` does.

        `prefilled` is `None` only for a draft that captures no states.
        """

    def blank(self, batch: int) -> Hidden:
        """Returns an empty `Window.hidden`, for `batch` rows."""
        del batch
        return ()

    def has_context(self, context: Context) -> Bool[Array, "b"]:
        """Returns which rows have enough text to draft after."""
        return jnp.ones(context.length.shape, jnp.bool_)

    def is_current(self, state: Any, context: Context) -> Bool[Array, "b"]:
        """Returns which rows' states include the last round; others draft from the next round on."""
        del state
        return jnp.ones(context.length.shape, jnp.bool_)

    @abc.abstractmethod
    def catch_up(self, state: Any, context: Context, will_draft: Bool[Array, ""]) -> Any:
        """Feeds the text that `first`, which follows if `will_draft`, does not cover."""

    @abc.abstractmethod
    def first(self, state: Any, context: Context) -> tuple[Window, Any]:
        """Runs the pass over the end of the text; returns its result and the new state."""

    @abc.abstractmethod
    def next(
        self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Cache, **tree: Any
    ) -> ModelOutput:
        """Scores the tokens that may follow drafts.

        Args:
          context: the text and the target.
          tokens: the drafts to feed.
          hidden: `Window.hidden`, or `ModelOutput.hidden` of the passes over their parents, `[b, t, ...]` each.
          cache: the text and the drafts before them.
          **tree: the options of `Model.__call__` for trees.

        Returns:
          The output, with logits over the draft vocabulary.
        """

    @abc.abstractmethod
    def observe(self, state: Any, context: Context, own: Int[Array, "b"], verdict: Verdict, hidden: Hidden) -> Any:
        """Returns the state after a round.

        Args:
          state: its cache holds the text and the drafts that were fed; for a tree, only accepted ones.
          context: the text before the round.
          own: how many of the accepted drafts came from this draft.
          verdict: the verdict on all drafts.
          hidden: the captured states, as in `Drafter.observe`.
        """


def begin(draft: Draft, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
    """Returns the state of a draft before the first round, given the prompt."""
    batch = context.tokens.shape[0]
    return draft.extend(draft.init(batch, slots), context, prefilled, jnp.zeros(batch, jnp.int32))


@runtime_checkable
class DraftSource(Protocol):
    """Specifies a head that makes a `Draft`. A model does not need the method: `ModelDraft` wraps it."""

    @property
    def context_length(self) -> int | None:
        """The longest text that it can read; `None` means unbounded."""
        ...

    def as_draft(self, k: int) -> Draft:
        """Returns the `Draft` for chains and trees of up to `k` tokens along a path."""
        ...


def as_draft(model: Model | DraftSource, k: int) -> Draft:
    """Returns the `Draft` of a model or head, for chains and trees of up to `k` tokens along a path."""
    return model.as_draft(k) if isinstance(model, DraftSource) else ModelDraft(model)


def check_is_model(name: str, model: object) -> None:
    """Raises `TypeError` unless `model`, passed to the drafter called `name`, is a `Model`."""
    if isinstance(model, type) or not isinstance(model, Model):
        raise TypeError(f"{name} needs a Model, got {kind_given(model)}; jaxspec.load makes one")


def check_takes_trees(name: str, model: "Model | DraftSource") -> None:
    """Raises `TypeError` if `model`, the draft or target of a tree drafter, only takes chains; heads take trees."""
    if isinstance(model, Model) and not model.traits.takes_trees:
        raise TypeError(
            f"{name} drafts a tree or several chains, which a {type(model).__name__} cannot score: it has no cache, or "
            "applies its own mask; pass a drafter of one chain, such as ModelDrafter(draft), or a model with a cache"
        )


def check_rewinds(name: str, model: Model) -> None:
    """Raises `TypeError` if the caches of `model`, the draft model of drafter `name`, cannot roll back its drafts."""
    if not model.traits.rewinds:
        raise TypeError(
            f"{name} rolls back its drafts, but the caches of a {type(model).__name__} only roll back within the last "
            "append; it can be the target, so pass another draft model"
        )


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelDraft(Draft):
    """Drafts from a language model with the target's vocabulary. Its state is its cache."""

    model: Model

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.model.vocab_size)

    def check(self, name: str, target: Model) -> None:
        check_is_model(name, self.model)
        check_rewinds(name, self.model)
        validate.same_vocabulary(draft=self.model.vocab_size, target=target.vocab_size)

    def init(self, batch: int, slots: int) -> DraftState:
        return DraftState(self.model.init_cache(batch, slots))

    def extend(
        self, state: DraftState, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]
    ) -> DraftState:
        held = jnp.minimum(state.cache.length, start)
        return DraftState(prefill(self.model, context.tokens, context.length, state.cache, held=held).cache)

    def catch_up(self, state: DraftState, context: Context, will_draft: Bool[Array, ""]) -> DraftState:
        before_window = jnp.where(will_draft & ~context.done, context.length - 2, 0)
        return DraftState(catch_up(self.model, context.tokens, state.cache, before_window))

    def first(self, state: DraftState, context: Context) -> tuple[Window, DraftState]:
        """Feeds the last two committed tokens of each row, and rolls the cache to the text's length.

        The cache may hold anything after all but the last two tokens. A one-token text has no token before the last:
        the window then starts at the last, and its second position is dropped. The cache of a finished row, which
        nothing brings up to these tokens, keeps its length.
        """
        start = jnp.maximum(context.length - 2, 0)
        window = start[:, None] + jnp.arange(2, dtype=jnp.int32)[None]
        cache = state.cache.truncate(start)
        output = self.model(jnp.take_along_axis(context.tokens, window, axis=1), cache)
        logits = take_row(output.logits, context.length - 1 - start)
        held = jnp.where(context.done, jnp.minimum(state.cache.length, context.length), context.length)
        cache = cache.append(output.entries).truncate(held)
        return Window(logits, cache, output.entries, ()), DraftState(cache)

    def next(
        self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Cache, **tree: Any
    ) -> ModelOutput:
        return self.model(tokens, cache, **tree)

    def observe(
        self, state: DraftState, context: Context, own: Int[Array, "b"], verdict: Verdict, hidden: Hidden
    ) -> DraftState:
        return DraftState(state.cache.truncate(jnp.minimum(state.cache.length, context.length + own)))


class SelfDraft(Draft):
    """Drafts from the target's own layers and cache, and keeps no state between rounds.

    A round begins with `catch_up`, which creates the round's state. A subclass is a dataclass with a field `target`,
    which is also the model in `Context`.
    """

    def init(self, batch: int, slots: int) -> DraftState:
        return DraftState(())

    def extend(self, state: Any, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]) -> DraftState:
        return DraftState(())

    def observe(
        self, state: Any, context: Context, own: Int[Array, "b"], verdict: Verdict, hidden: Hidden
    ) -> DraftState:
        return DraftState(())


def check_capture(name: str, target: Model, capture: tuple[int, ...], width: int) -> tuple[int, int]:
    """Checks that `target` has the hidden states that a head reads.

    Args:
      name: the drafter's name, for the message.
      target: the model to read states from.
      capture: the states; `i` is the state entering layer `i`.
      width: the size of one state.

    Returns:
      The number of layers of `target`, and the size of its states.

    Raises:
      TypeError: the target has no `hidden_sizes` (`ModelTraits`), so there are no states to read.
      ValueError: it has too few layers, or states of another size.
    """
    sizes = target.traits.hidden_sizes
    if sizes is None:
        raise TypeError(
            f"{name} reads hidden states and the embedding of a LanguageModel, got a target of type "
            f"{type(target).__name__}; load the target with jaxspec.load, or pass a drafter that reads tokens alone"
        )
    layers, own = sizes
    if max(capture) > layers or min(capture) < 0:
        raise ValueError(
            f"{name}'s head reads the states entering layers {', '.join(map(str, capture))}, got a target of "
            f"{layers} layers; pass the head that was trained for this target"
        )
    if width != own:
        raise ValueError(
            f"{name}'s head reads states of width {width}, got a target of width {own}; pass the head that "
            "was trained for this target"
        )
    return sizes
