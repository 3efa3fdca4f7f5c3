"""Gemma 3: its settings, its scales, and the settings that llama.cpp hard-codes."""

import numpy as np
import pytest

import jaxspec
from jaxspec.families.gemma import GEMMA3
from jaxspec.families.settings import SettingError
from jaxspec.families.table import read_config
from tests._fixtures import folders

CONFIG = folders.CONFIGS["gemma3_text"]


def test_layers_alternate():
    config = read_config(CONFIG | {"sliding_window_pattern": 2})
    assert config.windows == (8, None, 8)
    assert [rope.theta for rope in config.ropes] == [1e4, 1e6, 1e4]
    assert read_config(CONFIG | {"_sliding_window_pattern": 2}) == read_config(CONFIG)  # its own note, never read


def test_the_original_length_is_that_of_each_embedding():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    config = read_config(
        CONFIG | {"rope_scaling": yarn, "original_max_position_embeddings": 32, "num_hidden_layers": 6}
    )
    assert config.ropes[5].scaling.original_context_length == 16


def test_an_old_name_of_the_rotary_type_is_ambiguous():
    """transformers 5 puts the scaling into a default type, unless `rope_parameters` exists too."""
    yarn = {"factor": 4.0, "original_max_position_embeddings": 16}
    with pytest.raises(SettingError, match=r"rope_scaling.type: transformers 4 scales by 'yarn' here, .* rope_type to"):
        read_config(CONFIG | {"rope_scaling": yarn | {"type": "yarn"}})
    known = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}
    named, default = {"rope_type": "yarn", "type": "linear"}, {"type": "default"}
    for values in ({"rope_scaling": yarn | named}, {"rope_scaling": yarn | {"type": "yarn"}} | known):
        assert read_config(CONFIG | {"num_hidden_layers": 6} | values).ropes[5].scaling.kind == "yarn"
    assert read_config(CONFIG | {"num_hidden_layers": 6, "rope_scaling": default}).ropes[5].scaling is None


def test_what_it_has_and_llama_has_not():
    config = read_config(CONFIG)
    assert config.query_key_norm and config.post_norms and config.tied_head
    assert config.embedding_scale == folders.WIDTH**0.5 and config.attention_scale == 8**-0.5
    assert config.activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("option", "value"),
    [("attn_logit_softcapping", 1.0), ("final_logit_softcapping", 1.0), ("use_bidirectional_attention", True)],
)
def test_options_that_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option}: unsupported {value} of gemma3_text"):
        read_config(CONFIG | {option: value})


def test_scales_are_stored_as_distances_from_one(tmp_path):
    model, source = jaxspec.load(folders.write(tmp_path, "gemma3_text")), folders.tensors("gemma3_text")
    scale = model.params["layer_1"]["mlp_norm"]["scale"]
    np.testing.assert_array_equal(scale, 1 + source["model.layers.1.pre_feedforward_layernorm.weight"])


def test_settings_that_gguf_files_leave_out():
    read = GEMMA3.gguf.read_settings
    config = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 8, "num_hidden_layers": 26}
    assert read({"attention.sliding_window": 8}, config, {}) == {
        "sliding_window": 8,
        "query_pre_attn_scalar": 8,
        "rope_theta": 1e6,
    }
    assert read({}, config | {"num_hidden_layers": 62}, {})["query_pre_attn_scalar"] == 16  # the model of 27 B
