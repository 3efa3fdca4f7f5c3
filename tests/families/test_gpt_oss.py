"""gpt-oss: its settings, the three forms of its experts, MXFP4 as stored, GGUF files, published sizes."""

import collections
import dataclasses
import functools
import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.checkpoints.params import abstract_model
from jaxspec.families.base import LazyTensor
from jaxspec.families.gpt_oss import GPT_OSS
from jaxspec.families.settings import SettingError
from jaxspec.families.table import read_config, read_head_config, shape
from jaxspec.io.files import FileFormatError
from jaxspec.nn.config import ExpertsConfig
from jaxspec.nn.experts import ClampedGate
from tests._fixtures import folders
from tests._fixtures.mxfp4 import in_mxfp4
from tests._fixtures.same_bits import assert_same_bits, by_chains, passes

BASE = folders.CONFIGS["gpt_oss"]


def test_settings():
    config = read_config(BASE)
    assert config.experts == ExpertsConfig(4, 2, 64, True, (), ClampedGate(7.0, 1.702), bias=True)
    assert config.sinks and config.qkv_bias and config.output_bias and not config.query_key_norm
    assert config.windows == (8, None, 8)
    published = read_config({"model_type": "gpt_oss"})
    assert (published.num_layers, published.experts.count, published.windows[:2]) == (36, 128, (128, None))
    scaling = published.ropes[0].scaling
    assert (scaling.kind, scaling.factor, scaling.truncate) == ("yarn", 32.0, False)
    plain = {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}}
    assert read_config(BASE | plain | {"rope_theta": 5000.0}).ropes[0].scaling is None
    assert read_config(BASE | {"layer_types": ["full_attention"] * 3}).windows == (None,) * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 5}, "^num_experts_per_tok or num_local_experts: .* 4, got 5"),
        (
            {"sliding_window": None},
            "^sliding_window: expected an integer of at least 1 for sliding_attention, .*None",
        ),
        ({"swiglu_limit": 0}, "^swiglu_limit: expected a number from 1e-6 to 1e6"),
        ({"swiglu_alpha": "7"}, "^swiglu_alpha: expected a number from 1e-6 to 1e6"),
        ({"layer_types": ["full_attention"] * 2}, "^layer_types or num_hidden_layers: expected one type per layer"),
    ],
)
def test_settings_that_are_refused(change, message):
    with pytest.raises(SettingError, match=message):
        read_config(BASE | change)


def test_a_head_has_no_experts():
    with pytest.raises(SettingError, match="^model_type: layers of experts .'gpt_oss'. are not supported in heads"):
        read_head_config(BASE)


def test_layout():
    source = folders.tensors("gpt_oss")
    tensors = {name: LazyTensor(x.shape, lambda x=x: x) for name, x in source.items()}
    found, name = GPT_OSS.respell(tensors), "model.layers.1.mlp.experts"
    both, bias = source[f"{name}.gate_up_proj"], source[f"{name}.gate_up_proj_bias"]
    for part, at in (("gate", 0), ("up", 1)):
        np.testing.assert_array_equal(found[f"{name}.{part}_proj.weight"].read(), both[..., at::2].swapaxes(1, 2))
        np.testing.assert_array_equal(found[f"{name}.{part}_proj.bias"].read(), bias[:, at::2])
    np.testing.assert_array_equal(found[f"{name}.down_proj.weight"].read(), source[f"{name}.down_proj"].swapaxes(1, 2))
    assert all(tensor.read().shape == tensor.shape for tensor in found.values())
    config = read_config(BASE)
    paths = {mapping.path for mapping in GPT_OSS.map_params(config)}
    shapes = abstract_model(config, jnp.float32).params
    assert paths == {tuple(key.key for key in path) for path, _ in jax.tree.leaves_with_path(shapes)}


def test_one_tensor_of_experts_is_held():
    """Each is read once for both of its parts, and let go when the next is read."""
    source, alive, reads = folders.tensors("gpt_oss"), weakref.WeakSet(), collections.Counter()

    def read(name):
        reads[name] += 1
        copy = source[name].copy().view(_Counted)
        alive.add(copy)
        return copy

    tensors = {name: LazyTensor(x.shape, functools.partial(read, name)) for name, x in source.items()}
    found, most = GPT_OSS.respell(tensors), 0
    for mapping in GPT_OSS.map_params(read_config(BASE)):
        for name, _ in mapping.sources:
            found[name if name.startswith("lm_head") else f"model.{name}"].read()
            most = max(most, len(alive))
    assert most == 1 and max(reads.values()) == 1 and len(reads) == len(source)


class _Counted(np.ndarray):
    __hash__ = object.__hash__


def test_a_gguf_file_equals_the_folder(tmp_path):
    model = jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", "gpt_oss"))
    expected = jaxspec.load(folders.write(tmp_path / "folder", "gpt_oss"))
    assert model.module.config == expected.module.config
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)
    sinks = folders.tensors("gpt_oss")["model.layers.2.self_attn.sinks"]
    np.testing.assert_array_equal(model.params["layer_2"]["attention"]["sinks"], sinks.reshape(2, 2))


