"""Draft models whose vocabulary is trimmed to some tokens: they draft no other tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.decoding.round import Round
from jaxspec.drafters import ResizedModel, TreeDrafter, TrimmedModel
from jaxspec.nn.language_model import with_head_rows
from jaxspec.ops.formats import FORMATS
from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.enumeration import real_drafter
from jaxspec.testing.history_models import HistoryModel, history_model
from tests._fixtures import text_models, tiny
from tests._fixtures.contract_tests import VARIANT_TESTS
from tests._fixtures.rules import block_rule, token_rule

TARGET = DrafterContract.target
IDS = [0, 2, 3, 7, 10]
DRAFT = tiny.transformer(1)
UNTIED = tiny.transformer(2, tied_head=False)
PROMPT = jnp.asarray([[3, 10, 4], [9, 1, 0]], jnp.int32)
NEAR = history_model(4, vocab=3)
PLAIN = tiny.transformer(4, vocab=64, sharpness=4.0)
LARGE = {
    "plain": PLAIN,
    "untied": tiny.transformer(4, vocab=64, tied_head=False),
    "native": jaxspec.native_kernels(PLAIN, weights="float32"),
    "bfloat16": jaxspec.native_kernels(PLAIN, weights="bfloat16"),
    "stored": jaxspec.native_kernels(PLAIN, weights="int8"),
    "int8": jaxspec.quantize_weights(PLAIN),
    "grouped": jaxspec.quantize_weights(PLAIN, group=8),
    "int4": jaxspec.quantize_weights(PLAIN, bits=4, group=8),
}


def probs(draft, text):
    """The draft's distribution, less the tokens that it cannot say."""
    own = tiny.transformer_probs(draft, text)
    found = np.zeros_like(own)
    found[IDS] = own[IDS]
    return found / found.sum()


@pytest.mark.slow
class TestTied(DrafterContract):
    drafter = jaxspec.ModelDrafter(DRAFT, k=2, draft_vocabulary=IDS)
    sees_every_acceptance = False

    def guess(self, text, offset):
        return probs(DRAFT, text)


@pytest.mark.slow
class TestUntied(DrafterContract):
    quick_tests = VARIANT_TESTS
    drafter = jaxspec.ModelDrafter(UNTIED, k=2, draft_vocabulary=IDS)
    sees_every_acceptance = False

    def guess(self, text, offset):
        return probs(UNTIED, text)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FewLogits(HistoryModel):
    """Computes the logits of some tokens, like a model whose head was cut."""

    ids: jax.Array

    def __call__(self, tokens, cache, **options):
        output = super().__call__(tokens, cache, **options)
        return dataclasses.replace(output, logits=output.logits[..., self.ids])


@pytest.mark.parametrize("rule", [block_rule, pytest.param(token_rule, marks=pytest.mark.slow)], ids=["block", "token"])
def test_the_distribution_is_the_target_s(rule):
    """Exactly, over two rounds, although a token of the target is never drafted."""
    target, ids, seen = history_model(3, vocab=3), jnp.asarray([0, 2], jnp.int32), []
    drafter = jaxspec.ModelDrafter(TrimmedModel(FewLogits(NEAR.a, NEAR.b, ids), ids), k=2)
    saw = lambda proposal, _: seen.append(set(np.unique(np.asarray(proposal.tokens)).tolist()))
    assert real_drafter.deviation(target, drafter, rule, (0, 2, 1), rounds=2, length=5, saw=saw) < 1e-5
    assert set.union(*seen) == {0, 2}


@pytest.mark.parametrize("kind", LARGE)
def test_the_head_is_the_model_s_own_rows(kind):
    """In every format of weights; the embedding is whole, so that any token can be read."""
    model, ids = LARGE[kind], [1, 5, 31, 32, 63]
    trimmed = TrimmedModel.of(model, ids).model
    assert type(trimmed.head) is type(model.head) and trimmed.params["embedding"] is model.params["embedding"]
    assert trimmed.head.shape == (5, 16) and model.head.shape == (64, 16)
    own = model.head[jnp.asarray(ids)]
    np.testing.assert_allclose(trimmed.head[:], own, rtol=1e-6, atol=1e-6)


def test_logits_of_the_others_are_impossible():
    own = score(PLAIN, [1, 40, 63])
    found = score(TrimmedModel.of(PLAIN, IDS), [1, 40, 63])
    np.testing.assert_allclose(found[..., IDS], own[..., IDS], rtol=1e-5, atol=1e-5)
    assert np.isneginf(np.delete(found, IDS, axis=-1)).all()


@jax.jit
def _score(model, tokens):
    return model(tokens, model.init_cache(1, 8)).logits


def score(model, tokens):
    return np.asarray(_score(model, jnp.asarray([tokens], jnp.int32)))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rows_of_blocks_are_kept_where_int8_blocks_hold_them(dtype):
    weight = FORMATS["stored"].pack(jnp.asarray(np.random.default_rng(0).normal(size=(40, 64)), jnp.float32), dtype)
    rows = jnp.asarray([3, 17, 39])
    found, own = weight.take(rows), weight[rows]
    assert found.block_format == "Q8_0"
    np.testing.assert_allclose(found[:], own, rtol=0, atol=0 if dtype == "int8" else 0.02)


def test_an_adaptive_length_counts_the_smaller_head():
    costs = jaxspec.draft_length.CostModel(PLAIN)
    drafter = jaxspec.ModelDrafter(PLAIN, k=2, draft_vocabulary=8)
    assert drafter.info.network.params["head"].shape == (8, 16)
    # Tied, the whole table was read in each pass; now it is looked up.
    assert drafter.info.costs(costs, 2).each < jaxspec.ModelDrafter(PLAIN, k=2).info.costs(costs, 2).each


