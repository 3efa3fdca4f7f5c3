"""A token's bits depend on its text alone: not on which tokens it is fed with, nor on how many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache_half import NativeHalfKVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.ops.native.build import NoCompilerError, register
from tests._fixtures import tiny
from tests._fixtures.same_bits import FAMILIES as MODELS, assert_same_bits, passes

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

SLOTS = 300
# Texts that end in the middle and at the edges of a block of 32 slots, and of a part of 128.
STARTS = (0, 1, 30, 31, 32, 95, 120, 127, 128, 250)


@pytest.mark.parametrize(
    ("heads", "group", "width", "window", "kind"),
    [
        (2, 3, 64, None, NativeKVCache),
        (1, 1, 20, None, NativeKVCache),
        (2, 2, 16, 7, NativeKVCache),
        (1, 4, 80, 150, NativeKVCache),
        (2, 3, 64, None, NativeHalfKVCache),
        (1, 2, 20, 150, NativeHalfKVCache),
    ],
)
def test_attention_is_the_same_of_tokens_cached_and_fed(heads, group, width, window, kind):
    """Compares one token at a time with chains of 2 to 40, and with a tree whose nodes stand before or after others."""
    rng = np.random.default_rng(heads)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    keys, values, queries = (draw(1, SLOTS, heads, *rest, width) for rest in ((), (), (group,)))
    stored = [jnp.swapaxes(x, 1, 2)[None] for x in (keys, values)]
    if kind is NativeHalfKVCache:
        stored = [x.astype(jnp.float16) for x in stored]
        keys, values = (x.astype(jnp.float16).astype(jnp.float32) for x in (keys, values))

    @jax.jit
    def run(cached, chosen, mask, positions):
        cache = kind(*stored, length=jnp.asarray([cached], jnp.int32), positions=None)
        fresh = Fresh(keys[:, chosen], values[:, chosen], positions[None], mask[None])
        return attend(queries[:, chosen], fresh, History(cache, 0), scale=0.5, window=window)[0]

    def alone(slot):
        one = jnp.asarray([slot], jnp.int32)
        return np.asarray(run(slot, one, jnp.ones((1, 1), jnp.bool_), one))[0]

    expected = np.stack([alone(slot) for slot in range(SLOTS)])
    for start in STARTS:
        for count in (2, 3, 8, 40):
            chosen = jnp.arange(start, start + count, dtype=jnp.int32)
            found = run(start, chosen, jnp.tril(jnp.ones((count, count), jnp.bool_)), chosen)
            np.testing.assert_array_equal(found, expected[start : start + count], err_msg=f"{count} from {start}")
        # The chain is every second node; those between them are siblings that it does not see.
        chosen = start + jnp.arange(16, dtype=jnp.int32) // 2
        mask = jnp.asarray([[j == i or (j < i and j % 2 == 0) for j in range(16)] for i in range(16)])
        found = run(start, chosen, mask, chosen)
        np.testing.assert_array_equal(found[::2], expected[start : start + 8], err_msg=f"a tree from {start}")


def test_attention_is_the_softmax_over_what_any_mask_shows():
    """Compared with float64, for masks that no tree has: a query sees less than the neighbors around it."""
    rng = np.random.default_rng(0)
    for group, width in ((1, 8), (1, 24), (2, 16), (3, 8)):
        for _ in range(20):
            cached, count = int(rng.integers(0, 70)), int(rng.integers(3, 12))
            keys, values = rng.normal(size=(2, 1, 96, 1, width)).astype(np.float32)
            queries = rng.normal(size=(1, count, 1, group, width)).astype(np.float32)
            mask = (rng.random((count, count)) < 0.5) | np.eye(count, dtype=bool)
            places = jnp.asarray(cached + np.arange(count), jnp.int32)[None]
            fed = [jnp.asarray(x[:, cached : cached + count]) for x in (keys, values)]
            stored = [jnp.asarray(np.swapaxes(x, 1, 2)[None]) for x in (keys, values)]
            cache = NativeKVCache(*stored, length=jnp.asarray([cached], jnp.int32), positions=None)
            fresh = Fresh(*fed, places, jnp.asarray(mask)[None])
            found = attend(jnp.asarray(queries), fresh, History(cache, 0), scale=0.5, window=None)[0, :, 0]
            seen = np.concatenate([np.ones((count, cached), bool), mask], axis=1)
            scores = 0.5 * np.einsum("trd,sd->trs", queries[0, :, 0], keys[0, : cached + count, 0], dtype=np.float64)
            weights = np.where(seen[:, None], np.exp(scores), 0.0)
            expected = np.einsum("trs,sd->trd", weights, values[0, : cached + count, 0])
            np.testing.assert_allclose(found, expected / weights.sum(-1, keepdims=True), atol=1e-5)


QUICK = (("gemma", jnp.float32),)
PAIRS = [(family, weights) for family in MODELS for weights in ("int8", "int4", jnp.float32, jnp.bfloat16)]


@pytest.mark.parametrize(
    ("family", "weights"), [pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in QUICK)) for pair in PAIRS]
)
def test_passes_of_any_width_give_the_same_logits(family, weights):
    model = jaxspec.native_kernels(tiny.transformer(**MODELS[family]), weights=weights).bit_exact()
    assert model.pass_tokens is None
    text = np.random.default_rng(0).integers(0, tiny.VOCAB, (1, 120))
    chains = ([5] * 24, [9] * 5 + [75], [120])
    assert_same_bits(passes(model), lambda: model.init_cache(1, 160), text, chains, [(8, 3), (33, 7)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "verifier",
    [
        pytest.param(None, id="greedy"),
        pytest.param(jaxspec.CoupledVerifier(), id="coupled"),
    ],
)
def test_speculation_returns_the_same_log_probs(verifier):
    """To the bit, of a small vocabulary, by chains and a tree, in a batch whose rows accept apart."""
    model = jaxspec.native_kernels(tiny.transformer(layers=2), weights="int8")
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    sampling = None if verifier is None else jaxspec.Sampling(temperature=0.8)
    options = {"key": jax.random.key(7), "max_new_tokens": 40, "sampling": sampling}
    options = {name: value for name, value in options.items() if value is not None}
    plain = jaxspec.generate(model, None, prompts, **options)
    tree = jaxspec.drafters.TreeDrafter(model, jaxspec.Tree.chains(2, 3))
    for drafter in (jaxspec.NGramDrafter(k=1, min_ngram=1), jaxspec.NGramDrafter(k=8, min_ngram=1), tree):
        found = jaxspec.generate(model, drafter, prompts, verifier=verifier, **options)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        np.testing.assert_array_equal(found.log_probs, plain.log_probs)
        np.testing.assert_array_equal(found.warped_log_probs, plain.warped_log_probs)
        assert found.stats.mean_acceptance_length > 1
