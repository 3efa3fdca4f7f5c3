"""Heads with each correction, and the corrected logits of their drafts by its formula, in NumPy."""

import jax
import numpy as np

from jaxspec.heads.dflash.domino import Domino
from jaxspec.heads.dflash.markov import Markov
from jaxspec.heads.dflash.selector import Selector
from tests._fixtures import tiny
from tests._fixtures.dflash_blocks import LENGTHS, SOME, TARGET, TEXTS, Probs

IN_PLACE = {"first_predicts": False}
CORRECTED = {
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
        self.weights = jax.tree.map(lambda x: np.asarray(x, np.float64), head.params.get("correction", {}))
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

    def after(self, text, path):
        """The log-probabilities of the target's tokens after a path of drafts."""
        head, found = self.head, np.full(TARGET.vocab_size, -np.inf)
        with np.errstate(divide="ignore"):
            if self.spec is None:
                return np.log(self.trunk.probs(text, len(path), [*text, *path][-1]))
            logits = self.logits(text, path)[-1]
            found[np.asarray(head.ids)] = logits - np.logaddexp.reduce(logits)
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
