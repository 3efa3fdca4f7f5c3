"""Defines `Draft`: a cheap model that chains and trees of drafts are drawn from, one pass after the other.

A language model of its own is one kind (`ModelDraft`); a head over the target's hidden states is another
(`jaxspec.heads.eagle.drafter`). Chains (`jaxspec.drafters.chain`) and trees (`tree`, `dynamic_tree`) are the same for
each.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.model import Cache, Model, ModelOutput
from jaxspec.core.prefill import Prefilled, catch_up, prefill
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import take_row
from jaxspec.core.state import Context, Verdict
from jaxspec.drafters.processed import process_part

Hidden = tuple[Array, ...]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
    """Holds the outcome of the pass over the end of the text.

    Attributes:
      logits: those of the first draft, over the draft vocabulary.
      cache: it holds the text; an early exit, which has none of its own, puts its `Fed` there.
      entries: any of the entries that a pass adds to the cache; buffers take their shape from it.
      hidden: what the next pass needs of this one besides the cache, `[b, ...]` each; often nothing.
    """

    logits: Float[Array, "b n"]
    cache: Any
    entries: Any
    hidden: Hidden


class Draft(abc.ABC):
    """Specifies a cheap model that reads its own guesses. A frozen pytree.

    Its state between rounds contains a cache, which a round fills with drafts. It may know fewer tokens than the
    target; logits are then over those alone until `over_vocabulary` spreads them over the target's tokens.
    """

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""

    @property
    def draft_vocab_size(self) -> int:
        """The number of tokens that logits are over before `over_vocabulary`."""
        return self.vocab_size

    @property
    def context_length(self) -> int | None:
        """The longest text it takes; `None` if it has no bound."""
        return None

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that it reads."""
        return ()

    @abc.abstractmethod
    def check(self, name: str, target: Model) -> None:
        """Raises `TypeError` or `ValueError` if drafter `name` cannot draft for `target` from this."""

    @abc.abstractmethod
    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
        """Returns the state before the first round.

        Args:
          context: the prompt and the target.
          prefilled: the target's pass over the prompt; `None` only for a draft that captures no states.
          slots: how many cache slots a row may ever need.
        """

    def blank(self, batch: int) -> Hidden:
        """Returns `Window.hidden` before any window."""
        del batch
        return ()

    def ready(self, context: Context) -> Bool[Array, "b"]:
        """Tells which rows have enough text to draft after."""
        return jnp.ones(context.length.shape, jnp.bool_)

    @abc.abstractmethod
    def catch_up(self, state: Any, context: Context, begins: Bool[Array, ""]) -> Any:
        """Takes in what the pass over the end of the text, which follows if `begins`, cannot reach."""

    @abc.abstractmethod
    def first(self, state: Any, context: Context) -> tuple[Window, Any]:
        """Runs the pass over the end of the text; returns it and the state after it."""

    @abc.abstractmethod
    def next(
        self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Cache, **tree: Any
    ) -> ModelOutput:
        """Scores what follows drafts.

        Args:
          context: the text and the target.
          tokens: the drafts.
          hidden: `[b, t, ...]` each: `Window.hidden`, or `ModelOutput.hidden` of the passes over their parents.
          cache: the text and the drafts before.
          **tree: the options of `Model.__call__` for trees.

        Returns:
          The output, its logits over the draft vocabulary.
        """

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """Returns the same logits over the target's vocabulary, which is the draft's unless that is smaller."""
        return logits

    def process(
        self, context: Context, logits: Float[Array, "b t n"], path: Callable[[], Int[Array, "b t d"]]
    ) -> Float[Array, "b t n"]:
        """Returns logits over the draft vocabulary as the target's policy processes them.

        Args:
          context: the text, and the policy.
          logits: the draft's.
          path: returns the drafts above each position; it is called if there are processors.
        """
        if not context.processors:
            return logits
        whole = self.draft_vocab_size == self.vocab_size
        ids = None if whole else self.token_ids(jnp.arange(self.draft_vocab_size, dtype=jnp.int32))
        return process_part(context, logits, path(), self.over_vocabulary, ids)

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """Returns the target's ids of tokens of the draft vocabulary."""
        return places

    @abc.abstractmethod
    def cache(self, state: Any) -> Cache:
        """Returns the cache in the state."""

    @abc.abstractmethod
    def put(self, state: Any, cache: Cache) -> Any:
        """Returns the same state with another cache."""

    def truncate(self, state: Any, length: Int[Array, "b"]) -> Any:
        """Returns the same state with a cache of at most `length` tokens a row."""
        cache = self.cache(state)
        return self.put(state, cache.truncate(jnp.minimum(cache.length, length)))

    @abc.abstractmethod
    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        """Returns the state after a round, given `context` before it.

        The cache in `state` holds the text and those of the accepted drafts that were fed.
        """


