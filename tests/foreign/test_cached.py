"""Foreign functions with a cache: the model contract, equal tokens, and models that are rejected before they run."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.foreign import from_cached
from jaxspec.testing.contracts.model import ModelContract
from tests._fixtures import cached, foreign, tiny
from tests._fixtures.foreign import LENGTHS, PROMPT, greedy

NEW = 12


def made(kind="shared", seed=0, *, flaw=None, leaf=None, **options):
    call, empty = cached.Call(kind, flaw), cached.Empty(kind, leaf)
    options = {"vocab_size": cached.VOCAB, "cache_index": kind, "context_length": cached.CONTEXT} | options
    return from_cached(call, empty, cached.params(seed), **options)


MODELS = {kind: made(kind, check=False) for kind in cached.KINDS}
DRAFTS = {kind: made(kind, seed=1, check=False) for kind in cached.KINDS}
DRAFTERS = {
    "none": lambda draft: None,
    "n-grams": lambda draft: jaxspec.NGramDrafter(k=3),
    "suffix": lambda draft: jaxspec.SuffixDrafter(k=3),
    "draft model": lambda draft: jaxspec.ModelDrafter(draft, k=3),
    "its own draft": lambda draft: jaxspec.ModelDrafter(draft, k=2),
    "hybrid": lambda draft: jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(draft, k=3)),
    "tree": lambda draft: jaxspec.TreeDrafter(draft, jaxspec.Tree.of_size(6)),
    "dynamic tree": lambda draft: jaxspec.drafters.DynamicTreeDrafter(draft, nodes=6, depth=3),
}
TREES = {"tree", "dynamic tree"}


class TestShared(ModelContract):
    model = MODELS["shared"]


class TestPerRow(ModelContract):
    model = MODELS["per_row"]


class TestScalar(ModelContract):
    model = MODELS["scalar"]
    takes_trees = False


def uncached(seed=0):
    """The function's own logits of whole texts, from an empty cache."""
    model, params = made("shared", check=False), cached.params(seed)

    def logits(tokens):
        batch, count = tokens.shape
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((count, count), bool))[None], (batch, count, count))
        positions = jnp.broadcast_to(jnp.arange(count)[None], tokens.shape)
        fed = jaxspec.foreign.Fed(positions, mask, jnp.zeros((), jnp.int32))
        return model.call(params, tokens, model.init(batch, count), fed)[0]

    return logits


EXPECTED = greedy(uncached(), NEW)
QUICK = {("shared", "tree"), ("per_row", "draft model"), ("scalar", "draft model")}
CASES = [(kind, name) for kind in cached.KINDS for name in DRAFTERS if kind != "scalar" or name not in TREES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_the_tokens_are_those_of_the_function_without_a_cache(kind, name):
    """Eight rows of other lengths, which accept differently."""
    drafter = DRAFTERS[name](MODELS[kind] if name == "its own draft" else DRAFTS[kind])
    found = jaxspec.generate(MODELS[kind], drafter, PROMPT, prompt_length=LENGTHS, max_new_tokens=NEW)
    np.testing.assert_array_equal(found.tokens, EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("kind", cached.KINDS)
def test_coupled_tokens_do_not_depend_on_drafts(kind):
    options = {"key": jax.random.key(3), "sampling": jaxspec.Sampling(temperature=1.0), "max_new_tokens": NEW}
    run = lambda drafter: (
        jaxspec.generate(
            MODELS[kind], drafter, PROMPT, prompt_length=LENGTHS, verifier=jaxspec.CoupledVerifier(), **options
        ).tokens
    )
    np.testing.assert_array_equal(run(jaxspec.ModelDrafter(DRAFTS[kind], k=3)), run(None))


@pytest.mark.slow
def test_inside_the_callers_jit_other_weights_compile_nothing():
    traced = []

    @jax.jit
    def run(model, prompt):
        traced.append(None)
        return jaxspec.generate(model, jaxspec.NGramDrafter(k=2), prompt, max_new_tokens=4).tokens

    first = run(MODELS["shared"], PROMPT)
    other = run(dataclasses.replace(MODELS["shared"], params=cached.params(5)), PROMPT)
    assert len(traced) == 1 and (first != other).any()
    assert run(made("shared", check=False), PROMPT).tolist() == first.tolist() and len(traced) == 1


@pytest.mark.slow
def test_what_is_mapped_becomes_rows():
    run = lambda prompt: jaxspec.generate(MODELS["shared"], None, prompt, max_new_tokens=4).tokens
    mapped = jax.vmap(run)(PROMPT[:, None])
    np.testing.assert_array_equal(mapped[:, 0], run(PROMPT))


FLAWS = {"mask": "the mask or the positions are ignored", "positions": "the mask or the positions are ignored"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "flaw", "message"),
    [
        *(("shared", *pair) for pair in FLAWS.items()),
        ("per_row", "mask", FLAWS["mask"]),
        ("scalar", "index", "a token does not see what was fed before it"),
        pytest.param("per_row", "chunk", "a token does not see what was fed before it", marks=pytest.mark.slow),
        pytest.param("per_row", "index", "a token does not see what was fed before it", marks=pytest.mark.slow),
        ("shared", "index", "tokens are not written at the index"),
        ("shared", "flash", "ignored in passes of many tokens"),
        pytest.param("per_row", "flash", "ignored in passes of many tokens", marks=pytest.mark.slow),
        pytest.param("shared", "slots", "attention depends on slot numbers", marks=pytest.mark.slow),
        ("shared", "nan", "logits are not finite"),
    ],
)
def test_what_a_call_ignores_is_found_when_it_is_wrapped(kind, flaw, message):
    with pytest.raises(ValueError, match=message):
        made(kind, flaw=flaw)
    assert made(kind, flaw=flaw, check=False).vocab_size == cached.VOCAB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 30}, r"must return logits of shape \(2, 2, 30\), got shape \(2, 2, 29\); pass vocab_size"),
        ({"leaf": "ring"}, r"\[0\]\['values'\] of the cache stops growing .* shape \(2, 40, 16\)"),
        ({"leaf": "state"}, r"\[0\]\['values'\] of the cache does not grow"),
        ({"cache_index": "one"}, "cache_index must be one of shared, per_row, scalar, got 'one'"),
        ({"scratch": 0}, "needs scratch of at least 1, got 0"),
        ({"context_length": -5}, "needs context_length of at least 1, got -5"),
        ({"leaf": "longer"}, r"equally many slots, got \[\d\]\['keys'\] \d+ and \[\d\]\['values'\] \d+ for"),
        ({"leaf": "pair"}, r"\[0\]\['end'\] of the cache does not grow"),
        ({"flaw": "last"}, r"of shape \(2, 2, 29\), got shape \(2, 29\); return those of every token"),
        ({"kind": "scalar", "cache_index": "per_row"}, r"\[0\]\['end'\] of the cache is one index for all rows"),
    ],
)
def test_bad_input_is_told_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: from_cached(None, cached.Empty(), {}, vocab_size=2, cache_index="shared"), "call must be callable"),
        (lambda: from_cached(cached.Call(), {}, {}, vocab_size=2, cache_index="shared"), "init_cache must be callable"),
        (lambda: jaxspec.foreign.for_heads(MODELS["shared"]), "sizes, which this model does not give"),
    ],
)
def test_what_is_no_function_is_refused(run, message):
    with pytest.raises(TypeError, match=message):
        run()


