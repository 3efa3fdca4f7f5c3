"""Qwen 3 MoE, Mixtral and OLMoE: their settings, the layout of their experts, both forms of files, published sizes."""

import dataclasses
import json

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.checkpoints.params import abstract_model
from jaxspec.families.experts import QWEN3_MOE
from jaxspec.families.settings import SettingError
from jaxspec.families.table import read_config, read_head_config, shape
from jaxspec.io.files import FileFormatError
from jaxspec.nn.config import ExpertsConfig
from tests._fixtures import folders
from tests._fixtures.same_bits import assert_same_bits, by_chains, passes

KINDS = ("qwen3_moe", "mixtral", "olmoe")
# The names of a layer's experts, and of the parts of each: gate, up, down.
NAMES = {
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    "olmoe": ("mlp", "gate_proj", "up_proj", "down_proj"),
}


def test_which_layers_have_experts():
    base = folders.CONFIGS["qwen3_moe"]
    assert read_config(base).experts == ExpertsConfig(4, 2, 32, True, ())
    assert read_config(base | {"mlp_only_layers": [2, 0, 9]}).experts.dense_layers == (0, 2)
    assert read_config(base | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}).experts.dense_layers == (0, 1, 2)
    assert read_config(base | {"num_experts": 0}).experts is None


def test_what_else_they_have():
    olmoe, mixtral = (read_config(folders.CONFIGS[kind]) for kind in ("olmoe", "mixtral"))
    assert olmoe.query_key_norm and olmoe.norm_all_heads and olmoe.clip_qkv == 1
    assert mixtral.experts.normalized and not olmoe.experts.normalized
    assert mixtral.windows == (None,) * 3 and mixtral.ropes[0].theta == 1e6
    windows = {"use_sliding_window": True, "sliding_window": 8}
    assert read_config(folders.CONFIGS["qwen3_moe"] | windows).windows == (8, 8, 8)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (
            "mixtral",
            {"num_experts_per_tok": 5},
            "^num_experts_per_tok or num_local_experts: .* 4, got 5",
        ),
        ("mixtral", {"num_local_experts": 0}, "^num_experts_per_tok or num_local_experts: .* 0, got 2"),
        ("olmoe", {"num_experts": 10**6}, "^num_experts: expected an integer from 0 to 100000"),
        ("olmoe", {"clip_qkv": -1.0}, "^clip_qkv: expected a number from 1e-6"),
        ("mixtral", {"sliding_window": 0}, "^sliding_window: expected an integer of at least 1, or null, got 0"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "^decoder_sparse_step: expected an integer from 1"),
        ("qwen3_moe", {"mlp_only_layers": [-1]}, "^mlp_only_layers: expected a list of numbers of layers"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "^norm_topk_prob: expected true or false"),
    ],
)
def test_settings_that_are_refused(kind, change, message):
    with pytest.raises(SettingError, match=message):
        read_config(folders.CONFIGS[kind] | change)


def test_a_head_has_no_experts():
    with pytest.raises(SettingError, match="^model_type: layers of experts .'olmoe'. are not supported in heads"):
        read_head_config(folders.CONFIGS["olmoe"])


def _shapes(config):
    return abstract_model(config, jnp.float32).params


def _fused(folder, kind):
    """Rewrites a folder in the form that transformers 5 has in memory."""
    block, *parts = NAMES[kind]
    tensors = folders.joined_experts(load_file(folder / "model.safetensors"))
    for layer in range(folders.LAYERS):
        name = f"model.layers.{layer}"
        gates, ups, downs = (tensors.pop(f"{name}.{block}.experts.{part}.weight") for part in parts)
        tensors[f"{name}.mlp.experts.gate_up_proj"] = np.concatenate([gates, ups], axis=1)
        tensors[f"{name}.mlp.experts.down_proj"] = downs
        tensors[f"{name}.mlp.gate.weight"] = tensors.pop(f"{name}.{block}.gate.weight")
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_layout_of_experts_in_both_forms(tmp_path, kind):
    model, source = jaxspec.load(folders.write(tmp_path / "one", kind)), folders.tensors(kind)
    block, gate, up, down = NAMES[kind]
    mlp, name = model.params["layer_2"]["mlp"], f"model.layers.2.{block}"
    np.testing.assert_array_equal(mlp["router"]["kernel"], source[f"{name}.gate.weight"])
    for number, part in enumerate((gate, up)):
        expected = source[f"{name}.experts.3.{part}.weight"]
        np.testing.assert_array_equal(mlp["experts_gate_up"]["kernel"][3, number], expected)
    np.testing.assert_array_equal(mlp["experts_down"]["kernel"][1], source[f"{name}.experts.1.{down}.weight"])
    other = jaxspec.load(_fused(folders.write(tmp_path / "two", kind), kind))
    jax.tree.map(np.testing.assert_array_equal, other.params, model.params)


