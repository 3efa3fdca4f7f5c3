"""Defines the protocols of a language model, its cache and its entries, and its traits: the loop's view of a model.

A model is a pytree: its arrays are leaves, everything else is static, so it goes through
`jax.jit`, `jax.vmap` and `lax.scan` as an argument.
"""

import dataclasses
from typing import Any, Literal, Protocol, Self, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import check_fields
from jaxspec.core.validate import shown

CacheKernels = Literal["xla", "pallas"]
Kernels = CacheKernels | Literal["native"]

# The id of a fed token that nothing needs (`ModelTraits.skips_padding`).
PADDING = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTraits:
    """Describes a model to the loop before a pass is traced. Static and hashable.

    The defaults suit a plain model on one device whose passes take trees. A wrapper changes traits of its inner model
    with `dataclasses.replace(model.traits, takes_trees=False)`.

    Attributes:
      placement: the layout of caches and logits on devices.
      takes_trees: whether passes take the mask and the positions of a tree; if not, drafts are chains.
      rewinds: whether `Cache.truncate` cuts to any length; a recurrence cuts only to lengths within the last `append`.
      prompt_chunk: the number of prompt tokens per pass. On an accelerator, reading the weights takes at least as long
        as the products of 128 tokens.
      pass_tokens: the number of tokens that decoding passes are padded to, so that they agree to the bit; `None` does
        not pad.
      resumes: whether a pass can stop after some layers and resume; the model is then a `ResumableModel`.
      kernels: the implementation of attention and products on an accelerator, or of sampling on a CPU ("native").
      cache_type: the class of the caches, if it chooses the kernels.
      hidden_sizes: the number of layers and the width of their inputs, if heads can read those inputs and the model has
        the `embed` and `normalize` of a `LanguageModel`; else `None`.
      tokenizer: the `jaxspec.Tokenizer` of the vocabulary, or `None`.
      skips_padding: whether a fed token may be `PADDING`, which costs nothing. No other token sees it, its outputs are
        undefined, and its entries are stale or cut.

    Raises:
      ValueError: a number of tokens is not a positive integer.

    Example:
      >>> target.traits.prompt_chunk, target.traits.takes_trees, target.traits.hidden_sizes
      (128, True, (3, 16))
    """

    placement: Layout = Unsharded()  # noqa: RUF009 (frozen and stateless)
    takes_trees: bool = True
    rewinds: bool = True
    prompt_chunk: int = 128
    pass_tokens: int | None = None
    resumes: bool = False
    kernels: Kernels = "xla"
    cache_type: type | None = None
    hidden_sizes: tuple[int, int] | None = None
    tokenizer: Any = None
    skips_padding: bool = False

    def __post_init__(self) -> None:
        for name, value in (("prompt_chunk", self.prompt_chunk), ("pass_tokens", self.pass_tokens)):
            if (name == "prompt_chunk" or value is not None) and (type(value) is not int or value < 1):
                raise ValueError(f"{name} of a model must be a positive integer, got {shown(value)}")
        check_fields(self, "takes_trees", "rewinds", "resumes", "kernels", "hidden_sizes", "skips_padding")


@runtime_checkable
class Entries(Protocol):
    """Specifies the output of a forward pass for the cache, such as keys and values per fed token. A pytree of arrays.

    `Cache.append` stores them. The methods below rearrange tokens before that; none of them reads a cache. Stale
    entries may have any value, since no token sees them.

    Example:
        >>> output = target(prompt, target.init_cache(2, 32))
        >>> isinstance(output.entries, jaxspec.core.Entries)
        True
        >>> output.entries.pad(8).keys.shape[3]
        8
    """

    def pad(self, count: int) -> Self:
        """Pads the entries with stale ones, to `count` tokens in all.

        Required of every model: rounds of different widths pass entries of one shape to the loop, and `grow` reserves
        room for a tree's lower levels.
        """
        ...

    def keep_path(self, nodes: Int[Array, "b n"]) -> Self:
        """Gathers each row's entries at the tokens `nodes`, in that order.

        Required to verify trees: the result is the accepted path, ready to append. A model whose entries depend on
        their slot must move them here. A model that takes no trees may raise.
        """
        ...

    def put(self, fresh: Self, start: Int[Array, ""] | int) -> Self:
        """Overwrites the tokens from `start` on with `fresh`.

        Required by drafters that grow a tree with this model level by level (`pending` of `Model.__call__`), or that
        stop and resume its passes. Other models may raise.
        """
        ...


