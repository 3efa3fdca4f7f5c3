"""The format of llama2.c: a header of seven integers, float32 weights, and `tokenizer.bin` beside it."""

import functools
import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.tokenizer import Tokenizer
from jaxspec.weights.gguf import to_half_split
from jaxspec.weights.tensors import Checkpoint, LazyTensor

_HEADER = struct.Struct("<7i")
_LAYER_TENSORS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
)


def read_llama2c_checkpoint(path: Path) -> Checkpoint:
    """Reads a legacy (version 0) llama2.c checkpoint.

    A `tokenizer.bin` in the same folder becomes the model's tokenizer.

    Raises:
      ValueError: the file's size is not what its header implies.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError(f"{path} is too short for a llama2.c checkpoint; delete it and download it again")
    config, context = _config(header)
    layout = list(_layout(config, context)) if min(_HEADER.unpack(header)[:5]) > 0 else []
    expected = _HEADER.size + 4 * sum(int(np.prod(shape)) for _, shape in layout)
    if not layout or size != expected:
        raise ValueError(
            f"{path} is no llama2.c checkpoint, or a truncated one: it has {size:,} bytes and its header "
            f"implies {expected:,}. Other .bin files (PyTorch's) are not read: pass safetensors or GGUF"
        )
    data = np.memmap(path, np.float32, mode="r", offset=_HEADER.size)
    vocabulary = path.with_name("tokenizer.bin")
    tokenizer = None
    if vocabulary.exists():
        tokenizer = Tokenizer.from_gguf(_tokenizer_metadata(vocabulary, config["vocab_size"]))
    return Checkpoint(str(path), config, _tensors(data, layout, config), tokenizer)


def _config(header: bytes) -> tuple[dict[str, Any], int]:
    width, inner, layers, heads, kv_heads, vocab, context = _HEADER.unpack(header)
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        # A negative size says that the output head is not the embedding.
        "vocab_size": abs(vocab),
        "tie_word_embeddings": vocab > 0,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
    }
    return config, context


def _layout(config: dict[str, Any], context: int):
    """Every array of the file in order: its name (`None`: not used) and shape."""
    layers, width, inner = (config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    head_dim = width // config["num_attention_heads"]
    key_rows = config["num_key_value_heads"] * head_dim
    square, keys, gate = (layers, width, width), (layers, key_rows, width), (layers, inner, width)
    scales, down = (layers, width), (layers, width, inner)
    yield "embed_tokens.weight", (config["vocab_size"], width)
    shapes = (scales, square, keys, keys, square, scales, gate, down, gate)
    yield from zip(_LAYER_TENSORS, shapes, strict=True)
    yield "norm.weight", (width,)
    yield from itertools.repeat((None, (context, head_dim // 2)), 2)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], width)


def _tensors(data: np.ndarray, layout, config: dict[str, Any]) -> dict[str, LazyTensor]:
    heads = {
        "self_attn.q_proj": config["num_attention_heads"],
        "self_attn.k_proj": config["num_key_value_heads"],
    }
    tensors, start = {}, 0
    for name, shape in layout:
        count = int(np.prod(shape))
        whole = data[start : start + count].reshape(shape)
        start += count
        if name in _LAYER_TENSORS:
            for layer, part in enumerate(whole):
                reorder = functools.partial(to_half_split, part, heads[name]) if name in heads else None
                full_name = f"layers.{layer}.{name}.weight"
                tensors[full_name] = LazyTensor(part.shape, reorder or functools.partial(np.asarray, part))
        elif name is not None:
            tensors[name] = LazyTensor(shape, functools.partial(np.asarray, whole))
    return tensors


def _tokenizer_metadata(path: Path, vocab_size: int) -> dict[str, Any]:
    """The vocabulary in GGUF's terms. Spaces are written as spaces there, control tokens with newlines."""
    raw = path.read_bytes()
    tokens, scores, position = [], [], 4
    try:
        for _ in range(vocab_size):
            score, length = struct.unpack_from("<fi", raw, position)
            position += 8
            tokens.append(raw[position : position + length].decode("utf-8"))
            scores.append(score)
            position += length
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is truncated or corrupted ({error}); download it again") from error
    tokens = ["<unk>", "<s>", "</s>", *(token.replace(" ", "▁") for token in tokens[3:])]
    bytes_end = 3 + 256
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * (bytes_end - 3), *[1] * (vocab_size - bytes_end)],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        # The stories it was trained on are separated by the first token, not the last.
        "tokenizer.ggml.eot_token_id": 1,
    }
