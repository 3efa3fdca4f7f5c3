"""Runs the models of tunix: Llama 3, Qwen 2 and 3, Gemma 1."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Int

from jaxspec.foreign.head_target import record_inputs, sizes_of
from jaxspec.foreign.model import CachedModel, Fed, from_cached
from jaxspec.nn.config import TransformerConfig

# Their caches are rings, or are masked by slot number.
_BY_WEIGHTS = ("gemma3", "gemma4")


def from_tunix(
    model: Any,
    *,
    context_length: int | None = None,
    scratch: int = 64,
    tokenizer: Any = None,
    check: bool = True,
) -> CachedModel:
    """Makes a `Model` from a tunix model. After an update of its weights, wrap it again, which compiles nothing.

    Args:
      model: a model of `tunix.models.llama3`, `qwen2`, `qwen3` or `gemma`.
      context_length: the longest text; `None` means unbounded.
      scratch: the number of tokens that a pass may feed, including a tree's nodes.
      tokenizer: the tokenizer of the vocabulary, for the text interface.
      check: whether to run a few tokens through the model to check it.

    Raises:
      TypeError: the model is of another kind.
      ValueError: the model attends by kernels that ignore a cache, or the check fails.

    Example:
        >>> def tokens_of(model, prompt):
        ...     target = jaxspec.foreign.from_tunix(model)
        ...     return jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=64).tokens
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "layers"):
        raise TypeError(f"model must be one of tunix's, with config and layers, got {type(model).__name__}")
    family = type(model).__module__.rpartition(".models.")[2].partition(".")[0]
    slides = any(kind.name == "LOCAL_SLIDING" for kind in getattr(config, "attention_types", ()))
    if family in _BY_WEIGHTS or slides:
        caps = family == _BY_WEIGHTS[-1] or getattr(config, "attn_logits_soft_cap", None)
        raise TypeError(
            f"cannot wrap tunix's {family}: its windows count slots; "
            + ("load its weights into DeepMind's model for from_gemma" if caps else "pass it to jaxspec.adopt")
        )
    if getattr(getattr(config, "remat_config", None), "name", "NONE") != "NONE":
        raise ValueError(
            f"a model that recomputes its layers cannot be called inside other programs, got remat_config="
            f"{model.config.remat_config.name}; make the model without it, or pass it to jaxspec.adopt"
        )
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(nnx.state(model))):
        raise TypeError("model has shapes instead of weights, as nnx.eval_shape makes them; load its weights first")
    if getattr(config, "use_flash_attention", False):
        raise ValueError(
            "flash attention of tunix ignores the cache and the mask; make the model with use_flash_attention=False"
        )
    graph, state = nnx.split(model)
    dtype = next(x.dtype for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating))
    call = _Call(graph, (config.num_layers, config.embed_dim), _head_sizes(config, family))
    return from_cached(
        call,
        _Cache(config.num_layers, config.num_kv_heads, config.head_dim, getattr(config, "dtype", dtype)),
        state,
        vocab_size=_vocabulary(config),
        cache_index="shared",
        context_length=context_length,
        scratch=scratch,
        tokenizer=tokenizer,
        parts=call,
        check=check,
    )


def _head_sizes(config: Any, family: str) -> TransformerConfig:
    theta, norm_eps = float(getattr(config, "rope_theta", 10_000.0)), getattr(config, "norm_eps", 1e-6)
    activation = "gelu_tanh" if family == "gemma" else "silu"
    return sizes_of(config, vocab_size=_vocabulary(config), theta=theta, norm_eps=norm_eps, activation=activation)


def _vocabulary(config: Any) -> int:
    return config.vocab_size if hasattr(config, "vocab_size") else config.num_embed


@dataclasses.dataclass(frozen=True)
class _Call:
    """Calls a model as a function of its state; equal graphs share a compiled program."""

    graph: nnx.GraphDef
    hidden_sizes: tuple[int, int]
    config: TransformerConfig

    def __call__(self, state: Any, tokens: Int[Array, "b t"], cache: Any, fed: Fed) -> tuple[Any, ...]:
        model: Any = nnx.merge(self.graph, state)
        captured = record_inputs([*model.layers, model.final_norm], fed.capture)
        logits, cache = model(tokens, fed.positions, cache, fed.mask)
        return (logits, cache, captured()) if fed.capture else (logits, cache)

    def embed(self, state: Any, tokens: Int[Array, "b t"]) -> Array:
        """Returns the input of the first layer."""
        model: Any = nnx.merge(self.graph, state)
        return model.embedder.encode(tokens)

    def normalize(self, state: Any, hidden: Array) -> Array:
        """Applies the final norm."""
        model: Any = nnx.merge(self.graph, state)
        return model.final_norm(hidden)

    def head(self, state: Any) -> Array:
        """Returns the rows of the output matrix, those of the embedding if that is tied."""
        model: Any = nnx.merge(self.graph, state)
        return model.lm_head.w[...].T if hasattr(model, "lm_head") else model.embedder.input_embedding[...]


@dataclasses.dataclass(frozen=True)
class _Cache:
    layers: int
    heads: int
    head_dim: int
    dtype: DTypeLike

    def __call__(self, batch: int, capacity: int) -> dict[str, dict[str, Array]]:
        shape = (batch, capacity, self.heads, self.head_dim)
        layer = lambda: {  # noqa: E731
            "k": jnp.zeros(shape, self.dtype),
            "v": jnp.zeros(shape, self.dtype),
            "end_index": jnp.zeros(batch, jnp.int32),
        }
        return {f"layer_{number}": layer() for number in range(self.layers)}
