"""Runs the models of DeepMind's gemma package: Gemma 2, 3, 3n and 4."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Int

from jaxspec.foreign.head_target import sizes_of
from jaxspec.foreign.model import CachedModel, Fed, from_cached
from jaxspec.nn.config import TransformerConfig

_COLLECTION, _EPS = "jaxspec_inputs", 1e-6


def from_gemma(
    model: Any,
    params: Any,
    *,
    context_length: int | None = None,
    scratch: int = 64,
    tokenizer: Any = None,
    check: bool = True,
) -> CachedModel:
    """Makes a `Model` from a model of `gm.nn`, for text without images. Equal models share a compiled program.

    Args:
      model: a Gemma 2, 3, 3n or 4 model.
      params: the parameters, as returned by `gm.ckpts.load_params`.
      context_length: the longest text; `None` means unbounded.
      scratch: the number of tokens that a pass may feed, including a tree's nodes.
      tokenizer: the tokenizer of the vocabulary, for the text interface.
      check: whether to run a few tokens through the model to check it.

    Raises:
      TypeError: the model or its parameters are of another kind.
      ValueError: the model returns only the last logits, or the check fails.

    Example:
        >>> def tokens_of(model, params, prompt):
        ...     target = jaxspec.foreign.from_gemma(model, params)
        ...     return jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=64).tokens
    """
    config: Any = getattr(model, "config", None)
    if not isinstance(model, nn.Module) or not hasattr(config, "num_embed") or not hasattr(config, "init_cache"):
        raise TypeError(
            f"model must be one of gm.nn's, whose config has num_embed and init_cache, got {type(model).__name__}"
        )
    if getattr(model, "return_last_only", None):
        raise ValueError("logits of every token are needed, got return_last_only=True; make the model without it")
    try:
        dtype = params["embedder"]["input_embedding"].dtype
    except (KeyError, TypeError) as error:
        raise TypeError("params must be those of the model, as gm.ckpts.load_params returns them") from error
    # Only Gemma 4 writes each row at its own index.
    per_row = any(".gemma4." in kind.__module__ for kind in type(model).__mro__)
    # If heads can share the embedding and the last norm: the number of layers and the width of their inputs.
    shares = not per_row and not getattr(config, "use_altup", False)
    sizes, head_sizes = (config.num_layers, config.embed_dim) if shares else None, None
    if sizes is not None:
        size = config.num_embed
        head_sizes = sizes_of(config, vocab_size=size, theta=10_000.0, norm_eps=_EPS, activation="gelu_tanh")
    call = _Call(model, sizes, head_sizes)
    return from_cached(
        call,
        _Cache(config, dtype),
        params,
        vocab_size=config.num_embed,
        cache_index="per_row" if per_row else "shared",
        context_length=context_length,
        scratch=scratch,
        tokenizer=tokenizer,
        parts=call,
        check=check,
    )


@dataclasses.dataclass(frozen=True)
class _Call:
    """Applies a model; sows the inputs of its layers, since these run inside the model's own `jit`."""

    model: Any
    hidden_sizes: tuple[int, int] | None
    config: TransformerConfig | None

    def __call__(self, params: Any, tokens: Int[Array, "b t"], cache: Any, fed: Fed) -> tuple[Any, ...]:
        given = {"positions": fed.positions, "cache": cache, "attention_mask": fed.mask}
        if not fed.capture:
            out = self.model.apply({"params": params}, tokens, **given)
            return out.logits, out.cache
        paths = self._paths(fed.capture)
        # Every layer sows: that `jit` does not know `capture`, and could return the states of another call.
        with nn.intercept_methods(_sow_input):
            out, sown = self.model.apply({"params": params}, tokens, **given, mutable=[_COLLECTION])
        return out.logits, out.cache, tuple(sown[_COLLECTION][path]["x"][0] for path in paths)

    def embed(self, params: Any, tokens: Int[Array, "b t"]) -> Array:
        """Returns the input of the first layer."""
        table = params["embedder"]["input_embedding"]
        return table[tokens] * jnp.sqrt(table.shape[-1]).astype(table.dtype)

    def normalize(self, params: Any, hidden: Array) -> Array:
        """Applies the final norm."""
        wide, scale = hidden.astype(jnp.float32), params["final_norm"]["scale"].astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _EPS)
        return (wide * (1 + scale)[None, None]).astype(hidden.dtype)

    def head(self, params: Any) -> Array:
        """Returns the rows of the output matrix, which are those of the embedding."""
        return params["embedder"]["input_embedding"]

    def _paths(self, wanted: tuple[int, ...]) -> tuple[str, ...]:
        if getattr(self.model.config, "use_altup", False):
            raise ValueError("layers with AltUp have several states each, none can be captured; set use_altup=False")
        names = [*(f"layer_{number}" for number in range(self.model.config.num_layers)), "final_norm"]
        if not 0 <= min(wanted) <= max(wanted) < len(names):
            raise ValueError(f"states 0 to {len(names) - 1} can be captured, got capture={wanted}")
        return tuple(names[number] for number in wanted)


def _sow_input(method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    module = context.module
    layer = len(module.path) == 1 and (module.path[0].startswith("layer_") or module.path[0] == "final_norm")
    if layer and context.method_name == "__call__" and isinstance(args[0], jnp.ndarray):
        module.sow(_COLLECTION, "x", args[0])
    return method(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _Cache:
    config: Any
    dtype: DTypeLike

    def __call__(self, batch: int, capacity: int) -> Any:
        return self.config.init_cache(batch_size=batch, dtype=self.dtype, cache_length=capacity)
