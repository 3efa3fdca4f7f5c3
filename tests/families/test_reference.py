"""Settings and rotary embeddings against those of live transformers, for every family."""

import copy
import itertools

import numpy as np
import pytest
from huggingface_hub.errors import StrictDataclassError

from jaxspec.families.common import SIZES
from jaxspec.families.settings import SettingError
from jaxspec.families.table import FAMILIES, read_config
from jaxspec.ops.rope import frequencies

pytestmark = pytest.mark.reference

# Small sizes, for settings whose default follows from others.
_SMALL = dict(zip(SIZES, (90, 64, 80, 4, 4), strict=True)) | {"num_key_value_heads": 2}
_FEW = {"vocab_size": 90, "n_embd": 96, "n_layer": 4, "n_head": 4}
_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "intermediate_size": "mlp_width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "norm_eps",
    "layer_norm_epsilon": "norm_eps",
    "tie_word_embeddings": "tied_head",
    "attention_bias": "output_bias",
    "mlp_bias": "mlp_bias",
}


def _theirs(kind, values):
    import transformers

    return transformers.AutoConfig.for_model(kind, **copy.deepcopy(values))


def _attribute(config, key):
    """A setting of transformers' configuration; settings of the rotary embedding are in one dictionary."""
    ropes = getattr(config, "rope_parameters", None) or {}
    if key == "rope_theta":
        return ropes.get("full_attention", ropes)["rope_theta"]
    if key == "rope_local_base_freq":
        return ropes["sliding_attention"]["rope_theta"]
    return getattr(config, key, None)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_every_default(family):
    """Compares the defaults key by key, except those that follow from others, which the next test compares."""
    config = _theirs(family.model_type, {})
    assert dict(family.synonyms) == config.attribute_map
    derived = {
        *("rope_scaling", "rope_parameters", "original_max_position_embeddings", "partial_rotary_factor"),
        *("head_dim", "num_key_value_heads", "layer_types", "no_rope_layers", "n_inner", "sliding_window_pattern"),
    }
    for key, default in family.defaults.items():
        if default is None and key in derived:
            continue
        theirs = _attribute(config, "_sliding_window_pattern" if key == "sliding_window_pattern" else key)
        if key == "sliding_window" and "use_sliding_window" in family.defaults:
            theirs = type(config)(use_sliding_window=True).sliding_window
        if key == "rope_parameters":  # which hold the base too
            theirs = {name: x for name, x in theirs.items() if name != "rope_theta"}
        assert theirs == default and type(theirs) is type(default), key


def _read(family, values):
    return read_config({"model_type": family.model_type} | values)


