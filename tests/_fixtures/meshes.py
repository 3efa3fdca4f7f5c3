"""Meshes, and calls that run on them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import jaxspec


def make_mesh(data=2, model=4, kind=AxisType.Auto):
    devices = jax.devices()[: data * model]
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(kind, kind), devices=devices)


# Far larger than any other array here, and its parts are like no other size.
VOCAB = 8000
LENGTHS = np.array([6, 3, 5, 1])
PROMPT = np.random.default_rng(0).integers(0, VOCAB, (4, 6))
BLOCK = jaxspec.BlockVerifier()
POLICY = jaxspec.Sampling(jnp.array([0.7, 1.0, 0.0, 1.3]), top_k=50, top_p=0.95, min_p=0.001)


def generate(target, drafter, verifier=BLOCK, prompt=PROMPT, lengths=LENGTHS, policy=POLICY, **options):
    return jaxspec.generate(
        target,
        drafter,
        prompt,
        prompt_length=lengths,
        key=jax.random.key(5),
        sampling=policy,
        verifier=verifier,
        max_new_tokens=12,
        **options,
    )


run = jax.jit(functools.partial(generate, lossy=True))


def same(result, expected):
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    np.testing.assert_array_equal(result.length, expected.length)
    np.testing.assert_array_equal(result.stats.accepted, expected.stats.accepted)
    np.testing.assert_allclose(result.log_probs, expected.log_probs, atol=1e-4)
    np.testing.assert_allclose(result.warped_log_probs, expected.warped_log_probs, atol=1e-4)
