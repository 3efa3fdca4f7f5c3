"""Grows a tree with a draft model: one batched pass a level, over a read-only cache.

    window     [d e]            the last two committed tokens: the distribution of the first level
    level 0    [x y]            the nodes that get children are fed together: x, y
    level 1    [z w]            z follows x and w follows y; each sees its own ancestors

The cache entries that a pass returns go into a fixed-size buffer, which later passes attend to. Once the verdict is
known, the accepted path's entries are appended to the cache, and the rest is dropped.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.leading import count_leading
from jaxspec.core.model import Cache, Entries, Model, check_entries
from jaxspec.core.prefill import Prefilled
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.draft_model import Draft, DraftSource, Hidden, Window, as_draft, begin

# The largest number of parts to cut a vocabulary into; a multiple of the number of devices that shard it.
_PARTS = 256


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Level:
    """Holds the result of the pass over one level.

    Attributes:
      tokens: the nodes to feed in the next level.
      parents: the index of each one's parent in the level just fed.
      carry: any state to pass to the next level.
      found: any results of this level for the caller, stacked over levels.
    """

    tokens: Int[Array, "b w"]
    parents: Int[Array, "b w"]
    carry: Any
    found: Any


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Drafted:
    """Holds a tree drafter's state between `propose` and `observe`.

    Attributes:
      draft_state: the draft's state; its cache holds the text.
      pending: the cache entries of the fed nodes; `None` if none were fed.
      slots: the index of each node's entries among them; -1 for a node that was not fed, which is a leaf.
      parents: the parent of each node.
    """

    draft_state: Any
    pending: Entries | None
    slots: Int[Array, "b n"]
    parents: Int[Array, "b n"]

    def keep(self, cache: Cache, own: Int[Array, "b"], verdict: Verdict) -> Cache:
        """Appends the entries of the accepted path, up to the last fed node, to a `cache` that holds the text.

        At most a leaf at the end of the path was not fed, so the cache lags the new text by at most two tokens.
        """
        if self.pending is None:
            return cache
        assert verdict.path is not None  # the proposal was a tree
        at = lambda values, nodes: jnp.take_along_axis(values, jnp.maximum(nodes, 0), axis=1)  # noqa: E731
        # Follow the last node's own ancestors instead of the verdict's path: among equal sibling tokens, the path may
        # contain one that was not fed.
        climb = [at(verdict.path, verdict.accepted[:, None] - 1)]
        for _ in range(verdict.path.shape[1] - 1):
            climb.append(at(self.parents, climb[-1]))
        steps = jnp.arange(len(climb), dtype=jnp.int32)[None]
        path = at(jnp.concatenate(climb, axis=1), verdict.accepted[:, None] - 1 - steps)
        slots = at(self.slots, path)
        accepted = count_leading((slots >= 0) & (steps < own[:, None]))
        entries = self.pending.keep_path(jnp.maximum(slots, 0))
        return cache.append(entries).truncate(cache.length + accepted)


class FrontierDrafter(Drafter):
    """Drafts trees from a model or a head; subclasses are dataclasses with this field.

    Attributes:
      model: any `Model` that takes trees, or a head.
    """

    model: Model | DraftSource

    @property
    def tree(self) -> bool:
        return True

    @property
    def capture(self) -> tuple[int, ...]:
        """The target's hidden states that the draft reads."""
        return self.draft.capture

    @property
    def draft(self) -> Draft:
        """The `Draft` to draw from."""
        return as_draft(self.model, self.max_drafts)

    def init(self, context: Context, prefilled: Prefilled | None, slots: int) -> Any:
        return begin(self.draft, context, prefilled, slots)

    def held(self, state: Any) -> Int[Array, "*b"] | None:
        # Like `ChainDrafter.held`.
        return state.cache.length if self.capture else None

    def extend(self, state: Any, context: Context, prefilled: Prefilled | None, start: Int[Array, "b"]) -> Any:
        return self.draft.extend(state, context, prefilled, start)

    def observe(self, state: Drafted, context: Context, verdict: Verdict, hidden: Hidden) -> Any:
        own = jnp.minimum(verdict.accepted, verdict.appended(context))
        kept = dataclasses.replace(state.draft_state, cache=state.keep(state.draft_state.cache, own, verdict))
        return self.draft.observe(kept, context, own, verdict, hidden)


