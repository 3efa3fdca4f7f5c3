"""KerasHub, from the package registry: `pip install keras-hub jax`."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import keras_hub
import numpy as np

PROJECT, PACKAGES = "KerasHub", ("keras-hub", "keras", "jax")
FUNCTION = "keras_hub.samplers.SpeculativeSampler.__call__, one iteration of its loop"


class _OneRound(keras_hub.samplers.SpeculativeSampler):
    """Stops after one iteration, and keeps where it stands."""

    def run_loop(self, cond, body, model=None, loop_vars=None, maximum_iterations=None):
        del cond, model, maximum_iterations
        assert loop_vars is not None
        self.found = body(*loop_vars)
        return self.found


@jax.jit
def _round(target_logits, draft_logits, seed):
    """Returns the texts and their length, after a prompt of one token: `[b, n + 1, v]`, `[b, n, v]`."""
    batch, count, _ = draft_logits.shape
    sampler = _OneRound(num_speculative_tokens=count, base_sampler=keras_hub.samplers.RandomSampler(), seed=0)
    with keras.StatelessScope(state_mapping=[(sampler.seed_generator.state, seed)]):
        sampler(
            next=None,
            prompt=jnp.zeros((batch, count + 2), jnp.int32),
            index=1,
            draft_next=lambda prompt, cache, index: (jnp.take(draft_logits, index - 1, axis=1), None, cache),
            verify_next=lambda prompt, cache, index, k: (target_logits, cache),
        )
    return sampler.found[0], sampler.found[3]


def _logits(probs):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probs, np.float32))


def _emitted(target_probs, draft_probs, rng):
    seed = rng.integers(2**32, size=2, dtype=np.uint32)
    texts, length = _round(_logits(target_probs), _logits(draft_probs), seed)
    return np.asarray(texts)[0, 1 : int(length)]


def argmax_drafts(target_probs, draft_probs, tokens, rng):
    """Lets it draft, which it does by the most likely tokens."""
    assert draft_probs.argmax(axis=-1).tolist() == tokens.tolist()
    return _emitted(target_probs[None], draft_probs[None], rng)


def certain_drafts(target_probs, draft_probs, tokens, rng):
    """Lets it draft from a model that is certain of its tokens: the most likely one is what sampling gives."""
    return _emitted(target_probs[None], np.eye(draft_probs.shape[1])[tokens][None], rng)


def batch_of_two(target_probs, draft_probs, tokens, rng):
    """Returns the first text of two, of drafts that are certain; the second text's first draft is never accepted."""
    draft = np.eye(draft_probs.shape[1])[tokens]
    other = np.ones_like(target_probs)
    other[0, tokens[0]] = 0
    return _emitted(np.stack([target_probs, other / other.sum(axis=-1, keepdims=True)]), np.stack([draft, draft]), rng)


CASES = {
    "drafts from a distribution": (FUNCTION, argmax_drafts, {"drafts": "argmax", "samples": 4_000}),
    "drafts that are certain": (FUNCTION, certain_drafts, {"samples": 4_000}),
    "drafts that are certain, two texts": (FUNCTION, batch_of_two, {"samples": 4_000}),
}