def check_entries(entries: object, *methods: str) -> None:
    """Raises `TypeError` unless a model's cache entries have these methods."""
    if lacking := [name for name in methods if not callable(getattr(entries, name, None))]:
        raise TypeError(
            f"cache entries must have {' and '.join(lacking)}, got {type(entries).__name__} without; "
            "jaxspec.core.Entries documents them"
        )


@runtime_checkable
class Cache(Protocol):
    """Specifies the history of a model's rows. A pytree; every method returns a new cache.

    Each row has its own length, and rolls back independently. Tokens at or beyond a row's length are stale: a model
    must not see them, and the next `append` overwrites them.

    A cache of keys and values rolls back to any length. A recurrent state cannot (`ModelTraits.rewinds`): it keeps the
    last appended tokens for one `truncate`, which folds in those that each row keeps:

        state of a b c      append x y z      truncate to 5: state of a b c x y      to 3: state of a b c

    The loop needs no more: rows that are fed surplus tokens are cut after each `append`.

    Example:
        >>> cache = target.init_cache(batch=2, capacity=32)
        >>> isinstance(cache, jaxspec.core.Cache)
        True
        >>> cache = cache.append(target(prompt, cache).entries)
        >>> cache.truncate(jnp.asarray([3, 5], jnp.int32)).length.tolist()
        [3, 5]
    """

    @property
    def length(self) -> Int[Array, "b"]:
        """The number of tokens that each row holds."""
        ...

    # `Any`, so that a cache may require its own model's entries.
    def append(self, entries: Any) -> Self:
        """Stores the entries of `t` fed tokens at each row's length, and advances every row by `t`.

        The caller ensures that `length + t` is at most the capacity.
        """
        ...

    def truncate(self, length: Int[Array, "b"]) -> Self:
        """Cuts each row to `length` tokens, at most its current length.

        If the model's traits do not say `rewinds`, rows are cut once after each `append`, at most to their length
        before it.
        """
        ...


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """Holds the results of one forward pass.

    Attributes:
      logits: `[b, t, v]` float32; position `i` scores the token after fed token `i`.
      entries: the fed tokens' `Entries`, for `cache.append`.
      hidden: the captured hidden states, `[b, t, d]` each, in the order of `capture`.

    Example:
        >>> output = target(prompt, target.init_cache(2, 32), capture=(1,))
        >>> output.logits.shape == (2, 5, target.vocab_size), len(output.hidden)
        (True, 1)
    """

    logits: Float[Array, "b t v"]
    entries: Entries
    hidden: tuple[Float[Array, "b t d"], ...] = ()