def grow(
    draft: Draft,
    context: Context,
    window: Window,
    first: Int[Array, "b w"],
    levels: int,
    carry: Any,
    expand: Callable[[Array, Array, Any], Level],
) -> tuple[Any, Any]:
    """Feeds `levels` levels of `w` nodes each, one after the other.

    Args:
      draft: the draft; traced once, regardless of the number of levels.
      context: the text to draft for.
      window: the pass over the end of the text.
      first: the nodes to feed in the first level, which follow the text.
      levels: the number of passes, at least 1.
      carry: the carry of `expand` for the first level.
      expand: `expand(level, logits [b, w, n], carry)` chooses the nodes to feed next.

    Returns:
      Everything that `expand` found, `[levels, ...]`, and the cache entries of the fed nodes: those of node `i` of
      level `j` are at index `j * w + i`.
    """
    check_entries(window.entries, "pad", "put", "keep_path")
    batch, width = first.shape
    # At least the number of the window's entries, which give the buffer its shape.
    room = max(levels * width, 2)
    length = window.cache.length[:, None]
    own = jnp.broadcast_to(jnp.eye(width, dtype=jnp.bool_)[None], (batch, width, width))
    places = length + jnp.arange(room, dtype=jnp.int32)[None] // width

    def feed(state, level):
        tokens, hidden, above, pending, carry = state
        positions = jnp.broadcast_to(length + level, (batch, width))
        output = draft.next(
            context,
            tokens,
            hidden,
            window.cache,
            mask=jnp.concatenate([above, own], axis=-1),
            positions=jnp.concatenate([places, positions], axis=-1),
            pending=pending,
        )
        after = expand(level, output.logits, carry)
        numbers = jnp.arange(room, dtype=jnp.int32)[None, None]
        parent = level * width + after.parents
        above = jnp.take_along_axis(above, after.parents[..., None], axis=1) | (numbers == parent[..., None])
        hidden = jax.tree.map(lambda x: jnp.take_along_axis(x, after.parents[..., None], axis=1), output.hidden)
        state = (after.tokens, hidden, above, pending.put(output.entries, level * width), after.carry)
        return state, after.found

    above: Bool[Array, "b w room"] = jnp.zeros((batch, width, room), jnp.bool_)
    # The initial contents of the buffer are never read: a node becomes a parent only after its entries are written.
    hidden = jax.tree.map(lambda x: jnp.repeat(x[:, None], width, axis=1), window.hidden)
    state = (first, hidden, above, window.entries.pad(room), carry)
    state, found = jax.lax.scan(feed, state, jnp.arange(levels, dtype=jnp.int32))
    return found, state[3]


def first_paths(context: Context, tokens: Int[Array, "b w"], depth: int) -> Int[Array, "b w d"] | None:
    """Returns the path down to each node of the first level, itself included; -1 pads. `None` without processors."""
    if not context.processors:
        return None
    return jnp.pad(tokens[..., None].astype(jnp.int32), ((0, 0), (0, 0), (0, depth - 1)), constant_values=-1)


def descend(
    paths: Int[Array, "b w d"] | None, parents: Int[Array, "b w"], tokens: Int[Array, "b w"], level: Int[Array, ""]
) -> Int[Array, "b w d"] | None:
    """Extends `paths` by one level, given each new node's parent among the nodes of `paths`."""
    if paths is None:
        return None
    own = jnp.take_along_axis(paths, parents[..., None], axis=1)
    here = jnp.arange(paths.shape[2], dtype=jnp.int32)[None, None] == level
    return jnp.where(here, tokens[..., None], own)


def keep_rows(proposal: Proposal, rows: Bool[Array, "b"]) -> Proposal:
    """Returns the proposal without the drafts of other rows than `rows`."""
    return dataclasses.replace(proposal, valid=proposal.valid & rows[:, None])


def by_row(found: Array) -> Array:
    """Reshapes the results of all levels from `[levels, b, w, ...]` to `[b, levels * w, ...]`."""
    levels, batch, width = found.shape[:3]
    return jnp.swapaxes(found, 0, 1).reshape(batch, levels * width, *found.shape[3:])


def top_tokens(weights: Float[Array, "b w v"], count: int) -> tuple[Float[Array, "b w c"], Int[Array, "b w c"]]:
    """Returns the `count` largest weights in decreasing order, and their tokens; ties go to the first.

    They are in the `count` parts of the vocabulary with the largest maxima, so only those are searched. Thus a
    vocabulary that is sharded over devices is not gathered, as it would be by `top_k`.
    """
    *rows, vocab = weights.shape
    parts = math.gcd(vocab, _PARTS)
    in_parts = weights.reshape(*rows, parts, vocab // parts)
    _, chosen = jax.lax.top_k(jnp.max(in_parts, axis=-1), min(count, parts))
    # In the vocabulary's order, so that ties still go to the first.
    chosen = jnp.sort(chosen.astype(jnp.int32), axis=-1)[..., None]
    tokens = chosen * (vocab // parts) + jnp.arange(vocab // parts, dtype=jnp.int32).reshape(*(1,) * len(rows), 1, -1)
    best, at = jax.lax.top_k(jnp.take_along_axis(in_parts, chosen, axis=-2).reshape(*rows, -1), count)
    return best, jnp.take_along_axis(tokens.reshape(*rows, -1), at.astype(jnp.int32), axis=-1)
