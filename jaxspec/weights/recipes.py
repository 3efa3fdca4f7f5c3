"""Which Hugging Face tensors make up each parameter of our decoder, and how they are laid out."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxspec.nn import TransformerConfig
from jaxspec.nn.block import BlockConfig
from jaxspec.nn.tandem import TandemConfig

Shape = tuple[int, ...]

_LLAMA_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_GEMMA3_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one parameter is made.

    Attributes:
      path: where it stands in the parameter tree.
      sources: the tensors it is made of, without the `model.` or `transformer.` in front of their
        names, and the shape that each must have.
      build: the parameter from those tensors.
      is_norm: whether it belongs to a normalisation: those stay in float32.
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


def recipes(config: TransformerConfig, model_type: str) -> Iterator[Recipe]:
    """Every parameter of a decoder of this family."""
    if model_type == "gpt2":
        yield from _gpt2(config)
    else:
        yield from _llama(config, is_gemma=model_type == "gemma3_text")


def _llama(config: TransformerConfig, *, is_gemma: bool) -> Iterator[Recipe]:
    # Gemma stores its scales as distances from one.
    norm = functools.partial(_norm, build=_plus_one if is_gemma else _same)
    yield _plain(("embedding",), "embed_tokens.weight", (config.vocab_size, config.width))
    for layer in range(config.num_layers):
        path, name = f"layer_{layer}", f"layers.{layer}"
        for ours, theirs in (_GEMMA3_NORMS if is_gemma else _LLAMA_NORMS).items():
            yield norm((path, ours, "scale"), f"{name}.{theirs}.weight", config.width)
        yield from _llama_attention(config, (path, "attention"), f"{name}.self_attn", norm, config.width)
        yield from _gated_mlp(config, (path, "mlp"), f"{name}.mlp")
    yield norm(("final_norm", "scale"), "norm.weight", config.width)
    if not config.tied_head:
        yield _plain(("head",), "lm_head.weight", (config.vocab_size, config.width))


def eagle_recipes(config: TransformerConfig, features: int) -> Iterator[Recipe]:
    """Every parameter of an EAGLE-3 layer that reads `features` numbers of the target."""
    norm = functools.partial(_norm, build=_same)
    yield _plain(("fuse", "kernel"), "fc.weight", (config.width, features))
    names = {"token_norm": "input_layernorm", "state_norm": "hidden_norm", "mlp_norm": "post_attention_layernorm"}
    for ours, theirs in names.items():
        yield norm((ours, "scale"), f"midlayer.{theirs}.weight", config.width)
    yield from _llama_attention(config, ("attention",), "midlayer.self_attn", norm, 2 * config.width)
    yield from _gated_mlp(config, ("mlp",), "midlayer.mlp")
    yield norm(("final_norm", "scale"), "norm.weight", config.width)
    yield _plain(("head",), "lm_head.weight", (config.vocab_size, config.width))


def first_eagle_recipes(config: TransformerConfig, *, bias: bool) -> Iterator[Recipe]:
    """Every parameter of an EAGLE-1 layer; its output head is the target's."""
    norm = functools.partial(_norm, build=_same)
    yield _plain(("mix", "kernel"), "fc.weight", (config.width, 2 * config.width))
    if bias:
        yield _plain(("mix", "bias"), "fc.bias", (config.width,))
    yield from _llama_attention(config, ("attention",), "layers.0.self_attn", norm, config.width)
    yield norm(("mlp_norm", "scale"), "layers.0.post_attention_layernorm.weight", config.width)
    yield from _gated_mlp(config, ("mlp",), "layers.0.mlp")


def mtp_recipes(config: TransformerConfig) -> Iterator[Recipe]:
    """Every parameter of a multi-token prediction module, by their names in its layer."""
    norm = functools.partial(_norm, build=_same)
    for ours, theirs in {"token_norm": "enorm", "state_norm": "hnorm", "final_norm": "shared_head.norm"}.items():
        yield norm((ours, "scale"), f"{theirs}.weight", config.width)
    yield _plain(("mix", "kernel"), "eh_proj.weight", (config.width, 2 * config.width))
    for ours, theirs in _LLAMA_NORMS.items():
        yield norm(("block", ours, "scale"), f"{theirs}.weight", config.width)
    yield from _llama_attention(config, ("block", "attention"), "self_attn", norm, config.width)
    yield from _gated_mlp(config, ("block", "mlp"), "mlp")
    yield _plain(("head",), "shared_head.head.weight", (config.vocab_size, config.width))


