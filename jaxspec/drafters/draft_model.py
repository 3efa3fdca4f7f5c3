"""What chains and trees of drafts are drawn from, one pass after the other.

A language model of its own is one kind (`ModelDraft`); a head over the target's hidden states is another
(`jaxspec.heads.eagle.drafter`). Chains (`jaxspec.drafters.chain`) and trees (`tree`, `dynamic_tree`) are the same for each.
"""

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.model import Cache, Model, ModelOutput
from jaxspec.core.prefill import Prefilled, catch_up, prefill
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import take_row
from jaxspec.core.state import Context, Verdict

Hidden = tuple[Array, ...]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
    """The pass over the end of the text: the distribution of what follows it.

    Attributes:
      logits: of the first draft, over the draft vocabulary.
      cache: it holds the text.
      entries: some of what a pass adds to the cache, whatever it is: it lends buffers their shape.
      hidden: what the next pass needs of this one besides the cache, `[b, ...]` each; often nothing.
    """

    logits: Float[Array, "b n"]
    cache: Cache
    entries: Any
    hidden: Hidden


class Draft(abc.ABC):
    """A cheap model that reads its own guesses. A frozen pytree.

    What it keeps between rounds has a cache in it, which a round fills with drafts. It may know fewer tokens than the
    target; logits are then over those alone until a distribution of the target's tokens is asked for.

    Attributes:
      vocab_size: the target's.
      context_length: the longest text it takes; `None` if it has no bound.
      capture: which of the target's hidden states it reads.
    """

    vocab_size: int
    context_length: int | None
    capture: tuple[int, ...] = ()

    @abc.abstractmethod
    def check(self, name: str, target: Model) -> None:
        """Raises `TypeError` or `ValueError` if drafter `name` cannot draft for `target` from this."""

    @abc.abstractmethod
    def init(self, context: Context, prefilled: Prefilled, slots: int) -> Any:
        """What is kept before the first round; arguments as of `Drafter.init`."""

    def blank(self, batch: int) -> Hidden:
        """`Window.hidden`, of no window."""
        del batch
        return ()

    def ready(self, context: Context) -> Bool[Array, "b"]:
        """Which rows have enough text to draft after."""
        return jnp.ones(context.length.shape, jnp.bool_)

    @abc.abstractmethod
    def catch_up(self, kept: Any, context: Context, begins: Bool[Array, ""]) -> Any:
        """Takes in what a pass over the end of the text, which follows if `begins`, cannot."""

    @abc.abstractmethod
    def first(self, kept: Any, context: Context) -> tuple[Window, Any]:
        """The pass over the end of the text, and what is then kept."""

    @abc.abstractmethod
    def next(self, context: Context, tokens: Int[Array, "b t"], hidden: Hidden, cache: Cache, **tree: Any) -> Any:
        """Scores what follows drafts, whose parents' passes left `hidden`, `[b, t, ...]`.

        Returns a `ModelOutput`, its logits over the draft vocabulary; `tree` are the options of `Model.__call__` for
        trees.
        """

    def over_vocabulary(self, logits: Float[Array, "b t n"]) -> Float[Array, "b t v"]:
        """The same logits over the target's vocabulary, which is the draft's unless that is smaller."""
        return logits

    def token_ids(self, places: Int[Array, "*any"]) -> Int[Array, "*any"]:
        """The target's ids of tokens of the draft vocabulary."""
        return places

    @abc.abstractmethod
    def cache(self, kept: Any) -> Cache:
        """The cache in what is kept."""

    @abc.abstractmethod
    def put(self, kept: Any, cache: Cache) -> Any:
        """The same with another cache."""

    def truncate(self, kept: Any, length: Int[Array, "b"]) -> Any:
        """The same with a cache of at most `length` tokens a row."""
        cache = self.cache(kept)
        return self.put(kept, cache.truncate(jnp.minimum(cache.length, length)))

    @abc.abstractmethod
    def observe(self, kept: Any, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        """Takes in a round's outcome; `context` is the one before it.

        The cache holds the text and those of the accepted drafts that were fed.
        """


def check_is_model(name: str, model: Any) -> None:
    """Raises `TypeError` if what drafter `name` was given is no model."""
    if isinstance(model, type) or not isinstance(model, Model):
        raise TypeError(f"{name} needs a Model, got {type(model).__name__}; jaxspec.load makes one")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelDraft(Draft):
    """A language model with the target's vocabulary. It keeps its cache and nothing else."""

    model: Model

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    def check(self, name, target):
        check_is_model(name, self.model)
        validate.same_vocabulary(draft=self.model.vocab_size, target=target.vocab_size)

    def init(self, context, prefilled, slots):
        cache = self.model.init_cache(context.tokens.shape[0], slots)
        return prefill(self.model, context.tokens, context.length, cache).cache

    def catch_up(self, kept, context, begins):
        before_window = jnp.where(begins & ~context.done, context.length - 2, 0)
        return catch_up(self.model, context.tokens, kept, before_window)

    def first(self, kept, context):
        """Feeds the last two committed tokens of each row, and rolls the cache to the text's length.

        The cache may hold anything beyond all but the last two tokens. A one-token text has no token
        before the last: the window then starts at the last, and what follows it is forgotten.
        """
        start = jnp.maximum(context.length - 2, 0)
        window = start[:, None] + jnp.arange(2, dtype=jnp.int32)[None]
        cache = kept.truncate(start)
        output = self.model(jnp.take_along_axis(context.tokens, window, axis=1), cache)
        logits = take_row(output.logits, context.length - 1 - start)
        cache = cache.append(output.entries).truncate(context.length)
        return Window(logits, cache, output.entries, ()), cache

    def next(self, context, tokens, hidden, cache, **tree) -> ModelOutput:
        return self.model(tokens, cache, **tree)

    def cache(self, kept):
        return kept

    def put(self, kept, cache):
        return cache

    def observe(self, kept, context, verdict, hidden):
        return kept


class SelfDraft(Draft):
    """The target, drafting for itself from its own cache: nothing but that is kept between rounds.

    A round begins with `catch_up`, which makes what it works on out of nothing.

    Attributes:
      target: the model that `Context` has too.
    """

    target: Model
    context_length: None = None

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    def init(self, context, prefilled, slots):
        return ()

    def cache(self, kept):
        return kept

    def put(self, kept, cache):
        return cache

    def truncate(self, kept, length):
        return ()

    def observe(self, kept, context, verdict, hidden):
        return ()
