"""OLMo 2 and 3, Granite 3, SmolLM3 and Mistral Small 3: their settings, GGUF files and published sizes."""

import dataclasses
import json

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.checkpoints.gguf import read_gguf_checkpoint
from jaxspec.contrib import exit_head
from jaxspec.families.settings import SettingError
from jaxspec.families.table import find_family, read_config, text_settings
from jaxspec.io.files import FileFormatError
from jaxspec.nn.layers import scaled
from jaxspec.nn.transformer import embed
from tests._fixtures import folders

KINDS = ("olmo2", "olmo3", "granite", "smollm3")


def test_norms_after_each_part():
    for kind in ("olmo2", "olmo3"):
        config = read_config(folders.CONFIGS[kind])
        assert config.post_norms and not config.pre_norms and config.query_key_norm and config.norm_all_heads
    with pytest.raises(ValueError, match="a layer needs pre_norms or post_norms, got neither"):
        jaxspec.nn.TransformerConfig(**{**vars(config), "post_norms": False})


def test_olmo3_scales_only_layers_without_a_window():
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8}
    config = read_config(folders.CONFIGS["olmo3"] | {"rope_scaling": yarn})
    assert config.windows == (8, None, 8)
    assert [rope.scaling is None for rope in config.ropes] == [True, False, True]
    assert read_config({"model_type": "olmo3"}).windows[:5] == (4096, 4096, 4096, None, 4096)


def test_multipliers_of_granite():
    config = read_config(folders.CONFIGS["granite"])
    assert (config.score_scale, config.embedding_scale, config.residual_scale) == (0.25, 12.0, 0.5)
    assert config.logit_scale == 1 / 8
    with pytest.raises(SettingError, match="^logits_scaling: expected a number from 1e-6 to 1e6"):
        read_config(folders.CONFIGS["granite"] | {"logits_scaling": 0})


def test_layers_without_rotary_embedding():
    config = read_config(folders.CONFIGS["smollm3"] | {"num_hidden_layers": 5, "no_rope_layer_interval": None})
    assert [rope is None for rope in config.ropes] == [False, False, False, True, False]
    assert not config.learned_positions
    said = read_config(folders.CONFIGS["smollm3"] | {"no_rope_layers": [0, 1, 1, 0]})
    assert [rope is None for rope in said.ropes] == [True, False, False]
    windows = {"use_sliding_window": True, "sliding_window": 8}
    assert read_config(folders.CONFIGS["smollm3"] | windows).windows == (None, 8, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"no_rope_layers": [1]},
            "^no_rope_layers or num_hidden_layers: expected one number for each of 3 .*1",
        ),
        ({"no_rope_layers": [0, 0, 0]}, "^no_rope_layers: no layer has a rotary embedding"),
        ({"no_rope_layer_interval": 1}, "^no_rope_layer_interval: no layer has a rotary embedding"),
        ({"no_rope_layers": [1, 2, 1]}, "^no_rope_layers: expected a list of 0 and 1"),
    ],
)
def test_rotary_layers_that_are_refused(change, message):
    with pytest.raises(SettingError, match=message):
        read_config(folders.CONFIGS["smollm3"] | change)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_equals_the_folder(tmp_path, kind):
    # A GGUF file does not say which layers of SmolLM3 have a rotary embedding: in llama.cpp, three of four.
    change = {"no_rope_layer_interval": 4} if kind == "smollm3" else {}
    model = jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", kind))
    expected = jaxspec.load(folders.write(tmp_path / "folder", kind, config=change))
    assert model.module.config == expected.module.config
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)
    names = {tuple(key.key for key in path) for path, _ in jax.tree.leaves_with_path(model.params)}
    assert {mapping.path for mapping in find_family({"model_type": kind}).map_params(model.module.config)} == names


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [(None, (8, 8, 8)), (2, (8, None, 8)), (1, (None,) * 3), ([False, True, True], (None, 8, 8))],
)
def test_windows_of_a_gguf_file(tmp_path, monkeypatch, pattern, windows):
    """llama.cpp's converter writes one flag for each layer; its reader also takes a period, 4 without either."""
    path = _with_pattern(tmp_path, monkeypatch, pattern)
    assert read_config(read_gguf_checkpoint(path).config).windows == windows


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (0, "olmo2.attention.sliding_window_pattern: expected an integer from 1 .* or a list of true and false, got 0"),
        ([True] * 2, "olmo2.attention.sliding_window_pattern or .*block_count: expected one type per layer, got 2"),
        ([1, 1, 0], "olmo2.attention.sliding_window_pattern: expected an integer .* got .1, 1, 0."),
    ],
)
def test_patterns_of_windows_that_are_refused(tmp_path, monkeypatch, pattern, message):
    with pytest.raises(FileFormatError, match=message):
        read_gguf_checkpoint(_with_pattern(tmp_path, monkeypatch, pattern))


