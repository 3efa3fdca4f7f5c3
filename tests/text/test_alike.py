"""Processors that a request lacks have values that change nothing."""

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.core import processing
from jaxspec.processors import MinNewTokens
from jaxspec.text.alike import alike_processors


@pytest.mark.slow
def test_absent_processors_change_no_logit():
    made = alike_processors([MinNewTokens(0)])
    policy = jaxspec.Greedy(processors=tuple(one.spread(1) for one in made))
    text = jnp.asarray([[1, 2, 1, 3]], jnp.int32)
    prompt = processing.Prompt(text, jnp.asarray([4], jnp.int32), jnp.asarray([[5]], jnp.int32), 8)
    states = processing.commit(policy, processing.init(policy, prompt), text, jnp.asarray([4], jnp.int32))
    logits = jax.random.normal(jax.random.key(0), (1, 1, 8))
    found = processing.process(policy, states, logits, jnp.asarray([[[1, 1]]], jnp.int32))
    assert found.tolist() == logits.tolist() and len(made) == 4
    assert alike_processors([]) == ()
