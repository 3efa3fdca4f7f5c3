"""Runs the language models of bonsai, such as its Qwen 3, row by row, since their caches have one index."""

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Int

from jaxspec.foreign.model import CachedModel, Fed, from_cached


def from_bonsai(
    model: Any,
    *,
    context_length: int | None = None,
    scratch: int = 64,
    tokenizer: Any = None,
    check: bool = True,
) -> CachedModel:
    """Makes a `Model` from a bonsai model, for drafts that are chains.

    Args:
      model: a model with `config` and layers, called as `model(tokens, cache=, segment_ids=)`, whose module has a
        `LayerCache`.
      context_length: the longest text; `None` means unbounded.
      scratch: the number of tokens that a pass may feed.
      tokenizer: the tokenizer of the vocabulary, for the text interface.
      check: whether to run a few tokens through the model to check it.

    Raises:
      TypeError: the model is of another kind.
      ValueError: the check fails.

    Example:
        >>> def tokens_of(model, prompt):
        ...     target = jaxspec.foreign.from_bonsai(model)
        ...     return jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=64).tokens
    """
    config, kind = getattr(model, "config", None), getattr(sys.modules[type(model).__module__], "LayerCache", None)
    if config is None or not (isinstance(kind, type) and issubclass(kind, nnx.Module)):
        raise TypeError(f"model must be one of bonsai's, with config and a LayerCache, got {type(model).__name__}")
    graph, state = nnx.split(model)
    dtype = next(x.dtype for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating))
    return from_cached(
        _Call(graph, kind, config),
        _Cache(config.num_layers, config.num_kv_heads, config.head_dim, dtype),
        state,
        vocab_size=config.vocab_size,
        cache_index="scalar",
        context_length=context_length,
        scratch=scratch,
        tokenizer=tokenizer,
        check=check,
    )


@dataclasses.dataclass(frozen=True)
class _Call:
    """Calls a model, which mutates the objects of its cache, as a pure function of their arrays."""

    graph: nnx.GraphDef
    kind: type
    config: Any

    def __call__(self, state: Any, tokens: Int[Array, "b t"], cache: Any, fed: Fed) -> tuple[Any, ...]:
        layers = [self._held(layer, fed.index) for layer in cache]
        model: Any = nnx.merge(self.graph, state)
        logits = model(tokens, cache=layers, segment_ids=jnp.ones_like(tokens))
        return logits, [{"k": layer.k_cache[...], "v": layer.v_cache[...]} for layer in layers]

    def _held(self, layer: dict[str, Array], index: Array) -> Any:
        batch, slots = layer["k"].shape[:2]
        held = self.kind(self.config, batch, slots, layer["k"].dtype)
        held.k_cache.set_value(layer["k"])
        held.v_cache.set_value(layer["v"])
        held.cur_ind.set_value(index)
        # Texts begin in the first slot: there is no padding before them.
        held.start_ind.set_value(jnp.zeros_like(held.start_ind[...]))
        return held


@dataclasses.dataclass(frozen=True)
class _Cache:
    layers: int
    heads: int
    head_dim: int
    dtype: DTypeLike

    def __call__(self, batch: int, capacity: int) -> list[dict[str, Array]]:
        shape = (batch, capacity, self.heads, self.head_dim)
        return [{name: jnp.zeros(shape, self.dtype) for name in ("k", "v")} for _ in range(self.layers)]