def test_a_layer_without_experts_and_a_norm_over_all_heads(tmp_path):
    config = read_config(folders.CONFIGS["qwen3_moe"] | {"mlp_only_layers": [1]})
    paths = [mapping.path for mapping in QWEN3_MOE.map_params(config)]
    assert ("layer_1", "mlp", "gate_up", "kernel") in paths and ("layer_0", "mlp", "router", "kernel") in paths
    assert set(paths) == {tuple(key.key for key in path) for path, _ in jax.tree.leaves_with_path(_shapes(config))}
    olmoe, source = jaxspec.load(folders.write(tmp_path / "olmoe", "olmoe")).params, folders.tensors("olmoe")
    scale = olmoe["layer_0"]["attention"]["query_norm"]["scale"]
    np.testing.assert_array_equal(scale, source["model.layers.0.self_attn.q_norm.weight"])


def test_errors_name_the_tensor_and_the_setting(tmp_path):
    folder = folders.write(tmp_path, "mixtral", config={"num_local_experts": 3})
    with pytest.raises(FileFormatError, match="num_local_experts: 3 does not fit the tensors, 4 would"):
        jaxspec.load(folder)
    tensors = load_file(folder / "model.safetensors")
    lost = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    save_file({name: x for name, x in tensors.items() if name != lost}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(folders.CONFIGS["mixtral"]))
    with pytest.raises(ValueError, match="1 missing: layers.1.block_sparse_moe.experts.2.w3.weight"):
        jaxspec.load(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_equals_the_folder(tmp_path, kind):
    model = jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", kind))
    expected = jaxspec.load(folders.write(tmp_path / "folder", kind))
    own, theirs = model.module.config, expected.module.config
    assert (own.experts, own.norm_all_heads, own.mlp_width) == (theirs.experts, theirs.norm_all_heads, theirs.mlp_width)
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)


def test_architectures_of_gguf_files_have_experts_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf.GGUFWriter, "add_expert_count", lambda *_: None)
    with pytest.raises(FileFormatError, match="qwen3moe.expert_count: 'qwen3moe' is not supported without experts"):
        jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", "qwen3_moe"))


FORMATS = {"attn_output": "Q8_0", "_exps": "Q4_1"}


@pytest.mark.slow
def test_stored_blocks_of_experts(tmp_path):
    """Native products read the chosen experts' blocks; parts of different formats become floats."""
    path = folders.write_gguf(tmp_path / "model.gguf", "qwen3_moe", formats=FORMATS)
    stored, plain = jaxspec.load(path, weights="stored"), jaxspec.load(path, weights="dequantized")
    mlp = stored.params["layer_0"]["mlp"]
    kernels = {name: mlp[name]["kernel"].kernels for name in sorted(mlp)}
    assert kernels == {"experts_down": "stored-Q4_1", "experts_gate_up": "stored-Q4_1", "router": "native"}
    text = np.random.default_rng(0).integers(0, folders.VOCAB, (2, 24))
    logits = [by_chains(passes(one), one.init_cache(2, 32), text, [8, 16]) for one in (stored, plain)]
    assert np.abs(logits[0] - logits[1]).max() < 0.02 * np.std(logits[1])
    assert_same_bits(passes(stored), lambda: stored.init_cache(2, 32), text, ([2] * 12, [5, 7, 12], [24]), [(5, 2)])
    mixed = jaxspec.load(
        folders.write_gguf(tmp_path / "mixed.gguf", "qwen3_moe", formats={"ffn_up_exps": "Q8_0"} | FORMATS)
    )
    assert mixed.params["layer_0"]["mlp"]["experts_gate_up"]["kernel"].kernels == "native"


@pytest.mark.slow
def test_a_saved_model_reads_back(tmp_path):
    model = jaxspec.load(folders.write(tmp_path / "folder", "olmoe"))
    jaxspec.save(model, tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved")
    assert again.module.config == model.module.config
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


@pytest.mark.parametrize(
    ("name", "count", "active"),
    [
        ("qwen3-30b-a3b", 30_532_122_624, 3_345_000_000),
        ("mixtral-8x7b", 46_702_792_704, 12_879_000_000),
        ("olmoe-1b-7b", 6_919_161_856, 1_282_000_000),
    ],
)
def test_published_sizes(name, count, active):
    """The numbers of parameters of the published checkpoints, and of those that one token uses."""
    config = shape(name)
    # All layers have the same sizes.
    one = dataclasses.replace(config, num_layers=1, ropes=config.ropes[:1], windows=config.windows[:1])
    params = jax.tree.leaves_with_path(abstract_model(one, jnp.bfloat16).params)
    sizes = {path: x.size * (config.num_layers if "layer_0" in str(path) else 1) for path, x in params}
    assert sum(sizes.values()) == count
    of_experts = sum(size for path, size in sizes.items() if "experts" in str(path))
    share = config.experts.per_token / config.experts.count
    assert count - of_experts * (1 - share) == pytest.approx(active, rel=0.01)
