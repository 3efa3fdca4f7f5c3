"""Corrections of a block's drafts: each against its formula, written out over the drafts of a proposal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.heads.dflash.domino import Domino
from jaxspec.heads.dflash.head import DFlashDrafter
from jaxspec.heads.dflash.markov import Markov
from jaxspec.heads.dflash.selector import Selector
from jaxspec.heads.dflash.tree import DFlashTreeDrafter
from jaxspec.heads.dflash.xpress import XPress
from tests._fixtures import tiny
from tests._fixtures.dflash import random_head
from tests._fixtures.dflash_blocks import LENGTHS, SOME, TARGET, TEXTS, Probs, propose

IN_PLACE = {"first_predicts": False}
CASES = {
    "vanilla, of a part": {"correction": Markov("vanilla", 3, tiny.VOCAB), "ids": SOME},
    "gated": {"correction": Markov("gated", 3, tiny.VOCAB), "ids": SOME},
    "rnn": {"correction": Markov("rnn", 3, tiny.VOCAB)},
    "rnn in place": {"correction": Markov("rnn", 3, tiny.VOCAB), **IN_PLACE},
    "Domino": {"correction": Domino(3, 4, 1), **IN_PLACE},
    "Domino, shifted": {"correction": Domino(3, 4, 2)},
    "selector": {"correction": Selector(3, 4), **IN_PLACE},
    "selector from the anchor": {"correction": Selector(3, 4)},
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Formula:
    """The corrected logits of a block, draft by draft, in NumPy."""

    def __init__(self, head):
        self.head, self.spec, self.trunk = head, head.config.correction, Probs(head)
        self.weights = jax.tree.map(lambda x: np.asarray(x, np.float64), head.params["correction"])
        self.table = np.asarray(TARGET.params["embedding"], np.float64)

    def logits(self, text, drafts):
        """Of each draft, given the ones before it."""
        states, anchor, found = self.trunk.known(text), None, []
        if self.head.config.keeps_anchor:
            anchor, states = states[0], states[1:]
        kept = self.start(text[-1], anchor)
        for number, (state, before) in enumerate(zip(states, [text[-1], *drafts])):
            base = np.asarray(self.head.params["head"], np.float64) @ state
            corrected, kept = self.step(kept, number, before, state, base)
            found.append(corrected)
        return found

    def start(self, token, state):
        kept = np.zeros(self.spec.state if isinstance(self.spec, Domino) else self.spec.rank)
        return kept if state is None else self.step(kept, 0, token, state, 0)[1]

    def step(self, kept, number, before, state, base):
        return getattr(self, type(self.spec).__name__.lower())(kept, number, before, state, base)

    def markov(self, kept, number, before, state, base):
        weights, e = self.weights, self.weights["markov_before"][before]
        latent = e
        if self.spec.kind == "gated":
            gate = weights["gate"]["kernel"] @ np.concatenate([state, e]) + weights["gate"]["bias"]
            latent = sigmoid(gate) * e
        if self.spec.kind == "rnn":
            joint = weights["joint"]["kernel"] @ np.concatenate([kept, e, state]) + weights["joint"]["bias"]
            gate, candidate, out = joint[:3], joint[3:6], joint[6:]
            kept, latent = sigmoid(gate) * kept + (1 - sigmoid(gate)) * np.tanh(candidate), np.tanh(out)
        return base + weights["markov_after"] @ latent, kept

    def domino(self, kept, number, before, state, base):
        weights, size = self.weights, self.spec.state
        x, own = weights["read"] @ self.table[before], weights["recur"] @ kept
        reset, update = sigmoid(x[:size] + own[:size]), sigmoid(x[size : 2 * size] + own[size : 2 * size])
        new = np.tanh(x[2 * size :] + reset * own[2 * size :])
        kept = (1 - update) * new + update * kept
        inner = weights["reduce"] @ np.concatenate([state, kept])
        bias = weights["markov_after"] @ (inner * sigmoid(inner))
        return (base + bias if number >= self.spec.prefix else base), kept

    def selector(self, kept, number, before, state, base):
        weights, scores = self.weights, np.full(len(base), -np.inf)
        for c in np.argsort(-base)[: self.spec.top_k]:
            edge = (weights["predecessors"][before] * (weights["reduce"] @ state)) @ weights["successors"][c]
            scores[c] = base[c] + edge
        return scores, kept


def texts():
    return [TEXTS[row, :length].tolist() for row, length in enumerate(LENGTHS.tolist())]


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
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


def test_trees_need_rows_that_no_correction_changes():
    with pytest.raises(ValueError, match="got Selector; pass DFlashDrafter"):
        DFlashTreeDrafter(random_head(TARGET, correction=Selector(3, 4)), nodes=4, top_k=2)
