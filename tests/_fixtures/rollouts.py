"""Policies and tokenizers for rollouts: an NNX module whose distribution is a formula, and a tokenizer of letters."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxspec.rl.contract import OwnConfig
from jaxspec.testing.history_models import HistoryModel, history_model

PAD, BEGIN, END = 0, 1, 2
LETTERS = "abcd"
VOCAB = 3 + len(LETTERS)


class Policy(nnx.Module):
    """A `HistoryModel` as a trainer holds it."""

    def __init__(self, seed=0, scale=1.0):
        model = history_model(seed, vocab=VOCAB, scale=scale)
        self.a, self.b = nnx.Param(jnp.copy(model.a)), nnx.Param(jnp.copy(model.b))
        self.drawn = nnx.Variable(jnp.zeros(2, jnp.int32))  # not a parameter


def to_model(policy):
    return HistoryModel(policy.a[...], policy.b[...])


@dataclasses.dataclass(frozen=True)
class Letters:
    """A tokenizer with the members of tunix's adapter."""

    pad: int = PAD
    begin: int | None = BEGIN

    def encode(self, text):
        return [3 + LETTERS.index(letter) for letter in text]

    def decode(self, ids):
        return "".join(chr(ord("a") + token - 3) if token >= 3 else "." for token in ids)

    def bos_id(self):
        return self.begin

    def eos_id(self):
        return END

    def pad_id(self):
        return self.pad

    def dedup_bos_ids(self, ids):
        while len(ids) > 1 and ids[0] == ids[1] == self.begin:
            ids = ids[1:]
        return ids


def config(**options):
    return OwnConfig(
        **{"max_tokens_to_generate": 8, "temperature": 1.0, "max_prompt_length": 6, "kv_cache_size": 32} | options
    )


def float64_log_probs(policy, prompt, tokens, temperature=1.0):
    """The log-probability of each token by its formula, at a temperature, before truncation."""
    a, b = (np.asarray(x[...], np.float64) for x in (policy.a, policy.b))
    text, found = list(prompt), []
    for token in tokens:
        last = len(text) - 1
        logits = a[text[-1]] + sum(b[text[j]] * np.cos(last - j) for j in range(last))
        logits = logits / temperature
        found.append(logits[token] - np.log(np.exp(logits).sum()))
        text.append(int(token))
    return np.array(found)
