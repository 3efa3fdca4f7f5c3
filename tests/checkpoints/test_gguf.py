"""GGUF files: the same weights as a Hugging Face folder, and what damage leads to."""

import struct

import gguf
import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.gguf_file import read_gguf
from tests._fixtures import folders


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3_text", "gpt2"])
def test_gguf_equals_folder(tmp_path, family):
    model = jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", family))
    expected = jaxspec.load(folders.write(tmp_path / "folder", family))
    assert model.module == expected.module
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), model.params, expected.params)


def test_quantized_tensors_are_expanded(tmp_path):
    """Every type that the gguf package can write is read back as what it says it is."""
    values = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    kinds = ["F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"]
    expected = {}
    for kind in kinds:
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        expected[kind] = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(kind, packed, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = read_gguf(tmp_path / "model.gguf").tensors
    for kind in kinds:
        assert tensors[kind].shape == values.shape
        np.testing.assert_array_equal(np.asarray(tensors[kind].read(), np.float32), expected[kind])
        np.testing.assert_allclose(tensors[kind].read(), values, rtol=0, atol=0.5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = folders.write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", "llama", vocabulary=True)
    return path.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.5, 0.9, 0.9999])
def test_truncated(tmp_path, whole, share):
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"cut.gguf: .*(truncated|empty|not a GGUF file)"):
        jaxspec.load(path)


def test_every_truncation_of_the_header(tmp_path, whole):
    path = tmp_path / "cut.gguf"
    for size in range(5, 6000, 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"truncated or corrupted.*download it again"):
            jaxspec.load(path)


def test_garbage_never_hangs_or_escapes(tmp_path, whole):
    """Damage in the header raises an error that names the file, or is harmless; nothing else is raised or loops."""
    random, path = np.random.default_rng(0), tmp_path / "bad.gguf"
    for _ in range(150):
        raw = bytearray(whole)
        start = int(random.integers(4, 8000))
        raw[start : start + 8] = random.bytes(8)
        path.write_bytes(raw)
        try:
            read_gguf(path)
        except ValueError as error:
            assert "bad.gguf" in str(error)


def test_garbage_in_the_weights(tmp_path, whole):
    path = tmp_path / "bad.gguf"
    path.write_bytes(whole[:-5000] + b"\xff" * 5000)
    with pytest.raises(ValueError, match="NaN or infinite values, so the file is corrupted"):
        jaxspec.load(path)


def test_not_a_gguf_file(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="not a GGUF file: it starts with b'<htm'"):
        jaxspec.load(path)


def test_huge_counts_end_at_once(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + bytes(64))
    with pytest.raises(ValueError, match="truncated or corrupted"):
        jaxspec.load(path)


def test_unsupported(tmp_path):
    def write(architecture, version=3, **pairs):
        path = tmp_path / "bad.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in pairs.items():
            writer.add_uint32(key.replace("__", "."), value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        raw = bytearray(path.read_bytes())
        raw[4:8] = struct.pack("<I", version)
        path.write_bytes(raw)
        return path

    with pytest.raises(ValueError, match="architecture 'mamba'; supported: gemma3, gpt2, llama, qwen2, qwen3"):
        jaxspec.load(write("mamba"))
    with pytest.raises(ValueError, match="mixture-of-experts"):
        jaxspec.load(write("llama", llama__expert_count=8))
    with pytest.raises(ValueError, match="one of 3 parts"):
        jaxspec.load(write("llama", split__count=3))
    with pytest.raises(ValueError, match="version: 1 is not supported"):
        jaxspec.load(write("llama", version=1))
    with pytest.raises(ValueError, match="no tensor token_embd.weight"):
        jaxspec.load(write("llama"))
