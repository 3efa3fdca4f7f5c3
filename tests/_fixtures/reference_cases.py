"""The kinds and settings of random checkpoints whose logits are compared with those of transformers."""

_SHARED = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 211,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
# Every text of the test is longer than the original context, so that transformers uses the long factors.
_LONGROPE = {
    **{"rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16},
    **{"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]},
}
_GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
_GPT_OSS = {
    **{"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16, "sliding_window": 7},
    "rope_parameters": _YARN | {"truncate": False},
}
_OLMO3_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": _YARN | {"attention_factor": 1.1},
}
_MULTIPLIERS = {
    **{"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.5}
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
CASES = {
    "llama": ("llama", _SHARED),
    "llama-tied-mqa": ("llama", _SHARED | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama-head-dim-bias": ("llama", _SHARED | {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "llama-3": ("llama", _SHARED | {"rope_parameters": _LLAMA3}),
    "llama-linear": (
        "llama",
        _SHARED | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "llama-yarn": ("llama", _SHARED | {"rope_parameters": _YARN}),
    "llama-longrope": ("llama", _SHARED | {"rope_parameters": _LONGROPE}),
    "mistral-window": ("mistral", _SHARED | {"sliding_window": 7}),
    "qwen2": ("qwen2", _SHARED),
    "qwen2-window": (
        "qwen2",
        _SHARED | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", _SHARED | {"head_dim": 16}),
    "gemma3": (
        "gemma3_text",
        _SHARED | {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2},
    ),
    "gemma3-linear": ("gemma3_text", _SHARED | {"head_dim": 16, "rope_parameters": _GEMMA_ROPES}),
    "qwen3-moe": ("qwen3_moe", _SHARED | _EXPERTS | {"head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen3-moe-chances": ("qwen3_moe", _SHARED | _EXPERTS | {"decoder_sparse_step": 2, "attention_bias": True}),
    "mixtral": ("mixtral", _SHARED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-window": ("mixtral", _SHARED | {"num_local_experts": 4, "sliding_window": 7, "head_dim": 16}),
    "olmoe": ("olmoe", _SHARED | {"num_experts": 8, "num_experts_per_tok": 3}),
    "olmoe-clipped": ("olmoe", _SHARED | {"num_experts": 8, "clip_qkv": 0.7, "norm_topk_prob": True}),
    "gpt-oss": ("gpt_oss", _SHARED | _GPT_OSS),
    "gpt-oss-clamped": ("gpt_oss", _SHARED | _GPT_OSS | {"swiglu_limit": 0.2, "attention_bias": False}),
    "olmo2": ("olmo2", _SHARED),
    "olmo3": ("olmo3", _SHARED | {"sliding_window": 7, "rope_parameters": _OLMO3_ROPES}),
    "granite": ("granite", _SHARED | _MULTIPLIERS),
    "smollm3": ("smollm3", _SHARED | {"pad_token_id": None}),
    "smollm3-window": (
        "smollm3",
        _SHARED
        | {"pad_token_id": None}
        | {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 7, "attention_bias": True},
    ),
    "gpt2": ("gpt2", {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 211, "n_positions": 128}),
}
