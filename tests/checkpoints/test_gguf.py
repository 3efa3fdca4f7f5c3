"""GGUF files: they hold the weights of a Hugging Face folder, and damage raises errors."""

import math
import struct

import gguf
import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints import gguf as reader
from jaxspec.checkpoints.gguf import read_gguf
from jaxspec.checkpoints.gguf_tokenizer import build_tokenizer
from jaxspec.families.common import read_rope_scaling
from jaxspec.families.table import read_config
from jaxspec.io.files import FileFormatError
from jaxspec.ops.rope import Rope, RopeScaling
from tests._fixtures import folders


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3_text", "gpt2"])
def test_gguf_equals_folder(tmp_path, family):
    model = jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", family))
    expected = jaxspec.load(folders.write(tmp_path / "folder", family))
    assert model.module == expected.module
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), model.params, expected.params)


def test_quantized_tensors_are_expanded(tmp_path):
    """Every type that the gguf package can write is read back with its values."""
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


def _raw(pairs=(), tensors=(), data=b"", counts=None):
    """A file of these packed pairs and entries of the table of tensors, and of the counts that it says to have."""
    tensor_count, pair_count = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", 3, tensor_count, pair_count) + b"".join([*pairs, *tensors])
    return head + bytes(-len(head) % 32) + data


def _text(value):
    return struct.pack("<Q", len(value)) + value


def _pair(key, kind, value):
    return _text(key) + struct.pack("<I", kind) + value


def _entry(name, offset, shape=(8,), kind=0):
    return _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


_NESTED = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10_000


@pytest.mark.parametrize(
    ("raw", "place", "problem"),
    [
        (_raw([_pair(b"a", 4, bytes(4))] * 2), "a", "the key occurs twice"),
        (_raw(tensors=[_entry(b"x", 0), _entry(b"x", 32)], data=bytes(64)), "tensor x", "the name occurs twice"),
        (_raw(counts=(2**40, 0)), "count of tensors", "1,099,511,627,776 entries, but room for 0"),
        (_raw(counts=(0, 2**40)), "count of keys", "1,099,511,627,776 entries, but room for 0"),
        (_raw([_pair(b"a", 9, struct.pack("<IQ", 4, 2**40))]), "a", "1,099,511,627,776 entries"),
        (_raw([_pair(b"a", 9, struct.pack("<IQ", 8, 2**62))]), "a", "4,611,686,018,427,387,904 entries"),
        (_raw([_pair(b"a", 8, struct.pack("<Q", 2**50))]), "a", "entries, but room for"),
        (_raw([_text(b"a") + _NESTED]), "a", "expected lists inside at most 4 lists"),
        (_raw([_pair(b"a", 8, _text(b"\xff"))]), "a", "UnicodeDecodeError"),
        (_raw([_pair(b"a", 77, bytes(4))]), "a", "unknown type 77"),
        (_raw([_pair(b"general.alignment", 4, struct.pack("<I", 33))]), "general.alignment", "a power of two"),
        (_raw([_pair(b"split.count", 8, _text(b"x"))]), "split.count", "one of x parts"),
        (_raw(tensors=[_entry(b"x", 0, (8,) * 9)]), "tensor x", "expected 1 to 4 dimensions, got 9"),
        (_raw(tensors=[_entry(b"x", 0, (2**40, 2**40))]), "tensor x", "is larger than the file"),
        (_raw(tensors=[_entry(b"x", 0, (0,))]), "tensor x", "cannot be of type F32"),
        (_raw(tensors=[_entry(b"x", 0, kind=99)], data=bytes(32)), "tensor x", "unknown type 99"),
        (
            _raw(tensors=[_entry(b"x", 0), _entry(b"y", 0)], data=bytes(64)),
            "tensor y",
            "expected it at byte 32 .* got 0",
        ),
        (_raw(tensors=[_entry(b"x", 0), _entry(b"y", 16)], data=bytes(64)), "tensor y", "expected it at byte 32 .* 16"),
        (_raw(tensors=[_entry(b"x", 0)], data=bytes(31)), "tensor x and those after it", "the tensors end at byte"),
        (_raw(tensors=[_entry(b"x", 0)], data=bytes(33)), "tensors", "the last one ends at byte"),
    ],
    ids=range(20),
)
def test_damage_is_answered_by_its_place(tmp_path, raw, place, problem):
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(FileFormatError, match=problem) as caught:
        read_gguf(path)
    assert caught.value.path == str(path) and caught.value.place == place