def test_a_pass_of_more_tokens_than_scratch_slots_is_refused():
    model = made(scratch=4, check=False)
    assert model.traits.prompt_chunk == 4
    with pytest.raises(ValueError, match=r"feeds 4 tokens at most, got 7; pass scratch=7"):
        jaxspec.generate(
            model, jaxspec.TreeDrafter(DRAFTS["shared"], jaxspec.Tree.of_size(6)), PROMPT, max_new_tokens=4
        )


@pytest.mark.slow
def test_states_that_are_not_returned_are_missed():
    model = made(flaw="states", check=False)
    with pytest.raises(ValueError, match=r"must return \(logits, cache, hidden states\), got a tuple of 2"):
        model(PROMPT, model.init_cache(8, 16), capture=(1,))


def test_a_chain_alone_is_scored_by_a_causal_mask():
    with pytest.raises((ValueError, TypeError), match="tree"):
        jaxspec.generate(
            MODELS["scalar"], jaxspec.TreeDrafter(DRAFTS["scalar"], jaxspec.Tree.of_size(6)), PROMPT, max_new_tokens=4
        )


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "shared" else pytest.mark.slow) for kind in cached.KINDS]
)
def test_a_round_copies_each_leaf_of_the_cache_once(kind):
    """For the call's own functional write; none for the loop's."""
    run = jax.jit(lambda model, prompt: jaxspec.generate(model, None, prompt, max_new_tokens=40).tokens)
    text = run.lower(MODELS[kind], PROMPT).compile().as_text()
    copied = []
    for computation in re.split(r"\n(?=\S)", text):
        # Of more than a hundred slots, those of scratch among them.
        copied.append(len(re.findall(rf"= f32\[8,(?:1,)?\d\d\d,{cached.WIDTH}\]\S* copy\(", computation)))
        assert computation.startswith("ENTRY") or copied[-1] <= 2 * cached.LAYERS
    assert any(copied)


@pytest.mark.slow
def test_what_is_not_wrong_passes_the_check():
    """Excluded tokens, and a cache that is not asked for more slots than there are positions and scratch."""
    assert all(made(kind).vocab_size == cached.VOCAB for kind in cached.KINDS)
    assert made(flaw="excluded").vocab_size == cached.VOCAB
    model = made(leaf="capped")
    assert jaxspec.generate(model, None, PROMPT, max_new_tokens=2).tokens.shape == (8, 2)


@pytest.mark.slow
def test_weights_that_are_traced_cannot_be_checked():
    wrap = lambda params, **options: from_cached(
        cached.Call(), cached.Empty(), params, vocab_size=cached.VOCAB, cache_index="shared", **options
    )
    run = lambda model: jaxspec.generate(model, None, PROMPT, prompt_length=LENGTHS, max_new_tokens=2).tokens
    with pytest.raises(ValueError, match="the weights are traced.*or pass check=False inside"):
        jax.jit(lambda params: run(wrap(params)))(cached.params())
    run = jax.jit(lambda params, run=run: run(wrap(params, check=False)))
    np.testing.assert_array_equal(run(cached.params()), EXPECTED[:, :2])


@pytest.mark.slow
def test_heads_are_trained_for_it_and_draft_for_it(tmp_path):
    config = dataclasses.replace(tiny.config(vocab=cached.VOCAB, layers=2), mlp_width=32)
    foreign.expect_heads(made(parts=cached.Parts(config)), tmp_path)
