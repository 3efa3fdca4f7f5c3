"""Runs the causal language models of EasyDeL whose caches hold only keys and values."""

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Int

from jaxspec.foreign.head_target import record_inputs
from jaxspec.foreign.model import CachedModel, Fed, from_cached

# A capacity larger than windows; nothing is allocated.
_MANY = 1 << 17
# The mechanisms that take any mask; flash, ring, block-sparse and paged attention take bounds of texts.
_MASKED = ("vanilla",)


def from_easydel(
    model: Any,
    *,
    context_length: int | None = None,
    scratch: int = 64,
    tokenizer: Any = None,
    check: bool = True,
) -> CachedModel:
    """Makes a `Model` from an EasyDeL model, and shares its arrays.

    To use other weights, replace `params` of the result: wrapping the model again compiles it again.

    Args:
      model: a model for causal language modeling.
      context_length: the longest text; `None` means the configuration's.
      scratch: the number of tokens that a pass may feed, including a tree's nodes.
      tokenizer: the tokenizer of the vocabulary, for the text interface.
      check: whether to run a few tokens through the model to check it.

    Raises:
      TypeError: the model is of another kind, or its cache holds more than keys and values.
      ValueError: the model attends by kernels that ignore masks, its cache is quantized, or the check fails.

    Example:
        >>> def tokens_of(model, prompt):  # made with attn_mechanism="vanilla"
        ...     target = jaxspec.foreign.from_easydel(model)
        ...     return jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=64).tokens
    """
    config: Any = getattr(model, "config", None)
    if not all(hasattr(model, name) for name in ("init_cache", "get_decoder")) or not hasattr(config, "vocab_size"):
        raise TypeError(f"model must be one of EasyDeL's for causal language modeling, got {type(model).__name__}")
    for name in ("attn_mechanism", "decode_attn_mechanism"):
        if (found := getattr(config, name, None)) is not None and str(found) not in _MASKED:
            raise ValueError(f"{name}={str(found)!r} may ignore masks; make the model with {name}='vanilla'")
    if getattr(config, "kv_cache_quantization_config", None) is not None:
        raise ValueError(
            "slots of a quantized cache cannot be moved; make the model with kv_cache_quantization_config=None"
        )
    graph, state = nnx.split(_masked_by_argument(model))
    longest = getattr(config, "max_position_embeddings", None)
    return from_cached(
        _Call(graph),
        _cache_of(model),
        state,
        vocab_size=config.vocab_size,
        cache_index="per_row",
        context_length=longest if context_length is None else context_length,
        scratch=scratch,
        tokenizer=tokenizer,
        check=check,
    )


def _masked_by_argument(model: Any) -> Any:
    """Returns a copy, with shared arrays, that attends only by the given mask: its own mask counts slots from zero."""
    copy = nnx.merge(*nnx.split(model))
    modules: list[Any] = [module for _, module in nnx.iter_modules(copy)]
    for module in modules:
        if getattr(module, "causal", None) is True:
            module.causal = False
    return copy


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """Calls a model as a function of its state. Compared by identity, since EasyDeL's graphs are not hashable."""

    graph: nnx.GraphDef

    def __call__(self, state: Any, tokens: Int[Array, "b t"], cache: Any, fed: Fed) -> tuple[Any, ...]:
        assert fed.mask is not None
        mask_info = importlib.import_module("ejkernel.types").MaskInfo(fed.mask[:, None])
        model: Any = nnx.merge(self.graph, state)
        layers = model.config.get_text_config().num_hidden_layers
        if not all(0 <= number <= layers for number in fed.capture):
            raise ValueError(f"states 0 to {layers} can be captured, got capture={fed.capture}")
        last = record_inputs([model.get_decoder().norm], (0,)) if layers in fed.capture else None
        held = jax.eval_shape(lambda: model.init_cache(tokens.shape[0], cache[0]["key"].shape[1]))
        starts = jnp.zeros_like(fed.index)
        for number, layer in enumerate(cache):
            held.views[number] = held.views[number].replace(**layer, indexs=fed.index, starts=starts)
        with model.config.mesh:
            out = model(
                input_ids=tokens,
                mask_info=mask_info,
                position_ids=fed.positions,
                past_key_values=held,
                output_hidden_states=bool(fed.capture),
            )
        fresh = [{"key": view.key, "value": view.value} for view in out.past_key_values.views]
        if not fed.capture:
            return out.logits, fresh
        # EasyDeL's last hidden state is normalized.
        states = [*out.hidden_states[:layers], *(last() if last is not None else ())]
        return out.logits, fresh, tuple(states[number] for number in fed.capture)


@dataclasses.dataclass(frozen=True)
class _Cache:
    """Makes an empty cache from each layer's largest number of slots, if any, and the shapes of a key and a value."""

    layers: tuple[tuple[int | None, tuple[int, ...], tuple[int, ...]], ...]
    dtype: DTypeLike

    def __call__(self, batch: int, capacity: int) -> list[dict[str, Array]]:
        made = []
        for most, *shapes in self.layers:
            slots = capacity if most is None else min(capacity, most)
            zeros = [jnp.zeros((batch, slots, *shape), self.dtype) for shape in shapes]
            made.append(dict(zip(("key", "value"), zeros, strict=True)))
        return made


def _cache_of(model: Any) -> _Cache:
    views = getattr(jax.eval_shape(lambda: model.init_cache(1, _MANY)), "views", [None])
    if not all(hasattr(getattr(view, name, None), "shape") for view in views for name in ("key", "value", "indexs")):
        kinds = sorted({type(view).__name__ for view in views})
        raise TypeError(f"only a cache of keys and values can be cut, got one of {', '.join(kinds)}")
    most = lambda slots: None if slots == _MANY else slots  # noqa: E731
    layers = [(most(view.key.shape[1]), view.key.shape[2:], view.value.shape[2:]) for view in views]
    return _Cache(tuple(layers), views[0].key.dtype)
