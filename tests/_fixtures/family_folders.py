"""Small random checkpoints of families whose tensors differ from Llama's: their settings, shapes and GGUF files."""

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 32, 3, 4, 2, 8, 48, 300
Shapes = dict[str, tuple[int, ...]]
# By family: what its configuration has apart from the sizes that all share.
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "model_type": "gpt_oss",
        "intermediate_size": 64,
        "sliding_window": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
        },
    },
    "olmo2": {"model_type": "olmo2", "rope_theta": 10000.0},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "attention_factor": 1.25,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "original_max_position_embeddings": 16,
        },
    },
    "granite": {
        "model_type": "granite",
        "attention_multiplier": 0.25,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 8.0,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2, "rope_theta": 10000.0},
}


def shapes(family: str) -> Shapes:
    """The tensors of a family of `CONFIGS` under Hugging Face's names."""
    found: Shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        found |= {f"{name}.{part}": shape for part, shape in _LAYERS[family](CONFIGS[family]).items()}
    tied = CONFIGS[family].get("tie_word_embeddings", family == "smollm3")
    return found if tied else found | {"lm_head.weight": (VOCAB, WIDTH)}


def _attention(*, bias: bool = False, output_bias: bool = False) -> Shapes:
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    found: Shapes = {f"self_attn.{part}_proj.weight": (count, WIDTH) for part, count in rows.items()}
    found |= {f"self_attn.{part}_proj.bias": (count,) for part, count in rows.items()} if bias else {}
    found["self_attn.o_proj.weight"] = (WIDTH, rows["q"])
    return found | ({"self_attn.o_proj.bias": (WIDTH,)} if output_bias else {})


def _norms(*names: str) -> Shapes:
    return {f"{name}.weight": (WIDTH,) for name in names}


def _gpt_oss(config: Mapping[str, Any]) -> Shapes:
    count, inner = config["num_local_experts"], config["intermediate_size"]
    return {
        **_norms("input_layernorm", "post_attention_layernorm"),
        **_attention(bias=True, output_bias=True),
        "self_attn.sinks": (HEADS,),
        "mlp.router.weight": (count, WIDTH),
        "mlp.router.bias": (count,),
        "mlp.experts.gate_up_proj": (count, WIDTH, 2 * inner),
        "mlp.experts.gate_up_proj_bias": (count, 2 * inner),
        "mlp.experts.down_proj": (count, inner, WIDTH),
        "mlp.experts.down_proj_bias": (count, WIDTH),
    }


def _mlp() -> Shapes:
    return {f"mlp.{part}_proj.weight": (INNER, WIDTH) for part in ("gate", "up")} | {
        "mlp.down_proj.weight": (WIDTH, INNER)
    }


def _llama(config: Mapping[str, Any]) -> Shapes:
    return {**_norms("input_layernorm", "post_attention_layernorm"), **_attention(), **_mlp()}


def _olmo(config: Mapping[str, Any]) -> Shapes:
    of_heads = {"self_attn.q_norm.weight": (HEADS * HEAD_DIM,), "self_attn.k_norm.weight": (KV_HEADS * HEAD_DIM,)}
    return {**_norms("post_attention_layernorm", "post_feedforward_layernorm"), **_attention(), **of_heads, **_mlp()}


_LAYERS = {"gpt_oss": _gpt_oss, "olmo2": _olmo, "olmo3": _olmo, "granite": _llama, "smollm3": _llama}
# The families whose rows of queries and keys llama.cpp's converter reorders.
_REORDERED = ("granite", "smollm3")


def as_gguf(family: str, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors that llama.cpp's converter writes, under names that its table of names has."""
    if family in _REORDERED:
        return {name: _reordered(name, x) for name, x in weights.items()}
    if family != "gpt_oss":
        return dict(weights)
    found = {}
    for name, x in weights.items():
        base = name.removesuffix("_bias")
        ending = ".bias" if name != base else ".weight"
        if ".experts." not in name:
            found[name + ".weight" * name.endswith(".sinks")] = x
            continue
        x = x if ending == ".bias" else x.swapaxes(1, 2)
        if base.endswith("gate_up_proj"):
            found |= {base.replace("gate_up", part) + ending: x[:, at::2] for at, part in enumerate(("gate", "up"))}
        else:
            found[base + ending] = x
    return found


def _reordered(name: str, x: np.ndarray) -> np.ndarray:
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return x
    return x.reshape(len(x) // HEAD_DIM, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(x.shape)


def add_gguf_settings(family: str, writer: Any) -> None:
    """Writes the settings that llama.cpp's converter writes for the family alone."""
    config = CONFIGS[family]
    if family == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if family == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
        writer.add_rope_scaling_attn_factors(config["rope_scaling"]["attention_factor"])
        writer.add_rope_scaling_yarn_beta_fast(config["rope_scaling"]["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(config["rope_scaling"]["beta_slow"])
    if family == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
    if family in ("gpt_oss", "olmo3"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
        writer.add_rope_scaling_orig_ctx_len(config["rope_scaling"]["original_max_position_embeddings"])
