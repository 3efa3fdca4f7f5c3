"""The decoders of MaxText in a few lines, with its names and layouts of parameters: it cannot be installed here.

Mirrored from its code at e591f30c (2026-08-22): `models/{llama2,qwen2,qwen3,gemma3}.py`, `layers/attentions.py`
(projections, rotary embeddings, where scores are scaled), `layers/embeddings.py`, `layers/nnx_decoders.py` (scanned
layers, the output head). One thing is left out: a tied head's table is rounded to bfloat16 there.
"""

import jax
import jax.numpy as jnp
import numpy as np

SIZES = {
    "vocab_size": 61,
    "emb_dim": 16,
    "mlp_dim": 24,
    "num_query_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "num_decoder_layers": 3,
    "dtype": "float32",
    "scan_layers": True,
    "param_scan_axis": 1,
}
CONFIGS = {
    "llama2": {"decoder_block": "llama2", "model_name": "llama2-7b", "rope_max_timescale": 10_000},
    "llama3.1": {"decoder_block": "llama2", "model_name": "llama3.1-8b", "rope_max_timescale": 500_000},
    "qwen2": {
        "decoder_block": "qwen2",
        "model_name": "qwen2.5-7b",
        "rope_max_timescale": 1_000_000,
        "attention_bias": True,
    },
    "qwen3": {
        "decoder_block": "qwen3",
        "model_name": "qwen3-0.6b",
        "rope_max_timescale": 1_000_000,
        "use_qk_norm": True,
        "logits_via_embedding": True,
        "normalize_embedding_logits": False,
        "normalization_layer_epsilon": 1e-6,
    },
    "gemma3": {
        "decoder_block": "gemma3",
        "model_name": "gemma3-4b",
        "num_decoder_layers": 8,
        "rope_max_timescale": 1_000_000,
        "local_rope_max_timescale": 10_000,
        "rope_linear_scaling_factor": 8.0,
        "mlp_activations": ["gelu", "linear"],
        "logits_via_embedding": True,
        "normalization_layer_epsilon": 1e-6,
        "sliding_window_size": 5,
        "use_post_attn_norm": True,
        "use_post_ffw_norm": True,
    },
}
CONFIGS = {name: SIZES | own for name, own in CONFIGS.items()}
CONFIGS["gemma3-27b"] = CONFIGS["gemma3"] | {"model_name": "gemma3-27b", "head_dim": 12}


def random_params(config, seed=0):
    """Returns the tree of parameters, with every scale and bias random."""
    rng = np.random.default_rng(seed)

    def normal(*shape, mean=0.0):
        return jnp.asarray(mean + rng.normal(size=shape) * (0.4 if len(shape) > 1 else 0.3), jnp.float32)

    layers = [_layer_params(config, normal) for _ in range(config["num_decoder_layers"])]
    decoder = _scanned(config, layers) if config["scan_layers"] else _named(layers)
    decoder["decoder_norm"] = {"scale": normal(config["emb_dim"], mean=1.0)}
    if not config.get("logits_via_embedding"):
        decoder["logits_dense"] = {"kernel": normal(config["emb_dim"], config["vocab_size"])}
    embedding = {"embedding": normal(config["vocab_size"], config["emb_dim"])}
    return {"params": {"decoder": decoder, "token_embedder": embedding}}


def forward(config, params, tokens):
    """Returns the logits of `[b, t]` tokens in training mode."""
    tree, width = params["params"], config["emb_dim"]
    table = tree["token_embedder"]["embedding"]
    x = table[tokens]
    for number, layer in enumerate(_layers(config, tree["decoder"])):
        x = _block(config, number, layer, x)
    x = _norm(x, tree["decoder"]["decoder_norm"], config.get("normalization_layer_epsilon", 1e-5))
    if not config.get("logits_via_embedding"):
        return x @ tree["decoder"]["logits_dense"]["kernel"]
    logits = x @ table.T
    return logits / np.sqrt(width) if config.get("normalize_embedding_logits", True) else logits


def _layer_params(config, normal):
    width, heads, head_dim = config["emb_dim"], config["num_query_heads"], config["head_dim"]
    counts = {"query": heads, "key": config["num_kv_heads"], "value": config["num_kv_heads"]}
    attention = {name: {"kernel": normal(width, count, head_dim)} for name, count in counts.items()}
    attention["out"] = {"kernel": normal(heads, head_dim, width)}
    if config.get("attention_bias"):
        for name, count in counts.items():
            attention[name]["bias"] = normal(count, head_dim)
    if config.get("use_qk_norm") or _is_gemma(config):
        attention |= {f"{name}_norm": {"scale": normal(head_dim, mean=1.0)} for name in ("query", "key")}
    inner = config["mlp_dim"]
    shapes = {"wi_0": (width, inner), "wi_1": (width, inner), "wo": (inner, width)}
    norms = ["pre_self_attention_layer_norm", "post_self_attention_layer_norm"]
    if _is_gemma(config):
        norms = ["pre_self_attention_norm", "post_self_attention_norm", "pre_ffw_norm", "post_ffw_norm"]
    return {
        "self_attention": attention,
        "mlp": {name: {"kernel": normal(*shape)} for name, shape in shapes.items()},
        **{name: {"scale": normal(width, mean=1.0)} for name in norms},
    }


