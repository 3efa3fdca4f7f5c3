"""Models small enough to compile in a second, and the distribution of one of them in plain NumPy.

`transformer` makes the real decoder with a few weights. `HistoryModel` is a model whose distribution is
four lines of arithmetic over the whole text, so that tests can compute it on their own:

    logits after x_0 ... x_i  =  a[x_i] + sum over j < i of b[x_j] * cos(i - j)
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.checkpoints.params import abstract_params
from jaxspec.core.model import ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.rope import Rope

VOCAB = 11


def config(*, vocab=VOCAB, layers=1, **options) -> TransformerConfig:
    """A decoder of width 16 with two query heads a key-value head."""
    options = {"ropes": (Rope(1e4),) * layers, "windows": (None,) * layers, "tied_head": True} | options
    return TransformerConfig(vocab, layers, 16, 2, 1, 8, 24, 512, **options)


def transformer(seed=0, *, sharpness=8.0, **options) -> jaxspec.LanguageModel:
    """A random decoder; `sharpness` scales its weights, so that its distributions are far from uniform."""
    return random_model(config(**options), seed, 0.02 * sharpness)


def in_dtype(model: jaxspec.LanguageModel, dtype) -> jaxspec.LanguageModel:
    """The model with weights and activations of another dtype."""
    params = jax.tree.map(lambda x: x.astype(dtype), model.params)
    return dataclasses.replace(model, module=model.module.clone(dtype=dtype), params=params)


def random_model(config: TransformerConfig, seed: int, scale: float) -> jaxspec.LanguageModel:
    return jaxspec.LanguageModel(Transformer(config), random_params(_shapes(config), seed, scale))


@functools.cache
def _shapes(config: TransformerConfig):
    """Traces a model of each shape once: many tests make one where they are imported."""
    return abstract_params(Transformer(config))


def random_params(shapes, seed: int, scale: float):
    rng = np.random.default_rng(seed)

    def leaf(path, x):
        values = (rng.normal(size=x.shape) * (scale if x.ndim > 1 else 0.1)).astype(x.dtype)
        return jnp.asarray(values + values.dtype.type(path[-1].key == "scale"))

    return jax.tree.map_with_path(leaf, shapes)


def wide_transformer(seed=0, *, vocab=64, heads=8, width=32, head_dim=8, **options) -> jaxspec.LanguageModel:
    """A random decoder whose heads and inner width divide over eight devices."""
    options = {"ropes": (Rope(1e4),), "windows": (None,), "tied_head": True} | options
    return random_model(TransformerConfig(vocab, 1, width, 2 * heads, heads, head_dim, 64, 512, **options), seed, 0.2)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenEntries:
    """Fed tokens and their positions."""

    tokens: jax.Array
    positions: jax.Array

    def pad(self, count: int):
        widths = ((0, 0), (0, count - self.tokens.shape[1]))
        return TokenEntries(jnp.pad(self.tokens, widths), jnp.pad(self.positions, widths))

    def keep_path(self, nodes):
        return jax.tree.map(lambda x: jnp.take_along_axis(x, nodes, axis=1), self)

    def put(self, fresh, start):
        write = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, start, axis=1)
        return jax.tree.map(write, self, fresh)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenCache:
    """The history itself, as a cache: stale slots stay where they are."""

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
    """A distribution over the whole text without a network. `a` and `b` are `[v, v]`."""

    a: jax.Array
    b: jax.Array
    context_length = None

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
        # A pending token knows its own position, as a key that was rotated does.
        known = fed if pending is None else jnp.concatenate([pending.positions, fed], axis=1)
        others = mask & ~jnp.eye(time, fresh.shape[1], fresh.shape[1] - time, dtype=jnp.bool_)[None]
        logits = logits + self._from(fresh, known, fed, others)
        return ModelOutput(logits, own, tuple(logits for _ in capture))

    def _from(self, tokens, key_positions, query_positions, seen):
        gap = (query_positions[:, :, None] - key_positions[:, None, :]).astype(jnp.float32)
        weight = jnp.where(seen, jnp.cos(gap), 0.0).astype(self.b.dtype)
        return jnp.einsum("bts,bsv->btv", weight, self.b[tokens])


def history_model(seed=0, *, vocab=4, scale=1.0) -> HistoryModel:
    """A random one; `scale` is the spread of its logits."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, vocab, vocab)) * np.array([scale, 0.5 * scale])[:, None, None]
    return HistoryModel(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BoundedModel(HistoryModel):
    """The same, of texts up to `context_length` tokens."""

    context_length: int = dataclasses.field(metadata={"static": True})


def bounded(model: HistoryModel, context_length: int) -> BoundedModel:
    return BoundedModel(model.a, model.b, context_length)


def nearby(model: HistoryModel, amount: float, seed=9) -> HistoryModel:
    """A model that is nearly this one: a draft that is often, not always, right."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + jnp.asarray(rng.normal(size=x.shape) * amount, x.dtype), model)


def history_logits(model: HistoryModel, text) -> np.ndarray:
    a, b = np.asarray(model.a, np.float64), np.asarray(model.b, np.float64)
    last = len(text) - 1
    return a[text[last]] + sum(b[token] * np.cos(last - j) for j, token in enumerate(text[:last]))


def history_probs(model: HistoryModel, text, temperature=1.0) -> np.ndarray:
    """The distribution of the token after `text`, recomputed in float64 from the formula."""
    logits = history_logits(model, text)
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


def transformer_probs(model: jaxspec.LanguageModel, text) -> np.ndarray:
    """The distribution of the token after `text`, from one pass over all of it."""
    padded = jnp.asarray([[*text, *[0] * (64 - len(text))]], jnp.int32)
    return np.asarray(jax.nn.softmax(_score(model, padded)[0, len(text) - 1]))


@jax.jit
def _score(model, tokens):
    return model(tokens, model.init_cache(1, tokens.shape[1])).logits
