"""Accepts image tokens that look like the target's: nearby codes may replace each other (LANTERN)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core import validate
from jaxspec.core.validate import is_concrete
from jaxspec.verifiers.relaxed import RelaxedRule, at_tokens, check_number, register_unchecked, without


@register_unchecked
@dataclasses.dataclass(frozen=True)
class Neighborhood(RelaxedRule):
    """Accepts draft `x` with the target's probability of the codes that look like it (LANTERN). Lossy.

    The neighborhood of `x` consists of its nearest codes, in order, while their total probability `near(x)` stays below
    `bound`.

    A certain draft is accepted with probability `target(x) + near(x)`; if rejected, it is replaced by a token outside
    the neighborhood. The output follows the paper's modified distribution, in which `x` has the probability of its
    neighbors, so a position deviates by `near(x) < bound`.

    A draft with a distribution is accepted with `min(1, (target(x) + near(x)) / draft(x))` while the position deviates
    by at most `bound`. Otherwise, the acceptance beyond `min(target, draft)` is scaled down to that bound. The paper
    bounds each modified distribution but does not scale, so all drafts together may exceed its bound many times over:
    with many small neighborhoods, every draft is accepted. Accepting `bound` more than exact verification is the most
    that any rule with this bound can do. A rejected draft is replaced by a token of `max(target - draft, 0)`.

    A token that the target excludes, such as by top-k, is never accepted, regardless of its neighbors. Drafts with a
    distribution cost `n` passes over `[b, k, v]`, and certain drafts `n` values each.

    Attributes:
      neighbors: each token's neighbors, nearest first, integers `[v, n]`, traced; -1 pads. See `nearest_neighbors`.
      bound: in [0, 1], traced; 0 is `TokenVerifier`'s rule. The authors' code defaults to 0.1, among 1,000 neighbors.

    Raises:
      TypeError: `bound` is not one number, or `neighbors` are not integers.
      ValueError: either is out of range, or a token is its own neighbor or has a neighbor twice.

    References:
      LANTERN: Jang et al. (2024), arXiv:2410.03355, section 4.

    Example:
      >>> codebook = jax.random.normal(key, (target.vocab_size, 8))
      >>> rule = jaxspec.contrib.Neighborhood(jaxspec.contrib.nearest_neighbors(codebook, 16), 0.1)
      >>> drafter, verifier = jaxspec.ModelDrafter(draft, k=3), jaxspec.verifiers.RelaxedVerifier(rule)
      >>> options = {"sampling": jaxspec.Sampling(), "verifier": verifier, "lossy": True, "max_new_tokens": 8}
      >>> jaxspec.generate(target, drafter, prompt, key=key, **options).lossless
      False
    """

    neighbors: Int[Array, "v n"]
    bound: Float[Array, ""] | float

    def __post_init__(self):
        check_number(
            "Neighborhood", "bound", self.bound, "in [0, 1]; 0 is exact, larger accepts more", lambda x: 0 <= x <= 1
        )
        _check_neighbors(self.neighbors)

    def log_accepted(self, target: Float[Array, "b n v"], draft: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        more = draft > target
        gap = jnp.where(more, jnp.exp(draft) - jnp.exp(target), 0.0)
        excess = jnp.minimum(gap, jnp.where(target > -jnp.inf, self.near_all(target), 0.0))
        deviation, bound = jnp.sum(excess, axis=-1, keepdims=True), self._bound(target)
        scale = jnp.where(deviation > bound, bound / deviation, 1.0)
        return jnp.where(more, jnp.minimum(jnp.logaddexp(target, jnp.log(scale * excess)), draft), draft)

    def log_acceptance(self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
        ids, inside = self._around(target, tokens)
        near = jnp.sum(jnp.where(inside, _mass(target, ids), 0.0), axis=-1)
        return jnp.minimum(jnp.logaddexp(at_tokens(target, tokens), jnp.log(near)), 0.0)

    def log_rest(self, target: Float[Array, "b v"], token: Int[Array, "b"]) -> Float[Array, "b v"]:
        ids, inside = self._around(target[:, None], token[:, None])
        beyond = target.shape[-1]
        return without(without(target, token[:, None]), jnp.where(inside, ids, beyond)[:, 0])

    def near_all(self, target: Float[Array, "b n v"]) -> Float[Array, "b n v"]:
        """Returns the total probability of each token's neighborhood, without the token itself."""
        table, share, bound = self._table(target), jnp.exp(target), self._bound(target)

        def grow(i, found):
            total, near = found
            column = jax.lax.dynamic_index_in_dim(table, i, axis=1, keepdims=False)
            total = total + jnp.where(column[None, None] >= 0, jnp.take(share, jnp.maximum(column, 0), axis=-1), 0.0)
            return total, jnp.where(total < bound, total, near)

        none = jnp.zeros_like(share)
        if table.shape[1] == 0:
            return none
        return jax.lax.fori_loop(0, table.shape[1], grow, (none, none))[1]

    def _around(
        self, target: Float[Array, "b n v"], tokens: Int[Array, "b n"]
    ) -> tuple[Int[Array, "b n c"], Bool[Array, "b n c"]]:
        """Returns each token's neighbors, and which of them are in its neighborhood.

        The neighborhood is empty for a token that the target excludes.
        """
        ids = self._table(target)[tokens]
        inside = jnp.cumsum(_mass(target, ids), axis=-1) < self._bound(target)
        return ids, inside & (ids >= 0) & (at_tokens(target, tokens) > -jnp.inf)[..., None]

    def _table(self, target: Float[Array, "b n v"]) -> Int[Array, "v c"]:
        rows, vocab = self.neighbors.shape[0], target.shape[-1]
        if rows != vocab:
            raise ValueError(
                f"Neighborhood has neighbors for {rows} tokens, got a target of {vocab}; "
                "pass one row a token, of -1 for tokens that have no neighbors"
            )
        return jnp.asarray(self.neighbors, jnp.int32)

    def _bound(self, target: Float[Array, "b n v"]) -> Float[Array, ""]:
        return jnp.asarray(self.bound, target.dtype)