def _same(ours, config):
    """Compares all that the configurations have in common."""
    for key, field in _FIELDS.items():
        if getattr(config, key, None) is not None:
            assert getattr(ours, field) == getattr(config, key), key
    kinds = getattr(config, "layer_types", None)
    if (window := getattr(config, "sliding_window", None)) is not None:
        kinds = kinds or ["sliding_attention"] * ours.num_layers
        assert ours.windows == tuple(window if kind == "sliding_attention" else None for kind in kinds)
    else:
        assert ours.windows == (None,) * ours.num_layers
    if hasattr(config, "query_pre_attn_scalar"):
        assert ours.score_scale == config.query_pre_attn_scalar**-0.5


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_every_setting_left_out_or_null(family):
    """Compares configurations that lack one setting, and those in which it is null if transformers accepts it."""
    sizes = _FEW if family.model_type == "gpt2" else _SMALL
    full = {key: x for key, x in family.defaults.items() if x is not None} | sizes
    _same(_read(family, {}), _theirs(family.model_type, {}))
    compared = 0
    for key in family.defaults:
        for values in ({k: x for k, x in full.items() if k != key}, full | {key: None}):
            try:
                config = _theirs(family.model_type, values)
            except (StrictDataclassError, TypeError, ValueError):
                continue  # transformers refuses this null
            windows = getattr(config, "layer_types", None) or ()
            if "sliding_attention" in windows and config.sliding_window is None:
                continue  # transformers takes it, but the model does not run
            if config.num_attention_heads % (getattr(config, "num_key_value_heads", None) or 1):
                continue  # nor does this one
            _same(_read(family, values), config)
            compared += 1
    assert compared > len(family.defaults)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 32,
    },
    "yarn": _YARN,
    "yarn without the original length": {"rope_type": "yarn", "factor": 4.0},
    "yarn of null factor": _YARN | {"factor": None},
    "yarn with its own attention": _YARN | {"attention_factor": 0.75},
    "yarn of DeepSeek": _YARN | {"mscale": 1.0, "mscale_all_dim": 0.707, "beta_fast": 16, "beta_slow": 2},
    "yarn between pairs": _YARN | {"truncate": False},
    "yarn of one pair": _YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
    "yarn of Qwen": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "longrope": {
        **{"rope_type": "longrope", "original_max_position_embeddings": 32},
        **{"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.0 + 3.0 * i for i in range(8)]},
    },
    "longrope with a factor": {
        **{"rope_type": "longrope", "original_max_position_embeddings": 32, "factor": 2.0},
        **{"short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    },
    "longrope of a short context": {
        **{"rope_type": "longrope", "original_max_position_embeddings": 128},
        **{"short_factor": [1.5] * 8, "long_factor": [2.0] * 8},
    },
}


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
def test_old_names_of_the_rotary_type(kind):
    """Alone or next to the new one, of which `rope_type` counts; what is refused, transformers does not scale."""
    forms = [{"type": "linear"}, {"type": "linear", "rope_type": "default"}, {"type": "default", "rope_type": "linear"}]
    for form, spelling in itertools.product(forms, ["rope_scaling", "rope_parameters", "both"]):
        layers, given = kind == "gemma3_text", form | {"factor": 4.0}
        nested = {"full_attention": given} if layers else given
        values = {"rope_scaling": given} if spelling == "rope_scaling" else {"rope_parameters": nested}
        values |= {"rope_scaling": {"factor": 2.0}} if spelling == "both" and layers else {}
        values |= _SMALL | {"num_hidden_layers": 6, "head_dim": 16, "max_position_embeddings": 128}
        theirs = _theirs(kind, values).rope_parameters
        theirs = theirs["full_attention"] if layers else theirs
        try:
            ours = read_config({"model_type": kind} | values).ropes[-1]
        except SettingError as error:
            assert error.key == "rope_scaling.type" and theirs["rope_type"] == "default" and layers
            continue
        assert (ours.scaling is None) == (theirs["rope_type"] == "default")
        assert ours.scaling is None or ours.scaling.factor == theirs["factor"]


@pytest.mark.parametrize("name", sorted(ROPES))
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text"])
def test_frequencies_and_attention_factor(name, spelling, kind):
    pytest.importorskip("torch")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings, nested = ROPES[name], kind == "gemma3_text" and spelling == "rope_parameters"
    if kind == "gemma3_text" and "truncate" in settings:
        pytest.skip("transformers does not read truncate of one type of layers")
    if kind == "gemma3_text" and spelling == "rope_scaling" and "rope_type" not in settings:
        pytest.skip("transformers 5 does not scale by an old name of the type: refused")
    longest = 131072 if name == "yarn of Qwen" else 128
    sizes = _SMALL | {"num_hidden_layers": 6, "head_dim": 16, "max_position_embeddings": longest, "rope_theta": 5e4}
    values = sizes | {spelling: {"full_attention": settings} if nested else settings}
    ours = read_config({"model_type": kind} | values).ropes[-1]
    layer = {"layer_type": "full_attention"} if kind == "gemma3_text" else {}
    function = ROPE_INIT_FUNCTIONS[settings.get("rope_type") or settings["type"]]
    # For the longest text: a model whose context is longer than the original one has longrope's long factors.
    theirs, attention = function(_theirs(kind, values), seq_len=longest, **layer)
    np.testing.assert_allclose(np.asarray(frequencies(16, ours)), theirs.numpy(), rtol=2e-6)
    assert ours.attention_factor == pytest.approx(attention, rel=1e-12)