@runtime_checkable
class DraftSource(Protocol):
    """Specifies a head that makes its own `Draft`. A model needs no such method: it is drafted from by `ModelDraft`."""

    def as_draft(self, k: int) -> Draft:
        """Returns what chains and trees of up to `k` tokens along a path are drawn from."""
        ...


def as_draft(model: Model | DraftSource, k: int) -> Draft:
    """Returns what chains and trees of up to `k` tokens along a path are drawn from, given a model or a head."""
    return model.as_draft(k) if isinstance(model, DraftSource) else ModelDraft(model)


def check_is_model(name: str, model: object) -> None:
    """Raises `TypeError` unless `model`, which drafter `name` was given, is a `Model`."""
    if isinstance(model, type) or not isinstance(model, Model):
        raise TypeError(f"{name} needs a Model, got {type(model).__name__}; jaxspec.load makes one")


def check_takes_trees(name: str, model: object) -> None:
    """Raises `TypeError` if `model`, which drafter `name` drafts a tree with or for, takes chains alone."""
    if not getattr(model, "takes_trees", True):
        raise TypeError(
            f"{name} drafts a tree or several chains, which a {type(model).__name__} cannot score: it has no cache, or "
            "a mask of its own; pass a drafter of one chain, such as ModelDrafter(draft), or a model with a cache"
        )


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelDraft(Draft):
    """Drafts from a language model with the target's vocabulary. Its cache is all of its state."""

    model: Model

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    def check(self, name: str, target: Model) -> None:
        check_is_model(name, self.model)
        validate.same_vocabulary(draft=self.model.vocab_size, target=target.vocab_size)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Cache:
        cache = self.model.init_cache(context.tokens.shape[0], slots)
        return prefill(self.model, context.tokens, context.length, cache).cache

    def catch_up(self, state: Cache, context: Context, begins: Bool[Array, ""]) -> Cache:
        before_window = jnp.where(begins & ~context.done, context.length - 2, 0)
        return catch_up(self.model, context.tokens, state, before_window)

    def first(self, state: Cache, context: Context) -> tuple[Window, Cache]:
        """Feeds the last two committed tokens of each row, and rolls the cache to the text's length.

        The cache may hold anything beyond all but the last two tokens. A one-token text has no token
        before the last: the window then starts at the last, and what follows it is forgotten.
        """
        start = jnp.maximum(context.length - 2, 0)
        window = start[:, None] + jnp.arange(2, dtype=jnp.int32)[None]
        cache = state.truncate(start)
        output = self.model(jnp.take_along_axis(context.tokens, window, axis=1), cache)
        logits = take_row(output.logits, context.length - 1 - start)
        cache = cache.append(output.entries).truncate(context.length)
        return Window(logits, cache, output.entries, ()), cache

    def next(
        self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Cache, **tree: Any
    ) -> ModelOutput:
        return self.model(tokens, cache, **tree)

    def cache(self, state: Any) -> Cache:
        return state

    def put(self, state: Any, cache: Cache) -> Any:
        return cache

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        return state


class SelfDraft(Draft):
    """Drafts from the target's own layers and cache: no other state is held between rounds.

    A round begins with `catch_up`, which makes the round's state anew. A subclass is a dataclass with a field `target`,
    the model that `Context` has too.
    """

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
        return ()

    def cache(self, state: Any) -> Any:
        return state

    def put(self, state: Any, cache: Any) -> Any:
        return cache

    def truncate(self, state: Any, length: Int[Array, "b"]) -> Any:
        return ()

    def observe(self, state: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        return ()