def _named(layers):
    return {f"layers_{number}": layer for number, layer in enumerate(layers)}


def _scanned(config, layers):
    stacked = lambda some: jax.tree.map(lambda *x: jnp.stack(x, config["param_scan_axis"]), *some)  # noqa: E731
    if not _is_gemma(config):
        return {"layers": stacked(layers)}
    scanned = len(layers) // 6 * 6
    blocks = _named([stacked(layers[start:scanned:6]) for start in range(6)]) if scanned else {}
    return {"layers": blocks, "layers_remainder": _named(layers[scanned:])}


def _layers(config, decoder):
    """Returns the layers one by one, each with its own arrays."""
    count, axis = config["num_decoder_layers"], config["param_scan_axis"]
    if not config["scan_layers"]:
        return [decoder[f"layers_{number}"] for number in range(count)]
    take = lambda tree, at: jax.tree.map(lambda x: jnp.take(x, at, axis=axis), tree)  # noqa: E731
    if not _is_gemma(config):
        return [take(decoder["layers"], number) for number in range(count)]
    scanned = count // 6 * 6
    first = [take(decoder["layers"][f"layers_{number % 6}"], number // 6) for number in range(scanned)]
    return first + [decoder["layers_remainder"][f"layers_{number}"] for number in range(count - scanned)]


def _block(config, number, layer, x):
    eps = config.get("normalization_layer_epsilon", 1e-5)
    if not _is_gemma(config):
        x = x + _attend(config, number, layer["self_attention"], _norm(x, layer["pre_self_attention_layer_norm"], eps))
        return x + _feed(config, layer["mlp"], _norm(x, layer["post_self_attention_layer_norm"], eps))
    attended = _attend(config, number, layer["self_attention"], _norm(x, layer["pre_self_attention_norm"], 1e-6))
    x = x + _norm(attended, layer["post_self_attention_norm"], 1e-6)
    fed = _feed(config, layer["mlp"], _norm(x, layer["pre_ffw_norm"], 1e-6))
    return x + _norm(fed, layer["post_ffw_norm"], 1e-6)


def _attend(config, number, params, x):
    time = x.shape[1]
    query, key, value = (_project(params[name], x) for name in ("query", "key", "value"))
    if "query_norm" in params:
        eps = config.get("normalization_layer_epsilon", 1e-5)
        query, key = _norm(query, params["query_norm"], eps), _norm(key, params["key_norm"], eps)
    is_local = _is_gemma(config) and (number + 1) % 6 != 0
    query, key = _rotate(config, is_local, query) * _query_scale(config), _rotate(config, is_local, key)
    group = query.shape[2] // key.shape[2]
    key, value = jnp.repeat(key, group, axis=2), jnp.repeat(value, group, axis=2)
    distance = np.arange(time)[:, None] - np.arange(time)[None]
    seen = (distance >= 0) & (distance < (config["sliding_window_size"] if is_local else time))
    scores = jnp.where(jnp.asarray(seen)[None, None], jnp.einsum("btnh,bsnh->bnts", query, key), -1e30)
    mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, axis=-1), value)
    return jnp.einsum("btnh,nhd->btd", mixed, params["out"]["kernel"])


def _project(params, x):
    y = jnp.einsum("btd,dnh->btnh", x, params["kernel"])
    return y + params["bias"][None, None] if "bias" in params else y


def _query_scale(config):
    """Llama's is in its weights."""
    if config["decoder_block"] == "llama2":
        return 1.0
    if config["model_name"] == "gemma3-27b":
        return (config["emb_dim"] // config["num_query_heads"]) ** -0.5
    return config["head_dim"] ** -0.5


def _rotate(config, is_local, x):
    half = x.shape[-1] // 2
    theta = config["local_rope_max_timescale"] if is_local else config["rope_max_timescale"]
    timescale = theta ** (np.arange(half) / half)
    is_llama = config["model_name"].startswith("llama3.1")
    if is_llama:
        timescale = 1 / np.array([_scaled(1 / one) for one in timescale])
    elif not is_local:
        timescale = timescale * config.get("rope_linear_scaling_factor", 1.0)
    angles = np.arange(x.shape[1])[:, None] / timescale
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[None, :, None] for f in (np.cos, np.sin))
    first, second = (x[..., ::2], x[..., 1::2]) if is_llama else jnp.split(x, 2, axis=-1)
    turned = first * cos - second * sin, second * cos + first * sin
    return jnp.stack(turned, axis=-1).reshape(x.shape) if is_llama else jnp.concatenate(turned, axis=-1)


def _scaled(frequency):
    """The factors of Llama 3.1 as they are written into MaxText."""
    factor, low, high, length = 8, 1, 4, 8192
    wavelength = 2 * np.pi / frequency
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / factor
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def _feed(config, params, x):
    activate = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}[config.get("mlp_activations", ["silu"])[0]]
    gate, up, down = (params[name]["kernel"] for name in ("wi_0", "wi_1", "wo"))
    return (activate(x @ gate) * (x @ up)) @ down


def _norm(x, params, eps):
    scale = params["scale"].reshape(*(1,) * (x.ndim - 1), -1)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def _is_gemma(config):
    return config["decoder_block"] == "gemma3"
