"""Sampling by native kernels: thresholds, log-probabilities and tokens have the bits of XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import compiler, native_sampling
from jaxspec.core.random import PositionNoise, RoundKeys, row_keys
from jaxspec.core.sampling import Sampling, draw
from jaxspec.core.state import Proposal
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.verifiers.block import log_thresholds
from tests._fixtures import native_calls, tiny

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

KERNELS = (native_sampling.WARP, native_sampling.DRAW, native_sampling.DRAW_NEXT, native_sampling.EXCESS)
# One row each: temperature, top-k, top-p, min-p.
ROWS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 0.9, 0.0),
    (0.7, 0, 0.999, 0.0),
    (0.3, 0, 0.0, 0.0),
    (1.3, 20, 0.8, 0.02),
    (1.0, 7, 1.0, 0.0),
    (1.0, 10**6, 0.5, 0.0),
    (2.0, -1, 1.0, 0.3),
    (0.0, 5, 0.5, 0.1),
    (1.5, 1, 1.0, 0.0),
]
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (jnp.asarray(column, jnp.float32) for column in zip(*ROWS, strict=True))
POLICY = Sampling(_TEMPERATURE, _TOP_K.astype(jnp.int32), _TOP_P, _MIN_P)


@pytest.fixture
def natively(monkeypatch):
    """Returns a function that runs another as for a target with native kernels, and counts the kernels."""

    def run(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(compiler, "_KERNELS", compiler.contextvars.ContextVar("kernels", default="native"))
            lowered = jax.jit(lambda *arguments: function(*arguments)).lower(*arguments)
        assert any(name in lowered.as_text() for name in KERNELS)
        return lowered.compile()(*arguments)

    return run


def logits(vocab_size, seed=0):
    """Rows of several spreads, tied, excluded, all equal, and with values that are no numbers."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(len(ROWS), 6, vocab_size)) * np.array([0.1, 1, 3, 8, 3, 3])[:, None]
    values[:, 2] = np.round(values[:, 2])
    values[:, 3, ::2] = -np.inf
    values[:, 4] = 2.5
    values[::2, 5, -1], values[1::2, 5] = np.nan, -np.inf
    return jnp.asarray(values, jnp.float32)


def assert_same_bits(found, expected):
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    same = np.nan_to_num(np.asarray(found), nan=1.0).view(np.uint32) == np.nan_to_num(expected, nan=1.0).view(np.uint32)
    assert same.all(), f"{(~same).any(-1).sum()} rows differ"


@pytest.mark.slow
@pytest.mark.optimized  # without its optimizations, XLA rounds products and sums apart
@pytest.mark.parametrize("vocab_size", [9, 310, 2049, 49_152, 151_936])
def test_warped_rows_have_the_bits_of_xla(vocab_size, natively):
    values = logits(vocab_size)
    expected = jax.jit(lambda values: POLICY.log_probs(values))(values)
    found = natively(lambda values: POLICY.log_probs(values), values)
    assert_same_bits(found[:, :5], expected[:, :5])
    assert_same_bits(found[1::2, 5], expected[1::2, 5])
    # XLA's maximum may ignore NaN; here the whole row is NaN, unless it is greedy.
    assert np.isnan(found[:8:2, 5]).all() and found[8, 5, -1] == 0


KEYS, LENGTH = row_keys(jax.random.key(1), len(ROWS)), jnp.arange(3, 3 + len(ROWS), dtype=jnp.int32)
RNGS = {
    "round": RoundKeys(KEYS, LENGTH),
    "second draft": RoundKeys(KEYS, LENGTH, (2,)),
    "place": PositionNoise(KEYS, LENGTH),
}


