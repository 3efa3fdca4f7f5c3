"""Weights stay as a file stores them, where possible: equal values, and a model like any other."""

import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints import load as loading
from jaxspec.checkpoints.gguf import read_gguf
from jaxspec.checkpoints.stored import hold
from jaxspec.families.base import ParamMapping
from jaxspec.io.files import FileFormatError
from jaxspec.nn.network import packed_weights
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.packed import is_packed
from tests._fixtures import folders

try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)

# The formats of a mixed file: keys unlike values, and some plain numbers.
FORMATS = {
    "token_embd": "Q8_0",
    "output.weight": "Q5_1",
    "attn_q.weight": "Q4_0",
    "attn_k.weight": "Q4_1",
    "attn_v.weight": "Q8_0",
    "attn_output.weight": "F16",
    "ffn_gate": "Q5_0",
    "ffn_up": "Q5_0",
    "blk.1.ffn_up": "Q4_1",
}
FAMILIES = ["llama", "qwen2", "gemma3_text"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return folders.write_gguf(tmp_path_factory.mktemp("stored") / "model.gguf", "llama", formats=FORMATS)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_the_file_to_the_bit(tmp_path, family):
    """Rows that the converter reordered, tied heads, keys and values of different formats, plain numbers."""
    path = folders.write_gguf(tmp_path / "model.gguf", family, formats=FORMATS)
    held, plain = jaxspec.load(path), jaxspec.load(path, weights="dequantized")
    assert not packed_weights(plain)
    expected = dict(jax.tree.leaves_with_path(plain.params))
    for name, x in jax.tree.leaves_with_path(held.params, is_leaf=is_packed):
        np.testing.assert_array_equal(x[:] if is_packed(x) else x, expected[name], err_msg=str(name))
        assert is_packed(x) == (name[-1].key in ("kernel", "embedding", "head"))
    kinds = {weight.kernels for weight in packed_weights(held)}
    assert {"stored-Q8_0", "stored-Q4_0", "stored-Q5_0"} <= kinds
    assert sum(weight.nbytes for weight in packed_weights(held)) < sum(x.nbytes for x in expected.values()) / 2


def test_what_is_not_made_of_rows_is_held_as_numbers(file):
    """A parameter that moves a tensor's inputs would mix up its blocks."""
    tensors = read_gguf(file).tensors
    name = "blk.0.attn_q.weight"
    values = tensors[name].read()
    source = (("w", values.shape),)
    moved = hold(ParamMapping(("kernel",), source, np.transpose), {"w": tensors[name]}, "file", jnp.float32)
    kept = hold(ParamMapping(("kernel",), source, np.array, by_rows=True), {"w": tensors[name]}, "file", jnp.float32)
    assert moved.kernels == "native" and kept.kernels == "stored-Q4_0"
    np.testing.assert_array_equal(moved[:], values.T)
    np.testing.assert_array_equal(kept[:], values)


@pytest.mark.slow
def test_logits_are_near_those_of_the_same_values(file):
    held, plain = jaxspec.load(file), jaxspec.load(file, weights="dequantized")
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, folders.VOCAB, (2, 12)), jnp.int32)
    found, expected = (model(tokens, model.init_cache(2, 16)).logits for model in (held, plain))
    assert 0 < jnp.abs(found - expected).mean() < 0.01 * jnp.std(expected)


@pytest.mark.slow
def test_drafts_change_no_token(file):
    """Greedy, of an n-gram drafter and of the same model, rows that differ; no two logits are that near here."""
    model = jaxspec.load(file)
    prompt = jnp.asarray(np.random.default_rng(1).integers(0, folders.VOCAB, (3, 6)), jnp.int32)
    plain = jaxspec.generate(model, None, prompt, max_new_tokens=24)
    for drafter in (jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(model, k=3)):
        found = jaxspec.generate(model, drafter, prompt, max_new_tokens=24)
        np.testing.assert_array_equal(found.tokens, plain.tokens)


def test_what_cannot_be_held_says_why(file, tmp_path):
    plain = folders.write_gguf(tmp_path / "plain.gguf", "llama")
    folder = folders.write(tmp_path / "folder", "llama")
    saved = tmp_path / "saved"
    jaxspec.save(jaxspec.load(plain), saved)
    for path in (plain, folder):
        assert not packed_weights(jaxspec.load(path))
        with pytest.raises(ValueError, match=f"needs a file with blocks of Q2_K, .*; {path} has none"):
            jaxspec.load(path, weights="stored")
    with pytest.raises(ValueError, match=f"weights='stored', but {saved} holds plain arrays"):
        jaxspec.load(saved, weights="stored")
    with pytest.raises(ValueError, match="needs float32 activations, got bfloat16; leave it out"):
        jaxspec.load(file, weights="stored", dtype="bfloat16")
    with pytest.raises(ValueError, match="needs one device, got a mesh"):
        jaxspec.load(file, weights="stored", mesh=jax.make_mesh((1,), ("model",)))
    with pytest.raises(ValueError, match="weights must be one of stored, dequantized, got 'int4'; leave it out"):
        jaxspec.load(file, weights="int4")
    assert not packed_weights(jaxspec.load(file, dtype="bfloat16"))


def test_without_a_compiler_one_line_says_so(file, monkeypatch, messages):
    def none():
        raise NoCompilerError("no C++ compiler: none is on the path")

    monkeypatch.setattr(loading, "register", none)
    assert not packed_weights(jaxspec.load(file))
    assert messages() == [
        "weights are dequantized, as there are no native kernels: no C++ compiler: none is on the path"
    ]
    with pytest.raises(ValueError, match="weights='stored' needs native kernels: no C\\+\\+ compiler"):
        jaxspec.load(file, weights="stored")


def test_a_scale_that_is_not_finite_names_its_tensor(file, tmp_path):
    blocks = read_gguf(file).tensors["blk.2.attn_v.weight"].blocks()
    data = file.read_bytes()
    at = data.index(blocks.rows[-1].tobytes())
    path = tmp_path / "bad.gguf"
    path.write_bytes(data[:at] + struct.pack("<e", float("inf")) + data[at + 2 :])
    with pytest.raises(FileFormatError, match=r"bad.gguf: tensor layers.2.self_attn.v_proj.weight: holds NaN or inf"):
        jaxspec.load(path)


def test_conversions_ask_for_plain_numbers(file, tmp_path):
    held = jaxspec.load(file)
    for convert in (jaxspec.quantize_weights, jaxspec.native_kernels):
        with pytest.raises(TypeError, match="load it with weights='dequantized'"):
            convert(held)
    with pytest.raises(TypeError, match="load it with weights='dequantized'"):
        jaxspec.save(held, tmp_path / "saved")
