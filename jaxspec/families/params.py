"""Which Hugging Face tensors make up each parameter of our decoder, and how they are laid out."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxspec.nn.config import TransformerConfig

Shape = tuple[int, ...]

LLAMA_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_GEMMA3_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


@dataclasses.dataclass(frozen=True)
class ParamMapping:
    """How one parameter is made.

    Attributes:
      path: where it stands in the parameter tree.
      sources: the tensors it is made of, without the `model.` or `transformer.` in front of their
        names, and the shape that each must have.
      build: the parameter from those tensors.
      is_norm: whether it belongs to a normalization: those stay in float32.
    """

    path: tuple[str, ...]
    sources: tuple[tuple[str, Shape], ...]
    build: Callable[..., np.ndarray]
    is_norm: bool = False

    def take_apart(self, params: Any) -> dict[str, np.ndarray]:
        """The tensors that the parameter at `path` is made of; of recipes that put rows one behind the other."""
        for key in self.path:
            params = params[key]
        x = np.asarray(params)
        if len(self.sources) == 1:
            ((name, shape),) = self.sources
            return {name: x.reshape(shape)}
        # Several parts stand side by side along the axis that counts them.
        axis = 0 if x.shape[0] == len(self.sources) and self.path[-2] != "key_value" else 1
        parts = np.split(x, len(self.sources), axis=axis)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.sources, parts, strict=True)}


def param_mappings(config: TransformerConfig, model_type: str) -> Iterator[ParamMapping]:
    """Every parameter of a decoder of this family."""
    if model_type == "gpt2":
        yield from _gpt2(config)
    else:
        yield from _llama(config, is_gemma=model_type == "gemma3_text")


def _llama(config: TransformerConfig, *, is_gemma: bool) -> Iterator[ParamMapping]:
    # Gemma stores its scales as distances from one.
    norm = functools.partial(norm_mapping, build=_plus_one if is_gemma else same)
    yield plain(("embedding",), "embed_tokens.weight", (config.vocab_size, config.width))
    for layer in range(config.num_layers):
        path, name = f"layer_{layer}", f"layers.{layer}"
        for ours, theirs in (_GEMMA3_NORMS if is_gemma else LLAMA_NORMS).items():
            yield norm((path, ours, "scale"), f"{name}.{theirs}.weight", config.width)
        yield from attention_mappings(config, (path, "attention"), f"{name}.self_attn", norm, config.width)
        yield from mlp_mappings(config, (path, "mlp"), f"{name}.mlp")
    yield norm(("final_norm", "scale"), "norm.weight", config.width)
    if not config.tied_head:
        yield plain(("head",), "lm_head.weight", (config.vocab_size, config.width))


def attention_mappings(
    config: TransformerConfig, path: tuple[str, ...], name: str, norm, width: int
) -> Iterator[ParamMapping]:
    """`width` is that of what queries, keys and values are made of."""
    query_rows, key_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    group = functools.partial(by_head, heads=config.num_kv_heads, head_dim=config.head_dim)
    for ours, rows in {"query": {"q": query_rows}, "key_value": {"k": key_rows, "v": key_rows}}.items():
        weights = tuple((f"{name}.{part}_proj.weight", (count, width)) for part, count in rows.items())
        yield ParamMapping((*path, ours, "kernel"), weights, group)
        if config.qkv_bias:
            biases = tuple((f"{name}.{part}_proj.bias", (count,)) for part, count in rows.items())
            yield ParamMapping((*path, ours, "bias"), biases, group)
    if config.query_key_norm:
        yield norm((*path, "query_norm", "scale"), f"{name}.q_norm.weight", config.head_dim)
        yield norm((*path, "key_norm", "scale"), f"{name}.k_norm.weight", config.head_dim)
    yield plain((*path, "output", "kernel"), f"{name}.o_proj.weight", (config.width, query_rows))
    if config.output_bias:
        yield plain((*path, "output", "bias"), f"{name}.o_proj.bias", (config.width,))


def mlp_mappings(config: TransformerConfig, path: tuple[str, ...], name: str) -> Iterator[ParamMapping]:
    inner, width = config.mlp_width, config.width
    parts = ("gate_proj", "up_proj")
    kernels = tuple((f"{name}.{part}.weight", (inner, width)) for part in parts)
    yield ParamMapping((*path, "gate_up", "kernel"), kernels, _stack)
    yield plain((*path, "down", "kernel"), f"{name}.down_proj.weight", (width, inner))
    if config.mlp_bias:
        biases = tuple((f"{name}.{part}.bias", (inner,)) for part in parts)
        yield ParamMapping((*path, "gate_up", "bias"), biases, _stack)
        yield plain((*path, "down", "bias"), f"{name}.down_proj.bias", (width,))


def _gpt2(config: TransformerConfig) -> Iterator[ParamMapping]:
    """GPT-2 stores its kernels `[in, out]`, and queries, keys and values as one."""
    width, inner = config.width, config.mlp_width
    split = {
        name: functools.partial(_split_fused, parts=parts, heads=config.num_heads, head_dim=config.head_dim)
        for name, parts in {"query": slice(0, 1), "key_value": slice(1, 3)}.items()
    }
    yield plain(("embedding",), "wte.weight", (config.vocab_size, width))
    yield plain(("position_embedding",), "wpe.weight", (config.context_length, width))
    for layer in range(config.num_layers):
        path, name = f"layer_{layer}", f"h.{layer}"
        attention, mlp = (path, "attention"), (path, "mlp")
        yield from _layer_norm((path, "attention_norm"), f"{name}.ln_1", width)
        fused = f"{name}.attn.c_attn"
        for ours, part in split.items():
            yield ParamMapping((*attention, ours, "kernel"), ((f"{fused}.weight", (width, 3 * width)),), part)
            yield ParamMapping((*attention, ours, "bias"), ((f"{fused}.bias", (3 * width,)),), part)
        output = f"{name}.attn.c_proj"
        source = (f"{output}.weight", (width, width))
        yield ParamMapping((*attention, "output", "kernel"), (source,), np.transpose)
        yield plain((*attention, "output", "bias"), f"{output}.bias", (width,))
        yield from _layer_norm((path, "mlp_norm"), f"{name}.ln_2", width)
        for ours, theirs, shape in (("up", "c_fc", (width, inner)), ("down", "c_proj", (inner, width))):
            source = (f"{name}.mlp.{theirs}.weight", shape)
            yield ParamMapping((*mlp, ours, "kernel"), (source,), np.transpose)
            yield plain((*mlp, ours, "bias"), f"{name}.mlp.{theirs}.bias", shape[1:])
    yield from _layer_norm(("final_norm",), "ln_f", width)
    if not config.tied_head:
        yield plain(("head",), "lm_head.weight", (config.vocab_size, width))


def plain(path: tuple[str, ...], name: str, shape: Shape) -> ParamMapping:
    return ParamMapping(path, ((name, shape),), same)


def norm_mapping(path: tuple[str, ...], name: str, width: int, build) -> ParamMapping:
    return ParamMapping(path, ((name, (width,)),), build, is_norm=True)


def _layer_norm(path: tuple[str, ...], name: str, width: int) -> Iterator[ParamMapping]:
    yield norm_mapping((*path, "scale"), f"{name}.weight", width, same)
    yield norm_mapping((*path, "bias"), f"{name}.bias", width, same)


def same(x: np.ndarray) -> np.ndarray:
    return x


def _plus_one(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) + 1


def _stack(*parts: np.ndarray) -> np.ndarray:
    return np.stack(parts)


def by_head(*parts: np.ndarray, heads: int, head_dim: int) -> np.ndarray:
    """`[g*r*d, ...]` to `[g, r, d, ...]`; of several parts, one behind the other along `r`."""
    return np.concatenate([part.reshape(heads, -1, head_dim, *part.shape[1:]) for part in parts], axis=1)


def _split_fused(fused: np.ndarray, parts: slice, heads: int, head_dim: int) -> np.ndarray:
    """`parts` of `[in, 3*g*d]` or `[3*g*d]`: `n` of queries, keys and values as `[g, n, d, in]` or `[g, n, d]`."""
    return by_head(*np.split(fused.T, 3)[parts], heads=heads, head_dim=head_dim)
