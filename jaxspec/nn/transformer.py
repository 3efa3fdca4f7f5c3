"""Defines one decoder-only transformer, configured for each family: Llama, Mistral, Qwen, Gemma 3, GPT-2.

Weights are stored `[out, in]`, everything of one key-value head side by side, so that mesh axes
can split them by head, and the queries of a head further:

    query       [g, r, head_dim, width]   r queries for each of g key-value heads
    key_value   [g, 2, head_dim, width]
    output      [width, g * r * head_dim]
    gate_up     [2, mlp_width, width]
    down        [width, mlp_width]
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxspec.core.order import after
from jaxspec.core.sums import rounded
from jaxspec.nn.attention import Fresh, History, attend
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.config import MLPConfig, TransformerConfig
from jaxspec.nn.norm import Norm, NormOfSum, like
from jaxspec.nn.weight import weight
from jaxspec.ops.matmul import project
from jaxspec.ops.packed import PackedWeight
from jaxspec.ops.rope import RopeTable, rope_table, rope_tables, rotate

_init = nn.initializers.normal(0.02)


class Dense(nn.Module):
    """Multiplies by a kernel `[*out, in]`, and adds a bias `[*out]` where the family has one."""

    out: tuple[int, ...]
    bias: bool
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x):
        kernel = weight(self, "kernel", (*self.out, x.shape[-1]), self.dtype)
        y = project(x, kernel)
        if self.bias:
            y = y + like(self.param("bias", nn.initializers.zeros, self.out, self.dtype), y)
        return y


class Attention(nn.Module):
    """Computes grouped-query attention of the fed tokens over the cache and each other.

    `table` is the layer's rotary table of their positions, if the caller has it (`rope_tables`).
    """

    config: TransformerConfig
    layer: int
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t in"],
        cache: KVCache,
        pending: KVEntries | None,
        positions: Int[Array, "b u"],
        mask: Bool[Array, "b t u"] | None,
        table: RopeTable | None = None,
    ) -> tuple[Float[Array, "b t d"], tuple[Float[Array, "b g t h"], Float[Array, "b g t h"]]]:
        config, fed = self.config, positions[:, -x.shape[1] :]
        heads, group = config.num_kv_heads, config.queries_per_kv_head
        project = lambda name, count: Dense(  # noqa: E731
            (heads, count, config.head_dim), config.qkv_bias, self.dtype, name=name
        )(x)
        queries, both = project("query", group), project("key_value", 2)
        keys, values = both[..., 0, :], both[..., 1, :]
        if table is None and (rope := config.ropes[self.layer]) is not None:
            table = rope_table(fed, config.head_dim, rope)
        if config.query_key_norm:
            queries, keys = Norm(config, name="query_norm")(queries), Norm(config, name="key_norm")(keys)
            if table is not None:
                queries, keys = rotate(queries, table), rotate(keys, table)
        elif table is not None:
            queries, keys, values = cache.rotate(queries, both, table)
        # Tokens that are fed together must see each other as they would see the cache, one by one.
        keys, values = cache.fake_quant(keys), cache.fake_quant(values)
        all_keys, all_values = self._with_pending(pending, keys, values)
        attended = attend(
            queries,
            Fresh(all_keys, all_values, positions, mask),
            History(cache, self.layer),
            scale=config.score_scale,
            window=config.windows[self.layer],
        )
        # Flat: on a TPU the last two axes are padded to whole tiles, and a head may be half of one.
        attended = attended.reshape(*attended.shape[:2], -1)
        out = Dense((config.width,), config.output_bias, self.dtype, name="output")(attended)
        return out, (jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2))

    def _with_pending(
        self, pending: KVEntries | None, keys: Float[Array, "b t g h"], values: Float[Array, "b t g h"]
    ) -> tuple[Float[Array, "b u g h"], Float[Array, "b u g h"]]:
        """Puts this layer's pending keys and values before those of the fed tokens."""
        if pending is None:
            return keys, values
        join = lambda before, x: jnp.concatenate([jnp.swapaxes(before[self.layer], 1, 2), x], axis=1)  # noqa: E731
        return join(pending.keys, keys), join(pending.values, values)


class MLP(nn.Module):
    """Applies the feed-forward block, gated (SwiGLU, GeGLU) or plain."""

    config: MLPConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x):
        config = self.config
        activate = {"silu": jax.nn.silu, "gelu_tanh": jax.nn.gelu}[config.activation]
        if config.gated_mlp:
            both = Dense((2, config.mlp_width), config.mlp_bias, self.dtype, name="gate_up")(x)
            inner = activate(both[..., 0, :]) * both[..., 1, :]
        else:
            inner = activate(Dense((config.mlp_width,), config.mlp_bias, self.dtype, name="up")(x))
        return Dense((config.width,), config.mlp_bias, self.dtype, name="down")(inner)


