"""Draft models with more token ids than their target, or fewer, where both have the same tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.tree import Tree
from jaxspec.drafters import ResizedModel, TreeDrafter
from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.enumeration import real_drafter
from jaxspec.testing.history_models import HistoryModel, history_model, history_probs
from tests._fixtures import text_models, tiny
from tests._fixtures.contract_tests import VARIANT_TESTS
from tests._fixtures.rules import block_rule, token_rule

TARGET = DrafterContract.target
SMALLER, LARGER = history_model(5, vocab=9), history_model(6, vocab=14)
PROMPT = jnp.asarray([[3, 10, 4], [9, 1, 0]], jnp.int32)


def probs(draft, text, vocab=tiny.VOCAB):
    """The draft's distribution over the target's ids: its own, less what the target lacks."""
    found = np.zeros(vocab)
    own = history_probs(draft, [min(token, draft.vocab_size - 1) for token in text])[:vocab]
    found[: len(own)] = own
    return found / found.sum()


@pytest.mark.slow
class TestSmaller(DrafterContract):
    quick_tests = VARIANT_TESTS
    drafter = jaxspec.ModelDrafter(ResizedModel(SMALLER, tiny.VOCAB), k=2)
    sees_every_acceptance = False

    def guess(self, text, offset):
        return probs(SMALLER, text)


@pytest.mark.slow
class TestLarger(DrafterContract):
    quick_tests = VARIANT_TESTS
    drafter = jaxspec.ModelDrafter(ResizedModel(LARGER, tiny.VOCAB), k=2)
    sees_every_acceptance = False

    def guess(self, text, offset):
        return probs(LARGER, text)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [block_rule, pytest.param(token_rule, marks=pytest.mark.slow)], ids=["block", "token"])
@pytest.mark.parametrize("vocab", [5, pytest.param(2, marks=pytest.mark.slow)], ids=["larger", "smaller"])
def test_the_distribution_is_the_target_s(vocab, rule):
    """Exactly, over two rounds."""
    target, draft, seen = history_model(3, vocab=3), history_model(4, vocab=vocab), []
    drafter = jaxspec.ModelDrafter(ResizedModel(draft, 3), k=2)
    saw = lambda proposal, _: seen.append(set(np.unique(np.asarray(proposal.tokens)).tolist()))
    assert real_drafter.deviation(target, drafter, rule, (0, 2, 1), rounds=2, length=5, saw=saw) < 1e-5
    assert set.union(*seen) == set(range(min(vocab, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("more", [2, 9], ids=["smaller", "larger"])
def test_tokenizers_say_that_the_tokens_are_the_same(more):
    """A draft model passed as it is; the text has an id that the smaller one lacks."""
    own, other = text_models.byte_level(), text_models.byte_level()
    target = dataclasses.replace(tiny.transformer(1, vocab=own.vocab_size + 6), tokenizer=own)
    draft = dataclasses.replace(tiny.transformer(2, vocab=own.vocab_size + more), tokenizer=other)
    prompt = jnp.asarray([[5, target.vocab_size - 1, 7]], jnp.int32)
    plain = jaxspec.generate(target, None, prompt, max_new_tokens=8)
    found = jaxspec.generate(target, jaxspec.ModelDrafter(draft, k=2), prompt, max_new_tokens=8)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert (found.stats.drafted > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("draft", [SMALLER, LARGER], ids=["smaller", "larger"])
def test_several_drafts_and_trees(draft):
    resized = ResizedModel(draft, tiny.VOCAB)
    plain = jaxspec.generate(TARGET, None, PROMPT, max_new_tokens=20)
    for drafter in (
        jaxspec.ModelDrafter(resized, k=2, num_drafts=2),
        TreeDrafter(resized, Tree.balanced((2, 2))),
        jaxspec.contrib.CascadeDrafter(resized, jaxspec.NGramDrafter(k=2, min_ngram=1), k=2),
    ):
        found = jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=20)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        assert (found.stats.drafted > 0).all()


@pytest.mark.slow
def test_coupled_text_is_that_of_plain_decoding():
    """The noise of a token is that of its id, however many there are."""
    draft = ResizedModel(HistoryModel(*(jnp.pad(x, (0, 3)) for x in (TARGET.a, TARGET.b))), tiny.VOCAB)
    options = {"max_new_tokens": 20, "key": jax.random.key(3), "sampling": jaxspec.Sampling()}
    plain = jaxspec.generate(TARGET, None, PROMPT, **options)
    drafter = jaxspec.ModelDrafter(draft, k=3)
    found = jaxspec.generate(TARGET, drafter, PROMPT, verifier=jaxspec.CoupledVerifier(), **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_array_equal(found.stats.accepted, found.stats.drafted)


def test_a_mesh_and_costs_see_the_model_in_it():
    mesh = jax.make_mesh((1,), ("model",))
    target, model = tiny.transformer(1), tiny.transformer(2, vocab=tiny.VOCAB + 3)
    drafter = jaxspec.sharding.shard_models(jaxspec.ModelDrafter(ResizedModel(model, tiny.VOCAB), k=2), mesh)
    assert drafter.info.network.placement.mesh.axis_names == ("model",)
    assert drafter.model.traits.placement == drafter.info.network.placement
    costs = jaxspec.draft_length.CostModel(target)
    assert drafter.info.costs(costs, 2) == jaxspec.ModelDrafter(model, k=2).info.costs(costs, 2)


@pytest.mark.parametrize("tokenizers", [(None, None), (text_models.byte_level(), text_models.sentencepiece())])
def test_other_sizes_are_refused_where_the_tokens_may_be_others(tokenizers):
    own, other = tokenizers
    target = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB), tokenizer=own)
    draft = dataclasses.replace(tiny.transformer(2, vocab=text_models.VOCAB + 2), tokenizer=other)
    with pytest.raises(ValueError, match="a draft of 312 tokens for a target of 310; .* ResizedModel"):
        jaxspec.ModelDrafter(draft).check(target)
    jaxspec.ModelDrafter(ResizedModel(draft, target.vocab_size)).check(target)
