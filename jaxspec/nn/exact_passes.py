"""Makes passes agree to the bit: a token's logits then depend on its text, not on which tokens are fed with it.

Rules (`docs/guides/lossless.md`): decoding passes have one number of tokens, to which products are padded; keys are at
their slots before they are summed, in blocks that begin at fixed slots; norms and sums over the vocabulary have one
order; chunks of a prompt end at fixed positions. Native CPU kernels follow the first two without help.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.model import ModelOutput
from jaxspec.core.validate import shown
from jaxspec.nn.attention_by_slot import BySlotHalfKVCache, BySlotInt8KVCache, BySlotKVCache
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_half import HalfKVCache, NativeHalfKVCache
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.cache_pallas import BySlotPallasInt8KVCache, BySlotPallasKVCache, PallasInt8KVCache, PallasKVCache
from jaxspec.nn.layers import PRODUCTS
from jaxspec.nn.network import Network, kind_of, packed_weights
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.packed import is_packed

_Model = TypeVar("_Model", bound=Network)

# The default tokens per pass: an accelerator reads the weights in the time of that many, and a draft of 15 fits.
PASS_TOKENS = 16
# The cache types that attend by slot; the native kernel always does.
BY_SLOT: Mapping[type[KVCache], type[KVCache]] = MappingProxyType(
    {
        KVCache: BySlotKVCache,
        HalfKVCache: BySlotHalfKVCache,
        Int8KVCache: BySlotInt8KVCache,
        NativeKVCache: NativeKVCache,
        NativeHalfKVCache: NativeHalfKVCache,
        PallasKVCache: BySlotPallasKVCache,
        PallasInt8KVCache: BySlotPallasInt8KVCache,
    }
)


def bit_exact(model: _Model, pass_tokens: int | None = None) -> _Model:
    """Returns the model with passes in which a token's bits do not depend on the other fed tokens.

    `jaxspec.generate(..., bit_exact=True)` calls it. Results agree between models with equal `pass_tokens`.

    Args:
      model: a `LanguageModel` of a `jaxspec.nn.Transformer`.
      pass_tokens: the number of tokens of each decoding pass: the last committed one, the drafts, and padding. `None`
        keeps the model's, or is 16. Native kernels do not pad: their passes of any width agree.

    Raises:
      TypeError: the model is of another kind, or has caches or products that do not agree.
      ValueError: `pass_tokens` is not a positive integer, or exceeds the model's context.

    Example:
        >>> exact = jaxspec.nn.bit_exact(target, pass_tokens=8)
        >>> exact.pass_tokens, type(exact.init_cache(batch=2, capacity=32)).__name__
        (8, 'BySlotKVCache')
    """
    count = pass_tokens
    if count is not None and (isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1):
        raise ValueError(f"pass_tokens must be a positive integer, got {shown(count)}; leave it out for {PASS_TOKENS}")
    if not isinstance(model, Network) or not isinstance(model.module, Transformer):
        raise TypeError(
            f"passes of a {kind_of(model)} are not known to agree to the bit; pass a model from jaxspec.load, "
            "or bit_exact=False"
        )
    longest = model.module.config.context_length
    if count is not None and longest is not None and count > longest:
        raise ValueError(
            f"passes of pass_tokens={count} are longer than the context of {longest}; pass fewer, such as {PASS_TOKENS}"
        )
    held: Any = model  # a `LanguageModel`
    if not held.traits.rewinds:
        raise TypeError(
            "a recurrence folds in a pass's padding; pass a model with only attention layers, or bit_exact=False"
        )
    cache_type = BY_SLOT.get(model.cache_type, model.cache_type)
    if cache_type not in BY_SLOT.values():
        names = ", ".join(cache.__name__ for cache in BY_SLOT)
        raise TypeError(f"a {cache_type.__name__} does not attend by slot; pass a model with one of {names}")
    if is_by_token(model):
        params = jax.tree.map(lambda x: x.in_any_pass() if is_packed(x) else x, model.params, is_leaf=is_packed)
        return dataclasses.replace(model, params=params, cache_type=cache_type, pass_tokens=None)
    count = int(count or held.pass_tokens or PASS_TOKENS)
    return dataclasses.replace(model, cache_type=cache_type, pass_tokens=count)


def is_by_token(model: Network) -> bool:
    """Returns whether native kernels compute all products, so that a token's bits depend on it alone."""
    plain = [path for path, _ in jax.tree.leaves_with_path(model.params) if getattr(path[-1], "key", "") in PRODUCTS]
    packed = packed_weights(model)
    return jax.default_backend() == "cpu" and not plain and bool(packed) and all(weight.by_token for weight in packed)


def fill(
    pass_tokens: int, tokens: Int[Array, "b t"], mask: Bool[Array, "b t t"] | None, positions: Int[Array, "b t"] | None
) -> tuple[Int[Array, "b n"], Bool[Array, "b n n"] | None, Int[Array, "b n"] | None]:
    """Pads to `pass_tokens` with tokens that no other token sees; in a chain, later tokens are never seen.

    The padding repeats the first token: a token outside the text might have NaN weights.
    """
    count = tokens.shape[1]
    after = ((0, 0), (0, pass_tokens - count))
    if mask is not None:
        # Each sees itself: a softmax over nothing is NaN.
        on_padding = jnp.diag(jnp.arange(pass_tokens, dtype=jnp.int32) >= count)
        mask = jnp.pad(mask, (*after, after[1])) | on_padding[None]
    if positions is not None:
        positions = jnp.pad(positions, after, mode="edge")
    filler = jnp.broadcast_to(tokens[:, :1], (tokens.shape[0], pass_tokens - count))
    return jnp.concatenate([tokens, filler], axis=1), mask, positions


def first(count: int, output: ModelOutput) -> ModelOutput:
    """Cuts an output to its first `count` tokens."""
    # Without the barrier the compiler may skip the removed tokens, which changes the shape of the products.
    logits, entries, hidden = jax.lax.optimization_barrier((output.logits, output.entries, output.hidden))
    nodes = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (logits.shape[0], count))
    return ModelOutput(logits[:, :count], entries.keep_path(nodes), tuple(x[:, :count] for x in hidden))