def block_recipes(config: BlockConfig, *, ours: bool) -> Iterator[Recipe]:
    """Every parameter of a block drafter but its mask and its output head, by DSpark's names.

    Those of ours have a row for tokens outside of the draft vocabulary; the public ones need none.
    """
    norm, width = functools.partial(_norm, build=_same), config.width
    for number in range(config.num_features if config.feature_norms else 0):
        yield norm((f"state_norm_{number}", "scale"), f"state_norms.{number}.weight", width)
    yield _plain(("mix", "kernel"), "fc.weight", (width, config.num_features * width))
    for ours_name, theirs in {"context_norm": "hidden_norm", "final_norm": "norm"}.items():
        yield norm((ours_name, "scale"), f"{theirs}.weight", width)
    for number in range(config.num_layers):
        path, name = f"layer_{number}", f"layers.{number}"
        for ours_name, theirs in _LLAMA_NORMS.items():
            yield norm((path, ours_name, "scale"), f"{name}.{theirs}.weight", width)
        yield from _llama_attention(config, (path, "attention"), f"{name}.self_attn", norm, width)
        yield from _gated_mlp(config, (path, "mlp"), f"{name}.mlp")
    if rank := config.markov_rank:
        rows, build = (config.vocab_size + 1, _same) if ours else (config.vocab_size, _row_of_zeros)
        yield Recipe(("markov_before",), (("markov_head.markov_w1.weight", (rows, rank)),), build)
        yield _plain(("markov_after",), "markov_head.markov_w2.weight", (config.vocab_size, rank))
    if config.confidence != "none":
        known = width + (config.markov_rank if config.confidence == "place and token" else 0)
        yield _plain(("trust", "kernel"), "confidence_head.proj.weight", (1, known))
        yield _plain(("trust", "bias"), "confidence_head.proj.bias", (1,))


def tandem_recipes(config: TandemConfig) -> Iterator[Recipe]:
    """Every parameter of a tandem decoder, by names of our own where Llama has none."""
    norm, width, theirs = functools.partial(_norm, build=_same), config.width, config.target_width
    rows = config.num_kv_heads * config.head_dim
    by_head = functools.partial(_by_head, heads=config.num_kv_heads, head_dim=config.head_dim)
    for number in range(config.num_features):
        yield norm((f"state_norm_{number}", "scale"), f"state_norms.{number}.weight", theirs)
    yield _plain(("mix", "kernel"), "fc.weight", (width, config.num_features * theirs))
    yield norm(("context_norm", "scale"), "hidden_norm.weight", width)
    yield norm(("token_norm", "scale"), "embed_norm.weight", theirs)
    yield _plain(("lower", "kernel"), "embed_proj.weight", (width, theirs))
    for number in range(config.num_layers):
        path, name = f"layer_{number}", f"layers.{number}"
        sources = tuple((f"{name}.target_attn.{part}_proj.weight", (rows, width)) for part in ("k", "v"))
        yield Recipe((f"inject_{number}", "key_value", "kernel"), sources, by_head)
        for ours, public in _LLAMA_NORMS.items():
            yield norm((path, ours, "scale"), f"{name}.{public}.weight", width)
        yield from _llama_attention(config, (path, "attention"), f"{name}.self_attn", norm, width)
        yield from _gated_mlp(config, (path, "mlp"), f"{name}.mlp")
    yield _plain(("lift", "kernel"), "lm_proj.weight", (theirs, width))
    yield norm(("final_norm", "scale"), "norm.weight", theirs)
    yield _plain(("head",), "lm_head.weight", (config.vocab_size, theirs))


def _llama_attention(config: TransformerConfig, path: tuple[str, ...], name: str, norm, width: int) -> Iterator[Recipe]:
    """`width` is that of what queries, keys and values are made of."""
    query_rows, key_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    by_head = functools.partial(_by_head, heads=config.num_kv_heads, head_dim=config.head_dim)
    for ours, rows in {"query": {"q": query_rows}, "key_value": {"k": key_rows, "v": key_rows}}.items():
        weights = tuple((f"{name}.{part}_proj.weight", (count, width)) for part, count in rows.items())
        yield Recipe((*path, ours, "kernel"), weights, by_head)
        if config.qkv_bias:
            biases = tuple((f"{name}.{part}_proj.bias", (count,)) for part, count in rows.items())
            yield Recipe((*path, ours, "bias"), biases, by_head)
    if config.query_key_norm:
        yield norm((*path, "query_norm", "scale"), f"{name}.q_norm.weight", config.head_dim)
        yield norm((*path, "key_norm", "scale"), f"{name}.k_norm.weight", config.head_dim)
    yield _plain((*path, "output", "kernel"), f"{name}.o_proj.weight", (config.width, query_rows))
    if config.output_bias:
        yield _plain((*path, "output", "bias"), f"{name}.o_proj.bias", (config.width,))


