"""From a checkpoint to a `LanguageModel`: one tensor at a time, so that no second copy is held."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoints.tensors import Checkpoint, LazyTensor
from jaxspec.families.config import transformer_config
from jaxspec.families.params import ParamMapping, param_mappings
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.transformer import Transformer
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement

_PREFIX = re.compile(r"^(model|transformer)\.")
# Constants that older versions of transformers stored with the weights.
_DERIVED = re.compile(r"rotary_emb\.inv_freq$|^h\.\d+\.attn\.(masked_)?bias$")
_SHOWN = 5


def assemble(checkpoint: Checkpoint, dtype: jnp.dtype, placement: Placement | None = None) -> LanguageModel:
    """Builds the model that a checkpoint describes.

    Args:
      checkpoint: configuration, unread tensors, tokenizer.
      dtype: of weights and activations; normalization scales stay float32.
      placement: where parameters go, each straight into its shards; `None` is the default device.

    Raises:
      ValueError: the architecture is not supported; a tensor is missing, left over, of the wrong
        shape, unreadable or not finite.
    """
    try:
        config = transformer_config(checkpoint.config)
    except ValueError as error:
        raise ValueError(f"{checkpoint.source}: {error}") from error
    wanted = list(param_mappings(config, checkpoint.config["model_type"]))
    tensors = {_PREFIX.sub("", name): tensor for name, tensor in checkpoint.tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not _DERIVED.search(name)}
    if config.tied_head:
        tensors.pop("lm_head.weight", None)
    if modules := checkpoint.config.get("num_nextn_predict_layers"):
        # Modules that predict further tokens are drafted from, and no part of the model: `load_head` reads them.
        behind = tuple(f"layers.{config.num_layers + i}." for i in range(modules))
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(behind)}
    params = build_params(wanted, tensors, checkpoint.source, dtype, placement)
    model = LanguageModel(Transformer(config, dtype), params, checkpoint.tokenizer)
    return model if placement is None else placed(model, placement)


def build_params(
    wanted: list[ParamMapping],
    tensors: Mapping[str, LazyTensor],
    source: str,
    dtype: jnp.dtype,
    placement: Placement | None = None,
) -> dict[str, Any]:
    """The tree of parameters that is made of a checkpoint's tensors, all of which must be wanted.

    Raises:
      ValueError: as `assemble` does; `source` is named.
    """
    _check(wanted, tensors, source)
    params: dict[str, Any] = {}
    for recipe in wanted:
        node = params
        for key in recipe.path[:-1]:
            node = node.setdefault(key, {})
        values = _read(recipe, tensors, source)
        node[recipe.path[-1]] = _put(recipe, values, jnp.float32 if recipe.is_norm else dtype, placement)
    return params


def _put(recipe: ParamMapping, values: np.ndarray, dtype, placement: Placement | None) -> jax.Array:
    if placement is None:
        return jnp.array(values, dtype=dtype)
    sharding = placement.sharding(values.shape, parameter_axes(recipe.path, values.ndim))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index].astype(dtype))


def _read(recipe: ParamMapping, tensors: Mapping[str, LazyTensor], source: str) -> np.ndarray:
    parts = []
    for name, _ in recipe.sources:
        part = tensors[name].read()
        if not np.isfinite(part).all():
            raise ValueError(
                f"{source}: tensor {name} holds NaN or infinite values, so the file is corrupted; "
                "delete it and download it again"
            )
        parts.append(part)
    return np.asarray(recipe.build(*parts))


def _check(wanted: list[ParamMapping], tensors: Mapping[str, LazyTensor], source: str) -> None:
    expected = dict(pair for recipe in wanted for pair in recipe.sources)
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    misshapen = [
        f"{name} has {tensors[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    problems = [
        f"{len(names)} {what}: {'; '.join(names[:_SHOWN])}{' ...' * (len(names) > _SHOWN)}"
        for what, names in (("missing", missing), ("unexpected", extra), ("of the wrong shape", misshapen))
        if names
    ]
    if problems:
        raise ValueError(
            f"{source}: the tensors do not match the configuration (Hugging Face names). "
            f"{'. '.join(problems)}. Check that configuration and weights belong to the same model"
        )


def abstract_params(module: Transformer) -> Any:
    """The `params` collection of a module as `jax.ShapeDtypeStruct`s."""
    cache = jax.eval_shape(lambda: LanguageModel(module, {}).init_cache(1, 1))
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(module.init, jax.random.key(0), tokens, cache)["params"]


def abstract_model(config: TransformerConfig, dtype: Any) -> LanguageModel:
    """A model of this shape whose parameters are `jax.ShapeDtypeStruct`s. It can be lowered, not run."""
    module = Transformer(config, jnp.dtype(dtype))
    return LanguageModel(module, abstract_params(module))
