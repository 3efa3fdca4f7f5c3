"""Sinks of attention: a score of each head that takes weight and adds no value, in every form of attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.tree import Tree
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.attention_by_slot import BySlotKVCache
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.cache_pallas import BySlotPallasKVCache, PallasKVCache
from jaxspec.nn.config import ExpertsConfig
from jaxspec.nn.experts import ClampedGate
from jaxspec.ops.native.build import register
from jaxspec.ops.rope import Rope
from tests._fixtures import tiny
from tests._fixtures.interpreted import interpreted, interpreted_on_gpu  # noqa: F401
from tests._fixtures.slots import FIELDS, drawn
from tests.benchmarks.workload import disturbed

HEADS, GROUP, WIDTH, SLOTS, FED = 2, 3, 8, 300, 4
# Below and above all scores, and among them; one is far above, as for a head that sees nothing.
SINKS = np.array([[-3.0, 0.4, 2.0], [0.0, 200.0, -90.0]], np.float32)
CASES = [(0, None), (37, None), (37, 6), (290, 6)]


def _drawn(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return draw(SLOTS, HEADS, GROUP, WIDTH), draw(SLOTS, HEADS, WIDTH), draw(SLOTS, HEADS, WIDTH)


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _attended(kind, arrays, cached, fed, window):
    queries, keys, values = (jnp.asarray(x)[None] for x in arrays)
    stored = (jnp.pad(jnp.swapaxes(x, 1, 2)[None], [(0, 0)] * 3 + [(0, 84), (0, 0)]) for x in (keys, values))
    cache = kind(*stored, cached[None])
    queries, keys, values = (jax.lax.dynamic_slice_in_dim(x, cached, fed, axis=1) for x in (queries, keys, values))
    positions = cached + jnp.arange(fed, dtype=jnp.int32)[None]
    fresh = Fresh(keys, values, positions, None, jnp.asarray(SINKS))
    return attend(queries, fresh, History(cache, 0), scale=0.4, window=window)[0]


def _by_hand(arrays, cached, fed, window):
    queries, keys, values = (x.astype(np.float64) for x in arrays)
    found = np.zeros((fed, HEADS, GROUP, WIDTH))
    for token in range(fed):
        first = 0 if window is None else max(0, cached + token + 1 - window)
        seen = slice(first, cached + token + 1)
        for head, member in np.ndindex(HEADS, GROUP):
            scores = keys[seen, head] @ queries[cached + token, head, member] * 0.4
            scores = np.append(scores, SINKS[head, member])
            weights = np.exp(scores - scores.max())
            found[token, head, member] = (weights / weights.sum())[:-1] @ values[seen, head]
    return found


@pytest.mark.parametrize("kind", [KVCache, BySlotKVCache, NativeKVCache])
def test_a_sink_takes_weight_and_adds_nothing(kind):
    register()
    arrays = _drawn()
    for cached, window in CASES:
        found = _attended(kind, arrays, jnp.int32(cached), FED, window)
        np.testing.assert_allclose(found, _by_hand(arrays, cached, FED, window), atol=2e-5)
    assert np.abs(found[:, 1, 1]).max() == 0  # all weight is the sink's


@pytest.mark.parametrize("kind", [BySlotKVCache, NativeKVCache])
def test_bits_do_not_depend_on_what_is_fed_along(kind):
    register()
    arrays = _drawn(1)
    for cached in (31, 127):
        alone = _attended(kind, arrays, jnp.int32(cached + 1), 1, 150)[0]
        together = _attended(kind, arrays, jnp.int32(cached), 3, 150)[1]
        np.testing.assert_array_equal(alone.view(np.uint32), together.view(np.uint32))


def test_without_slots_it_is_differentiable():
    queries, keys, values = (jnp.asarray(x)[None, :FED] for x in _drawn())
    positions = jnp.arange(FED, dtype=jnp.int32)[None]

    def total(sinks):
        fresh = Fresh(keys, values, positions, None, sinks)
        return jnp.sum(attend(queries, fresh, None, scale=0.4, window=None) ** 2)

    sinks, step = jnp.asarray(np.clip(SINKS, -3, 3)), np.zeros_like(SINKS)
    step[0, 1] = 1e-2
    found = jax.jit(lambda: (jax.grad(total)(sinks)[0, 1], (total(sinks + step) - total(sinks - step)) / 2e-2))()
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-2)


def _compared(kinds, case, window):
    found, sinks = [], jnp.asarray(SINKS)
    for kind in kinds:
        queries, fresh, cache = drawn(kind, dtype=jnp.float32, **case)
        if kind is KVCache:
            cache = KVCache(*(jnp.nan_to_num(getattr(cache, name)) for name in FIELDS), cache.length)
        fresh = Fresh(fresh.keys, fresh.values, fresh.positions, fresh.mask, sinks)
        found.append(attend(queries, fresh, History(cache, 1), scale=0.4, window=window))
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=2e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("tree", "window"), [(False, 7), (True, None)])
def test_the_kernel_of_tpus(tree, window):
    _compared([KVCache, PallasKVCache, BySlotPallasKVCache], {"fed": 5, "tree": tree}, window)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted_on_gpu")
@pytest.mark.parametrize(("tree", "window"), [(False, 7), (True, None)])
def test_the_kernel_of_gpus(tree, window):
    _compared([KVCache, PallasKVCache], {"fed": 5, "tree": tree}, window)


PROMPT = np.array([[1, 2, 3, 1, 2], [4, 4, 5, 0, 0]])


def _model():
    experts = ExpertsConfig(6, 3, 24, normalized=True, clamped=ClampedGate(1.0, 1.702), bias=True)
    options = {"qkv_bias": True, "output_bias": True, "experts": experts, "sinks": True}
    return tiny.transformer(layers=2, windows=(8, None), ropes=(Rope(1e4),) * 2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["plain", "native", "bit exact"])
@pytest.mark.parametrize("policy", [jaxspec.Greedy(), jaxspec.Sampling(temperature=0.9)])
def test_drafts_change_no_token(policy, form):
    """Chains and trees of a draft model with sinks too, greedy and coupled, of prompts of different lengths."""
    forms = {"plain": lambda x: x, "native": jaxspec.native_kernels, "bit exact": lambda x: x.bit_exact()}
    target, draft = (forms[form](x) for x in (_model(), disturbed(_model(), 0.1)))
    options = {"prompt_length": np.array([5, 3]), "max_new_tokens": 16, "key": jax.random.key(0), "sampling": policy}
    coupled = jaxspec.CoupledVerifier()
    plain = jaxspec.generate(target, None, PROMPT, verifier=coupled, **options)
    for drafter in (jaxspec.ModelDrafter(draft, k=3), jaxspec.TreeDrafter(draft, Tree((-1, -1, 0, 0, 1, 2)))):
        found = jaxspec.generate(target, drafter, PROMPT, verifier=coupled, **options)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        assert int(jnp.sum(found.stats.accepted)) > 0
