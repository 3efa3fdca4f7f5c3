"""Processors with reference arithmetic over a whole text in NumPy, and a target whose logits are a table of texts."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxspec.core.pytree import register_dataclass
from jaxspec.processors import (
    AllowedTokens,
    BannedPhrases,
    FromCounts,
    LogitBias,
    MinNewTokens,
    Penalties,
    StatefulProcessor,
)

STOP = 3
# From each state the tokens that may come, and the state after each.
ALLOWED = np.array([[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]], bool)
NEXT = np.array([[1, 2, 0, 0], [0, 2, 1, 0], [0, 0, 1, 2]])


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Automaton(StatefulProcessor):
    """Three states, of four tokens."""

    allowed: jnp.ndarray
    following: jnp.ndarray

    def start(self, prompt, length):
        return jnp.zeros((), jnp.int32)

    def advance(self, state, token):
        return self.following[state, token].astype(jnp.int32)

    def process(self, logits, state):
        return jnp.where(self.allowed[state], logits, -jnp.inf)


def sink(logits, counts):
    """Lowers what was written, by the square of how often."""
    return logits - 0.25 * (counts * counts).astype(logits.dtype)


def penalties(logits, prompt, new, repetition=1.5, presence=0.5, frequency=0.75):
    logits = logits.copy()
    for token in set(prompt) | set(new):
        logits[token] = logits[token] * repetition if logits[token] < 0 else logits[token] / repetition
    for token in set(new):
        logits[token] -= presence + frequency * new.count(token)
    return logits


def bias(logits, prompt, new):
    return logits + np.array([1.5, 0.0, -0.5, -np.inf])


def minimum(logits, prompt, new):
    return np.where(np.arange(4) == STOP, -np.inf, logits) if len(new) < 2 else logits


def automaton(logits, prompt, new):
    return np.where(ALLOWED[functools.reduce(lambda state, token: NEXT[state, token], new, 0)], logits, -np.inf)


def phrases(logits, prompt, new):
    text, logits = (*prompt, *new), logits.copy()
    for phrase in ((0,), (1, 2), (2, 2, 1)):
        if text[len(text) - len(phrase) + 1 :] == phrase[:-1]:
            logits[phrase[-1]] = -np.inf
    return logits


def allowed(logits, prompt, new):
    return np.where(np.isin(np.arange(4), [0, 2, 3]), logits, -np.inf)


def counted(logits, prompt, new):
    return logits - 0.25 * np.array([new.count(token) ** 2 for token in range(4)])


Naive = Callable[[np.ndarray, tuple[int, ...], tuple[int, ...]], np.ndarray]
# By name: the processors, and what each does to the logits after `(*prompt, *new)`.
CASES: dict[str, tuple[tuple, tuple[Naive, ...]]] = {
    "penalties": ((Penalties(1.5, 0.5, 0.75),), (penalties,)),
    "bias": ((LogitBias.of({0: 1.5, 2: -0.5, 3: -np.inf}),), (bias,)),
    "minimum": ((MinNewTokens(2),), (minimum,)),
    "automaton": ((Automaton(ALLOWED, NEXT),), (automaton,)),
    "phrases": ((BannedPhrases.of([[0], [1, 2], [2, 2, 1]]),), (phrases,)),
    "allowed": ((AllowedTokens([0, 2, 3]),), (allowed,)),
    "counts": ((FromCounts(sink),), (counted,)),
    "together": (
        (LogitBias.of({0: 1.5, 2: -0.5}), Penalties(1.5, 0.5, 0.75), MinNewTokens(2), Automaton(ALLOWED, NEXT)),
        (lambda logits, prompt, new: logits + np.array([1.5, 0, -0.5, 0]), penalties, minimum, automaton),
    ),
}


def naive(name: str, logits: np.ndarray, prompt: tuple[int, ...], new: tuple[int, ...]) -> np.ndarray:
    """Returns what a case makes of the logits after a text."""
    return functools.reduce(lambda logits, one: one(logits, prompt, new), CASES[name][1], logits)
