"""Corrections of a block's drafts: each against its formula, written out over the drafts of a proposal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.heads.dflash.domino import Domino
from jaxspec.heads.dflash.head import DFlashDrafter
from jaxspec.heads.dflash.selector import Selector
from jaxspec.heads.dflash.tree import DFlashTreeDrafter
from jaxspec.heads.dflash.xpress import XPress
from tests._fixtures import tiny
from tests._fixtures.dflash import random_head
from tests._fixtures.dflash_blocks import SOME, TARGET, TEXTS, Probs, propose
from tests._fixtures.dflash_corrections import CORRECTED, Formula, sigmoid, texts


@pytest.mark.slow
@pytest.mark.parametrize("options", CORRECTED.values(), ids=CORRECTED)
def test_the_distribution_of_each_draft_is_the_formula_s(options):
    head = random_head(TARGET, layers=1, seed=4, scale=0.6, **options)
    formula, found = Formula(head), propose(DFlashDrafter(head), jaxspec.Sampling())
    for row, text in enumerate(texts()):
        for number, logits in enumerate(formula.logits(text, found.tokens[row].tolist())):
            expected = np.full(TARGET.vocab_size, -np.inf)
            expected[np.asarray(head.ids)] = logits
            np.testing.assert_allclose(jnp.exp(found.log_probs[row, number]), jax.nn.softmax(expected), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("first_predicts", [True, False])
def test_a_refiner_s_drafts_are_those_of_its_last_pass(first_predicts):
    """They are certain at every temperature, and change from pass to pass."""
    spec = XPress(3, 6, 2, tiny.VOCAB)
    options = {"ids": SOME, "first_predicts": first_predicts, "layers": 1, "seed": 4, "scale": 0.6}
    head = random_head(TARGET, correction=spec, **options)
    drafter = DFlashDrafter(head)
    found, trunk = propose(drafter, jaxspec.Sampling()), Probs(head)
    assert drafter.deterministic and found.log_probs is None
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), head.params["correction"])
    by_pass = []
    for row, text in enumerate(texts()):
        states = trunk.known(text)
        base = states @ np.asarray(head.params["head"], np.float64).T
        given = [text[-1]] if first_predicts else [text[max(len(text) - 2, 0)], text[-1]]
        guesses = np.asarray(SOME)[base.argmax(-1)[len(given) - 1 :]]
        for _ in range(spec.passes):
            before = [*given, *guesses][: len(states)]
            mean, x = states.mean(0), []
            for state, token in zip(states, before):
                parts = [weights["down_h"] @ state, weights["down_g"] @ mean, weights["token_embed"][token]]
                x.append(weights["in_proj"] @ np.concatenate(parts))
            mixed = [x[k] + sum(weights["mix_l"][:, k, j] * x[j] for j in range(k + 1)) for k in range(len(x))]
            for k, y in enumerate(mixed):
                gate = weights["mlp_gate"] @ y
                mixed[k] = y + weights["mlp_down"] @ (gate * sigmoid(gate) * (weights["mlp_up"] @ y))
            logits = base + np.array(mixed) @ weights["readout"].T
            by_pass.append(guesses := np.asarray(SOME)[logits.argmax(-1)[len(given) - 1 :]])
        assert found.tokens[row].tolist() == guesses.tolist()
    assert any((one != other).any() for one, other in zip(by_pass[::2], by_pass[1::2]))


@pytest.mark.slow
@pytest.mark.parametrize("correction", [Selector(3, 2), XPress(3, 6, 2, tiny.VOCAB), Domino(3, 4, 1)])
def test_they_draft_without_changing_a_token(correction):
    """Also where the target may not emit the best candidates."""
    drafter = DFlashDrafter(random_head(TARGET, layers=1, correction=correction))
    forbidden = jaxspec.processors.LogitBias.of(dict.fromkeys(range(6), -1e9))
    sampling = jaxspec.Sampling(processors=(forbidden,))
    options = {"key": jax.random.key(2), "max_new_tokens": 12, "sampling": sampling}
    options |= {"verifier": jaxspec.CoupledVerifier()}
    plain, drafted = (jaxspec.generate(TARGET, one, TEXTS[:2, :6], **options) for one in (None, drafter))
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert drafted.stats.drafted.sum() > 0


def test_drafts_that_are_guessed_together_are_no_tree():
    with pytest.raises(ValueError, match="XPress guesses all drafts together; pass DFlashDrafter"):
        DFlashTreeDrafter(random_head(TARGET, correction=XPress(3, 6, 2, tiny.VOCAB)), nodes=4)