def _with_pattern(folder, monkeypatch, pattern):
    write = gguf.GGUFWriter.add_sliding_window_pattern
    change = lambda self, _: None if pattern is None else write(self, pattern)  # noqa: E731
    monkeypatch.setattr(gguf.GGUFWriter, "add_sliding_window_pattern", change)
    return folders.write_gguf(folder / "model.gguf", "olmo3")


def test_scales_of_a_residual_and_of_logits(tmp_path):
    """A layer adds a part of what it computes, and logits are divided, also those of early exits and of new heads."""
    folder = folders.write(tmp_path, "granite", config={"logits_scaling": 1.0, "residual_multiplier": 1e-6})
    model, tokens = jaxspec.load(folder), jnp.asarray([[1, 2, 3]])
    output = model(tokens, model.init_cache(1, 8), capture=(0, 3))
    np.testing.assert_allclose(output.hidden[1], output.hidden[0], atol=1e-4)
    scaled = jaxspec.load(folders.write(tmp_path / "scaled", "granite", config={"residual_multiplier": 1e-6}))
    smaller = scaled(tokens, scaled.init_cache(1, 8), capture=(3,))
    np.testing.assert_allclose(smaller.logits * 8, output.logits, rtol=1e-6)
    exit_logits, _ = scaled.begin(tokens, scaled.init_cache(1, 8), 3)
    np.testing.assert_allclose(exit_logits, smaller.logits, atol=1e-5)
    head = scaled.normalize(smaller.hidden[0]) @ scaled.head.T
    np.testing.assert_allclose(head, smaller.logits, atol=1e-4)
    untrained = exit_head.init(scaled, jax.random.key(0), layers=3, blocks=0)
    np.testing.assert_allclose(untrained(scaled, smaller.hidden[0]), smaller.logits, atol=1e-4)


def test_multipliers_are_not_rounded_to_bfloat16():
    """As in PyTorch, a product with a float is computed in float32 and rounded once; Gemma rounds its factor first."""
    x = jax.random.normal(jax.random.key(0), (64, 32)).astype(jnp.bfloat16)
    wide = np.asarray(x, np.float32)
    once = (wide * np.float32(0.22)).astype(jnp.bfloat16)
    twice = (wide * np.float32(jnp.bfloat16(0.22))).astype(jnp.bfloat16)
    assert (once != twice).any()
    np.testing.assert_array_equal(jax.jit(lambda x: scaled(x, 0.22))(x), once)
    config = read_config(folders.CONFIGS["granite"] | {"embedding_multiplier": 0.22})
    rows = lambda config: embed(config, {"embedding": x}, jnp.arange(64)[None])[0]  # noqa: E731
    np.testing.assert_array_equal(rows(config), once)
    gemma = read_config(folders.CONFIGS["gemma3_text"])
    np.testing.assert_array_equal(rows(dataclasses.replace(gemma, embedding_scale=0.22)), twice)


def test_the_text_part_of_mistral_small():
    text = folders.CONFIGS["mistral"] | {"sliding_window": None}
    whole = {"model_type": "mistral3", "vision_config": {}, "text_config": text}
    assert read_config(text_settings(whole)) == read_config(text)


@pytest.mark.parametrize("old", [True, False])
def test_a_folder_of_mistral_small(tmp_path, old):
    """It also has a vision tower and a projector; transformers 5 has other names for the text's tensors."""
    text = folders.CONFIGS["mistral"] | {"sliding_window": None}
    folder = folders.write(tmp_path, "mistral", config=text)
    expected = jaxspec.load(folder)
    tensors = load_file(folder / "model.safetensors")
    rename = (lambda name: f"language_model.{name}") if old else _in_transformers_5
    vision = {"vision_tower.patch_conv.weight", "multi_modal_projector.linear_1.weight"}
    vision = {name if old else f"model.{name}": np.zeros((4, 4), np.float32) for name in vision}
    save_file({rename(name): x for name, x in tensors.items()} | vision, folder / "model.safetensors")
    whole = {"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}, "text_config": text}
    (folder / "config.json").write_text(json.dumps(whole | {"architectures": ["Mistral3ForConditionalGeneration"]}))
    model = jaxspec.load(folder)
    assert model.module.config == expected.module.config
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)


def _in_transformers_5(name):
    return name.replace("model.", "model.language_model.", 1)
