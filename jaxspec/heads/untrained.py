"""Provides what untrained heads of every kind take from the target."""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxspec.core import validate
from jaxspec.core.random import check_one_key
from jaxspec.drafters import draft_vocabulary as vocabulary
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.rope import Rope


def check_arguments(target: Any, rng: Any, dtype: DTypeLike | None, capture: Sequence[int] | None = None) -> None:
    """Raises `TypeError` or `ValueError` unless arguments of `init` are a model, key, dtype of weights and layers."""
    validate.instance("target", target, LanguageModel, "jaxspec.load makes one")
    check_one_key("rng", rng)
    if dtype is not None:
        validate.dtype_of("dtype", dtype, ("float32", "bfloat16", "float16", "float64"))
    layers = target.module.config.num_layers
    if capture is not None and not (capture and all(0 <= layer <= layers for layer in capture)):
        raise ValueError(f"capture must be of layers from 0 to {layers} for this target, got {tuple(capture)}")


def draft_vocabulary_size(target: LanguageModel, size: int | None) -> int:
    """Returns how many tokens a head can guess: `size`, but at most the target's number; `None` means all of them."""
    if size is None:
        return target.vocab_size
    validate.counts("an untrained head", draft_vocabulary=size)
    return min(size, target.vocab_size)


def draft_vocabulary(target: LanguageModel, size: int | None, token_counts: np.ndarray | None) -> np.ndarray:
    """Returns the ids of the most frequent tokens, or of the first ones without counts.

    Args:
      target: the model whose tokens they are.
      size: the number of tokens; `None` means all of them.
      token_counts: how often each token occurs in the texts to draft for, `int64[v]`.

    Returns:
      `int32[size]`, increasing.

    Raises:
      ValueError: `size` is less than 1.
    """
    counts = known_counts(target, token_counts)
    return vocabulary.most_frequent(counts, draft_vocabulary_size(target, size))


def known_counts(target: LanguageModel, token_counts: np.ndarray | None) -> np.ndarray:
    """Returns the counts, or zeros if there are none: `int64[v]`.

    Raises:
      ValueError: `token_counts` does not have one number for each of the target's tokens.
    """
    if token_counts is None:
        return np.zeros(target.vocab_size, np.int64)
    token_counts = np.asarray(validate.numbers("token_counts", token_counts))
    if np.shape(token_counts) != (target.vocab_size,):
        raise ValueError(
            f"token_counts must have one number for each of the target's {target.vocab_size} tokens, got shape "
            f"{np.shape(token_counts)}"
        )
    return token_counts


def rope_of(target: LanguageModel) -> Rope:
    """Returns the rotary embedding of the target's first layer that has one, or else the default with base 10,000."""
    return next((rope for rope in target.module.config.ropes if rope is not None), Rope(10_000.0))


def final_norm(target: LanguageModel) -> dict[str, Array]:
    """Returns the parameters of the target's final norm times the factor of its logits, float32.

    A head that begins with them is as confident as the target.
    """
    factor = target.module.config.logit_scale
    return {name: factor * jnp.asarray(x, jnp.float32) for name, x in target.params["final_norm"].items()}


def initial(module: nn.Module, rng: Array, *inputs: Any, method: str | None = None) -> dict[str, Any]:
    """Returns a module's newly initialized `params` collection."""
    # In one program, which omits what the parameters do not depend on; otherwise each operation would be compiled.
    return dict(jax.jit(functools.partial(module.init, method=method))(rng, *inputs)["params"])


def in_dtype(params: Any, dtype: DTypeLike) -> Any:
    """Casts a head's parameters to `dtype`, as readers do, except those of norms, which stay float32."""
    is_norm = lambda path: len(path) > 1 and "norm" in path[-2].key  # noqa: E731
    return jax.tree.map_with_path(lambda path, x: x.astype(jnp.float32 if is_norm(path) else dtype), params)
