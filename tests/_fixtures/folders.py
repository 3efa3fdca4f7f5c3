"""Small random checkpoints in Hugging Face's layout and as GGUF, written without PyTorch."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from tests._fixtures import family_folders

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT = 32, 48, 3, 4, 2, 8, 300, 64
EPS = 2.0**-17  # a float32, as GGUF stores it
_SHARED = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPS,
}
CONFIGS = {
    "llama": _SHARED | {"model_type": "llama", "rope_theta": 10000.0, "tie_word_embeddings": False},
    "mistral": _SHARED | {"model_type": "mistral", "sliding_window": 8, "rope_theta": 10000.0},
    "qwen2": _SHARED | {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": _SHARED | {"model_type": "qwen3", "rope_theta": 1e6, "tie_word_embeddings": True},
    "gemma3_text": _SHARED | {"model_type": "gemma3_text", "sliding_window": 8, "query_pre_attn_scalar": 8},
    "qwen3_moe": _SHARED
    | {"model_type": "qwen3_moe", "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
    | {"norm_topk_prob": True},
    "mixtral": _SHARED | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": _SHARED | {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 1.0},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_inner": INNER,
        "layer_norm_epsilon": EPS,
        "n_positions": CONTEXT,
        "vocab_size": VOCAB,
    },
    **{family: _SHARED | own for family, own in family_folders.CONFIGS.items()},
}


def tensors(family: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights under Hugging Face's names."""
    random = np.random.default_rng(seed)
    if family in family_folders.CONFIGS:
        shapes = family_folders.shapes(family)
    else:
        shapes = _gpt2_shapes() if family == "gpt2" else _llama_shapes(family)
    return {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder: Path, family: str, *, shards: int = 1, config: dict | None = None) -> Path:
    """Writes a whole folder, with `shards` safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[family] | (config or {})))
    weights = tensors(family)
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    names, places = list(weights), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: weights[name] for name in names[shard::shards]}, folder / file)
        places |= dict.fromkeys(names[shard::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


_ARCHITECTURES = {"gemma3_text": "gemma3", "qwen3_moe": "qwen3moe", "mixtral": "llama"}
_ARCHITECTURES |= {"gpt_oss": "gpt-oss", "olmo3": "olmo2"}


def write_gguf(
    path: Path,
    family: str,
    *,
    theta: float | None = None,
    factors: np.ndarray | None = None,
    vocabulary: bool = False,
    formats: Mapping[str, str] | None = None,
) -> Path:
    """The same weights as llama.cpp's converter writes them; `formats` of tensors by a part of their GGUF names."""
    architecture = _ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(CONFIGS[family].get("intermediate_size", INNER))
    writer.add_context_length(CONTEXT)
    writer.add_head_count(HEADS)
    if family == "gpt2":
        writer.add_layer_norm_eps(EPS)
    else:
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(EPS)
        writer.add_rope_freq_base(theta or CONFIGS[family].get("rope_theta", 1e6))
    if family == "gemma3_text":
        writer.add_sliding_window(8)
    if (count := experts_of(family)) is not None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(CONFIGS[family]["num_experts_per_tok"])
        inner = CONFIGS[family]["intermediate_size"]
        writer.add_expert_feed_forward_length(CONFIGS[family].get("moe_intermediate_size", inner))
    if family in family_folders.CONFIGS:
        family_folders.add_gguf_settings(family, writer)
    if vocabulary:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list([f"t{i}" for i in range(VOCAB)])
        writer.add_token_merges([])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper().replace("-", "_")], LAYERS)
    for name, weight in family_folders.as_gguf(family, joined_experts(tensors(family))).items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        kind = next((kind for part, kind in (formats or {}).items() if part in theirs), "F32")
        kind = gguf.GGMLQuantizationType[kind]
        values = gguf.quants.quantize(np.ascontiguousarray(_as_llama_cpp(family, name, weight)), kind)
        writer.add_tensor(theirs, values, raw_dtype=kind)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_OF_EXPERT = re.compile(r"^(.*)\.experts\.\d+\.(\w+)\.weight$")


def experts_of(family: str) -> int | None:
    """The number of experts of a layer."""
    return CONFIGS[family].get("num_experts", CONFIGS[family].get("num_local_experts"))


def joined_experts(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights with one tensor for each part of all experts of a layer, as llama.cpp's converter names them."""
    found, each = {}, {}
    for name, weight in weights.items():
        if match := _OF_EXPERT.match(name):
            each.setdefault(f"{match[1]}.experts.{match[2]}.weight", []).append(weight)
        else:
            found[name] = weight
    return found | {name: np.stack(parts) for name, parts in each.items()}


def _as_llama_cpp(family: str, name: str, weight: np.ndarray) -> np.ndarray:
    if family in ("llama", "mixtral") and ("q_proj" in name or "k_proj" in name):
        heads = HEADS if "q_proj" in name else KV_HEADS
        return weight.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(weight.shape)
    if family == "gemma3_text" and name.endswith("norm.weight"):
        return weight + 1
    if family == "gpt2" and ("attn.c_" in name or "mlp.c_" in name) and weight.ndim == 2:
        return weight.T
    return weight


def _llama_shapes(family: str) -> dict[str, tuple[int, ...]]:
    shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.{norm}.weight": (WIDTH,) for norm in norms}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (count, WIDTH) for part, count in rows.items()}
        if family == "qwen2":
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (count,) for part, count in rows.items()}
        if family in ("qwen3", "gemma3_text", "qwen3_moe"):
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (HEAD_DIM,) for part in "qk"}
        if family == "olmoe":
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (rows[part],) for part in "qk"}
        shapes[f"{name}.self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD_DIM)
        shapes |= _mlp_shapes(CONFIGS[family], name)
    if family in ("llama", "mistral", "qwen3_moe", "mixtral", "olmoe"):
        shapes["lm_head.weight"] = (VOCAB, WIDTH)
    return shapes


def _mlp_shapes(config: Mapping, name: str) -> dict[str, tuple[int, ...]]:
    count = experts_of(config["model_type"])
    if count is None:
        each, inner, parts = {f"{name}.mlp"}, INNER, ("gate_proj", "up_proj", "down_proj")
    elif config["model_type"] == "mixtral":
        each = {f"{name}.block_sparse_moe.experts.{expert}" for expert in range(count)}
        inner, parts = INNER, ("w1", "w3", "w2")
    else:
        each = {f"{name}.mlp.experts.{expert}" for expert in range(count)}
        inner, parts = config.get("moe_intermediate_size", INNER), ("gate_proj", "up_proj", "down_proj")
    shapes = {} if len(each) == 1 else {f"{min(each).split('.experts')[0]}.gate.weight": (count, WIDTH)}
    for one in sorted(each):
        sizes = zip(parts, ((inner, WIDTH), (inner, WIDTH), (WIDTH, inner)), strict=True)
        shapes |= {f"{one}.{part}.weight": shape for part, shape in sizes}
    return shapes


def _gpt2_shapes() -> dict[str, tuple[int, ...]]:
    shapes = {"wte.weight": (VOCAB, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        name = f"h.{layer}"
        kernels = {
            "attn.c_attn": (WIDTH, 3 * WIDTH),
            "attn.c_proj": (WIDTH, WIDTH),
            "mlp.c_fc": (WIDTH, INNER),
            "mlp.c_proj": (INNER, WIDTH),
        }
        for part, shape in kernels.items():
            shapes |= {f"{name}.{part}.weight": shape, f"{name}.{part}.bias": shape[1:]}
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{name}.{norm}.weight": (WIDTH,), f"{name}.{norm}.bias": (WIDTH,)}
    return shapes | {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
