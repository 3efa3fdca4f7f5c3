"""Defines logits processors, which a policy applies to logits, given the text, before it warps them.

A round scores several positions at once, each after its own drafts:

    text ... e     position   0   1    2    3          e ─ x ─ z        fed: e x y z
                   path       -   x    y    x z          └ y

For each position, a processor sees the committed text, as a state that it carries from round to round, and exactly the
drafts above that position. So plain decoding, drafting and verification process alike.
"""

import abc
import dataclasses
import functools
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import parts, validate
from jaxspec.core.pytree import register_dataclass

_Policy = TypeVar("_Policy")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Prompt:
    """Holds the inputs of `Processor.init`.

    Attributes:
      tokens: the prompt, int32; row `b` is `tokens[b, :length[b]]`.
      length: the prompt's length.
      stop_tokens: ids that end a row; -1 pads.
      vocab_size: the size of the logits' last axis.

    Example:
        >>> prompt = jaxspec.core.Prompt(prompt, jnp.asarray([5, 5]), jnp.asarray([[2], [2]]), vocab_size=310)
        >>> prompt.tokens.shape
        (2, 5)
    """

    tokens: Int[Array, "b t"]
    length: Int[Array, "b"]
    stop_tokens: Int[Array, "b n_stop"]
    vocab_size: int = dataclasses.field(metadata={"static": True})