def test_mxfp4_is_read_and_kept_as_stored(tmp_path):
    folder, expected = in_mxfp4(folders.write(tmp_path / "one", "gpt_oss"))
    plain, stored = jaxspec.load(folder, weights="dequantized"), jaxspec.load(folder)
    mlp, name = plain.params["layer_1"]["mlp"], "model.layers.1.mlp.experts"
    both, down = expected[f"{name}.gate_up_proj"], expected[f"{name}.down_proj"]
    np.testing.assert_array_equal(mlp["experts_gate_up"]["kernel"][:, 0], both[:, 0::2])
    np.testing.assert_array_equal(mlp["experts_gate_up"]["kernel"][:, 1], both[:, 1::2])
    np.testing.assert_array_equal(mlp["experts_down"]["kernel"], down)
    for part in ("experts_gate_up", "experts_down"):
        kernel = stored.params["layer_1"]["mlp"][part]["kernel"]
        assert kernel.kernels == "stored-MXFP4"
        np.testing.assert_array_equal(kernel[:], mlp[part]["kernel"])


def test_scales_that_kernels_do_not_have(tmp_path):
    """Those of zeros have no meaning; others become plain weights; 255 is no number."""
    folder, _ = in_mxfp4(folders.write(tmp_path, "gpt_oss"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"

    def load(scale, blocks):
        changed = {key: x.copy() for key, x in tensors.items()}
        changed[f"{name}_scales"][1, 2, 0], changed[f"{name}_blocks"][1, 2, 0] = scale, blocks
        save_file(changed, folder / "model.safetensors")
        return jaxspec.load(folder).params["layer_0"]["mlp"]["experts_down"]["kernel"]

    assert load(0, 0x80).kernels == load(90, 0x08).kernels == "stored-MXFP4"
    small = load(90, 0x22)
    assert small.kernels == "native-bfloat16" and float(small[1][2, 0]) == 2.0 ** (90 - 127)
    with pytest.raises(FileFormatError, match=r"experts.down_proj.weight: holds NaN or infinite values"):
        load(255, 0x22)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_scales": lambda x: x[:, :1]}, r"down_proj_scales: expected the shape \(4, 32, 2\), got \(4, 1, 2\)"),
        ({"_scales": lambda x: x.astype(np.float32)}, "down_proj_scales: expected U8, got F32"),
        ({"_blocks": lambda x: x[..., :8]}, r"down_proj_blocks: expected the shape \(any, any, any, 16\)"),
        ({"_scales": None}, "down_proj_scales: is missing, but the other tensors"),
        ({"_blocks": None}, "1 unexpected: layers.0.mlp.experts.down_proj_scales"),
    ],
)
def test_damaged_blocks(tmp_path, change, message):
    folder, _ = in_mxfp4(folders.write(tmp_path, "gpt_oss"))
    tensors = load_file(folder / "model.safetensors")
    for part, how in change.items():
        x = tensors.pop(f"model.layers.0.mlp.experts.down_proj{part}")
        if how is not None:
            tensors[f"model.layers.0.mlp.experts.down_proj{part}"] = np.ascontiguousarray(how(x))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        jaxspec.load(folder)


def test_an_expert_that_is_stored_twice(tmp_path):
    folder = folders.write(tmp_path, "gpt_oss")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.experts.up_proj.weight"] = np.zeros((4, 64, 32), np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(FileFormatError, match="1 unexpected: layers.0.mlp.experts"):
        jaxspec.load(folder)


def test_errors_name_the_setting(tmp_path):
    folder = folders.write(tmp_path, "gpt_oss", config={"num_local_experts": 3})
    with pytest.raises(FileFormatError, match="num_local_experts: 3 does not fit the tensors, 4 would"):
        jaxspec.load(folder)
    (folder / "config.json").write_text(json.dumps(BASE | {"attention_bias": False}))
    with pytest.raises(FileFormatError, match="attention_bias: False does not fit the tensors, True would"):
        jaxspec.load(folder)


@pytest.mark.slow
def test_stored_blocks(tmp_path):
    """Native products read the chosen experts' blocks; a token's bits do not depend on the others."""
    folder, _ = in_mxfp4(folders.write(tmp_path, "gpt_oss"))
    stored, plain = jaxspec.load(folder), jaxspec.load(folder, weights="dequantized")
    text = np.random.default_rng(0).integers(0, folders.VOCAB, (2, 24))
    logits = [by_chains(passes(one), one.init_cache(2, 32), text, [8, 16]) for one in (stored, plain)]
    assert np.abs(logits[0] - logits[1]).max() < 0.03 * np.std(logits[1])
    assert_same_bits(passes(stored), lambda: stored.init_cache(2, 32), text, ([2] * 12, [5, 7, 12], [24]), [(5, 2)])


@pytest.mark.slow
def test_a_saved_model_reads_back(tmp_path):
    model = jaxspec.load(folders.write(tmp_path / "folder", "gpt_oss"))
    jaxspec.save(model, tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved")
    assert again.module.config == model.module.config
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


@pytest.mark.parametrize(
    ("name", "count", "active"),
    # The published counts of active parameters leave out the embedding.
    [("gpt-oss-20b", 20_914_757_184, 3.61e9), ("gpt-oss-120b", 116_829_156_672, 5.13e9)],
)
def test_published_sizes(name, count, active):
    config = shape(name)
    one = dataclasses.replace(config, num_layers=1, ropes=config.ropes[:1], windows=config.windows[:1])
    params = jax.tree.leaves_with_path(abstract_model(one, jnp.bfloat16).params)
    sizes = {path: x.size * (config.num_layers if "layer_0" in str(path) else 1) for path, x in params}
    assert sum(sizes.values()) == count
    of_experts = sum(size for path, size in sizes.items() if "experts" in str(path))
    share = config.experts.per_token / config.experts.count
    embedding = config.vocab_size * config.width
    assert count - embedding - of_experts * (1 - share) == pytest.approx(active, rel=0.002)
