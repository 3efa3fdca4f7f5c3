"""Reads a GGUF file as a Hugging Face configuration and tensors with Hugging Face names, and writes GGUF files.

The container comes first: metadata and a table of tensors, with every count checked against the file's size.
`gguf.GGUFReader` reads this format too, but it takes seconds for a vocabulary of 100,000 strings, and can loop forever
on a damaged count. The `gguf` package still provides the tables of types and the dequantization.
"""

import dataclasses
import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from jaxspec.checkpoints.gguf_tokenizer import build_tokenizer
from jaxspec.checkpoints.huggingface import describe
from jaxspec.checkpoints.params import Checkpoint
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.base import Blocks, Family, GGUFLayout, LazyTensor
from jaxspec.families.common import FURTHER_SETTINGS, ROPE_FACTORS, divided, need
from jaxspec.families.settings import SettingError, check_settings, settings_of
from jaxspec.families.table import find_gguf_family, gguf_architectures, read_config
from jaxspec.io.files import DOWNLOAD_AGAIN, FileFormatError, check_is_no_pointer, reading
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.rope import Rope, frequencies

_BLOCK = re.compile(r"^blk\.(\d+)\.(.+)$")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_ARCHITECTURE, _VOCABULARY = "general.architecture", "tokenizer.ggml."
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
# The smallest sizes: a pair with an empty key and a byte; a tensor with an empty name and no dimensions.
_PAIR_BYTES, _TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8
# No real file exceeds these. A damaged count can be below the size of a file of many gigabytes, and fill the memory.
_ALIGNMENTS = tuple(2**power for power in range(17))
_LONGEST, _LONGEST_NAME, _DEEPEST = 2**24, 2**16, 4
_NATIVE = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


