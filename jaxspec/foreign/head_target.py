"""Shows a foreign model as the `LanguageModel` that heads such as EAGLE's are made, trained and read for."""

import dataclasses
from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.model import ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.foreign.cache import SlotCache
from jaxspec.foreign.model import CachedModel
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.rope import Rope


class _Sizes(nn.Module):
    """Holds what is static of a foreign model, and its sizes; nothing is run by it.

    Attributes:
      config: the sizes.
      model: the foreign model without parameters.
      dtype: of its weights.
    """

    config: TransformerConfig
    model: Any
    dtype: Any


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HeadTarget(LanguageModel):
    """Runs a foreign model in the place of a `LanguageModel`, for all that heads need of one; `for_heads` makes it."""

    @property
    def takes_trees(self) -> bool:
        """Whether its mask may be that of a tree."""
        return self._cached.takes_trees

    @property
    def prompt_chunk(self) -> int:
        return self._cached.prompt_chunk

    def init_cache(self, batch: int, capacity: int) -> Any:
        return self._cached.init_cache(batch, capacity)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: Any,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        model, held = self._cached, cast(SlotCache, cache)
        if held.slots == model.scratch < tokens.shape[1]:
            # Training feeds whole texts, and keeps nothing of them.
            model = dataclasses.replace(model, scratch=tokens.shape[1])
            held = model.init_cache(tokens.shape[0], 0)
        return model(tokens, held, mask=mask, positions=positions, capture=capture, pending=pending)

    def bit_exact(self, rows: int | None = None) -> Any:
        raise TypeError("passes of a foreign model do not agree to the bit; pass what jaxspec.adopt returns")

    @property
    def resumes(self) -> bool:
        return False

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return self._cached.embed(tokens)

    def normalize(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        return self._cached.normalize(hidden)

    @property
    def head(self) -> Float[Array, "v d"]:
        return self._cached.parts.head(self._cached.params)

    @property
    def _cached(self) -> CachedModel:
        return dataclasses.replace(self.module.model, params=self.params["foreign"])


def sizes_of(config: Any, *, vocab_size: int, theta: float, norm_eps: float, activation: Any) -> TransformerConfig:
    """Returns the sizes that heads are made in, of a configuration with the names that tunix and gemma have."""
    return TransformerConfig(
        vocab_size=vocab_size,
        num_layers=config.num_layers,
        width=config.embed_dim,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=config.hidden_dim,
        context_length=1,  # `for_heads` knows it
        ropes=(Rope(theta),) * config.num_layers,
        windows=(None,) * config.num_layers,
        norm_eps=norm_eps,
        activation=activation,
    )


def for_heads(model: CachedModel) -> LanguageModel:
    """Returns a foreign model as one that heads are made, trained and read for.

    A head then drafts for the model itself as well. `jaxspec.adopt` is the faster way where it serves.

    Args:
      model: of `from_tunix`, of `from_gemma` (Gemma 2 and 3), or of `from_cached` with `parts` that have `embed`,
        `normalize`, `hidden_sizes`, and besides `config`, a `TransformerConfig` with its sizes, and `head(params)`, the
        rows of the output matrix, `[v, d]`.

    Raises:
      TypeError: it is no such model.

    Example:
        >>> def head_of(model, key):
        ...     target = jaxspec.foreign.from_tunix(model)
        ...     head = jaxspec.heads.eagle.init(jaxspec.foreign.for_heads(target), key)
        ...     return jaxspec.EagleDrafter(head, k=3)
    """
    if not isinstance(model, CachedModel):
        raise TypeError(f"model must be a foreign one, of from_cached or a preset, got {type(model).__name__}")
    config = getattr(model.parts, "config", None)
    if not isinstance(config, TransformerConfig) or model.hidden_sizes is None or not hasattr(model.parts, "head"):
        raise TypeError(
            "heads read hidden states, and are made in a target's sizes, which this model does not tell; pass "
            "from_cached(parts=...) with config, head and hidden_sizes, or a model of from_tunix or from_gemma"
        )
    longest = (1 << 30) if model.context_length is None else model.context_length
    config = dataclasses.replace(config, vocab_size=model.vocab_size, context_length=longest)
    # Of a state of ones the norm leaves its scale.
    scale = model.normalize(jnp.ones((1, 1, config.width), jnp.float32))[0, 0].astype(jnp.float32)
    params = {"foreign": model.params, "final_norm": {"scale": scale}}
    dtype = jnp.result_type(model.parts.head(model.params))
    return HeadTarget(_Sizes(config, dataclasses.replace(model, params=None), dtype), params, model.tokenizer)
