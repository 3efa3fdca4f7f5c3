"""Logits against live transformers and PyTorch, on random checkpoints that transformers wrote."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints import zoo

pytestmark = pytest.mark.reference
TOLERANCE = 2e-4

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

_step = jax.jit(lambda model, tokens, cache: model(tokens, cache))


def _reference(kind: str, options: dict, folder):
    """A random model with every parameter shaken, norms and biases included."""
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return lambda tokens: model(torch.from_numpy(tokens)).logits.detach().numpy()


def _fed_in_chunks(model, rows: list[np.ndarray], rng) -> list[np.ndarray]:
    """Feeds rows of different lengths a few tokens at a time, each row at its own pace."""
    cache = model.init_cache(len(rows), 128)
    done, logits = np.zeros(len(rows), np.int32), [[] for _ in rows]
    while any(done < [len(row) for row in rows]):
        time = int(rng.choice([1, 3, 8]))
        taken = [min(int(rng.integers(0, time + 1)), len(row) - at) for row, at in zip(rows, done, strict=True)]
        fed = np.zeros((len(rows), time), np.int32)
        for index, (row, at, count) in enumerate(zip(rows, done, taken, strict=True)):
            fed[index, :count] = row[at : at + count]
        output = _step(model, jnp.asarray(fed), cache)
        done = done + np.asarray(taken, np.int32)
        cache = cache.append(output.entries).truncate(jnp.asarray(done))
        for index, count in enumerate(taken):
            logits[index].append(np.asarray(output.logits)[index, :count])
    return [np.concatenate(parts) for parts in logits]


@pytest.mark.parametrize("case", sorted(CASES))
def test_random_checkpoint(tmp_path, case):
    kind, options = CASES[case]
    reference = _reference(kind, options, tmp_path)
    model = jaxspec.load(tmp_path, dtype="float32")
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 211, length) for length in (90, 33, 61)]
    expected = [reference(row[None])[0] for row in rows]
    # Otherwise nothing would be tested: the logits must be of some size.
    assert np.std(expected[0]) > 0.1
    whole = _step(model, jnp.asarray(rows[0], jnp.int32)[None], model.init_cache(1, 128)).logits[0]
    assert np.abs(np.asarray(whole) - expected[0]).max() <= TOLERANCE
    for ours, theirs in zip(_fed_in_chunks(model, rows, rng), expected, strict=True):
        assert np.abs(ours - theirs).max() <= TOLERANCE


_PROSE = (
    "The lighthouse keeper counted the ships each evening, writing their names in a ledger that no one had "
    "asked him to keep. There were fishing boats, a mail steamer on Tuesdays, and once, in 1912, a yacht "
    "whose owner waved. He wrote down the weather too: wind from the south-west, rain before dawn, fog until "
    "noon. When the inspector came, he asked what the ledger was for; it was for the ships, they said. "
)


@pytest.mark.smollm2
def test_smollm2_over_200_tokens(smollm2):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    path = zoo.find("smollm2-135m-instruct").path
    reference = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = np.asarray((smollm2.tokenizer.encode(_PROSE) * 3)[:200])
    assert ids.shape == (200,)
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids[None])).logits[0].numpy()
    whole = _step(smollm2, jnp.asarray(ids, jnp.int32)[None], smollm2.init_cache(1, 256)).logits[0]
    assert np.abs(np.asarray(whole) - expected).max() <= TOLERANCE
    (chunked,) = _fed_in_chunks(smollm2, [ids], np.random.default_rng(1))
    assert np.abs(chunked - expected).max() <= TOLERANCE
