"""GPT-2: its settings, and queries, keys and values that are stored as one."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.families.table import read_config
from tests._fixtures import folders

CONFIG = folders.CONFIGS["gpt2"]


def test_its_settings():
    config = read_config(CONFIG)
    assert config.learned_positions and config.norm == "layer" and not config.gated_mlp
    assert config.qkv_bias and config.output_bias and config.mlp_bias and config.tied_head
    assert config.mlp_width == folders.INNER and read_config(CONFIG | {"n_inner": None}).mlp_width == 4 * folders.WIDTH


@pytest.mark.parametrize(
    "change",
    [{"scale_attn_by_inverse_layer_idx": True}, {"add_cross_attention": True}, {"scale_attn_weights": False}],
)
def test_options_that_are_refused(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))}: unsupported .* of gpt2"):
        read_config(CONFIG | change)


def test_layout_of_queries_keys_and_values(tmp_path):
    model, source = jaxspec.load(folders.write(tmp_path, "gpt2")), folders.tensors("gpt2")
    heads, head_dim = folders.HEADS, folders.WIDTH // folders.HEADS
    fused = source["h.1.attn.c_attn.weight"].T.reshape(3, heads, head_dim, folders.WIDTH)
    bias = source["h.1.attn.c_attn.bias"].reshape(3, heads, head_dim)
    attention = model.params["layer_1"]["attention"]
    np.testing.assert_array_equal(attention["query"]["kernel"][:, 0], fused[0])
    np.testing.assert_array_equal(attention["key_value"]["kernel"].swapaxes(0, 1), fused[1:])
    np.testing.assert_array_equal(attention["key_value"]["bias"].swapaxes(0, 1), bias[1:])
    np.testing.assert_array_equal(attention["output"]["kernel"], source["h.1.attn.c_proj.weight"].T)


def test_names_with_a_prefix_and_constants_of_older_versions(tmp_path):
    expected = jaxspec.load(folders.write(tmp_path / "plain", "gpt2"))
    folder = folders.write(tmp_path / "prefixed", "gpt2")
    tensors = {f"transformer.{name}": x for name, x in load_file(folder / "model.safetensors").items()}
    tensors |= {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 4, 4), np.float32) for i in range(folders.LAYERS)}
    tensors["transformer.h.0.attn.masked_bias"] = np.zeros((), np.float32)
    save_file(tensors, folder / "model.safetensors")
    model = jaxspec.load(folder)
    np.testing.assert_array_equal(
        model.params["layer_0"]["mlp"]["up"]["kernel"], expected.params["layer_0"]["mlp"]["up"]["kernel"]
    )