@pytest.mark.parametrize("partitionable", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["round", *(pytest.param(name, marks=pytest.mark.slow) for name in [*RNGS][1:])])
@pytest.mark.parametrize("some", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_drafts_are_drawn_with_the_noise_of_jax(name, some, partitionable, natively):
    """Of excluded and tied tokens, with several parts of a row, and of a draft vocabulary."""
    values, offsets = logits(31)[:, :5], jnp.arange(5, dtype=jnp.int32)
    ids = jnp.asarray(np.random.default_rng(1).permutation(90)[:31], jnp.int32) if some else None
    run = lambda values: RNGS[name].draft_tokens(values, offsets, 90 if some else 31, ids)  # noqa: E731
    with jax.threefry_partitionable(partitionable):
        np.testing.assert_array_equal(natively(run, values), jax.jit(run)(values))


@pytest.mark.slow
def test_tokens_are_drawn_with_the_noise_of_jax(natively):
    values = logits(9000)[:, :5]
    for run in (RNGS["place"].tokens, lambda values: RNGS["round"].next_token(values[:, 1])):
        np.testing.assert_array_equal(natively(run, values), jax.jit(run)(values))


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(("rows", "vocab_size"), [(25_000, 100), (200, 49_152)])
def test_a_million_draws(rows, vocab_size, natively, record_property):
    """Counts the tokens that differ, by the rounding of scores: none where a product and sum are rounded once."""
    values = jnp.asarray(np.random.default_rng(rows).normal(size=(rows, vocab_size)) * 3, jnp.float32)
    times = 40 if vocab_size == 100 else 1

    def run(values):
        one = lambda i: RoundKeys(row_keys(jax.random.key(i), rows), jnp.ones(rows, jnp.int32)).next_token(values)  # noqa: E731
        return jax.lax.map(one, jnp.arange(times, dtype=jnp.int32))

    differ = int(np.sum(natively(run, values) != jax.jit(run)(values)))
    record_property("differing tokens", differ)
    assert differ <= 1e-6 * rows * times


VERIFIERS = {"token": jaxspec.TokenVerifier(), "block": jaxspec.BlockVerifier()}


@pytest.mark.slow
@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("certain", [False, True])
def test_a_chain_is_verified_as_by_xla(name, certain, natively):
    """Where drafts are rejected, all accepted or none submitted, and where rejecting one leaves nothing."""
    rows, n, rng = 64, 3, np.random.default_rng(0)
    target = rng.normal(size=(rows, n + 1, 70)) * 2
    target[:8, :, ::3] = -np.inf
    draft = target[:, :n] + rng.normal(size=(rows, n, 70)) * np.linspace(0, 3, rows)[:, None, None]
    target, draft = (np.array(jax.nn.log_softmax(jnp.asarray(x, jnp.float32))) for x in (target, draft))
    tokens = np.argmax(draft + rng.gumbel(size=draft.shape), axis=-1).astype(np.int32)
    if certain:
        target[-1] = np.where(np.arange(70) == 5, 0.0, -np.inf)
        tokens[-1] = [5, 6, 5]
    valid = jnp.asarray(rng.random((rows, n)) < 0.9).at[0].set(False)
    proposal = Proposal(jnp.asarray(tokens), jnp.cumprod(valid, axis=1) > 0, None if certain else jnp.asarray(draft))
    keys = RoundKeys(row_keys(jax.random.key(2), rows), jnp.arange(rows, dtype=jnp.int32))
    verify = lambda target: VERIFIERS[name].verify(keys, proposal, target)  # noqa: E731
    found, expected = natively(verify, jnp.asarray(target)), jax.jit(verify)(jnp.asarray(target))
    assert 0 < expected.accepted.mean() < n
    np.testing.assert_array_equal(found.accepted, expected.accepted)
    np.testing.assert_array_equal(found.next_token, expected.next_token)


@pytest.mark.slow
def test_the_excess_of_a_target_is_that_of_xla(natively):
    """Of equal distributions it is 0, and with NaN it is NaN, so that a block ends there."""
    values = logits(310)[:, :4]
    target, draft = (np.array(jax.nn.log_softmax(x)) for x in (values, values[:, :3] * 0.7))
    draft[0], draft[1, 2, 7], target[2, 1, 9] = target[0, :3], np.nan, np.nan
    proposal = Proposal(jnp.zeros((10, 3), jnp.int32), jnp.ones((10, 3), jnp.bool_), jnp.asarray(draft))
    run = lambda target: log_thresholds(proposal, target)  # noqa: E731
    found, expected = natively(run, jnp.asarray(target)), jax.jit(run)(jnp.asarray(target))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_row_does_not_depend_on_the_others(natively):
    """Nor on the batch axis that `vmap` adds, in a loop too."""
    values, rng = logits(70)[:, :5], RoundKeys(row_keys(jax.random.key(0), 10), jnp.arange(10, dtype=jnp.int32))
    offsets = jnp.arange(5, dtype=jnp.int32)
    run = lambda policy, values, rng: draw(policy, values, rng, offsets, 70)  # noqa: E731
    tokens, log_probs = natively(run, POLICY, values, rng)
    one = lambda x: jax.tree.map(lambda leaf: leaf[3:4], x)  # noqa: E731
    for found, whole in zip(natively(run, one(POLICY), one(values), one(rng)), (tokens, log_probs), strict=True):
        np.testing.assert_array_equal(found, whole[3:4])
    by_row = jax.vmap(lambda *rows: run(*jax.tree.map(lambda leaf: leaf[None], rows)))
    looped = lambda *rows: jax.lax.fori_loop(0, 2, lambda _, found: by_row(*rows), by_row(*rows))  # noqa: E731
    for found, whole in zip(natively(looped, POLICY, values, rng), (tokens, log_probs), strict=True):
        np.testing.assert_array_equal(found[:, 0], whole)


def test_models_with_native_kernels_sample_natively():
    model = tiny.transformer(layers=1)
    for one, expected in (
        (model, False),
        (jaxspec.native_kernels(model), True),
        (jaxspec.quantize_cache(jaxspec.native_kernels(model)), True),
    ):
        with compiler.traced_for(one):
            assert compiler.samples_natively() is expected
    assert not compiler.samples_natively()


@pytest.mark.slow
@pytest.mark.optimized
def test_text_is_that_of_xla(monkeypatch):
    """To the bit."""
    model, draft = (jaxspec.native_kernels(tiny.transformer(layers=1, seed=seed)) for seed in (0, 1))
    drafter = jaxspec.ModelDrafter(draft, k=2)
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    options = {"key": jax.random.key(3), "sampling": Sampling(0.8, top_p=0.9), "max_new_tokens": 24}
    found = jaxspec.generate(model, drafter, prompts, **options)
    monkeypatch.setattr(native_sampling, "samples_natively", lambda: False)
    jax.clear_caches()
    expected = jaxspec.generate(model, drafter, prompts, **options)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert_same_bits(found.warped_log_probs, expected.warped_log_probs)


def slow_but_first(cases):
    return [cases[0], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[1:])]


@pytest.mark.parametrize("case", slow_but_first(native_calls.WRONG_WARPS), ids=str)
def test_wrong_warpers_are_refused(case):
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.wrong_warp(case)


@pytest.mark.parametrize("case", slow_but_first(native_calls.WRONG_CHAINS), ids=str)
def test_wrong_chains_are_refused(case):
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.chain(**case)


@pytest.mark.parametrize("case", slow_but_first(native_calls.WRONG_DRAWS), ids=str)
def test_wrong_draws_are_refused(case):
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        native_calls.wrong_draw(case)