@dataclasses.dataclass(frozen=True)
class GGUFFile:
    """Holds the contents of an open GGUF file.

    Attributes:
      metadata: the key-value pairs; arrays are lists.
      tensors: the tensors by name, dequantized to float32 when read. Shapes are in row-major order, the reverse of the
        order in the file.
    """

    metadata: dict[str, Any]
    tensors: dict[str, LazyTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Opens a GGUF file (version 2 or 3, little-endian).

    Args:
      path: the file, which stays mapped into memory while tensors are unread.

    Raises:
      FileFormatError: it is not a GGUF file, is truncated or corrupted, or is of an unsupported kind.
    """
    with reading(path), path.open("rb") as file:
        if path.stat().st_size == 0:
            raise FileFormatError(path, "", "the file is empty", DOWNLOAD_AGAIN)
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    check_is_no_pointer(path, buffer[:64])
    if buffer[:4] != b"GGUF":
        raise FileFormatError(path, "", f"not a GGUF file: it starts with {buffer[:4]!r}, expected b'GGUF'")
    return _parse(path, _Cursor(buffer))


class _Cursor:
    """Reads consecutive little-endian values, never past the end of the buffer."""

    def __init__(self, buffer: mmap.mmap):
        self.buffer, self.position = buffer, 4

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))
        return value

    def bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.buffer):
            raise ValueError(f"truncated or corrupted: it ends at byte {end:,}, the file has {len(self.buffer):,}")
        start, self.position = self.position, end
        return self.buffer[start:end]

    def count(self, each: int, most: int = _LONGEST) -> int:
        """Reads the number of entries that follow, of at least `each` bytes."""
        count = self.scalar("Q")
        if count > (most := min(most, (len(self.buffer) - self.position) // each)):
            raise ValueError(f"truncated or corrupted: it has {count:,} entries, but room for {most:,}")
        return count

    def string(self, most: int = _LONGEST) -> str:
        return self.bytes(self.count(1, most)).decode("utf-8")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), depth)
        if kind not in _SCALARS:
            raise ValueError(f"unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, depth: int) -> list[Any]:
        if kind in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[kind])
            count = self.count(size)
            return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self.bytes(count * size)))
        if depth == _DEEPEST:
            raise ValueError(f"expected lists inside at most {_DEEPEST} lists")
        return [self.value(kind, depth + 1) for _ in range(self.count(8))]


def _parse(path: Path, cursor: _Cursor) -> GGUFFile:
    with reading(path, "version"):
        version = cursor.scalar("I")
    if version not in (2, 3):
        hint = " (big-endian)" if version & 0xFFFF == 0 else ""
        raise FileFormatError(path, "version", f"{version}{hint} is not supported, expected 2 or 3, little-endian")
    with reading(path, "count of tensors"):
        tensor_count = cursor.count(_TENSOR_BYTES)
    with reading(path, "count of keys"):
        pair_count = cursor.count(_PAIR_BYTES)
    metadata = _metadata(path, cursor, pair_count)
    parts, alignment = metadata.get("split.count", 1), metadata.get("general.alignment", 32)
    if type(parts) is not int or parts > 1:
        raise FileFormatError(
            path, "split.count", f"this is one of {parts} parts", "merge them first (gguf-split --merge)"
        )
    if type(alignment) is not int or alignment not in _ALIGNMENTS:
        problem = f"expected a power of two up to {_ALIGNMENTS[-1]}, got {alignment!r}"
        raise FileFormatError(path, "general.alignment", problem, DOWNLOAD_AGAIN)
    return GGUFFile(metadata, _tensors(path, cursor, tensor_count, alignment, metadata))


def _metadata(path: Path, cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(count):
        with reading(path, f"key {number + 1} of {count}{_after(metadata)}"):
            key = cursor.string(_LONGEST_NAME)
        if key in metadata:
            raise FileFormatError(path, key, "the key occurs twice", DOWNLOAD_AGAIN)
        with reading(path, key):
            metadata[key] = cursor.value(cursor.scalar("I"))
    return metadata


def _after(before: dict[str, Any]) -> str:
    """Names the last item read: if the next one is invalid, the length of the last one may be wrong."""
    return f", after {next(reversed(before))}" if before else ""


def _tensors(
    path: Path, cursor: _Cursor, count: int, alignment: int, metadata: dict[str, Any]
) -> dict[str, LazyTensor]:
    """Reads the table of tensors. Their data must be in the table's order, as every writer stores them."""
    table: dict[str, tuple[tuple[int, ...], GGMLQuantizationType, int, int]] = {}
    end = 0
    for number in range(count):
        with reading(path, f"tensor {number + 1} of {count}{_after(table or metadata)}"):
            name = cursor.string(_LONGEST_NAME)
        if name in table:
            raise FileFormatError(path, f"tensor {name}", "the name occurs twice", DOWNLOAD_AGAIN)
        with reading(path, f"tensor {name}"):
            shape, quantization, row_bytes, offset = _table_entry(cursor)
            if offset != (expected := _aligned(end, alignment)):
                place = f"byte {expected:,} of the data{_after(table)} (general.alignment: {alignment})"
                raise ValueError(f"expected it at {place}, got {offset:,}")
        table[name] = shape, quantization, row_bytes, offset
        end = offset + math.prod(shape[:-1]) * row_bytes
    start = _aligned(cursor.position, alignment)
    _check_end(path, {name: offset for name, (*_, offset) in table.items()}, start, end, len(cursor.buffer), alignment)
    return {
        name: _lazy(path, cursor.buffer, name, shape, quantization, start + offset, row_bytes)
        for name, (shape, quantization, row_bytes, offset) in table.items()
    }


def _lazy(
    path: Path,
    buffer: mmap.mmap,
    name: str,
    shape: tuple[int, ...],
    quantization: GGMLQuantizationType,
    start: int,
    row_bytes: int,
) -> LazyTensor:
    def rows() -> np.ndarray:
        sizes = (*shape[:-1], row_bytes)
        return np.frombuffer(buffer, np.uint8, count=math.prod(sizes), offset=start).reshape(sizes)

    def read() -> np.ndarray:
        if quantization in _NATIVE:
            return rows().view(_NATIVE[quantization])
        try:
            return dequantize(rows(), quantization)
        except NotImplementedError as error:
            problem, advice = f"{quantization.name} cannot be dequantized", "pass a file of another type, such as Q8_0"
            raise FileFormatError(path, f"tensor {name}", problem, advice) from error

    if quantization in _NATIVE:
        return LazyTensor(shape, read)
    return LazyTensor(shape, read, lambda: Blocks(quantization.name, rows()))


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _check_end(path: Path, offsets: dict[str, int], start: int, end: int, size: int, alignment: int) -> None:
    """Checks that the tensors end at the end of the file."""
    if not offsets:
        return
    said = f"{size:,} (general.alignment: {alignment})"
    if start + end > size:
        name = next((last for last in reversed(offsets) if start + offsets[last] < size), next(iter(offsets)))
        problem = f"truncated or corrupted: the tensors end at byte {start + end:,}, the file has {said}"
        raise FileFormatError(path, f"tensor {name} and those after it", problem, DOWNLOAD_AGAIN)
    if size > start + _aligned(end, alignment):
        problem = f"the last one ends at byte {start + end:,}, the file has {said}"
        raise FileFormatError(path, "tensors", problem, DOWNLOAD_AGAIN)


def _table_entry(cursor: _Cursor) -> tuple[tuple[int, ...], GGMLQuantizationType, int, int]:
    """Reads a tensor's shape, type, bytes per row and offset."""
    dimensions = cursor.scalar("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"expected 1 to {_MAX_DIMENSIONS} dimensions, got {dimensions}")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind not in GGMLQuantizationType.__members__.values():
        raise ValueError(f"unknown type {kind}")
    quantization = GGMLQuantizationType(kind)
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    if 0 in shape or shape[-1] % block:
        raise ValueError(f"a tensor of shape {shape} cannot be of type {quantization.name}")
    row_bytes = shape[-1] // block * block_bytes
    if math.prod(shape[:-1]) * row_bytes > len(cursor.buffer):
        raise ValueError(f"truncated or corrupted: {shape} is larger than the file, {len(cursor.buffer):,} bytes")
    return shape, quantization, row_bytes, offset


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """Reads a GGUF file of a supported architecture.

    Args:
      path: the file.

    Raises:
      FileFormatError: the file is truncated or corrupted, or its architecture or an option is not
        supported.
    """
    file = read_gguf(path)
    with settings_of(path):
        source = _Source.of(file)
        tokenizer = _read_tokenizer(file)
    layout = source.layout
    with settings_of(path, source.name_of):
        config = _read_config(file, source)
        # Checked here, because tensors are restored by settings that this requires.
        read_config(config)
    tensors = {
        _hugging_face_name(name, layout): layout.restore(name, tensor, config)
        for name, tensor in file.tensors.items()
        if name != ROPE_FACTORS
    }
    return Checkpoint(str(path), config, tensors, tokenizer, name_of=source.name_of)


@dataclasses.dataclass(frozen=True)
class _Source:
    """Holds the family and the layout of a file's architecture."""

    architecture: str
    family: Family
    layout: GGUFLayout

    @classmethod
    def of(cls, file: GGUFFile) -> "_Source":
        architecture = file.metadata.get(_ARCHITECTURE)
        has_experts = bool(file.metadata.get(f"{architecture}.expert_count"))
        family = find_gguf_family(architecture, has_experts=has_experts)
        if family is None and architecture in gguf_architectures():
            problem = f"{architecture!r} is not supported {'with' if has_experts else 'without'} experts"
            raise SettingError(f"{architecture}.expert_count", problem)
        if family is None or (layout := family.gguf) is None:
            raise SettingError(
                _ARCHITECTURE,
                f"unsupported GGUF architecture {architecture!r}; supported: {', '.join(gguf_architectures())}",
            )
        return cls(layout.architecture, family, layout)

    def name_of(self, key: str) -> str:
        """Returns the file's key for a setting, given its name in `config.json` or in GGUF."""
        own = {theirs: own for own, theirs in self.layout.settings.items()} | {
            "sliding_window": "attention.sliding_window",
            "layer_types": "attention.sliding_window_pattern",
            "rope_scaling.factor": "rope.scaling.factor",
        }
        key = own.get(key, key)
        if key in FURTHER_SETTINGS or key in self.layout.settings:
            return f"{self.architecture}.{key}"
        return {"model_type": _ARCHITECTURE, "vocab_size": _EMBEDDING, "tie_word_embeddings": _HEAD}.get(key, key)


# Settings that llama.cpp derives from others if a file lacks them.
_OPTIONAL = ("num_key_value_heads", "head_dim", "rope_theta", "n_inner")


def _read_config(file: GGUFFile, source: _Source) -> dict[str, Any]:
    """Returns the `config.json` that corresponds to the file."""
    prefix, layout = f"{source.architecture}.", source.layout
    settings = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    check_settings(settings, FURTHER_SETTINGS)
    if _EMBEDDING not in file.tensors:
        raise SettingError(_EMBEDDING, f"the file has no tensor {_EMBEDDING}; is it an adapter or a part of a model?")
    config = {theirs: settings[own] for own, theirs in layout.settings.items() if own in settings}
    config |= {
        "model_type": source.family.model_type,
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "tie_word_embeddings": _HEAD not in file.tensors,
    }
    check_settings(config)
    for key in layout.settings.values():
        if key not in _OPTIONAL:
            need(config, key)
    config |= layout.read_settings(settings, config, file.tensors)
    # The defaults are llama.cpp's, not those of the family in transformers.
    own = {"num_key_value_heads": config.get("num_attention_heads"), "rope_theta": 10_000.0}
    if "head_dim" in source.family.defaults and "head_dim" not in config:
        own["head_dim"] = divided(config, "hidden_size", "num_attention_heads")
    return own | config


def _read_tokenizer(file: GGUFFile) -> Tokenizer | None:
    if not any(key.startswith(_VOCABULARY) for key in file.metadata):
        return None
    tokenizer = build_tokenizer(file.metadata)
    key, embedding = f"{_VOCABULARY}tokens", file.tensors.get(_EMBEDDING)
    if embedding is not None and len(file.metadata[key]) > (rows := embedding.shape[0]):
        raise SettingError(key, f"{len(file.metadata[key])} tokens, but {_EMBEDDING} has {rows} rows")
    return tokenizer


def _hugging_face_name(name: str, layout: GGUFLayout) -> str:
    block = _BLOCK.match(name)
    base, _, kind = (block[2] if block else name).rpartition(".")
    if base not in layout.tensors:
        return name
    theirs = f"{layout.tensors[base]}.{kind}"
    return f"{layout.blocks}.{block[1]}.{theirs}" if block else theirs


_FLOATS = {
    "float32": GGMLQuantizationType.F32,
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
}


def export_gguf(model: LanguageModel, folder: Path, dtype: str) -> Path:
    """Writes a GGUF file whose tokens are spelled as their ids, such as "7," for token 7, and returns its path.

    So a generated text lists its token ids.

    Args:
      model: a model whose weights are plain arrays.
      folder: an existing folder.
      dtype: "float32", "float16" or "bfloat16", the dtype of matrices; vectors stay float32.

    Raises:
      ValueError: the model's family cannot be written, or there are more than three stop tokens.
    """
    config = model.module.config
    family, values, weights = describe(model)
    layout, rope = family.gguf, config.ropes[0]
    assert layout is not None and rope is not None  # every family that can be written has both
    if rope.attention_factor != 1:
        raise ValueError(f"GGUF files are written with at most rotary factors, got {rope.scaling}; use jaxspec.save")
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, layout.architecture)
    sizes = {key: values[name] for key, name in layout.settings.items()}
    sizes |= {"attention.value_length": config.head_dim, "rope.dimension_count": config.head_dim}
    for key, value in sizes.items():
        add = writer.add_uint32 if "count" in key or "length" in key else writer.add_float32
        add(f"{layout.architecture}.{key}", value)
    writer.add_vocab_size(config.vocab_size)
    _write_vocabulary(writer, config.vocab_size, () if model.tokenizer is None else model.tokenizer.eos_token_ids)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[layout.architecture.upper()], config.num_layers)
    for name, x in weights.items():
        stored = _FLOATS["float32" if x.ndim == 1 else dtype]
        x = np.ascontiguousarray(layout.store(name, x, config), np.float32)
        gguf_name = names.get_name(name, (".weight", ".bias"))
        assert gguf_name is not None, f"GGUF has no name for {name}"
        writer.add_tensor(gguf_name, quantize(x, stored), raw_dtype=stored)
    if rope.scaling is not None:
        plain, scaled = (np.asarray(frequencies(config.head_dim, one)) for one in (Rope(rope.theta), rope))
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_vocabulary(writer: gguf.GGUFWriter, size: int, stop: tuple[int, ...]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"{number}," for number in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["0 ,"])  # GGUF requires one; texts are never encoded
    writer.add_add_bos_token(False)
    ends = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    if len(stop) > len(ends):
        raise ValueError(f"llama.cpp takes at most {len(ends)} stop tokens, got {len(stop)}")
    for add, token in zip(ends, stop, strict=False):
        add(token)