def nearest_neighbors(codebook: Any, count: int) -> Int[Array, "v n"]:
    """Returns each code's nearest other codes by Euclidean distance, for `Neighborhood`; ties go to the lower index.

    Compares all pairs, one block of codes at a time: compute it once and store the result.

    Args:
      codebook: the latent vector of each token, `[v, d]`.
      count: the number of neighbors, in `[1, v - 1]`.

    Returns:
      int32 `[v, count]`.

    Raises:
      TypeError: `count` is not a static integer.
      ValueError: the codebook is not a matrix of finite numbers, or too small for `count`.

    Example:
      >>> codes = jnp.asarray([[0.0], [1.0], [5.0]])
      >>> jaxspec.contrib.nearest_neighbors(codes, 1).tolist()
      [[1], [0], [1]]
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(f"count must be a static integer, got {validate.shown(count)}; it fixes the shape of the table")
    codebook = jnp.asarray(validate.numbers("codebook", codebook, "a matrix of floats, one row a token"))
    if codebook.ndim != 2 or not jnp.issubdtype(codebook.dtype, jnp.floating):
        raise ValueError(
            "codebook must be a matrix of floats, one row a token, "
            f"got shape {codebook.shape} and dtype {codebook.dtype}"
        )
    if is_concrete(codebook) and not bool(jnp.all(jnp.isfinite(codebook))):
        raise ValueError("codebook has entries that are not finite; distances to them have no order")
    if not 1 <= count < codebook.shape[0]:
        raise ValueError(
            f"count must be in [1, {codebook.shape[0] - 1}] for {codebook.shape[0]} codes, got {count}; "
            "a code is not its own neighbor"
        )
    return _nearest(codebook, int(count))


@functools.partial(jax.jit, static_argnames="count")
def _nearest(codebook: Float[Array, "v d"], count: int) -> Int[Array, "v n"]:
    wide = codebook.astype(jnp.promote_types(codebook.dtype, jnp.float32))

    def nearest(index):
        # Subtract first: the expanded square loses the order of close codes.
        distance = jnp.sum((wide - wide[index][None]) ** 2, axis=-1)
        return jax.lax.top_k(-distance.at[index].set(jnp.inf), count)[1].astype(jnp.int32)

    return jax.lax.map(nearest, jnp.arange(wide.shape[0], dtype=jnp.int32), batch_size=min(64, wide.shape[0]))


def _mass(target: Float[Array, "b n v"], ids: Int[Array, "b n c"]) -> Float[Array, "b n c"]:
    found = jnp.take_along_axis(target, jnp.maximum(ids, 0), axis=-1)
    return jnp.where(ids >= 0, jnp.exp(found), 0.0)


def _check_neighbors(table: Any) -> None:
    shape, dtype = getattr(table, "shape", None), getattr(table, "dtype", None)
    if shape is None or dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(
            f"neighbors must be an array of integers, got {type(table).__name__} of dtype {dtype}; "
            "pass nearest_neighbors(codebook, count)"
        )
    if len(shape) != 2:
        raise ValueError(f"neighbors must be [vocabulary, count], got shape {shape}; pass one row a token")
    if not is_concrete(table):
        return
    # A type wide enough to keep -1 distinct from large unsigned integers.
    ordered = np.sort(np.asarray(table).astype(np.int64), axis=1)
    if ordered.size and (ordered.min() < -1 or ordered.max() >= shape[0]):
        raise ValueError(
            f"neighbors must be tokens in [0, {shape[0]}), or -1 for none, "
            f"got {ordered.min()} to {ordered.max()}; pass one row for every token"
        )
    if np.any(ordered == np.arange(shape[0])[:, None]):
        token = int(np.argmax(np.any(ordered == np.arange(shape[0])[:, None], axis=1)))
        raise ValueError(f"token {token} is its own neighbor; its mass would count twice: pass the others only")
    twice = np.any((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0), axis=1)
    if np.any(twice):
        raise ValueError(
            f"token {int(np.argmax(twice))} has a neighbor twice; its mass would count twice: pass it once"
        )
