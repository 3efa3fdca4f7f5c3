"""With a foreign draft model, tokens follow the target's distribution exactly: over two rounds, with its cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.foreign import from_cached
from jaxspec.testing.enumeration import real_drafter
from jaxspec.testing.history_models import history_model, history_probs, nearby
from tests._fixtures.rules import block_rule, token_rule

TARGET = history_model(3, vocab=3)
DRAFT = nearby(TARGET, 0.8)


@dataclasses.dataclass(frozen=True)
class OfHistory:
    """`HistoryModel` as another project would write it, over a cache of tokens and positions."""

    kind: str

    def __call__(self, params, tokens, cache, fed):
        a, b = params
        index = fed.index[:, None] if fed.index.ndim else fed.index[None, None]
        own = index + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        cache = {
            "tokens": self._written(cache["tokens"], tokens, fed.index),
            "positions": self._written(cache["positions"], fed.positions, fed.index),
        }
        slot = jnp.arange(cache["tokens"].shape[1], dtype=jnp.int32)[None, None]
        seen = slot < own[..., None] if fed.mask is None else fed.mask & (slot != own[..., None])
        gap = (fed.positions[:, :, None] - cache["positions"][:, None]).astype(jnp.float32)
        weight = jnp.where(seen, jnp.cos(gap), 0.0)
        return a[tokens] + jnp.einsum("bts,bsv->btv", weight, b[cache["tokens"]]), cache

    def _written(self, held, fresh, index):
        if index.ndim:
            return jax.vmap(lambda x, new, at: jax.lax.dynamic_update_slice(x, new, (at,)))(held, fresh, index)
        return jax.lax.dynamic_update_slice(held, fresh, (0, index))


def empty(batch, capacity):
    return {name: jnp.ones((batch, capacity), jnp.int32) for name in ("tokens", "positions")}


def wrapped(model, kind):
    return from_cached(OfHistory(kind), empty, (model.a, model.b), vocab_size=3, cache_index=kind, scratch=24)


CASES = [("shared", block_rule), ("shared", token_rule), ("per_row", block_rule), ("scalar", token_rule)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rule"),
    [pytest.param(*case, marks=pytest.mark.slow if number else []) for number, case in enumerate(CASES)],
)
def test_the_distribution_is_the_target_s(kind, rule):
    """Histories accept differently, so that rows of the draft's cache are rolled back separately."""
    drafter, saw = jaxspec.ModelDrafter(wrapped(DRAFT, kind), k=2), lambda proposal, _: None
    assert real_drafter.deviation(TARGET, drafter, rule, (0, 2, 1), rounds=2, length=4, saw=saw) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "per_row", "scalar"])
def test_a_foreign_target_scores_every_text_as_its_formula_does(kind):
    """All texts of three tokens, fed one by one through rows that are rolled back between them."""
    model, texts = wrapped(TARGET, kind), np.array(list(np.ndindex(3, 3, 3)), np.int32)
    cache = model.init_cache(len(texts), 8)
    feed = jax.jit(lambda model, tokens, cache: model(tokens, cache))
    for count in range(3):
        # A wrong token first, which is forgotten.
        wrong = cache.append(feed(model, jnp.asarray((texts[:, [count]] + 1) % 3), cache).entries)
        cache = wrong.truncate(cache.length)
        output = feed(model, jnp.asarray(texts[:, [count]]), cache)
        cache = cache.append(output.entries)
        found = jax.nn.softmax(output.logits[:, 0])
        np.testing.assert_allclose(found, [history_probs(TARGET, text[: count + 1]) for text in texts], atol=1e-5)