class Block(nn.Module):
    """Applies attention and feed-forward, each added to the residual stream."""

    config: TransformerConfig
    layer: int
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d"],
        cache: KVCache,
        pending: KVEntries | None,
        positions: Int[Array, "b u"],
        mask: Bool[Array, "b t u"] | None,
        table: RopeTable | None = None,
    ) -> tuple[Float[Array, "b t d"], tuple[Array, Array]]:
        attended, entry = self._attend(x, cache, pending, positions, mask, table)
        return self._feed(x, attended), entry

    @nn.nowrap
    def _attend(self, x, cache, pending, positions, mask, table):
        config = self.config
        attended, entry = Attention(config, self.layer, self.dtype, name="attention")(
            Norm(config, name="attention_norm")(x), cache, pending, positions, mask, table
        )
        if config.post_norms:
            attended = Norm(config, name="attention_post_norm")(attended)
        return attended, entry

    @nn.nowrap
    def _feed(self, x, attended):
        config = self.config
        x, normalized = NormOfSum(config, name="mlp_norm")(x, attended)
        fed = MLP(config, self.dtype, name="mlp")(normalized)
        if config.post_norms:
            fed = Norm(config, name="mlp_post_norm")(fed)
        return x + fed


class Transformer(nn.Module):
    """Decodes tokens behind a cache: logits, fresh cache entries and captured states come out.

    Attributes:
      config: its sizes and options.
      dtype: of weights and activations; norms, softmax and logits are float32.

    Example:
        >>> module = jaxspec.nn.Transformer(target.module.config)
        >>> logits, entries, hidden = module.apply({"params": target.params}, prompt, target.init_cache(2, 16))
        >>> logits.shape
        (2, 5, 310)
    """

    config: TransformerConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: KVCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: KVEntries | None = None,
    ) -> tuple[Float[Array, "b t v"], KVEntries, tuple[Float[Array, "b t d"], ...]]:
        config, time = self.config, tokens.shape[1]
        positions = positions_of(positions, cache, tokens.shape)
        embedding = weight(self, "embedding", (config.vocab_size, config.width), self.dtype)
        x = embed(config, {"embedding": embedding}, tokens)
        if config.learned_positions:
            table = self.param("position_embedding", _init, (config.context_length, config.width), self.dtype)
            x = x + table[positions[:, -time:]]
        tables = rope_tables(positions[:, -time:], config.head_dim, config.ropes)
        captured, entries = {}, []
        for layer in range(config.num_layers):
            captured[layer] = x
            block = Block(config, layer, self.dtype, name=f"layer_{layer}")
            x, entry = block(x, cache, pending, positions, mask, tables[layer])
            entries.append(entry)
        captured[config.num_layers] = x
        x = Norm(config, name="final_norm")(x)
        head = embedding
        if not config.tied_head:
            head = weight(self, "head", (config.head_size, config.width), self.dtype)
        logits = project(x, head).astype(jnp.float32)
        return logits, stack_entries(entries, x), tuple(captured[layer] for layer in capture)


def embed(config: TransformerConfig, params: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t width"]:
    """Looks up the embeddings of tokens, scaled as the family does."""
    table = params["embedding"]
    return rounded(_rows(table, tokens) * jnp.asarray(config.embedding_scale, table.dtype))


def _rows(table: Float[Array, "n width"] | PackedWeight, tokens: Int[Array, "b t"]) -> Float[Array, "b t width"]:
    """Looks up the rows of a table, two at least.

    A TPU's compiler makes a slice of a gather of one row, wants another layout for it than the
    product with the same table does, and on TPU7x copies the table in each step.
    """
    if tokens.size > 1:
        return table[tokens]
    return table[jnp.pad(tokens, ((0, 0), (0, 1)))][:, :1]


def positions_of(positions: Int[Array, "b u"] | None, cache: KVCache, shape: tuple[int, ...]) -> Int[Array, "b u"]:
    """Returns positions of `[b, t]` tokens as given, or those of a chain that follows the cached tokens."""
    if positions is None:
        positions = cache.length[:, None] + jnp.arange(shape[1], dtype=jnp.int32)[None]
        if cache.positions is not None:
            positions = jnp.take_along_axis(cache.positions, positions, axis=1)
    return positions


def stack_entries(entries: list[tuple[Array, Array]], x: Float[Array, "b t width"]) -> KVEntries:
    """Stacks each layer's keys and values as cache entries; `x` is the last layer's output."""
    keys, values = (after(jnp.stack(part), x, axis=1) for part in zip(*entries, strict=True))
    return KVEntries(keys, values)
