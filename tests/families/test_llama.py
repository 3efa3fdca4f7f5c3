"""Llama, Mistral and Qwen: their settings, the layout of their tensors, and their GGUF files."""

import math

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.families.common import to_half_split
from jaxspec.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3, to_interleaved
from jaxspec.families.table import read_config, write_config
from jaxspec.ops.rope import Rope, RopeScaling, apply_rope, frequencies
from tests._fixtures import folders

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def test_transformers_5_rope_spelling_equals_the_old_one():
    base = {key: value for key, value in folders.CONFIGS["llama"].items() if key != "rope_theta"}
    old = read_config(base | {"rope_theta": 5e5, "rope_scaling": LLAMA3})
    new = read_config(base | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
    assert old == new
    assert (old.ropes[0].theta, old.ropes[0].scaling.factor) == (5e5, 8.0)


def test_a_rotary_embedding_is_written_as_read():
    longrope = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 32}
    for kind, settings in {
        "yarn": {"factor": 4.0, "truncate": False},
        "longrope": longrope,
        "linear": {"factor": 2.0},
    }.items():
        config = read_config(folders.CONFIGS["llama"] | {"rope_scaling": settings | {"rope_type": kind}})
        assert config.ropes[0].scaling.kind == kind
        assert read_config(write_config(config)[1]) == config
    assert config.ropes[0].attention_factor == 1


def test_a_dynamic_rotary_embedding_is_the_plain_one_within_the_context():
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 4.0}}
    assert read_config(folders.CONFIGS["llama"] | dynamic) == read_config(folders.CONFIGS["llama"])


def test_yarn():
    """The fast half turns as before, the slow half 4 times slower; vectors grow by 0.1 ln 4 + 1."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4, "beta_slow": 1}
    rope = read_config(folders.CONFIGS["llama"] | {"rope_scaling": yarn, "max_position_embeddings": 256}).ropes[0]
    plain = 10000.0 ** -(np.arange(0, 16, 2) / 16)
    # Pair i turns 64 * plain[i] / 2 pi times: those from floor(0.81) = 0 to ceil(2.02) = 3 are blended.
    kept = np.clip(1 - np.arange(8) / 3, 0, 1)
    np.testing.assert_allclose(frequencies(16, rope), plain * (kept + (1 - kept) / 4), rtol=1e-6)
    assert rope.attention_factor == pytest.approx(1 + 0.1 * math.log(4))
    x, place = jnp.ones((1, 1, 16)), jnp.full((1, 1), 7)
    np.testing.assert_allclose(np.linalg.norm(apply_rope(x, place, rope)), 4 * rope.attention_factor, rtol=1e-6)


def test_biases():
    llama = read_config(folders.CONFIGS["llama"] | {"attention_bias": True, "mlp_bias": True})
    assert llama.qkv_bias and llama.output_bias and llama.mlp_bias
    qwen2 = read_config(folders.CONFIGS["qwen2"])
    assert qwen2.qkv_bias and not qwen2.output_bias
    assert read_config(folders.CONFIGS["qwen3"]).query_key_norm


def test_windows():
    assert read_config(folders.CONFIGS["mistral"]).windows == (8, 8, 8)
    config = folders.CONFIGS["qwen2"] | {"sliding_window": 8, "max_window_layers": 1}
    assert read_config(config).windows == (None, None, None)
    assert read_config(config | {"use_sliding_window": True}).windows == (None, 8, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "'ntk'; supported: default, linear, dynamic, llama3"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "expected 4 factors, .*, got 1"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"hidden_act": "relu"}, "hidden_act: unsupported activation 'relu'; supported: silu"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"hidden_size": None}, "hidden_size: the configuration of model_type 'llama' lacks 'hidden_size'"),
    ],
)
def test_settings_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        read_config(folders.CONFIGS["llama"] | change)


@pytest.mark.parametrize("family", [LLAMA, MISTRAL, QWEN2, QWEN3], ids=lambda family: family.model_type)
def test_every_tensor_is_mapped_and_comes_back(tmp_path, family):
    model = jaxspec.load(folders.write(tmp_path, family.model_type))
    tensors = {}
    for mapping in family.map_params(model.module.config):
        tensors |= {family.full_name(name): x for name, x in mapping.to_tensors(model.params).items()}
    expected = folders.tensors(family.model_type)
    assert tensors.keys() == expected.keys()
    for name, x in tensors.items():
        np.testing.assert_array_equal(x, expected[name])


def test_layout_of_queries_keys_and_values(tmp_path):
    model = jaxspec.load(folders.write(tmp_path, "llama"))
    source = folders.tensors("llama")
    query = source["model.layers.1.self_attn.q_proj.weight"].reshape(folders.HEADS, folders.HEAD_DIM, -1)
    value = source["model.layers.1.self_attn.v_proj.weight"].reshape(folders.KV_HEADS, folders.HEAD_DIM, -1)
    kernels = {name: np.asarray(x["kernel"]) for name, x in model.params["layer_1"]["attention"].items()}
    np.testing.assert_array_equal(kernels["query"][1, 0], query[2])  # the first query head of the second group
    np.testing.assert_array_equal(kernels["key_value"][1, 1], value[1])


def test_rotated_rows_are_reordered_and_back():
    rows = np.arange(8)[:, None]  # two heads of four
    np.testing.assert_array_equal(to_interleaved(rows, 2)[:, 0], [0, 2, 1, 3, 4, 6, 5, 7])
    np.testing.assert_array_equal(to_half_split(to_interleaved(rows, 2), 2), rows)
    wide = np.arange(12)[:, None]
    np.testing.assert_array_equal(to_interleaved(wide, 2)[:6, 0], [0, 3, 1, 4, 2, 5])
    np.testing.assert_array_equal(to_half_split(to_interleaved(wide, 2), 2), wide)


def test_llama3_factors_of_a_gguf_file(tmp_path):
    frequencies = 500000.0 ** -(np.arange(0, folders.HEAD_DIM, 2) / folders.HEAD_DIM)
    unscaled = np.clip((8192 * frequencies / (2 * np.pi) - 1) / 3, 0, 1)
    factors = (1 / (unscaled + (1 - unscaled) / 32)).astype(np.float32)
    path = folders.write_gguf(tmp_path / "good.gguf", "llama", theta=500000.0, factors=factors)
    assert jaxspec.load(path).module.config.ropes[0] == Rope(500000.0, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192))
    with pytest.raises(ValueError, match="other factors than those of Llama 3"):
        jaxspec.load(folders.write_gguf(tmp_path / "bad.gguf", "llama", factors=factors[::-1].copy()))


def test_a_gguf_file_with_a_window_is_a_mistral(tmp_path, monkeypatch):
    write = gguf.GGUFWriter.add_rope_freq_base

    def with_window(writer, theta):
        write(writer, theta)
        writer.add_sliding_window(8)

    monkeypatch.setattr(gguf.GGUFWriter, "add_rope_freq_base", with_window)
    model = jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", "llama"))
    expected = jaxspec.load(folders.write(tmp_path / "folder", "llama"))
    assert model.module.config.windows == (8, 8, 8)
    query = [one.params["layer_0"]["attention"]["query"]["kernel"] for one in (model, expected)]
    np.testing.assert_allclose(*query, rtol=0, atol=1e-6)
