"""`ModelDrafter(num_drafts=m)`: several chains in one batched pass a token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.testing.history_models import history_model, nearby

TARGET = history_model(2)
DRAFT = nearby(TARGET, 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("distinct", [True, False])
def test_it_drafts_as_a_tree_of_chains_does(distinct):
    draw = jaxspec.drafters.WithoutReplacement() if distinct else jaxspec.drafters.WithReplacement()
    tree = jaxspec.TreeDrafter(DRAFT, jaxspec.Tree.chains(3, 2), draw=draw)
    several = jaxspec.ModelDrafter(DRAFT, k=2, num_drafts=3, distinct=distinct)
    assert several.tree and several.max_drafts == tree.max_drafts and several.lengths == tree.lengths == (6,)
    assert several.info.identically_distributed == tree.info.identically_distributed == (not distinct)
    options = {"max_new_tokens": 12, "sampling": jaxspec.Sampling(), "key": jax.random.key(0)}
    found, expected = (
        jaxspec.generate(TARGET, drafter, jnp.asarray([[1, 2], [3, 0]]), **options) for drafter in (several, tree)
    )
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.stats.accepted_at, expected.stats.accepted_at)


@pytest.mark.slow
def test_more_drafts_are_accepted_more():
    prompt = jnp.zeros((400, 1), jnp.int32)
    options = {"max_new_tokens": 12, "sampling": jaxspec.Sampling(), "key": jax.random.key(0)}
    lengths = [
        jaxspec.generate(
            TARGET, jaxspec.ModelDrafter(DRAFT, k=2, num_drafts=m), prompt, **options
        ).stats.mean_acceptance_length
        for m in (1, 3)
    ]
    assert lengths[1] > lengths[0] + 0.1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_drafts": 0}, ValueError, "num_drafts must be at least 1, got 0"),
        ({"num_drafts": 2.0}, TypeError, "num_drafts must be an integer, got 2.0"),
        ({"num_drafts": 2, "k": 0}, ValueError, "several drafts need a fixed k"),
        ({"num_drafts": 2, "k": Adaptive((1.0, 1.2), lengths=(0, 2))}, ValueError, "several drafts need a fixed k"),
        ({"distinct": False}, ValueError, "distinct=False needs several drafts"),
    ],
)
def test_bad_input(options, error, text):
    with pytest.raises(error, match=text):
        jaxspec.ModelDrafter(DRAFT, **options)


@pytest.mark.slow
def test_what_does_not_fit_together():
    several, independent = (jaxspec.ModelDrafter(DRAFT, k=2, num_drafts=2, distinct=d) for d in (True, False))
    prompt = jnp.zeros((1, 1), jnp.int32)
    run = lambda drafter, verifier: jaxspec.generate(
        TARGET, drafter, prompt, max_new_tokens=4, sampling=jaxspec.Sampling(), key=jax.random.key(0), verifier=verifier
    )
    with pytest.raises(ValueError, match="BlockVerifier verifies one chain of drafts, got ModelDrafter"):
        run(several, jaxspec.BlockVerifier())
    with pytest.raises(ValueError, match="KSequence needs independent drafts from one distribution"):
        run(several, jaxspec.verifiers.MultiDraftVerifier(jaxspec.verifiers.KSequence()))
    run(independent, jaxspec.verifiers.MultiDraftVerifier(jaxspec.verifiers.KSequence()))
    with pytest.raises(ValueError, match="vocabulary"):
        run(jaxspec.ModelDrafter(DRAFT, num_drafts=5), None)