@runtime_checkable
class Model(Protocol):
    """Specifies a causal language model with an explicit cache. A pytree.

    A call does not write the cache: it returns entries, and `cache.append` stores them. So a forward pass can be inside
    a `lax.cond` or `lax.switch` without copying the cache, and rejected tokens are never stored.

    Example:
        >>> isinstance(target, jaxspec.Model)
        True
    """

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        ...

    @property
    def context_length(self) -> int | None:
        """The longest sequence that the model takes; `None` if unbounded."""
        ...

    @property
    def traits(self) -> ModelTraits:
        """Further properties that the loop reads; `ModelTraits()`, as a class attribute, suits most models."""
        ...

    def init_cache(self, batch: int, capacity: int) -> Cache:
        """Returns an empty cache with room for at least `capacity` tokens per row."""
        ...

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: Any,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        """Scores fresh tokens that follow the cached ones.

        Args:
          tokens: the fed tokens, `[b, t]` int32; `PADDING` only if `traits.skips_padding`.
          cache: the history, from `init_cache`; row `b` holds `cache.length[b]` tokens.
          mask: for trees, whether each fed token sees each other one, `[b, t, u]` bool; `None` is causal. Every fed
            token sees the whole history.
          positions: the fed tokens' positions, `[b, u]` int32; `None` continues from the history.
          capture: the hidden states to return; `i` is the input of layer `i`.
          pending: entries of `u - t` tokens that were fed before and are in no cache, such as the upper levels of a
            tree. `mask` and `positions` are then required, and begin with the pending tokens. Only drafters that grow
            trees pass it.
        """
        ...


@runtime_checkable
class ResumableModel(Model, Protocol):
    """Specifies a model whose passes can stop after some layers and resume, for drafts that exit early.

    `traits.resumes` says whether this model can: it may have the method and a network that cannot.

    Example:
        >>> isinstance(target, jaxspec.core.ResumableModel) and target.traits.resumes
        True
    """

    def resume(
        self,
        partial: Any,
        cache: Any,
        *,
        mask: Bool[Array, "b t t"] | None = None,
        positions: Int[Array, "b t"] | None = None,
        capture: tuple[int, ...] = (),
    ) -> ModelOutput:
        """Runs the remaining layers of a stopped pass (`Proposal.partial`), over the cache that it began with."""
        ...


@runtime_checkable
class BitExactModel(Model, Protocol):
    """Specifies a model that has a variant whose passes agree to the bit.

    Example:
        >>> isinstance(target, jaxspec.core.model.BitExactModel)
        True
    """

    def bit_exact(self, pass_tokens: int | None = None) -> Self:
        """Returns the bit-exact variant, whose passes are padded to `pass_tokens` (`ModelTraits`) where necessary."""
        ...


class WrappedModel:
    """Forwards the protocol to its `model`: the base class of models that modify another one.

    A subclass is a dataclass under `register_dataclass`. It has a field or property `model` and a `vocab_size`, and
    overrides what it changes: traits with `dataclasses.replace(self.model.traits, ...)`.

    Example:
        >>> model = jaxspec.drafters.ResizedModel(target, 320)
        >>> isinstance(model, jaxspec.core.WrappedModel), model.traits.tokenizer is target.tokenizer
        (True, True)

        A model whose drafts must be chains:

        >>> import dataclasses
        >>> @jaxspec.core.register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class Chains(jaxspec.core.WrappedModel):
        ...     model: jaxspec.Model
        ...     vocab_size = property(lambda self: self.model.vocab_size)
        ...     traits = property(lambda self: dataclasses.replace(self.model.traits, takes_trees=False))
        >>> Chains(target).traits.takes_trees
        False
    """

    model: Any  # a `Model`

    @property
    def context_length(self) -> int | None:
        return self.model.context_length

    @property
    def traits(self) -> ModelTraits:
        return self.model.traits

    def init_cache(self, batch: int, capacity: int) -> Any:
        return self.model.init_cache(batch, capacity)

    def __call__(self, tokens: Int[Array, "b t"], cache: Any, **options: Any) -> ModelOutput:
        return self.model(tokens, cache, **options)


def only(model: Model, live: Bool[Array, "#b t"], tokens: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Replaces tokens that are not live with `PADDING`, if the model skips it."""
    return jnp.where(live, tokens, PADDING) if model.traits.skips_padding else tokens


def kind_given(value: object) -> str:
    """Describes an argument of the wrong kind, for an error's message."""
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    if hasattr(value, "init_cache") and not hasattr(value, "traits"):
        return f"{type(value).__name__} without `traits` (a custom model has jaxspec.core.ModelTraits() there)"
    return type(value).__name__
