"""Files for other programs: the model is read back as written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoints.gguf import export_gguf, read_gguf_checkpoint
from jaxspec.checkpoints.huggingface import export_folder, read_huggingface_checkpoint
from jaxspec.checkpoints.params import assemble
from jaxspec.ops.rope import Rope, RopeScaling
from tests._fixtures import tiny

EPS = 2.0**-17  # a float32, as GGUF stores it
MODELS = {
    "llama": {"layers": 2, "norm_eps": EPS},
    "llama-3, untied, biases": {
        "norm_eps": EPS,
        "tied_head": False,
        "ropes": (Rope(5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),),
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    },
    "qwen2": {"norm_eps": EPS, "qkv_bias": True},
    "qwen3": {"norm_eps": EPS, "query_key_norm": True},
}


def _same(model, other):
    assert other.module.config == model.module.config
    jax.tree.map(np.testing.assert_array_equal, other.params, model.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_our_model(name, tmp_path):
    model = tiny.transformer(2, **MODELS[name])
    _same(model, assemble(read_huggingface_checkpoint(export_folder(model, tmp_path, "float32")), jnp.dtype("float32")))


@pytest.mark.parametrize("name", MODELS)
def test_a_gguf_file_is_our_model(name, tmp_path, monkeypatch):
    model = tiny.transformer(2, **MODELS[name])
    path = export_gguf(model, tmp_path, "float32")
    # The vocabulary consists of numbers, which is not a readable tokenizer.
    monkeypatch.setattr("jaxspec.checkpoints.gguf.build_tokenizer", lambda metadata: None)
    checkpoint = read_gguf_checkpoint(path)
    if model.module.config.ropes[0].scaling is not None:
        assert checkpoint.config["rope_scaling"]["factor"] == pytest.approx(8.0)
    _same(model, assemble(checkpoint, jnp.dtype("float32")))


def test_an_attention_factor_is_not_written_in_gguf(tmp_path):
    model = tiny.transformer(2, ropes=(Rope(5e5, RopeScaling("yarn", 8.0, attention_factor=1.2)),))
    with pytest.raises(ValueError, match="attention_factor=1.2"):
        export_gguf(model, tmp_path, "float32")


@pytest.mark.slow
def test_weights_are_written_in_other_dtypes(tmp_path):
    model = tiny.transformer(2)
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype) if x.ndim > 1 else x, model.params)
    folder = assemble(read_huggingface_checkpoint(export_folder(model, tmp_path, "bfloat16")), jnp.dtype("float32"))
    np.testing.assert_array_equal(folder.params["embedding"], rounded["embedding"])
    assert (tmp_path / "model.safetensors").stat().st_size < 2.5 * sum(
        x.size for x in jax.tree.leaves(model.params)
    ) + 4096


def test_other_families_are_refused(tmp_path):
    for options in ({"windows": (4,)}, {"ropes": (None,)}, {"post_norms": True}):
        with pytest.raises(ValueError, match="families llama, qwen2, qwen3, without sliding windows"):
            export_folder(tiny.transformer(**options), tmp_path, "float32")
