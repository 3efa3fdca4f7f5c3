"""Presents a foreign model as a `LanguageModel`, for which heads such as EAGLE's can be made, trained and loaded."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxspec.core.model import ModelOutput, ModelTraits, WrappedModel
from jaxspec.core.pytree import register_dataclass
from jaxspec.foreign.cache import SlotCache
from jaxspec.foreign.model import CachedModel
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.rope import Rope


class _Sizes(nn.Module):
    """Holds the static parts of a foreign model, and its sizes; it is never run."""

    config: TransformerConfig
    model: Any  # without parameters
    dtype: Any


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HeadTarget(WrappedModel, LanguageModel):
    """Runs a foreign model as a `LanguageModel`, as far as heads need it; made by `for_heads`."""

    def __call__(self, tokens: Int[Array, "b t"], cache: Any, **options: Any) -> ModelOutput:
        model, held = self.model, cast(SlotCache, cache)
        if held.slots == model.scratch < tokens.shape[1]:
            # Training feeds whole texts, and does not keep the cache.
            model = dataclasses.replace(model, scratch=tokens.shape[1])
            held = model.init_cache(tokens.shape[0], 0)
        return model(tokens, held, **options)

    def bit_exact(self, pass_tokens: int | None = None) -> Any:
        raise TypeError("passes of a foreign model do not agree to the bit; pass what jaxspec.adopt returns")

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return self.model.embed(tokens)

    def normalize(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        return self.model.normalize(hidden)

    @property
    def head(self) -> Float[Array, "v d"]:
        return self.model.parts.head(self.model.params)

    @property
    def traits(self) -> ModelTraits:
        return dataclasses.replace(self.model.traits, placement=self.placement, tokenizer=self.tokenizer)

    @property
    def model(self) -> CachedModel:
        return dataclasses.replace(self.module.model, params=self.params["foreign"])


def sizes_of(config: Any, *, vocab_size: int, theta: float, norm_eps: float, activation: Any) -> TransformerConfig:
    """Returns the sizes for heads, from a configuration with the field names of tunix and gemma."""
    return TransformerConfig(
        vocab_size=vocab_size,
        num_layers=config.num_layers,
        width=config.embed_dim,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=config.hidden_dim,
        context_length=1,  # set by `for_heads`
        ropes=(Rope(theta),) * config.num_layers,
        windows=(None,) * config.num_layers,
        norm_eps=norm_eps,
        activation=activation,
    )


def for_heads(model: CachedModel) -> LanguageModel:
    """Returns a foreign model as one for which heads can be made, trained and loaded.

    Such a head also drafts for the foreign model itself. Where `jaxspec.adopt` works, it is faster.

    Args:
      model: a model from `from_tunix`, `from_gemma` (Gemma 2 and 3), or `from_cached` with `parts`. In addition to
        `embed`, `normalize` and `hidden_sizes`, the parts must have `config`, a `TransformerConfig` with the sizes, and
        `head(params)`, the rows of the output matrix, `[v, d]`.

    Raises:
      TypeError: the model is of another kind.

    Example:
        >>> def head_of(model, key):
        ...     target = jaxspec.foreign.from_tunix(model)
        ...     head = jaxspec.heads.eagle.init(jaxspec.foreign.for_heads(target), key)
        ...     return jaxspec.EagleDrafter(head, k=3)
    """
    if not isinstance(model, CachedModel):
        raise TypeError(f"model must be a CachedModel, made by from_cached or a preset, got {type(model).__name__}")
    config = getattr(model.parts, "config", None)
    readable = model.traits.hidden_sizes is not None and hasattr(model.parts, "head")
    if not isinstance(config, TransformerConfig) or not readable:
        raise TypeError(
            "heads read hidden states, and are made in a target's sizes, which this model does not give; pass "
            "from_cached(parts=...) with config, head and hidden_sizes, or a model made by from_tunix or from_gemma"
        )
    longest = (1 << 30) if model.context_length is None else model.context_length
    config = dataclasses.replace(config, vocab_size=model.vocab_size, context_length=longest)
    # The norm of a state of ones is its scale.
    scale = model.normalize(jnp.ones((1, 1, config.width), jnp.float32))[0, 0].astype(jnp.float32)
    params = {"foreign": model.params, "final_norm": {"scale": scale}}
    dtype = jnp.result_type(model.parts.head(model.params))
    return HeadTarget(_Sizes(config, dataclasses.replace(model, params=None), dtype), params, model.tokenizer)


def record_inputs(modules: list[Any], wanted: tuple[int, ...]) -> Callable[[], tuple[Array, ...]]:
    """Makes modules record their first argument at the next call.

    Args:
      modules: the layers of a model, and its last norm. They are changed, so pass those of a model that is merged for
        one call.
      wanted: the indices of the modules to record.

    Returns:
      A function that returns the recorded arguments.

    Raises:
      ValueError: an index is out of range.
    """
    if wanted and not 0 <= min(wanted) <= max(wanted) < len(modules):
        raise ValueError(f"states 0 to {len(modules) - 1} can be captured, got capture={wanted}")
    kept: dict[int, Array] = {}
    for number in set(wanted):
        module = modules[number]
        module.__class__ = _recording(type(module), number, kept)
    return lambda: tuple(kept[number] for number in wanted)


def _recording(kind: type, number: int, kept: dict[int, Array]) -> type:
    def call(self: Any, x: Array, *arguments: Any, **options: Any) -> Any:
        kept[number] = x
        return kind.__call__(self, x, *arguments, **options)

    return type(kind.__name__, (kind,), {"__call__": call})
