"""Hashes a model, so that results of different models are not mixed."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.nn.language_model import LanguageModel


def model_digest(model: object, *, largest: int | None = None) -> str:
    """Hashes a model's configuration, its dtype, and its arrays with their names, shapes and dtypes.

    Args:
      model: a pytree.
      largest: the most elements of an array that is read; of larger ones only the name, the shape and the dtype count.
        `None` reads all. With a number, an array that is split over devices is read in part.

    Example:
        >>> from jaxspec.nn.digest import model_digest
        >>> model_digest({"a": jnp.zeros(3)}) == model_digest({"a": jnp.ones(3)})
        False
    """
    digest = hashlib.sha256()
    # The same weights are another model under another configuration, such as a scaling of the rotary embedding.
    if isinstance(model, LanguageModel):
        digest.update(f"{model.module.config} {model.dtype}\n".encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)  # users' functions may have such parameters
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}\n".encode())
        if largest is None or (leaf.size <= largest and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)):
            part = leaf if largest is None or isinstance(leaf, np.ndarray) else leaf.addressable_shards[0].data
            # On the host, as arrays that are sharded over a mesh cannot be flattened in place.
            digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
