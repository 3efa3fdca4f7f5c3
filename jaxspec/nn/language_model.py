"""Defines `LanguageModel`: a Flax decoder and its parameters, as the loop's `Model`."""

import contextlib
import dataclasses
from typing import Any, Self

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxspec.core.kernels import kernels_of
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.model import CHUNK, ModelOutput
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn import partial as passes
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.exact_passes import bit_exact
from jaxspec.nn.fixed_rows import fill, first
from jaxspec.nn.network import Network, packed_weights
from jaxspec.nn.norm import Norm
from jaxspec.nn.partial import Partial
from jaxspec.nn.transformer import Transformer, embed
from jaxspec.ops.packed import PackedWeight

# Passes of native kernels over stored weights take as long for each token from here on.
_STORED_CHUNK = 32


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LanguageModel(Network):
    """Makes a `Model` of a Flax Linen decoder and its parameters.

    Attributes:
      module: the static module: a `jaxspec.nn.Transformer`, or any Linen module with the same
        call signature whose `config` has the same fields. Only the former stops between layers (`begin`).
      params: its `params` collection.
      tokenizer: the `jaxspec.Tokenizer` of its vocabulary, where there is one.
      placement: the layout of its caches and logits on devices (`jaxspec.core.Layout`); `jaxspec.shard` sets it.
      cache_type: the class of its caches: `KVCache`, `Int8KVCache` (`jaxspec.quantize_cache` sets it), or
        `NativeKVCache` (`jaxspec.native_kernels`).
      rows: how many tokens a pass is filled up to, whose bits then do not depend on how many are fed (`bit_exact`).

    Example:
        >>> model = jaxspec.LanguageModel(target.module, target.params)
        >>> model.vocab_size, model.context_length, model.dtype
        (310, 512, dtype('float32'))
        >>> model(prompt, model.init_cache(batch=2, capacity=16)).logits.shape
        (2, 5, 310)
    """

    module: nn.Module = dataclasses.field(metadata={"static": True})
    params: Any
    tokenizer: Any = dataclasses.field(default=None, metadata={"static": True})
    placement: Layout = dataclasses.field(default=Unsharded(), metadata={"static": True})
    cache_type: type[KVCache] = dataclasses.field(default=KVCache, metadata={"static": True})
    rows: int | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def vocab_size(self) -> int:
        return self.module.config.vocab_size

    @property
    def context_length(self) -> int | None:
        return self.module.config.context_length

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of weights and activations."""
        return jnp.dtype(self.module.dtype)

    @property
    def prompt_chunk(self) -> int:
        """How many tokens of a prompt a pass is fed: fewer where stored weights are multiplied by native kernels."""
        stored = any(weight.kernels.startswith("stored") for weight in packed_weights(self))
        return _STORED_CHUNK if stored else CHUNK

    @property
    def hidden_sizes(self) -> tuple[int, int]:
        """The number of layers, and the width of the states that enter them."""
        return self.module.config.num_layers, self.module.config.width

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        return self.empty_cache(self.module.config.num_layers, batch, capacity)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: KVCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: KVEntries | None = None,
    ) -> ModelOutput:
        count, rows = tokens.shape[1], self.rows
        if rows is None or count >= rows or pending is not None:
            return self._apply(tokens, cache, mask=mask, positions=positions, capture=capture, pending=pending)
        tokens, mask, positions = fill(rows, tokens, mask, positions)
        return first(count, self._apply(tokens, cache, mask=mask, positions=positions, capture=capture))

    def _apply(self, tokens: Int[Array, "b t"], cache: KVCache, *, pending: Any = None, **options: Any) -> ModelOutput:
        if pending is not None:
            options["pending"] = pending
        # A draft's own, whatever its target's. Without slots, as in training, a pass may be differentiated.
        with kernels_of(self) if cache.capacity else contextlib.nullcontext():
            output: Any = self.module.apply({"params": self.params}, tokens, cache, **options)
        logits, entries, hidden = output
        return ModelOutput(self.placement.logits(logits), entries, hidden)

    def bit_exact(self, rows: int | None = None) -> Self:
        """Returns the model with passes that give a token the same bits whatever is fed with it (`nn.bit_exact`)."""
        return bit_exact(self, rows)

    def begin(
        self,
        tokens: Int[Array, "b t"],
        cache: KVCache,
        layers: int,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        pending: KVEntries | None = None,
    ) -> tuple[Float[Array, "b t v"], Partial]:
        """Runs the first `layers`; other arguments as of a call.

        Returns:
          The logits of final norm and head on the state there, `[b, t, v]` float32, and the pass for `resume`.

        Raises:
          TypeError: the module is no `jaxspec.nn.Transformer`.
        """
        logits, partial = passes.begin(
            self._transformer, self.params, tokens, cache, layers, mask=mask, positions=positions, pending=pending
        )
        return self.placement.logits(logits), partial

    def resume(
        self,
        partial: Partial,
        cache: KVCache,
        *,
        mask: Bool[Array, "b t t"] | None = None,
        positions: Int[Array, "b t"] | None = None,
        capture: tuple[int, ...] = (),
    ) -> ModelOutput:
        """Runs the remaining layers over the tokens that `partial` was begun with; returns the output of a call.

        Raises:
          TypeError: the module is no `jaxspec.nn.Transformer`.
          ValueError: `capture` names states, which are gone.
        """
        if capture:
            raise ValueError(f"a resumed pass has no captured states, got capture={capture}; run it from the start")
        logits, entries = passes.resume(self._transformer, self.params, partial, cache, mask=mask, positions=positions)
        return ModelOutput(self.placement.logits(logits), entries)

    @property
    def resumes(self) -> bool:
        """Whether `begin` and `resume` work."""
        return isinstance(self.module, Transformer)

    @property
    def _transformer(self) -> Transformer:
        if not isinstance(self.module, Transformer):
            raise TypeError(f"only a jaxspec.nn.Transformer stops between layers, got {type(self.module).__name__}")
        return self.module

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Returns the input of the first layer without learned positions: for drafters that share the embedding."""
        return embed(self.module.config, self.params, tokens)

    def normalize(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Applies the final norm to the last layer's output (`capture=(num_layers,)`): the output head's input."""
        normalized: Any = Norm(self.module.config).apply({"params": self.params["final_norm"]}, hidden)
        return normalized

    @property
    def head(self) -> Float[Array, "v d"] | PackedWeight:
        """The output head: `jaxspec.ops.matmul.project(normalized, head)` are the logits."""
        return self.params["embedding" if self.module.config.tied_head else "head"]