@pytest.mark.slow
def test_chains_trees_and_padded_vocabularies():
    target, draft = tiny.transformer(3), tiny.transformer(3, vocab=tiny.VOCAB + 3)
    plain = jaxspec.generate(target, None, PROMPT, max_new_tokens=20)
    trimmed = TrimmedModel.of(DRAFT, IDS)
    for drafter in (
        jaxspec.ModelDrafter(DRAFT, k=2, draft_vocabulary=IDS),
        jaxspec.ModelDrafter(DRAFT, k=2, num_drafts=2, draft_vocabulary=IDS),
        jaxspec.ModelDrafter(ResizedModel(draft, tiny.VOCAB), k=2, draft_vocabulary=9),
        TreeDrafter(trimmed, jaxspec.Tree.balanced((2, 2))),
        jaxspec.drafters.DynamicTreeDrafter(trimmed, top_k=2, depth=2, nodes=3),
        jaxspec.contrib.CascadeDrafter(trimmed, jaxspec.NGramDrafter(k=2, min_ngram=1), k=2),
        jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=2), jaxspec.ModelDrafter(DRAFT, k=2, draft_vocabulary=IDS)),
    ):
        found = jaxspec.generate(target, drafter, PROMPT, max_new_tokens=20)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        assert (found.stats.drafted > 0).all()


@pytest.mark.slow
def test_coupled_text_is_that_of_plain_decoding():
    """The noise of a token is that of its id, wherever it stands in the smaller head."""
    target = tiny.transformer(3)
    options = {"max_new_tokens": 20, "key": jax.random.key(3), "sampling": jaxspec.Sampling()}
    plain = jaxspec.generate(target, None, PROMPT, **options)
    drafter = jaxspec.ModelDrafter(target, k=3, draft_vocabulary=IDS)
    found = jaxspec.generate(target, drafter, PROMPT, verifier=jaxspec.CoupledVerifier(), **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    assert (found.stats.accepted > 0).all()


def test_special_tokens_and_ends_are_added_to_a_number():
    tokenizer = text_models.byte_level()
    special = [index for index in range(tokenizer.vocab_size) if tokenizer.is_special(index)]
    model = dataclasses.replace(tiny.transformer(1, vocab=tokenizer.vocab_size + 2), tokenizer=tokenizer)
    assert special == [0, 1, 2, 3]
    assert TrimmedModel.of(model, 2).ids.tolist() == special
    assert TrimmedModel.of(model, 6).ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert TrimmedModel.of(model, [4, 2]).ids.tolist() == [2, 4]
    assert TrimmedModel.of(DRAFT, 3).ids.tolist() == [0, 1, 2]


def test_it_is_trimmed_once_and_stays_so():
    drafter = jaxspec.ModelDrafter(DRAFT, k=2, draft_vocabulary=3)
    again = jax.tree.map(lambda x: x, dataclasses.replace(drafter, k=3))
    assert again.model.ids.tolist() == [0, 1, 2] and again.k == 3
    with pytest.raises(ValueError, match="already cut to 3 tokens"):
        with_head_rows(drafter.info.network, np.array([0], np.int32))


@pytest.mark.parametrize(
    ("model", "tokens", "error", "message"),
    [
        (DRAFT, 0, ValueError, "between 1 and 11 tokens, got 0"),
        (DRAFT, 12, ValueError, "between 1 and 11 tokens, got 12"),
        (DRAFT, [1, 1], ValueError, "each id once, got 1 twice"),
        (DRAFT, [-1, 4], ValueError, "a vocabulary of 11 tokens, got -1 to 4"),
        (DRAFT, [4, 11], ValueError, "a vocabulary of 11 tokens, got 4 to 11"),
        (DRAFT, [], ValueError, "a vocabulary of 11 tokens, got none"),
        (DRAFT, np.array([0.5]), TypeError, "a number of tokens or a list of their ids"),
        (DRAFT, True, TypeError, "a number of tokens or a list of their ids"),
        (TARGET, 4, TypeError, "can be cut, got HistoryModel; leave draft_vocabulary out"),
        ("draft", 4, TypeError, "ModelDrafter needs a Model, got str"),
    ],
)
def test_what_does_not_fit_is_refused(model, tokens, error, message):
    with pytest.raises(error, match=message):
        jaxspec.ModelDrafter(model, draft_vocabulary=tokens)


def test_a_round_in_which_no_row_drafts_writes_no_distribution_over_the_vocabulary():
    """Arrays that only a verification of drafts reads are computed within its branch: a loop of at most one trip."""
    length = jaxspec.Adaptive((1.0, 1.2), lengths=(0, 2))
    model = jaxspec.ModelDrafter(DRAFT, k=length, draft_vocabulary=IDS)
    one = Round(TARGET, jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=length), model), jaxspec.TokenVerifier())
    options = {"max_new_tokens": 8, "sampling": jaxspec.Sampling(1.0), "key": jax.random.key(0)}
    state = jaxspec.init(TARGET, one.drafter, PROMPT, **options)
    made = [
        variable.aval.shape
        for equation in jax.make_jaxpr(one.run)(state).eqns
        if equation.primitive.name != "while"
        for variable in equation.outvars
    ]
    assert (2, 2, len(IDS)) in made  # the buffer over the draft vocabulary
    assert (2, 2, TARGET.vocab_size) not in made
