"""The digest that processes compare: equal for repeated calls, different for other calls."""

import jax
import jax.numpy as jnp
import pytest
from jax.tree_util import register_static

import jaxspec
from jaxspec.bench.synthetic import SyntheticVerifier
from jaxspec.core.layout import Unsharded
from jaxspec.grammar import automaton
from jaxspec.sharding.multihost import describe
from jaxspec.testing.history_models import history_model
from jaxspec.testing.random_models import wide_transformer
from jaxspec.text import request
from tests._fixtures import text_models


def text(value) -> bytes:
    return b"".join(describe(value))


@register_static
class Opaque:
    pass


DIFFERENT = {
    "settings": lambda i: jaxspec.NGramDrafter(k=2 + i),
    "classes": lambda i: (jaxspec.TokenVerifier(), jaxspec.BlockVerifier())[i],
    "rules": lambda i: jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.Lenience(0.5 + i / 4)),
    "rates": lambda i: SyntheticVerifier((0.5,) * (1 + i)),
    "policies": lambda i: jaxspec.ModelDrafter(wide_transformer(0), sampling=jaxspec.Sampling(jnp.float32(0.5 + i))),
    "trees": lambda i: jaxspec.TreeDrafter(wide_transformer(0), jaxspec.Tree.chains(2, 2 + i)),
    "configurations": lambda i: wide_transformer(0, heads=(8, 4)[i]),
    "dtypes": lambda i: jnp.zeros(2, (jnp.float32, jnp.int32)[i]),
    "values": lambda i: jnp.arange(3) + i,
    "keys": jax.random.key,
    "kinds of number": lambda i: (1, True)[i],
    "nesting": lambda i: (((1,), 2), (1, (2,)))[i],
    "placements": lambda i: jaxspec.sharding.Placement.on(
        jax.make_mesh(((2, 4), (4, 2))[i], ("data", "model")), jaxspec.sharding.DATA_AND_TENSOR
    ),
}


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs(make):
    assert text(make(0)) == text(make(0)) != text(make(1))


def test_a_grammar_that_one_host_gave_up_on(monkeypatch):
    """There its masks come from the host, and elsewhere from a table; so every process ends with the same error."""
    said = []
    monkeypatch.setattr(Unsharded, "check_same", lambda self, parts, number=0: said.append(parts) or number)
    decoder = jaxspec.SpeculativeDecoder(text_models.history_models()[0], None)
    built = automaton._built
    for build in (built, built, lambda pattern, seconds: (None, 0, set(), None)):
        monkeypatch.setattr(automaton, "_built", build)
        request._table_of.cache_clear()
        decoder._continue("the sea", jaxspec.TextOptions(regex="[a-c]+x", seed=1))
    seeds = [parts for parts in said if "seed" in parts]
    (kinds,) = seeds[0].keys() - {"seed"}
    assert "a slow host may give up on the table of a grammar" in kinds
    assert text(seeds[0]) == text(seeds[1]) != text(seeds[2]) and seeds[0][kinds] == ["GrammarTable"]
    assert (seeds[0]["seed"], seeds[2][kinds]) == (seeds[2]["seed"], ["HostMasks"])


def test_values_of_parameters_are_left_out():
    assert text(wide_transformer(0)) == text(wide_transformer(1))


def test_what_has_no_stable_text_is_its_class():
    assert text(Opaque()) == text(Opaque()) and text(object()) == text(object())
    for model in (wide_transformer(0), history_model(0)):
        assert b" at 0x" not in text(model)


def test_orders_that_mean_nothing():
    assert text({"a": 1, "b": 2}) == text({"b": 2, "a": 1})
