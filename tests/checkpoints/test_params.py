"""A configuration that does not fit its tensors: the error names the wrong setting."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.io.files import FileFormatError
from tests._fixtures import folders, text_models

WRONG = {
    "llama": {
        "num_hidden_layers": (2, 4, 400),
        "vocab_size": (299, 301),
        "hidden_size": (16, 33),
        "intermediate_size": (47, 96),
        "num_attention_heads": (2, 8),
        "num_key_value_heads": (1, 4, None),
        "head_dim": (4, 16),
        "attention_bias": (True,),
        "mlp_bias": (True,),
        "tie_word_embeddings": (True,),
        "model_type": ("qwen2", "gpt2"),
    },
    "qwen2": {"tie_word_embeddings": (False,), "num_hidden_layers": (1,), "head_dim": (16,)},
    "gpt2": {"n_layer": (2,), "n_embd": (16,), "n_inner": (None, 47), "n_positions": (63,), "vocab_size": (5,)},
}


@pytest.mark.parametrize(("family", "key"), [(family, key) for family, keys in WRONG.items() for key in keys])
def test_the_setting_that_is_off_is_named(tmp_path, family, key):
    for value in WRONG[family][key]:
        with pytest.raises(FileFormatError, match=rf"config.json: (\S+ or )?{key}( or \S+)?: |of {key} 'gpt2' lacks"):
            jaxspec.load(folders.write(tmp_path, family, config={key: value}))


def test_heads_are_counted_where_their_size_is_not_said(tmp_path):
    config = {"head_dim": None, "num_attention_heads": 8}
    with pytest.raises(FileFormatError, match="num_attention_heads or num_key_value_heads: 8 does not fit .* 4 would"):
        jaxspec.load(folders.write(tmp_path, "llama", config=config))


def test_the_value_that_would_fit_is_said(tmp_path):
    message = "num_hidden_layers: 4 does not fit the tensors, 3 would. 9 missing: layers.3.input_layernorm.weight"
    with pytest.raises(FileFormatError, match=message):
        jaxspec.load(folders.write(tmp_path, "llama", config={"num_hidden_layers": 4}))


def test_tensors_that_no_single_setting_explains_are_named(tmp_path):
    weights = load_file(folders.write(tmp_path, "llama") / "model.safetensors")
    wrong = weights | {"model.layers.1.mlp.up_proj.weight": np.zeros((47, 32), np.float32)}
    save_file(wrong, tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match=r"the tensors do not match .*layers.1.mlp.up_proj.weight has \(47, 32\)"):
        jaxspec.load(tmp_path)


def test_a_head_that_is_stored_twice_is_the_embedding(tmp_path):
    """Some folders hold the output head of tied models too; one that differs says that they are not tied."""
    folder = folders.write(tmp_path, "llama", config={"tie_word_embeddings": True})
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}, folder / "model.safetensors")
    assert "head" not in jaxspec.load(folder).params
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(FileFormatError, match="tie_word_embeddings: true, but lm_head.weight is not the embedding"):
        jaxspec.load(folder)


def test_ends_of_text_are_tokens_of_the_model(tmp_path, messages):
    """Folders of small models may have the id of a large one in their configuration."""
    folder = folders.write(tmp_path, "llama", config={"eos_token_id": [2, 300, 10**6]})
    text_models.byte_level().save(folder)
    (folder / "generation_config.json").unlink()
    assert jaxspec.load(folder).tokenizer.eos_token_ids == (0, 2)
    (told,) = messages()
    assert "config.json: eos_token_id: ignoring 300, 1000000, which are not below vocab_size 300" in told


def test_a_model_of_another_quantization_is_called_so(tmp_path):
    folder = folders.write(tmp_path, "llama", config={"quantization_config": {"quant_method": "hqq"}})
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    save_file(weights | {f"{name}_scale": np.ones(1, np.float32)}, folder / "model.safetensors")
    with pytest.raises(
        FileFormatError, match=r"json: quantization_config: the model is quantized \(hqq\), .* methods: gptq, awq"
    ) as caught:
        jaxspec.load(folder)
    assert "same model" not in str(caught.value)
    save_file(weights | {name: weights[name].astype(ml_dtypes.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(FileFormatError, match=f"tensor {name}: it is F8_E4M3, and config.json") as caught:
        jaxspec.load(folder)
    assert "download it again" not in str(caught.value)


def test_what_is_not_supported_is_no_mismatch(tmp_path):
    with pytest.raises(FileFormatError, match="supported: default, linear, dynamic, llama3, yarn, longrope$"):
        jaxspec.load(folders.write(tmp_path, "llama", config={"rope_scaling": {"type": "ntk", "factor": 4.0}}))


def test_layers_that_predict_further_tokens_are_no_layers_of_the_model(tmp_path):
    further = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    model = jaxspec.load(folders.write(tmp_path, "llama", config=further))
    assert model.module.config.num_layers == 2
    with pytest.raises(FileFormatError, match="num_nextn_predict_layers: expected an integer from 0"):
        jaxspec.load(folders.write(tmp_path, "llama", config={"num_nextn_predict_layers": 10**12}))


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("block_count", 10**9, "llama.block_count"),
        ("block_count", 4 * 10**9, "llama.block_count"),
        ("block_count", 2, "llama.block_count"),
        ("embedding_length", 16, "llama.embedding_length"),
        ("head_count_kv", 4, "llama.attention.head_count_kv"),
        ("key_length", 16, "llama.attention.value_length or llama.attention.key_length"),
        ("layer_norm_rms_eps", float("nan"), "llama.attention.layer_norm_rms_epsilon"),
        ("rope_freq_base", -1.0, "llama.rope.freq_base"),
    ],
)
def test_a_gguf_file_is_answered_in_its_own_words(tmp_path, monkeypatch, key, value, place):
    write = getattr(gguf.GGUFWriter, f"add_{key}")
    monkeypatch.setattr(gguf.GGUFWriter, f"add_{key}", lambda writer, _: write(writer, value))
    with pytest.raises(FileFormatError, match="model.gguf: ") as caught:
        jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", "llama"))
    assert caught.value.place == place
