"""Defines `LanguageModel`: a Flax decoder and its parameters, as the loop's `Model`."""

import contextlib
import dataclasses
import functools
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Int32

from jaxspec.core.compiler import kernels_of
from jaxspec.core.layout import Layout, Unsharded
from jaxspec.core.model import ModelOutput, ModelTraits
from jaxspec.core.pytree import register_dataclass
from jaxspec.nn.cache import KVCache, KVEntries
from jaxspec.nn.cache_by_kind import LayerCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.config import SmallerHeadConfig, TransformerConfig
from jaxspec.nn.exact_passes import bit_exact, fill, first, is_by_token
from jaxspec.nn.network import Network, kind_of, packed_weights
from jaxspec.nn.transformer import (
    Partial,
    Transformer,
    embed,
    exit_logits,
    first_input,
    head_input,
    positions_of,
    run,
    with_params,
)
from jaxspec.ops.packed import PackedWeight

# From this size on, native kernels over stored weights take constant time per token.
_STORED_CHUNK = 32


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LanguageModel(Network):
    """Makes a `Model` from a Flax Linen decoder and its parameters.

    Attributes:
      module: the static module: a `jaxspec.nn.Transformer`, or any Linen module with the same call signature whose
        `config` is a `TransformerConfig`. Only the former can stop between layers (`begin`).
      params: its `params` collection.
      tokenizer: the `jaxspec.Tokenizer` of its vocabulary, or `None`.
      placement: the layout of its caches and logits on devices (`jaxspec.core.Layout`); `jaxspec.shard` sets it.
      cache_type: the class of its caches: `KVCache`, `Int8KVCache` or `HalfKVCache`
        (`jaxspec.quantize_cache` sets them), or `NativeKVCache` (`jaxspec.native_kernels`).
      pass_tokens: the number of tokens that passes are padded to, so that bits do not depend on the number of fed
        tokens (`bit_exact`).

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
    pass_tokens: int | None = dataclasses.field(default=None, metadata={"static": True})

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
    def traits(self) -> ModelTraits:
        return self._traits

    # Cached per model: it inspects all weights.
    @functools.cached_property
    def _traits(self) -> ModelTraits:
        stored = any(weight.kernels.startswith("stored") for weight in packed_weights(self))
        config, mixers = self.module.config, [spec.mixer for spec in self.module.config.layers]
        rewinds, by_token = all(mixer.rewinds for mixer in mixers), is_by_token(self)
        own = isinstance(self.module, Transformer) and rewinds
        return ModelTraits(
            placement=self.placement,
            takes_trees=all(mixer.takes_trees for mixer in mixers),
            rewinds=rewinds,
            prompt_chunk=_STORED_CHUNK if stored else ModelTraits.prompt_chunk,
            pass_tokens=self.pass_tokens,
            resumes=own and config.kinds.is_one,
            kernels="native" if by_token else self.cache_type.kernels,
            cache_type=self.cache_type,
            hidden_sizes=(config.num_layers, config.width),
            tokenizer=self.tokenizer,
            skips_padding=own and by_token and issubclass(self.cache_type, NativeKVCache),
        )

    def init_cache(self, batch: int, capacity: int) -> LayerCache:
        return self.empty_cache(self.module.config.kinds, batch, capacity)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        cache: LayerCache,
        *,
        mask: Bool[Array, "b t u"] | None = None,
        positions: Int[Array, "b u"] | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> ModelOutput:
        if (mask is not None or pending is not None) and not self.traits.takes_trees:
            raise ValueError(
                "a model with a recurrence scores only chains, got a tree mask; pass a drafter of one chain"
            )
        count, filled = tokens.shape[1], self.pass_tokens
        if filled is None or count >= filled or pending is not None:
            return self._apply(tokens, cache, mask=mask, positions=positions, capture=capture, pending=pending)
        tokens, mask, positions = fill(filled, tokens, mask, positions)
        return first(count, self._apply(tokens, cache, mask=mask, positions=positions, capture=capture))

    def _apply(
        self, tokens: Int[Array, "b t"], cache: LayerCache, *, pending: Any = None, **options: Any
    ) -> ModelOutput:
        if pending is not None:
            options["pending"] = pending
        # The model's own kernels, regardless of its target's. Without slots, as in training, a pass must be
        # differentiable.
        with kernels_of(self) if cache.capacity else contextlib.nullcontext():
            output: Any = self.module.apply({"params": self.params}, tokens, cache, **options)
        logits, entries, hidden = output
        return ModelOutput(self.placement.logits(logits), entries, hidden)

    def bit_exact(self, pass_tokens: int | None = None) -> Self:
        """Returns the model with passes in which a token's bits do not depend on the others (`nn.bit_exact`)."""
        return bit_exact(self, pass_tokens)

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
        """Runs the first `layers`; other arguments are those of `__call__`.

        Returns:
          The logits of final norm and head after these layers, `[b, t, v]` float32, and the pass for `resume`.

        Raises:
          TypeError: the module is not a `jaxspec.nn.Transformer`.
        """
        module, params = self._transformer, self.params
        positions = positions_of(positions, cache, tokens.shape)
        x, block = first_input(module.config, params, tokens, positions), with_params(module, params)
        x, _, stack = run(module, range(layers), block, params, x, cache, pending, positions, mask)
        partial = Partial(x, stack(x))
        return self.placement.logits(exit_logits(module, params, x)), partial

    def resume(
        self,
        partial: Partial,
        cache: KVCache,
        *,
        mask: Bool[Array, "b t t"] | None = None,
        positions: Int[Array, "b t"] | None = None,
        capture: tuple[int, ...] = (),
    ) -> ModelOutput:
        """Runs the remaining layers over the tokens of `partial`; returns the output of `__call__`.

        Raises:
          TypeError: the module is not a `jaxspec.nn.Transformer`.
          ValueError: `capture` is not empty; the states are gone.
        """
        if capture:
            raise ValueError(f"a resumed pass has no captured states, got capture={capture}; run it from the start")
        module, params = self._transformer, self.params
        positions = positions_of(positions, cache, partial.hidden.shape[:2])
        others, block = range(partial.layers, module.config.num_layers), with_params(module, params)
        x, _, stack = run(module, others, block, params, partial.hidden, cache, None, positions, mask)
        # The later layers' entries wait for every read of the cache, and so do entries concatenated with them.
        entries = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=0), partial.entries, stack(x))
        return ModelOutput(self.placement.logits(exit_logits(module, params, x)), entries)

    @property
    def _transformer(self) -> Transformer:
        if not isinstance(self.module, Transformer):
            raise TypeError(f"only a jaxspec.nn.Transformer stops between layers, got {type(self.module).__name__}")
        return self.module

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Returns the input of the first layer, without learned positions, for drafters that share the embedding."""
        return embed(self.module.config, self.params, tokens)

    def normalize(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Applies the final norm to the last layer's output (`capture=(num_layers,)`): the output head's input."""
        return head_input(self.module.config, self.params, hidden)

    @property
    def head(self) -> Float[Array, "v d"] | PackedWeight:
        """The output head: `jaxspec.ops.matmul.project(normalized, head)` are the logits."""
        return self.params["embedding" if self.module.config.tied_head else "head"]


