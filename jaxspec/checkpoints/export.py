"""Writes a model as the files that other programs read: a Hugging Face folder, and GGUF; without a tokenizer."""

import json
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
from gguf.quants import quantize
from safetensors.numpy import save_file

from jaxspec.checkpoints.huggingface import describe
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.rope import Rope, frequencies

_TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
}


def export_folder(model: LanguageModel, folder: Path, dtype: str) -> Path:
    """Writes a Hugging Face folder without a tokenizer, and returns it.

    Args:
      model: with plain arrays as weights.
      folder: a folder that exists.
      dtype: of the weights.

    Raises:
      ValueError: the model is of none of the families that are written.
    """
    _, values, weights = describe(model)
    tensors = {name: np.ascontiguousarray(x.astype(jnp.dtype(dtype))) for name, x in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values |= {"torch_dtype": dtype, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    return folder


def export_gguf(model: LanguageModel, folder: Path, dtype: str) -> Path:
    """Writes a GGUF file whose tokens have their numbers as texts, "7," of token 7, and returns its path.

    So a text that is generated names the ids it was made of.

    Args:
      model: with plain arrays as weights.
      folder: a folder that exists.
      dtype: of the weights; what has one dimension stays float32.

    Raises:
      ValueError: the model is of none of the families that are written, or has more than three stop tokens.
    """
    config = model.module.config
    family, values, weights = describe(model)
    layout, rope = family.gguf, config.ropes[0]
    assert layout is not None and rope is not None  # all families that are written have both
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
        stored = _TYPES["float32" if x.ndim == 1 else dtype]
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
    writer.add_token_merges(["0 ,"])  # there must be one; texts are never encoded
    writer.add_add_bos_token(False)
    ends = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    if len(stop) > len(ends):
        raise ValueError(f"llama.cpp is told of at most {len(ends)} stop tokens, got {len(stop)}")
    for add, token in zip(ends, stop, strict=False):
        add(token)
