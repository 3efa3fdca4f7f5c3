"""Grows a tree with a draft model: one batched pass a level, over a cache that is only read.

    window     [d e]            the last two committed tokens: the distribution of the first level
    level 0    [x y]            the nodes that get children are fed together: x, y
    level 1    [z w]            z follows x and w follows y; each sees its own ancestors

What a pass returns for the cache waits in a buffer of fixed size that the next passes see. When
the verdict is known, the accepted path's entries go into the cache, and the rest is forgotten.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.model import Cache, Entries, check_entries
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.rows import count_leading
from jaxspec.core.state import Context, Proposal, Verdict
from jaxspec.drafters.draft_model import Draft, Window

# The most parts that a vocabulary is cut into; a multiple of the devices that split it.
_PARTS = 256


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Level:
    """Holds the result of the pass over one level.

    Attributes:
      tokens: the next level's fed nodes.
      parents: the place of each one's parent in the level just fed.
      carry: whatever the next level needs to know.
      found: what the caller needs of this level; stacked over levels in the end.
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
      draft_state: the draft's own; its cache holds the text.
      pending: the entries of the fed nodes; `None` where none were fed.
      slots: which of them each node's is; -1 for a node that was not fed, which is a leaf.
      parents: the tree.
    """

    draft_state: Any
    pending: Entries | None
    slots: Int[Array, "b n"]
    parents: Int[Array, "b n"]

    def keep(self, cache: Cache, verdict: Verdict) -> Cache:
        """Returns `cache`, which holds the text, with the entries of the accepted path, as far as it was fed.

        All but a leaf at its end was, so the cache lags the new text by at most two tokens.
        """
        if self.pending is None:
            return cache
        assert verdict.path is not None  # it is of a tree
        at = lambda values, nodes: jnp.take_along_axis(values, jnp.maximum(nodes, 0), axis=1)  # noqa: E731
        # The last node's own ancestors, and not the verdict's path: of drafts that are the same
        # tokens, the path may hold one that was not fed.
        climb = [at(verdict.path, verdict.accepted[:, None] - 1)]
        for _ in range(verdict.path.shape[1] - 1):
            climb.append(at(self.parents, climb[-1]))
        steps = jnp.arange(len(climb), dtype=jnp.int32)[None]
        path = at(jnp.concatenate(climb, axis=1), verdict.accepted[:, None] - 1 - steps)
        slots = at(self.slots, path)
        accepted = count_leading((slots >= 0) & (steps < verdict.accepted[:, None]))
        entries = self.pending.keep_path(jnp.maximum(slots, 0))
        return cache.append(entries).truncate(cache.length + accepted)


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
      draft: traced once here, however many levels there are.
      context: what it drafts for.
      window: the pass over the end of the text.
      first: the first level's fed nodes, which follow the text.
      levels: how many passes, at least 1.
      carry: what `expand` is given for the first level.
      expand: `expand(level, logits [b, w, n], carry)` chooses what is fed next.

    Returns:
      What `expand` found, `[levels, ...]`, and the fed nodes' entries: that of node `i` of level
      `j` is number `j * w + i`.
    """
    check_entries(window.entries, "pad", "put", "keep_path")
    batch, width = first.shape
    # At least as many as the window's entries, which lend the buffer its shape.
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
    # The initial contents of the buffer are never seen: a node is a parent only after its own entries are put.
    hidden = jax.tree.map(lambda x: jnp.repeat(x[:, None], width, axis=1), window.hidden)
    state = (first, hidden, above, window.entries.pad(room), carry)
    state, found = jax.lax.scan(feed, state, jnp.arange(levels, dtype=jnp.int32))
    return found, state[3]


def first_paths(context: Context, tokens: Int[Array, "b w"], depth: int) -> Int[Array, "b w d"] | None:
    """Returns the path down to each node of the first level, itself included; -1 pads. `None` if nothing reads it."""
    if not context.processors:
        return None
    return jnp.pad(tokens[..., None].astype(jnp.int32), ((0, 0), (0, 0), (0, depth - 1)), constant_values=-1)


def descend(
    paths: Int[Array, "b w d"] | None, parents: Int[Array, "b w"], tokens: Int[Array, "b w"], level: Int[Array, ""]
) -> Int[Array, "b w d"] | None:
    """Returns the paths down to the nodes of the level after those of `paths`, given their parents among these."""
    if paths is None:
        return None
    own = jnp.take_along_axis(paths, parents[..., None], axis=1)
    here = jnp.arange(paths.shape[2], dtype=jnp.int32)[None, None] == level
    return jnp.where(here, tokens[..., None], own)


def of_rows(proposal: Proposal, ready: Bool[Array, "b"]) -> Proposal:
    """Returns the same proposal, without drafts in the rows that are not ready."""
    return dataclasses.replace(proposal, valid=proposal.valid & ready[:, None])


def by_row(found: Array) -> Array:
    """Reshapes what all levels found, `[levels, b, w, ...]`, into `[b, levels * w, ...]`."""
    levels, batch, width = found.shape[:3]
    return jnp.swapaxes(found, 0, 1).reshape(batch, levels * width, *found.shape[3:])


def top_tokens(weights: Float[Array, "b w v"], count: int) -> tuple[Float[Array, "b w c"], Int[Array, "b w c"]]:
    """Returns the `count` largest weights in falling order, and their tokens; of equals the first.

    They lie in the `count` parts of the vocabulary with the largest maxima, so only those are
    looked through: a vocabulary that is split over devices is not gathered, as `top_k` would.
    """
    *rows, vocab = weights.shape
    parts = math.gcd(vocab, _PARTS)
    in_parts = weights.reshape(*rows, parts, vocab // parts)
    _, chosen = jax.lax.top_k(jnp.max(in_parts, axis=-1), min(count, parts))
    # In the vocabulary's order, so that the first of equals stays the first.
    chosen = jnp.sort(chosen.astype(jnp.int32), axis=-1)[..., None]
    tokens = chosen * (vocab // parts) + jnp.arange(vocab // parts, dtype=jnp.int32).reshape(*(1,) * len(rows), 1, -1)
    best, at = jax.lax.top_k(jnp.take_along_axis(in_parts, chosen, axis=-2).reshape(*rows, -1), count)
    return best, jnp.take_along_axis(tokens.reshape(*rows, -1), at.astype(jnp.int32), axis=-1)
