"""Hugging Face folders and names: what loads, with which shapes and dtypes, and the errors."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.checkpoints import huggingface, orbax as saved
from jaxspec.checkpoints.huggingface import read_tensors
from jaxspec.checkpoints.params import abstract_params
from jaxspec.io.files import FileFormatError
from jaxspec.nn.language_model import LanguageModel
from tests._fixtures import folders


@pytest.fixture(params=sorted(folders.CONFIGS))
def family(request):
    return request.param


def _logits(model, tokens):
    return model(tokens, model.init_cache(*tokens.shape)).logits


def _assert_same_params(left, right, tolerance=0.0):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), left, right)


@pytest.mark.slow
def test_parameters_are_those_the_module_declares(tmp_path, family):
    model = jaxspec.load(folders.write(tmp_path, family))
    expected = abstract_params(model.module)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), expected)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), model.params) == shapes
    assert model.tokenizer is None
    logits = _logits(model, jnp.arange(6, dtype=jnp.int32)[None])
    assert logits.shape == (1, 6, folders.VOCAB) and np.isfinite(logits).all()


def test_shards_equal_one_file(tmp_path, family):
    one = jaxspec.load(folders.write(tmp_path / "one", family))
    three = jaxspec.load(folders.write(tmp_path / "three", family, shards=3))
    _assert_same_params(one.params, three.params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", jnp.bfloat16, np.float32])
def test_dtype(tmp_path, dtype):
    model = jaxspec.load(folders.write(tmp_path, "llama"), dtype=dtype)
    assert model.dtype == jnp.dtype(dtype) == model.params["embedding"].dtype
    assert model.params["final_norm"]["scale"].dtype == jnp.float32


def test_default_dtype_on_a_cpu_is_float32(tmp_path):
    assert jaxspec.load(folders.write(tmp_path, "llama")).dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["float64", "int8", "half-ish", 7])
def test_bad_dtype(tmp_path, dtype):
    with pytest.raises(ValueError, match="float32, bfloat16, float16, got"):
        jaxspec.load(folders.write(tmp_path, "llama"), dtype=dtype)


def test_half_precision_files(tmp_path):
    folder = folders.write(tmp_path, "llama")
    wide = load_file(folder / "model.safetensors")
    save_file({name: x.astype(jnp.bfloat16) for name, x in wide.items()}, folder / "model.safetensors")
    embedding = jaxspec.load(folder).params["embedding"]
    expected = wide["model.embed_tokens.weight"].astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(embedding, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "mamba"},
            "unsupported architecture 'mamba'.*gpt_oss, granite, llama, mistral",
        ),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"vocab_size": 299}, r"embed_tokens.weight has \(300, 32\), expected \(299, 32\)"),
        ({"num_hidden_layers": 4}, r"9 missing: layers.3.input_layernorm.weight"),
        ({"num_hidden_layers": 2}, r"9 unexpected: layers.2.input_layernorm.weight"),
    ],
)
def test_configurations_that_do_not_fit(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        jaxspec.load(folders.write(tmp_path, "llama", config=change))


@pytest.mark.parametrize("kept", [0, 4, 100, 2000, -1])
def test_truncated_safetensors(tmp_path, kept):
    file = folders.write(tmp_path, "llama") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model.safetensors: .*download it again"):
        jaxspec.load(tmp_path)


def test_garbage_in_safetensors(tmp_path):
    file = folders.write(tmp_path, "llama") / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-4000:] = b"\xff" * 4000
    file.write_bytes(raw)
    with pytest.raises(ValueError, match="NaN or infinite values, so the file is corrupted"):
        jaxspec.load(tmp_path)


def test_missing_shard_and_missing_weights(tmp_path):
    folder = folders.write(tmp_path / "shards", "llama", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match="missing.*model-00002-of-00002.safetensors"):
        jaxspec.load(folder)
    folder = folders.write(tmp_path / "torch", "llama")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin.*save_pretrained"):
        jaxspec.load(folder)


def _rename(folder, name_of):
    """Stores the tensors of a folder under other names; those whose name becomes empty are left out."""
    file = folder / "model.safetensors"
    save_file({name_of(name): x for name, x in load_file(file).items() if name_of(name)}, file)
    return folder


@pytest.mark.parametrize(
    "name_of",
    [
        "_orig_mod.{}".format,
        "module.{}".format,
        "module._orig_mod.{}".format,
        "language_model.{}".format,
        lambda name: name.replace("model.", "model.language_model.", 1),
        lambda name: name.replace("self_attn.", "_fsdp_wrapped_module.self_attn._checkpoint_wrapped_module."),
        lambda name: name.removeprefix("model."),
    ],
)
def test_prefixes_of_names_are_taken_off(tmp_path, name_of):
    folder = _rename(folders.write(tmp_path / "renamed", "mistral"), name_of)
    _assert_same_params(jaxspec.load(folder), jaxspec.load(folders.write(tmp_path / "plain", "mistral")))


def test_a_name_twice_after_its_prefix_is_taken_off(tmp_path):
    folder = folders.write(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights |= {f"module.{name}": x for name, x in weights.items() if "norm" in name}
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(FileFormatError, match=r"norm.weight once, got it twice"):
        jaxspec.load(folder)


def test_the_text_part_of_a_model_of_images(tmp_path):
    plain = jaxspec.load(folders.write(tmp_path / "plain", "gemma3_text"))
    folder = folders.write(tmp_path / "images", "gemma3_text")
    text = {key: x for key, x in folders.CONFIGS["gemma3_text"].items() if key != "model_type"}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 6}}
    (folder / "config.json").write_text(json.dumps(config))
    _rename(folder, "language_model.{}".format)
    tower = {"vision_tower.encoder.layers.0.weight": np.zeros((2, 2)), "multi_modal_projector.norm.weight": np.zeros(2)}
    save_file(load_file(folder / "model.safetensors") | tower, folder / "model.safetensors")
    model = jaxspec.load(folder)
    assert model.module.config == plain.module.config
    _assert_same_params(model, plain)
    (folder / "config.json").write_text(json.dumps(config | {"text_config": text | {"head_dim": 7}}))
    with pytest.raises(FileFormatError, match=r"config.json: text_config.head_dim: expected an even number"):
        jaxspec.load(folder)


def test_a_tied_weight_may_have_the_name_of_the_head(tmp_path):
    plain = jaxspec.load(folders.write(tmp_path / "plain", "qwen3"))
    head = {"model.embed_tokens.weight": "lm_head.weight"}
    folder = _rename(folders.write(tmp_path / "head", "qwen3"), lambda name: head.get(name, name))
    _assert_same_params(jaxspec.load(folder), plain)


def test_buffers_of_the_rotation_are_passed_over(tmp_path):
    folder = folders.write(tmp_path, "gemma3_text")
    names = ("rotary_emb.inv_freq", "rotary_emb_local.inv_freq", "rotary_emb.full_attention_inv_freq")
    names += ("layers.0.self_attn.rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.cos_cached")
    buffers = {f"model.{name}": np.ones(4, np.float32) for name in names}
    save_file(load_file(folder / "model.safetensors") | buffers, folder / "model.safetensors")
    assert jaxspec.load(folder).module.config.num_layers == folders.LAYERS


def _index(folder):
    path = folder / "model.safetensors.index.json"
    return path, json.loads(path.read_text())


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "sub/x.safetensors", "..", "", 3, None])
def test_shards_are_files_of_the_folder(tmp_path, name):
    path, index = _index(folders.write(tmp_path / "model", "llama", shards=2))
    first = next(iter(index["weight_map"]))
    path.write_text(json.dumps({"weight_map": index["weight_map"] | {first: name}}))
    with pytest.raises(FileFormatError, match=f"index.json: weight_map of {first}: expected a file in the same folder"):
        jaxspec.load(path.parent)


def test_a_shard_may_be_a_link_in_the_hubs_cache_alone(tmp_path):
    def move(folder, blobs):
        """Replaces each shard with a link."""
        blobs.mkdir()
        for number, shard in enumerate(sorted(folder.glob("*.safetensors"))):
            shard.rename(blobs / str(number))
            shard.symlink_to(blobs / str(number))
        return folder

    cached = folders.write(tmp_path / "models--a--b" / "snapshots" / "0123", "llama", shards=2)
    assert jaxspec.load(move(cached, tmp_path / "models--a--b" / "blobs")).vocab_size == folders.VOCAB
    outside = folders.write(tmp_path / "model", "llama", shards=2)
    with pytest.raises(
        FileFormatError, match="weight_map: model-00001-of-00002.safetensors is a link out of the folder"
    ):
        jaxspec.load(move(outside, tmp_path / "elsewhere"))


def test_a_shard_may_be_a_link_below_a_revision_of_the_hubs_cache(tmp_path):
    below, blobs = tmp_path / "models--a--b" / "snapshots" / "0123" / "head", tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    for number, shard in enumerate(sorted(folders.write(below, "llama", shards=2).glob("*.safetensors"))):
        shard.rename(blobs / str(number))
        shard.symlink_to(blobs / str(number))
    assert read_tensors(below, {}).keys() == folders.tensors("llama").keys()


def test_an_index_that_was_left_beside_one_file(tmp_path):
    """`save_pretrained` over shards removes them, and leaves their index next to the one file that it writes."""
    path, _ = _index(folders.write(tmp_path, "llama", shards=2))
    for shard in tmp_path.glob("*.safetensors"):
        shard.unlink()
    save_file(folders.tensors("llama"), tmp_path / "model.safetensors")
    assert path.is_file() and read_tensors(tmp_path, {}).keys() == folders.tensors("llama").keys()


def test_a_tensor_comes_from_the_shard_that_the_index_names(tmp_path):
    path, index = _index(folders.write(tmp_path, "llama", shards=2))
    before = jaxspec.load(tmp_path)
    shards = sorted({*index["weight_map"].values()})
    name = next(tensor for tensor, shard in index["weight_map"].items() if shard == shards[0])
    other = load_file(tmp_path / shards[1])
    save_file(other | {name: np.zeros((3, 3), np.float32)}, tmp_path / shards[1])
    jax.tree.map(np.testing.assert_array_equal, jaxspec.load(tmp_path).params, before.params)
    save_file(other, tmp_path / shards[1])
    path.write_text(json.dumps({"weight_map": index["weight_map"] | {name: shards[1]}}))
    with pytest.raises(FileFormatError, match=f"weight_map: {shards[1]} has no {name}"):
        jaxspec.load(tmp_path)


def test_damaged_config(tmp_path):
    folder = folders.write(tmp_path, "llama")
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json: JSONDecodeError: Expecting .*; delete it and download it again"):
        jaxspec.load(folder)


def test_unknown_names():
    with pytest.raises(ValueError, match=r"unknown model 'smollm2-135m'. Did you mean smollm2-135m-instruct"):
        jaxspec.load("smollm2-135m")
    with pytest.raises(ValueError, match="Known models: gemma-3-270m, .*Also accepted: a model hub id"):
        jaxspec.load("???")
    with pytest.raises(FileNotFoundError, match="nowhere.gguf"):
        jaxspec.load("nowhere.gguf")
    with pytest.raises(TypeError, match="got int"):
        jaxspec.load(3)


def test_folders_and_files_that_are_no_models(tmp_path):
    with pytest.raises(ValueError, match="not a model folder"):
        jaxspec.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="pass the folder"):
        jaxspec.load(tmp_path / "model.safetensors")


def test_hub_without_network_says_what_to_do(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(OSError, match=r"cannot get 'some/model' from the model hub.*offline.*HF_HUB_OFFLINE"):
        jaxspec.load("some/model")


def test_hub_id_loads_the_downloaded_folder(monkeypatch, tmp_path):
    folder = folders.write(tmp_path, "qwen2")
    asked = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda repo, **options: asked.update(repo=repo, **options) or folder,
    )
    assert jaxspec.load("some/model").vocab_size == folders.VOCAB
    assert asked["repo"] == "some/model" and "*.safetensors" in asked["allow_patterns"]
    assert "*.bin" not in huggingface._HUB_FILES


def test_saved_model_comes_back(tmp_path, family):
    model = jaxspec.load(folders.write(tmp_path / "source", family))
    jaxspec.save(model, tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved")
    assert again.module == model.module
    _assert_same_params(again.params, model.params)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_saved_model_in_another_dtype(tmp_path):
    model = jaxspec.load(folders.write(tmp_path / "source", "llama"))
    jaxspec.save(model, tmp_path / "saved")
    half = jaxspec.load(tmp_path / "saved", dtype="bfloat16")
    assert half.params["embedding"].dtype == jnp.bfloat16 == half.dtype
    assert half.params["final_norm"]["scale"].dtype == jnp.float32


def test_save_overwrites_nothing_and_leaves_nothing_behind(tmp_path, monkeypatch):
    model = jaxspec.load(folders.write(tmp_path / "source", "llama"))
    with pytest.raises(FileExistsError, match="pass a new path"):
        jaxspec.save(model, tmp_path / "source")
    with pytest.raises(TypeError, match="got Dense"):
        jaxspec.save(LanguageModel(nn.Dense(1), {}), tmp_path / "saved")
    monkeypatch.setattr(saved, "dataclasses", None)  # fails once the parameters are written
    with pytest.raises(AttributeError):
        jaxspec.save(model, tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_damaged_saved_model(tmp_path):
    model = jaxspec.load(folders.write(tmp_path / "source", "llama"))
    jaxspec.save(model, tmp_path / "saved")
    manifest = json.loads((tmp_path / "saved" / saved.MANIFEST).read_text())
    (tmp_path / "saved" / saved.MANIFEST).write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(ValueError, match="version: expected 3, got 99; upgrade"):
        jaxspec.load(tmp_path / "saved")
    (tmp_path / "saved" / saved.MANIFEST).write_text(json.dumps(manifest | {"version": 1}))
    with pytest.raises(ValueError, match="version: expected 3, got 1; load the original model and save it again"):
        jaxspec.load(tmp_path / "saved")
    (tmp_path / "saved" / saved.MANIFEST).write_text('{"version": 2}')
    with pytest.raises(ValueError, match="jaxspec.json: config: is missing"):
        jaxspec.load(tmp_path / "saved")
