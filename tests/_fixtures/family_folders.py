"""Small random checkpoints of families whose tensors differ from Llama's: their settings, shapes and GGUF files."""

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 3, 4, 2, 8, 300
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
}


def shapes(family: str) -> Shapes:
    """The tensors of a family of `CONFIGS` under Hugging Face's names."""
    found: Shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        found |= {f"{name}.{part}": shape for part, shape in _LAYERS[family](CONFIGS[family]).items()}
    return found if CONFIGS[family].get("tie_word_embeddings") else found | {"lm_head.weight": (VOCAB, WIDTH)}


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


_LAYERS = {"gpt_oss": _gpt_oss}


def as_gguf(family: str, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors that llama.cpp's converter writes, under names that its table of names has."""
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


def add_gguf_settings(family: str, writer: Any) -> None:
    """Writes the settings that llama.cpp's converter writes for the family alone."""
    config = CONFIGS[family]
    if family == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
        writer.add_rope_scaling_orig_ctx_len(config["rope_scaling"]["original_max_position_embeddings"])
