"""Reads off the target what untrained heads of every kind need."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxspec.drafters import draft_vocabulary as vocabulary
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.rope import Rope


def draft_vocabulary_size(target: LanguageModel, size: int | None) -> int:
    """Returns how many tokens a head may guess: `size`, and no more than the target has; `None` is all of them."""
    return target.vocab_size if size is None else min(size, target.vocab_size)


def draft_vocabulary(target: LanguageModel, size: int | None, token_counts: np.ndarray | None) -> np.ndarray:
    """Returns the most frequent tokens, rising ids `int32[n]`; without counts the first ones.

    Args:
      target: the model whose tokens they are.
      size: how many; `None` is all of them.
      token_counts: `int64[v]`, how often each token stands in the texts to draft for.

    Raises:
      ValueError: `size` is less than 1.
    """
    counts = known_counts(target, token_counts)
    return vocabulary.most_frequent(counts, draft_vocabulary_size(target, size))


def known_counts(target: LanguageModel, token_counts: np.ndarray | None) -> np.ndarray:
    """Returns the counts, or zeros where there are none: `int64[v]`.

    Raises:
      ValueError: they are not one number a token of the target.
    """
    if token_counts is None:
        return np.zeros(target.vocab_size, np.int64)
    if np.shape(token_counts) != (target.vocab_size,):
        raise ValueError(
            f"token_counts must have one number for each of the target's {target.vocab_size} tokens, got shape "
            f"{np.shape(token_counts)}"
        )
    return np.asarray(token_counts)


def rope_of(target: LanguageModel) -> Rope:
    """Returns the rotary embedding of the target's first layer that has one, else the usual one of 10,000."""
    return next((rope for rope in target.module.config.ropes if rope is not None), Rope(10_000.0))


def initial(module: nn.Module, rng: Array, *inputs: Any, method: str | None = None) -> dict[str, Any]:
    """Returns a module's freshly drawn `params` collection."""
    # As one program, of which what the parameters do not need is left out: else each operation is compiled.
    return dict(jax.jit(functools.partial(module.init, method=method))(rng, *inputs)["params"])


def in_dtype(params: Any, dtype: DTypeLike) -> Any:
    """Casts a head's parameters as readers do: to `dtype`, but those of norms, which stay float32."""
    is_norm = lambda path: len(path) > 1 and "norm" in path[-2].key  # noqa: E731
    return jax.tree.map_with_path(lambda path, x: x.astype(jnp.float32 if is_norm(path) else dtype), params)