class Processor(abc.ABC):
    """Changes logits, given the text. A frozen pytree; values that change from round to round live in its state.

    Most custom processors are a `jaxspec.processors.StatefulProcessor`, written for one row and one token, or a
    `FromCounts`. This is their base class, for all rows and positions at once.

    Attributes:
      by_row: whether, after `spread`, the first axis of every array is the batch. If not, all rows share the arrays,
        such as the table of an automaton.

    Example:
        >>> import dataclasses
        >>> @jaxspec.core.register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class NeverTwice(jaxspec.core.Processor):
        ...     '''Excludes the token before.'''
        ...     def init(self, prompt):
        ...         return jnp.take_along_axis(prompt.tokens, prompt.length[:, None] - 1, axis=1)
        ...     def __call__(self, logits, state, path):
        ...         last = jnp.broadcast_to(state[:, None], (*logits.shape[:2], 1))
        ...         before = jnp.concatenate([last, path], axis=2)
        ...         count = jnp.sum(path >= 0, axis=2, keepdims=True)
        ...         token = jnp.take_along_axis(before, count, axis=2)
        ...         return jnp.where(jnp.arange(logits.shape[2])[None, None] == token, -jnp.inf, logits)
        ...     def commit(self, state, tokens, count):
        ...         return jnp.take_along_axis(jnp.concatenate([state, tokens], axis=1), count[:, None], axis=1)
        >>> policy = jaxspec.Greedy(processors=(NeverTwice(),))
        >>> tokens = jaxspec.generate(target, None, prompt, sampling=policy, max_new_tokens=8).tokens
        >>> bool((tokens[:, 1:] != tokens[:, :-1]).all())
        True
    """

    by_row: ClassVar[bool] = False

    def check(self, batch: int, vocab_size: int) -> None:  # noqa: B027 (nothing to check is a common case)
        """Raises `TypeError` or `ValueError` if the processor does not fit `batch` rows or the vocabulary.

        Traced values are left to `in_range`.
        """

    def in_range(self, vocab_size: int) -> Bool[Array, "*b"]:
        """Returns the rows whose values are in range; others end with `Status.BAD_SAMPLING`."""
        del vocab_size
        return jnp.ones((), jnp.bool_)

    def spread(self, batch: int) -> Self:
        """Broadcasts every array to one value per row, if the processor is `by_row`."""
        del batch
        return self

    def init(self, prompt: Prompt) -> Any:
        """Returns the state before the first token: a pytree of arrays whose first axis is the batch."""
        del prompt
        return ()

    @abc.abstractmethod
    def __call__(self, logits: Float[Array, "b n v"], state: Any, path: Int[Array, "b n d"]) -> Float[Array, "b n v"]:
        """Returns the processed logits; -inf excludes a token.

        Args:
          logits: float32, or float64.
          state: the state after each row's committed text.
          path: the drafts between the text and each position, the oldest first, int32; -1 pads on the right.
        """

    def commit(self, state: Any, tokens: Int[Array, "b m"], count: Int[Array, "b"]) -> Any:
        """Returns the state after `tokens[b, :count[b]]` have been added to row `b`."""
        del tokens, count
        return state

    def next_forced(self, state: Any, path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
        """Returns the only possible token at each position, int32; -1 if not known.

        Drafters that copy draft it. It is verified like any other draft.
        """
        del state
        return jnp.full(path.shape[:2], -1, jnp.int32)

    def allows(self, state: Any, path: Int[Array, "b n d"], tokens: Int[Array, "b n"]) -> Bool[Array, "b n"]:
        """Returns whether the token at each position is allowed, as far as known.

        Drafters that copy leave forbidden tokens out; a sampled draft is submitted nevertheless.
        """
        del state, path
        return jnp.ones(tokens.shape, jnp.bool_)

    def lead(
        self, state: Any, tokens: Int[Array, "b k"], count: Int[Array, "b"]
    ) -> tuple[Int[Array, "b k"], Int[Array, "b"], Bool[Array, "b k"]] | None:
        """Cuts a guess at the first forbidden token and adds forced ones: `next_forced` and `allows` in one call.

        Args:
          state: the state after each row's committed text.
          tokens: the guess, int32; row `b` is `tokens[b, :count[b]]`.
          count: the number of guessed tokens.

        Returns:
          The tokens, their number, and which are forced; `None` falls back to `next_forced` and `allows`.
        """
        del state, tokens, count
        return None


@runtime_checkable
class Processing(Protocol):
    """Specifies a policy with processors."""

    @property
    def processors(self) -> tuple[Processor, ...]: ...


def processors_of(policy: object) -> tuple[Processor, ...]:
    """Returns the processors of a policy in their order; a custom policy may have none.

    Example:
        >>> jaxspec.core.processing.processors_of(jaxspec.Greedy())
        ()
    """
    return policy.processors if isinstance(policy, Processing) else ()


def with_processors(policy: _Policy, processors: tuple[Processor | None, ...]) -> _Policy:
    """Replaces the processors of a policy; returns the policy itself if nothing changes."""
    if processors == () and not processors_of(policy):
        return policy
    return dataclasses.replace(cast(Any, policy), processors=processors)


def as_tuple(processors: object) -> tuple[Processor, ...]:
    """Converts a sequence of processors to a tuple.

    Raises:
      TypeError: it is not a sequence of processors.
    """
    if isinstance(processors, Processor):
        raise TypeError(f"processors must be a sequence, got one {type(processors).__name__}; pass (it,)")
    if not isinstance(processors, tuple | list):
        raise TypeError(
            f"processors must be a tuple of processors, "
            f"got {validate.shown(processors)}; pass (LogitBias.of(...),), say"
        )
    for one in processors:
        if not isinstance(one, Processor):
            got = f"the class {one.__name__} itself" if isinstance(one, type) else repr(one)
            raise TypeError(f"processors must be instances of jaxspec.core.Processor, got {got}; pass an instance")
    return tuple(processors)


def init(policy: object, prompt: Prompt) -> tuple[Any, ...]:
    """Returns the states of a policy's processors before the first token."""
    return tuple(one.init(prompt) for one in processors_of(policy))


def process(
    policy: object, states: tuple[Any, ...], logits: Float[Array, "b n v"], path: Int[Array, "b n d"]
) -> Float[Array, "b n v"]:
    """Applies a policy's processors to logits, one after the other.

    Args:
      policy: the sampling policy.
      states: the processors' states after the committed text.
      logits: the model's logits.
      path: as in `Processor.__call__`.

    Example:
        >>> policy = jaxspec.Greedy(processors=(jaxspec.processors.LogitBias.of({1: 2.0}).spread(1),))
        >>> prompt = jaxspec.core.Prompt(jnp.zeros((1, 1), int), jnp.ones(1, int), jnp.zeros((1, 0), int), 3)
        >>> states = jaxspec.core.processing.init(policy, prompt)
        >>> nothing = jnp.zeros((1, 1, 0), int)
        >>> jaxspec.core.processing.process(policy, states, jnp.zeros((1, 1, 3)), nothing).tolist()
        [[[0.0, 2.0, 0.0]]]
    """
    processors = processors_of(policy)
    if not processors:
        return logits
    logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
    for one, state in zip(processors, states, strict=True):
        logits = validate.logits(type(one).__name__, one(logits, state, path), logits.shape)
    return logits


def commit(
    policy: object, states: tuple[Any, ...], tokens: Int[Array, "b m"], count: Int[Array, "b"]
) -> tuple[Any, ...]:
    """Returns the states after `tokens[b, :count[b]]` have been added to row `b`."""
    return tuple(one.commit(state, tokens, count) for one, state in zip(processors_of(policy), states, strict=True))


def next_forced(policy: object, states: tuple[Any, ...], path: Int[Array, "b n d"]) -> Int[Array, "b n"]:
    """Returns the token that any of a policy's processors forces at each position; -1 if none does."""
    token = jnp.full(path.shape[:2], -1, jnp.int32)
    for one, state in zip(processors_of(policy), states, strict=True):
        token = jnp.where(token < 0, one.next_forced(state, path), token)
    return token


def allows(
    policy: object, states: tuple[Any, ...], path: Int[Array, "b n d"], tokens: Int[Array, "b n"]
) -> Bool[Array, "b n"]:
    """Returns whether all of a policy's processors allow the token at each position, as far as they know."""
    pairs = zip(processors_of(policy), states, strict=True)
    return functools.reduce(lambda good, pair: good & pair[0].allows(pair[1], path, tokens), pairs, tokens >= 0)


def leave_one(logits: Float[Array, "b n v"], token: Int[Array, "b n"]) -> Float[Array, "b n v"]:
    """Excludes all tokens but one at each position; none where it is -1, or itself excluded.

    Example:
        >>> logits = jnp.asarray([[[0.0, 1.0], [0.0, -jnp.inf], [0.0, 1.0]]])
        >>> jaxspec.core.processing.leave_one(logits, jnp.asarray([[0, 1, -1]])).tolist()
        [[[0.0, -inf], [0.0, -inf], [0.0, 1.0]]]
    """
    there = parts.at_tokens(logits, jnp.maximum(token, 0)) > -jnp.inf
    ids = jnp.arange(logits.shape[2], dtype=jnp.int32)[None, None]
    left = (ids == token[..., None]) | ~there[..., None] | (token < 0)[..., None]
    return jnp.where(left, logits, -jnp.inf)


def no_path(logits: Float[Array, "b n v"]) -> Int[Array, "b n 0"]:
    """Returns the empty path of positions right after the committed text."""
    return jnp.zeros((*logits.shape[:2], 0), jnp.int32)


def paths(tokens: Int[Array, "b n"], parents: Int[Array, "b n"] | None, depth: int) -> Int[Array, "b n_plus_1 d"]:
    """Returns the drafts above each position that a round scores: the position after the text, then those after drafts.

    Args:
      tokens: the drafts, int32.
      parents: as in `Proposal`; `None` is a chain.
      depth: the most nodes along one path of a tree.

    Example:
        >>> jaxspec.core.processing.paths(jnp.asarray([[7, 5]]), None, 0).tolist()
        [[[-1, -1], [7, -1], [7, 5]]]
    """
    batch, n = tokens.shape
    if parents is None:
        above = jnp.tril(jnp.ones((n + 1, n), jnp.bool_), -1)
        return jnp.where(above[None], tokens[:, None], -1).astype(jnp.int32)
    # From each node up to the text, then reversed.
    at = lambda values, nodes: jnp.take_along_axis(values, jnp.maximum(nodes, 0), axis=1)  # noqa: E731
    node = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[None], (batch, n))
    climbed = []
    for _ in range(depth):
        climbed.append(jnp.where(node >= 0, at(tokens, node), -1))
        node = jnp.where(node >= 0, at(parents, node), -1)
    upward = jnp.stack(climbed, axis=2)
    count = jnp.sum(upward >= 0, axis=2, dtype=jnp.int32)[..., None]
    steps = jnp.arange(depth, dtype=jnp.int32)[None, None]
    downward = jnp.take_along_axis(upward, jnp.maximum(count - 1 - steps, 0), axis=2)
    return jnp.pad(jnp.where(steps < count, downward, -1), ((0, 0), (1, 0), (0, 0)), constant_values=-1)