def _gated_mlp(config: TransformerConfig, path: tuple[str, ...], name: str) -> Iterator[Recipe]:
    inner, width = config.mlp_width, config.width
    parts = ("gate_proj", "up_proj")
    kernels = tuple((f"{name}.{part}.weight", (inner, width)) for part in parts)
    yield Recipe((*path, "gate_up", "kernel"), kernels, _stack)
    yield _plain((*path, "down", "kernel"), f"{name}.down_proj.weight", (width, inner))
    if config.mlp_bias:
        biases = tuple((f"{name}.{part}.bias", (inner,)) for part in parts)
        yield Recipe((*path, "gate_up", "bias"), biases, _stack)
        yield _plain((*path, "down", "bias"), f"{name}.down_proj.bias", (width,))


def _gpt2(config: TransformerConfig) -> Iterator[Recipe]:
    """GPT-2 stores its kernels `[in, out]`, and queries, keys and values as one."""
    width, inner = config.width, config.mlp_width
    split = {
        name: functools.partial(_split_fused, parts=parts, heads=config.num_heads, head_dim=config.head_dim)
        for name, parts in {"query": slice(0, 1), "key_value": slice(1, 3)}.items()
    }
    yield _plain(("embedding",), "wte.weight", (config.vocab_size, width))
    yield _plain(("position_embedding",), "wpe.weight", (config.context_length, width))
    for layer in range(config.num_layers):
        path, name = f"layer_{layer}", f"h.{layer}"
        attention, mlp = (path, "attention"), (path, "mlp")
        yield from _layer_norm((path, "attention_norm"), f"{name}.ln_1", width)
        fused = f"{name}.attn.c_attn"
        for ours, part in split.items():
            yield Recipe((*attention, ours, "kernel"), ((f"{fused}.weight", (width, 3 * width)),), part)
            yield Recipe((*attention, ours, "bias"), ((f"{fused}.bias", (3 * width,)),), part)
        output = f"{name}.attn.c_proj"
        source = (f"{output}.weight", (width, width))
        yield Recipe((*attention, "output", "kernel"), (source,), np.transpose)
        yield _plain((*attention, "output", "bias"), f"{output}.bias", (width,))
        yield from _layer_norm((path, "mlp_norm"), f"{name}.ln_2", width)
        for ours, theirs, shape in (("up", "c_fc", (width, inner)), ("down", "c_proj", (inner, width))):
            source = (f"{name}.mlp.{theirs}.weight", shape)
            yield Recipe((*mlp, ours, "kernel"), (source,), np.transpose)
            yield _plain((*mlp, ours, "bias"), f"{name}.mlp.{theirs}.bias", shape[1:])
    yield from _layer_norm(("final_norm",), "ln_f", width)
    if not config.tied_head:
        yield _plain(("head",), "lm_head.weight", (config.vocab_size, width))


def _plain(path: tuple[str, ...], name: str, shape: Shape) -> Recipe:
    return Recipe(path, ((name, shape),), _same)


def _norm(path: tuple[str, ...], name: str, width: int, build) -> Recipe:
    return Recipe(path, ((name, (width,)),), build, is_norm=True)


def _layer_norm(path: tuple[str, ...], name: str, width: int) -> Iterator[Recipe]:
    yield _norm((*path, "scale"), f"{name}.weight", width, _same)
    yield _norm((*path, "bias"), f"{name}.bias", width, _same)


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _plus_one(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) + 1


def _row_of_zeros(x: np.ndarray) -> np.ndarray:
    """One more row."""
    return np.pad(x, ((0, 1), (0, 0)))


def _stack(*parts: np.ndarray) -> np.ndarray:
    return np.stack(parts)


def _by_head(*parts: np.ndarray, heads: int, head_dim: int) -> np.ndarray:
    """`[g*r*d, ...]` to `[g, r, d, ...]`; of several parts, one behind the other along `r`."""
    return np.concatenate([part.reshape(heads, -1, head_dim, *part.shape[1:]) for part in parts], axis=1)


def _split_fused(fused: np.ndarray, parts: slice, heads: int, head_dim: int) -> np.ndarray:
    """`parts` of `[in, 3*g*d]` or `[3*g*d]`: `n` of queries, keys and values as `[g, n, d, in]` or `[g, n, d]`."""
    return _by_head(*np.split(fused.T, 3)[parts], heads=heads, head_dim=head_dim)
