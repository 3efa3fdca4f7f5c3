"""Adopts the weights of foreign models into the built-in transformer."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxspec.foreign.adopt_maxtext import describe_maxtext
from jaxspec.foreign.adopt_tunix import describe_tunix
from jaxspec.foreign.places import to_params
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Transformer

# Positions are 32 bit integers, and some are added to each other.
_UNBOUNDED = 1 << 30


def adopt(
    model: Any,
    *,
    config: Mapping[str, Any] | Any = None,
    tokenizer: Any = None,
    context_length: int | None = None,
) -> LanguageModel:
    """Copies the weights of a foreign model into the built-in transformer, which computes the same.

    The mapping is compiled once for models of one configuration, and the result has equal static parts: after an update
    of the weights adopt the model anew, which compiles nothing, nor does any program that takes the result.

    Args:
      model: of `tunix.models.llama3`, `qwen2`, `qwen3`, `gemma` or `gemma3`; with `config`, the parameters of a MaxText
        model of these families, `state.params` or below, as arrays or with Flax's boxes.
      config: MaxText's configuration: its object, or a mapping with the same keys. `None`: `model` has its own.
      tokenizer: of its vocabulary, for the text interface.
      context_length: the longest text; `None` is without bound, as neither project has one.

    Returns:
      The model, whose arrays are on the devices of the foreign ones, and shared where they need no change. Logits are
      the foreign model's but for rounding: tied heads of MaxText are rounded to bfloat16, whatever its dtype, here not.

    Raises:
      TypeError: the model is of another kind, or the built-in transformer cannot express it; says what it lacks.
      ValueError: it has an option that the built-in transformer lacks, or its parameters do not fit its configuration.

    Example:
        >>> def tokens_of(model, prompt):
        ...     target = jaxspec.adopt(model)
        ...     return jaxspec.generate(target, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=64).tokens
    """
    if context_length is not None and (isinstance(context_length, bool) or not isinstance(context_length, int)):
        raise TypeError(f"context_length must be a positive integer or None, got {context_length!r}")
    if context_length is not None and context_length < 1:
        raise ValueError(f"context_length must be positive, or None for no bound, got {context_length}")
    source, arrays = describe_tunix(model) if config is None else describe_maxtext(model, config)
    source.check(arrays)
    longest = _UNBOUNDED if context_length is None else context_length
    module = Transformer(dataclasses.replace(source.config, context_length=longest), source.dtype)
    return LanguageModel(module, to_params(source, arrays), tokenizer)