def with_head_rows(model: Any, ids: Int32[np.ndarray, "n"]) -> LanguageModel:
    """Cuts the output head to the rows `ids`: column `i` of the logits is token `ids[i]`.

    The embedding stays complete, so that the model reads every token, and so does `vocab_size`.

    Args:
      model: a `LanguageModel` of a `jaxspec.nn.Transformer`, with weights of any format.
      ids: token ids in increasing order.

    Raises:
      TypeError: the model is of another kind.
      ValueError: its head is already cut.
    """
    if not isinstance(model, LanguageModel) or not isinstance(model.module, Transformer):
        kind = kind_of(model)
        raise TypeError(
            f"only the output head of a LanguageModel of a jaxspec.nn.Transformer can be cut, got {kind}; leave "
            "draft_vocabulary out"
        )
    config = model.module.config
    if isinstance(config, SmallerHeadConfig):
        raise ValueError(f"the output head is already cut to {config.rows} tokens; pass the original model")
    head = model.head
    rows = head.take(jnp.asarray(ids)) if isinstance(head, PackedWeight) else head[ids]
    names = (field.name for field in dataclasses.fields(TransformerConfig))
    options: dict[str, Any] = {name: getattr(config, name) for name in names} | {"tied_head": False}
    smaller = SmallerHeadConfig(**options, rows=len(ids))
    return dataclasses.replace(model, module=model.module.clone(config=smaller), params={**model.params, "head": rows})
