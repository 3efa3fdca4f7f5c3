"""`SkippingDrafter`: the law of a target whose skipped blocks add nothing."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.drafters.skipping import SkippingModel
from jaxspec.nn import Rope
from tests import tiny
from tests.contracts import DrafterContract, ModelContract

LAYERS = 4


def without(model, attention=(), mlp=()) -> jaxspec.LanguageModel:
    """The same model with the last product of those blocks zero: they run, and add nothing."""
    params = dict(model.params)
    for layers, part, last in ((attention, "attention", "output"), (mlp, "mlp", "down")):
        for layer in layers:
            block = params[f"layer_{layer}"]
            zero = {**block[part][last], "kernel": jnp.zeros_like(block[part][last]["kernel"])}
            params[f"layer_{layer}"] = {**block, part: {**block[part], last: zero}}
    return dataclasses.replace(model, params=params)


# Each layer has a rotary embedding and a window of its own, which it keeps where others are skipped.
TARGET = tiny.transformer(
    1, layers=LAYERS, ropes=tuple(Rope(10.0**n) for n in (4, 2, 3, 1)), windows=(None, 5, 2, 4), query_key_norm=True
)
BLOCKS = {"attention": (0, 2), "mlp": (1, 2)}


class TestSkipping(DrafterContract):
    target = TARGET
    drafter = jaxspec.SkippingDrafter(**BLOCKS, k=2)

    def guess(self, text, offset):
        return tiny.transformer_law(without(TARGET, **BLOCKS), text)


@pytest.mark.slow
class TestLearnedPositions(DrafterContract):
    """And skipped MLPs alone."""

    target = tiny.transformer(1, layers=2, ropes=(None, None), norm="layer", tied_head=False)
    drafter = jaxspec.SkippingDrafter(mlp=[1], k=2)
    sees_every_acceptance = False

    def guess(self, text, offset):
        return tiny.transformer_law(without(self.target, mlp=(1,)), text)


class TestModel(ModelContract):
    """Trees too, level by level: it takes what `TreeDrafter` asks of a model."""

    model = SkippingModel(tiny.transformer(2, layers=2), (0,), (1,))

    def test_hidden_states_are_captured_in_order(self):
        with pytest.raises(ValueError, match="no states to capture, got capture="):
            self.model(jnp.zeros((1, 2), jnp.int32), self.model.init_cache(1, 2), capture=(1,))


def test_its_cache_has_no_place_for_what_is_skipped():
    model = SkippingModel(TARGET, BLOCKS["attention"], BLOCKS["mlp"])
    assert model.init_cache(1, 8).keys.shape[0] == LAYERS - len(BLOCKS["attention"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "nothing is skipped"),
        ({"attention": 3}, TypeError, "attention must be a tuple of layer numbers, got 3"),
        ({"mlp": (1.0,)}, TypeError, "mlp must be a tuple of layer numbers"),
        ({"mlp": (-1,)}, ValueError, "counts layers from 0, got -1"),
    ],
)
def test_blocks_are_layer_numbers(options, error, message):
    with pytest.raises(error, match=message):
        jaxspec.SkippingDrafter(**options)


@pytest.mark.parametrize(
    ("options", "target", "error", "message"),
    [
        ({"mlp": (LAYERS,)}, TARGET, ValueError, "layer 4 cannot be skipped, got a target of 4 layers"),
        ({"attention": range(LAYERS)}, TARGET, ValueError, "the attention of all 4 layers is skipped"),
        ({"mlp": (0,)}, tiny.history_model(vocab=tiny.VOCAB), TypeError, "got a target of type HistoryModel"),
    ],
)
def test_targets_that_do_not_fit(options, target, error, message):
    drafter = jaxspec.SkippingDrafter(**{name: tuple(layers) for name, layers in options.items()})
    with pytest.raises(error, match=message):
        jaxspec.generate(target, drafter, jnp.asarray(np.zeros((1, 3), int)), max_new_tokens=3)


def test_the_order_of_blocks_makes_no_other_program():
    assert jaxspec.SkippingDrafter([2, 0, 2]) == jaxspec.SkippingDrafter((0, 2))
