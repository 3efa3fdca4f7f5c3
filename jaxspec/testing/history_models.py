"""Defines a model whose distribution is a short formula over the whole text.

logits after x_0 ... x_i  =  a[x_i] + sum over j < i of b[x_j] * cos(i - j)
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxspec.core.model import ModelOutput, ModelTraits
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.typed import WIDTH, typed


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenEntries:
    """Holds fed tokens and their positions."""

    tokens: jax.Array
    positions: jax.Array

    def pad(self, count: int):
        widths = ((0, 0), (0, count - self.tokens.shape[1]))
        return TokenEntries(jnp.pad(self.tokens, widths), jnp.pad(self.positions, widths))

    def keep_path(self, nodes):
        return jax.tree.map(lambda x: jnp.take_along_axis(x, nodes, axis=1), self)

    def put(self, fresh, start):
        def write(x, new):
            return jax.lax.dynamic_update_slice_in_dim(x, new, start, axis=1)

        return jax.tree.map(write, self, fresh)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenCache:
    """Caches the tokens themselves; stale slots keep their contents."""

    tokens: jax.Array
    positions: jax.Array
    length: jax.Array

    def append(self, entries: TokenEntries):
        count = entries.tokens.shape[1]
        rows = jnp.arange(self.tokens.shape[0], dtype=jnp.int32)[:, None]
        slots = self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        return TokenCache(
            self.tokens.at[rows, slots].set(entries.tokens),
            self.positions.at[rows, slots].set(entries.positions),
            self.length + count,
        )

    def truncate(self, length):
        return dataclasses.replace(self, length=length)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryModel:
    """Computes a distribution over the whole text without a network.

    Attributes:
      a: logits contributed by the last token, shape `[v, v]`.
      b: logits contributed by each earlier token, times the cosine of its distance, shape `[v, v]`.

    Example:
      >>> jaxspec.testing.HistoryModel(jnp.eye(3), jnp.zeros((3, 3))).vocab_size
      3
    """

    a: jax.Array
    b: jax.Array
    context_length = None
    traits = ModelTraits()

    @property
    def vocab_size(self) -> int:
        return self.a.shape[-1]

    def init_cache(self, batch, capacity):
        blank = jnp.full((batch, capacity), 1, jnp.int32)
        return TokenCache(blank, blank, jnp.zeros(batch, jnp.int32))

    def __call__(self, tokens, cache, *, mask=None, positions=None, capture=(), pending=None):
        batch, time = tokens.shape
        if positions is None:
            positions = cache.length[:, None] + jnp.arange(time, dtype=jnp.int32)[None]
        if mask is None:
            mask = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), jnp.bool_))[None], (batch, time, time))
        slots = jnp.arange(cache.tokens.shape[1], dtype=jnp.int32)[None]
        old = jnp.broadcast_to((slots < cache.length[:, None])[:, None], (batch, time, slots.shape[1]))
        logits = self.a[tokens]
        fed, own = positions[:, -time:], TokenEntries(tokens, positions[:, -time:])
        logits = logits + self._from(cache.tokens, cache.positions, fed, old)
        fresh = tokens if pending is None else jnp.concatenate([pending.tokens, tokens], axis=1)
        # A pending token stores its position, like a rotated key.
        known = fed if pending is None else jnp.concatenate([pending.positions, fed], axis=1)
        others = mask & ~jnp.eye(time, fresh.shape[1], fresh.shape[1] - time, dtype=jnp.bool_)[None]
        logits = logits + self._from(fresh, known, fed, others)
        return ModelOutput(logits, own, tuple(logits for _ in capture))

    def _from(self, tokens, key_positions, query_positions, seen):
        gap = (query_positions[:, :, None] - key_positions[:, None, :]).astype(jnp.float32)
        weight = jnp.where(seen, jnp.cos(gap), 0.0).astype(self.b.dtype)
        return jnp.einsum("bts,bsv->btv", weight, self.b[tokens])


@typed(scale=(0, 1e30), seed=(0, 2**64), vocab=WIDTH)
def history_model(seed: int = 0, *, vocab: int = 4, scale: float = 1.0) -> HistoryModel:
    """Makes a random `HistoryModel`; `scale` is the spread of its logits.

    Example:
      >>> model = jaxspec.testing.history_model(0, vocab=8)
      >>> jaxspec.generate(model, None, prompt % 8, max_new_tokens=4).tokens.shape
      (2, 4)
    """
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, vocab, vocab)) * np.array([scale, 0.5 * scale])[:, None, None]
    return HistoryModel(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))


def nearby(model: HistoryModel, amount: float, seed=9) -> HistoryModel:
    """Perturbs a model, as a draft model that is often right."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + jnp.asarray(rng.normal(size=x.shape) * amount, x.dtype), model)


def history_logits(model: HistoryModel, text) -> np.ndarray:
    """Returns the logits after `text`, recomputed in float64 from the formula."""
    a, b = np.asarray(model.a, np.float64), np.asarray(model.b, np.float64)
    last = len(text) - 1
    return a[text[last]] + sum(b[token] * np.cos(last - j) for j, token in enumerate(text[:last]))


@typed("model", "text", temperature=(1e-6, 1e6))
def history_probs(
    model: HistoryModel, text: Sequence[int] | Int[np.ndarray, "n"], temperature: float = 1.0
) -> np.ndarray:
    """Returns the distribution of the token after `text`, recomputed in float64 from the formula.

    Example:
      >>> model = jaxspec.testing.history_model(0, vocab=8)
      >>> jaxspec.testing.history_probs(model, [5, 6, 7]).shape
      (8,)
    """
    if not len(text):
        raise ValueError("text is empty, which has no distribution after it; pass at least one token")
    if min(text) < 0 or max(text) >= model.vocab_size:
        raise ValueError(f"text must be token ids below {model.vocab_size}, got {list(text)!r:.80}")
    logits = history_logits(model, text)
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()
