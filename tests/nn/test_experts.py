"""Layers of experts: the router, the mixture, and that a token's output depends on itself alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.tree import Tree
from jaxspec.nn.config import ExpertsConfig
from jaxspec.nn.experts import choose, mix
from tests._fixtures import tiny
from tests.benchmarks.workload import disturbed

WIDTH, INNER, COUNT, CHOSEN = 16, 24, 6, 3
EXPERTS = ExpertsConfig(COUNT, CHOSEN, INNER, normalized=True)
TARGET = tiny.transformer(experts=EXPERTS)
PROMPT = np.array([[1, 2, 3, 1, 2], [4, 4, 5, 0, 0]])


def test_the_router_chooses_and_normalizes():
    logits = np.random.default_rng(0).normal(size=(7, COUNT)).astype(np.float32)
    all_chances = np.asarray(jax.nn.softmax(jnp.asarray(logits)))
    order = np.argsort(-logits, axis=-1)[:, :CHOSEN]
    for normalized in (False, True):
        chances, chosen = choose(jnp.asarray(logits), CHOSEN, normalized=normalized)
        np.testing.assert_array_equal(chosen, order)
        expected = np.take_along_axis(all_chances, order, axis=1)
        if normalized:  # the softmax over the chosen alone
            expected = np.asarray(jax.nn.softmax(jnp.asarray(np.take_along_axis(logits, order, axis=1))))
        np.testing.assert_allclose(chances, expected, rtol=1e-5)


def _case(rows, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    chances, chosen = choose(draw(rows, COUNT), CHOSEN, normalized=False)
    return draw(rows, WIDTH), chances, chosen, draw(COUNT, 2, INNER, WIDTH) / 4, draw(COUNT, WIDTH, INNER) / 5


_GATE = lambda gate, up: jax.nn.silu(gate) * up  # noqa: E731
_mix = jax.jit(lambda *arguments: mix(*arguments, gate=_GATE))


@pytest.mark.parametrize("everyone", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_token_has_all_of_its_experts(everyone):
    """Also where all tokens choose the same experts: none is dropped."""
    x, chances, chosen, gate_up, down = _case(48)
    chosen = jnp.broadcast_to(chosen[:1], chosen.shape) if everyone else chosen
    found = _mix(x, chances, chosen, gate_up, down)
    both = np.einsum("nd,eiod->neio", x, gate_up)
    each = np.einsum("neo,edo->ned", jax.nn.silu(both[:, :, 0]) * both[:, :, 1], down)
    own = np.take_along_axis(each, np.asarray(chosen)[..., None], axis=1)
    np.testing.assert_allclose(found, np.einsum("nk,nkd->nd", chances, own), atol=1e-5)


def test_parts_of_the_experts_add_up():
    """As on devices that hold some experts each."""
    x, chances, chosen, gate_up, down = _case(12)
    whole = _mix(x, chances, chosen, gate_up, down)
    halves = [
        jax.jit(lambda *some: mix(x, chances, chosen, *some[1:], gate=_GATE, first=some[0]))(
            jnp.int32(at), gate_up[at : at + 3], down[at : at + 3]
        )
        for at in (0, 3)
    ]
    np.testing.assert_allclose(halves[0] + halves[1], whole, atol=1e-5)
    assert np.abs(halves[0]).max() > 0.1 and np.abs(halves[1]).max() > 0.1


@pytest.mark.slow
def test_a_token_alone_and_among_others():
    x, chances, chosen, *kernels = _case(48)
    alone = np.concatenate([_mix(*(one[row : row + 1] for one in (x, chances, chosen)), *kernels) for row in range(48)])
    for rows in (2, 5, 17, 48):
        found = _mix(*(one[:rows] for one in (x, chances, chosen)), *kernels)
        np.testing.assert_allclose(found, alone[:rows], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [jaxspec.Greedy(), jaxspec.Sampling(temperature=0.9)])
def test_drafts_change_no_token(policy):
    """Chains and trees of a draft model with experts too, greedy and coupled, of prompts of different lengths."""
    options = {"prompt_length": np.array([5, 3]), "max_new_tokens": 16, "key": jax.random.key(0), "sampling": policy}
    draft, coupled = disturbed(TARGET, 0.1), jaxspec.CoupledVerifier()
    plain = jaxspec.generate(TARGET, None, PROMPT, verifier=coupled, **options)
    for drafter in (jaxspec.ModelDrafter(draft, k=3), jaxspec.TreeDrafter(draft, Tree((-1, -1, 0, 0, 1, 2)))):
        found = jaxspec.generate(TARGET, drafter, PROMPT, verifier=coupled, **options)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        assert int(jnp.sum(found.stats.accepted)) > 0


def test_a_router_is_never_rounded():
    small = jaxspec.quantize_weights(TARGET)
    router = small.params["layer_0"]["mlp"]["router"]["kernel"]
    assert router is TARGET.params["layer_0"]["mlp"]["router"]["kernel"]
    assert small.params["layer_0"]["mlp"]["experts_down"]["kernel"].values.dtype == jnp.int8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"per_token": 7}, "per_token of at most count=6, got 7"),
        ({"width": 0}, "width of at least 1"),
        ({"normalized": 1}, "normalized of ExpertsConfig must be bool"),
    ],
)
def test_sizes_that_are_refused(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(EXPERTS, **change)
    with pytest.raises(ValueError, match="experts are gated and have no biases"):
        tiny.config(experts=EXPERTS, mlp_bias=True)