@pytest.mark.parametrize(
    ("key", "change", "problem"),
    [
        ("tokens", lambda x: [x[1], *x[1:]], "the token 't1' occurs twice"),
        ("tokens", lambda x: 3, "expected a list of texts, got 3"),
        ("tokens", lambda x: [*x, "further"], "301 tokens, but token_embd.weight has 300 rows"),
        ("merges", lambda x: ["t1"], "expected two tokens separated by a space, got 't1'"),
        ("merges", lambda x: ["t1 nothing"], "nothing"),
        ("pre", lambda x: 3, "expected a text, got 3"),
        ("scores", lambda x: [float("nan")] * 300, "expected a list of numbers that float32 holds"),
        ("token_type or tokenizer.ggml.tokens", lambda x: [1] * 299, "expected 300 entries, got 299"),
        ("eos_token_id", lambda x: 300, "300, but the vocabulary has 300 tokens"),
        ("eot_token_id", lambda x: -1, "expected an integer from 0"),
        ("add_bos_token", lambda x: 1, "expected true or false, got 1"),
    ],
)
def test_a_damaged_vocabulary_is_answered_by_its_key(tmp_path, monkeypatch, key, change, problem):
    path = folders.write_gguf(tmp_path / "bad.gguf", "llama", vocabulary=True)
    file = read_gguf(path)
    name = f"tokenizer.ggml.{key.partition(' ')[0]}"
    file.metadata[name] = change(file.metadata.get(name))
    monkeypatch.setattr(reader, "read_gguf", lambda path: file)
    with pytest.raises(FileFormatError, match=problem) as caught:
        jaxspec.load(path)
    assert caught.value.path == str(path) and caught.value.place == f"tokenizer.ggml.{key}"


@pytest.mark.parametrize("index", [300, 2**32 - 1, -1])
def test_a_padding_token_that_there_is_not(tmp_path, index):
    """Files have one, which llama.cpp leaves out, as nothing is padded with it."""
    path = folders.write_gguf(tmp_path / "model.gguf", "llama", vocabulary=True)
    file = read_gguf(path)
    padding = {"tokenizer.ggml.padding_token_id": index}
    assert build_tokenizer(file.metadata | padding) == build_tokenizer(file.metadata)


@pytest.mark.parametrize(
    ("pairs", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, None),
        ({"rope.scaling.factor": 0.0}, None),
    ],
)
def test_a_rotary_factor_of_no_type_is_linear(pairs, factor):
    """llama.cpp does this for both names of the factor."""
    scaling = read_rope_scaling(pairs, {"head_dim": 8}, {}).get("rope_scaling", {})
    assert scaling == ({} if factor is None else {"rope_type": "linear", "factor": factor})


def test_yarn_of_a_gguf_file():
    """llama.cpp multiplies YaRN's own attention factor by that of the file."""
    file = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32768}
    config = {"model_type": "qwen2", "max_position_embeddings": 131072, "head_dim": 8}
    rope = read_config(config | read_rope_scaling(file, config, {})).ropes[0]
    amplified = 0.1 * math.log(4) + 1
    scaling = RopeScaling("yarn", 4.0, original_context_length=32768, attention_factor=amplified)
    assert rope == Rope(10_000.0, scaling)
    file |= {"rope.scaling.attn_factor": 0.5, "rope.scaling.yarn_beta_fast": 16.0}
    rope = read_config(config | read_rope_scaling(file, config, {})).ropes[0]
    assert (rope.attention_factor, rope.scaling.beta_fast) == (pytest.approx(amplified / 2), 16.0)


def test_defaults_of_a_gguf_file_are_those_of_llama_cpp(tmp_path, monkeypatch):
    """Key-value heads are as many as heads and share the width equally, and the base is 10,000."""
    for name in ("add_head_count_kv", "add_key_length", "add_value_length", "add_rope_freq_base"):
        monkeypatch.setattr(gguf.GGUFWriter, name, lambda writer, value: None)
    monkeypatch.setattr(folders, "KV_HEADS", folders.HEADS)
    config = jaxspec.load(folders.write_gguf(tmp_path / "model.gguf", "qwen3")).module.config
    assert (config.num_kv_heads, config.head_dim, config.ropes[0]) == (4, 8, Rope(10_000.0))


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

    with pytest.raises(ValueError, match="architecture 'mamba'; supported: gemma3, gpt-oss, gpt2, granite, llama, "):
        jaxspec.load(write("mamba"))
    with pytest.raises(ValueError, match="qwen2.expert_count: 'qwen2' is not supported with experts"):
        jaxspec.load(write("qwen2", qwen2__expert_count=8))
    with pytest.raises(ValueError, match="one of 3 parts"):
        jaxspec.load(write("llama", split__count=3))
    with pytest.raises(ValueError, match="version: 1 is not supported"):
        jaxspec.load(write("llama", version=1))
    with pytest.raises(ValueError, match="no tensor token_embd.weight"):
        jaxspec.load(write("llama"))
