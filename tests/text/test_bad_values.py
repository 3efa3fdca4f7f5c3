"""Wrong values that look like right ones: values for dtypes, several keys for one, texts and modules for numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib import exit_head, tandem
from jaxspec.families import Family, GGUFLayout, Grouped, LazyTensor, ParamMapping, find_family
from jaxspec.heads import dflash, eagle, medusa
from tests._fixtures import bad_calls, tiny

TARGET = tiny.transformer(3, layers=2)
INITS = (eagle.init, eagle.init_mtp, medusa.init, dflash.init, tandem.init, exit_head.init)
KEY = jax.random.key(0)
SEVERAL = (jax.random.split(KEY, 4), jax.random.split(KEY, (2, 2)), jax.random.PRNGKey(0)[None])


def test_one_key_is_not_several():
    """The libraries below say so in their own words, each in others."""
    for keys in SEVERAL:
        for init in INITS:
            with pytest.raises(ValueError, match=r"rng must be one key, got keys of shape \("):
                init(TARGET, keys)
        with pytest.raises(ValueError, match=r"key must be one key, got keys of shape \("):
            jaxspec.bench.expected_acceptance(bad_calls.MODEL, jaxspec.NGramDrafter(k=2), [[1, 2, 3]], key=keys)


@pytest.mark.parametrize("value", [np.float32(1), np.zeros(2, np.float32), jax.ShapeDtypeStruct((2,), jnp.float32)])
def test_a_value_is_no_dtype(value):
    with pytest.raises(ValueError, match="dtype must be one of"):
        jaxspec.load("no such file.gguf", dtype=value)
    for init in INITS:
        with pytest.raises(ValueError, match="dtype must be one of float32"):
            init(TARGET, KEY, dtype=value)


def test_costs_and_rates_are_numbers():
    for wrong in (np.array(["a", "b"]), np.array([None, 1]), np.array([1j, 2])):
        drafter = jaxspec.ModelDrafter(bad_calls.MODEL, k=jaxspec.Adaptive(wrong, (0, 2)))
        with pytest.raises(TypeError, match="costs must be floats"):
            jaxspec.generate(bad_calls.MODEL, drafter, bad_calls.PROMPT, max_new_tokens=2)
    for wrong in (max, True, ["a"], [1j], None):
        with pytest.raises(TypeError, match="rates must be chances"):
            jaxspec.Tree.of_size(3, rates=wrong)
    for wrong in (0.5, [[0.5]], [], [2.0]):
        with pytest.raises(ValueError, match="rates must be chances"):
            jaxspec.Tree.of_size(3, rates=wrong)


@pytest.mark.parametrize("rests", [0, "yes", None, np.ones(2)])
def test_whether_a_model_rests_is_a_flag(rests):
    lookup, model = jaxspec.NGramDrafter(k=2), jaxspec.ModelDrafter(bad_calls.MODEL, k=2)
    with pytest.raises(TypeError, match="rests of HybridDrafter must be True or False"):
        jaxspec.HybridDrafter(lookup, model, rests=rests)


def test_modules_are_no_weights():
    with pytest.raises(TypeError, match="params must be an array"):
        jaxspec.from_function(lambda params, tokens: tokens, np, vocab_size=5)


def _array():
    return np.zeros((2, 4))


LLAMA = find_family({"model_type": "llama"})
RECORDS = {
    Grouped: {"values": np.zeros((2, 4), np.int8), "scale": np.ones((2, 2), np.float32), "zero": None, "bits": 4},
    LazyTensor: {"shape": (2, 4), "read": _array},
    ParamMapping: {"path": ("a",), "sources": (("a", (2, 4)),), "build": _array, "axis": 0, "is_norm": False},
    GGUFLayout: {"architecture": "x", "settings": {}, "tensors": {}, "blocks": "layers", "has_experts": False},
    Family: {field.name: getattr(LLAMA, field.name) for field in dataclasses.fields(Family)},
}


@pytest.mark.parametrize("record", RECORDS)
def test_records_of_families_hold_what_they_say(record):
    right = RECORDS[record]
    record(**right)
    for name in right:
        for wrong in (object(), 1j, np.array(["a"])):
            with pytest.raises(TypeError, match=f"{name} of {record.__name__} must be"):
                record(**right | {name: wrong})


@pytest.mark.parametrize("changed", [{"scale": np.ones((2, 3))}, {"scale": np.ones(2)}, {"zero": np.zeros((2, 1))}])
def test_parts_of_a_quantized_weight_fit_together(changed):
    with pytest.raises(ValueError, match="scale of Grouped must be"):
        Grouped(**RECORDS[Grouped] | changed)


def test_settings_of_a_family_are_checked():
    for wrong in (None, [], "llama", 5, np.zeros(0)):
        with pytest.raises(TypeError, match="config must be a Mapping"):
            LLAMA.read_config(wrong)
    for key, wrong in {"hidden_size": "a", "rope_theta": 1.0, "tie_word_embeddings": 1, "rms_norm_eps": 2}.items():
        with pytest.raises(ValueError, match=f"{key}: expected"):
            LLAMA.read_config({key: wrong})


RECIPES = {
    "eagle": eagle.EagleRecipe((0, 1)),
    "medusa": medusa.MedusaRecipe(),
    "dflash": dflash.DFlashRecipe((0, 1)),
    "dspark": dflash.DSparkRecipe((0, 1)),
    "dflash2": dflash.DFlash2Recipe((0, 1)),
    "tandem": tandem.TandemRecipe((0, 1)),
    "exit": exit_head.EarlyExitRecipe(1),
}


@pytest.mark.parametrize("name", RECIPES)
def test_sizes_of_a_recipe_have_an_end(name):
    """A loop over 2**70 layers never ends, and no array is as wide."""
    recipe = RECIPES[name]
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if not isinstance(value, bool) and isinstance(value, int | float) and field.name != "decay":
            for large in (2**70, 10**400) if isinstance(value, int) else (float("inf"), 1e300):
                with pytest.raises(ValueError, match=f"{field.name} must be at most"):
                    dataclasses.replace(recipe, **{field.name: large})
