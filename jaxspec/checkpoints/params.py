"""Builds a `LanguageModel` from a checkpoint, one tensor at a time, so that no second copy is held.

If the configuration and the tensors do not match, they are compared, and the error names the wrong setting.
"""

import collections
import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.checkpoints.quantized.table import METHODS, is_read
from jaxspec.checkpoints.stored import read_finite
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.families.base import Family, LazyTensor, ParamMapping
from jaxspec.families.settings import SettingError, settings_of
from jaxspec.families.table import FAMILIES, find_family, read_config
from jaxspec.io.files import FileFormatError
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.layers import PRODUCTS
from jaxspec.nn.transformer import Transformer
from jaxspec.ops.packed import PackedWeight
from jaxspec.sharding.params import parameter_axes, placed
from jaxspec.sharding.placement import Placement

_logger = logging.getLogger(__name__)

# Takes a mapping, the tensors by name, their source, and the dtype of rows that are read from the parameter.
Hold = Callable[[ParamMapping, Mapping[str, LazyTensor], str, DTypeLike], PackedWeight | None]
_SAME_MODEL = "check that configuration and weights belong to the same model"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Holds a checkpoint as every reader returns it: a Hugging Face configuration and unread tensors.

    Attributes:
      source: where it was read from, for error messages.
      config: the contents of a Hugging Face `config.json`, including `model_type`.
      tensors: the tensors by their Hugging Face names.
      tokenizer: the tokenizer stored with the weights, if there is one.
      config_file: the file that `config` was read from; empty if it is `source`.
      name_of: returns the name of a setting of `config` in that file.
    """

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, LazyTensor]
    tokenizer: Tokenizer | None
    config_file: str = ""
    name_of: Callable[[str], str] = str


def assemble(
    checkpoint: Checkpoint, dtype: jnp.dtype, placement: Placement | None = None, *, hold: Hold | None = None
) -> LanguageModel:
    """Builds the model that a checkpoint describes.

    Args:
      checkpoint: the configuration, the unread tensors and the tokenizer.
      dtype: the dtype of weights and activations; normalization scales stay float32.
      placement: the layout of parameters, each put directly into its shards; `None` means the default device.
      hold: returns a parameter as stored, or `None` to make it an array of the values. Without it, all become arrays.

    Raises:
      ValueError: the architecture is not supported; or a tensor is missing, unexpected, of the wrong shape, unreadable
        or not finite.
    """
    file = checkpoint.config_file or checkpoint.source
    with settings_of(file, checkpoint.name_of):
        config, family = read_config(checkpoint.config), find_family(checkpoint.config)
        stored = family.respell(checkpoint.tensors)
        tensors = of_model(family, config, checkpoint.config, stored)
        mappings = list(family.map_params(config))
        if is_read(checkpoint.config):
            tensors = without_idle_biases(tensors, mappings)
        problem = mismatch(mappings, tensors)
        check_quantization(family, checkpoint.config, problem)
    with settings_of(file, checkpoint.name_of, _SAME_MODEL):
        if problem:
            check_fit(checkpoint.config, problem, stored)
        elif config.tied_head:
            check_tied(stored.get("lm_head.weight"), tensors[_embedding(mappings)])
    params = build_params(mappings, tensors, checkpoint.source, dtype, placement, hold=hold)
    model = LanguageModel(Transformer(config, dtype), params, _tokenizer(checkpoint, config.vocab_size))
    return model if placement is None else placed(model, placement)


def _tokenizer(checkpoint: Checkpoint, vocab_size: int) -> Tokenizer | None:
    """Returns the tokenizer without end tokens outside of the model's vocabulary, which are logged."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None or not (foreign := [index for index in tokenizer.eos_token_ids if index >= vocab_size]):
        return tokenizer
    problem = f"ignoring {', '.join(map(str, foreign))}, which are not below vocab_size {vocab_size}"
    _logger.warning("%s: eos_token_id: %s", checkpoint.config_file or checkpoint.source, problem)
    return tokenizer.ending_with(set(tokenizer.eos_token_ids).difference(foreign))


def build_params(
    mappings: list[ParamMapping],
    tensors: Mapping[str, LazyTensor],
    source: str,
    dtype: jnp.dtype,
    placement: Placement | None = None,
    *,
    hold: Hold | None = None,
) -> dict[str, Any]:
    """Builds the parameter tree from a checkpoint's tensors.

    Args:
      mappings: the mapping of every parameter; together they use every tensor.
      tensors: the tensors by name, without the family's prefix.
      source: where they were read from, for error messages.
      dtype: the dtype of all parameters except normalization scales, which are float32.
      placement: the layout of parameters on devices, as in `assemble`.
      hold: returns a parameter as stored, as in `assemble`.

    Raises:
      ValueError: a tensor is missing, unexpected, of the wrong shape, unreadable or not finite.
    """
    if problem := mismatch(mappings, tensors):
        raise FileFormatError(
            source, "", f"the tensors do not match the configuration (Hugging Face names). {problem}", _SAME_MODEL
        )
    params: dict[str, Any] = {}
    for mapping in mappings:
        node = params
        for key in mapping.path[:-1]:
            node = node.setdefault(key, {})
        held = None
        if hold is not None and mapping.path[-1] in PRODUCTS:
            held = hold(mapping, tensors, source, dtype)
        if held is None:
            kind: Any = jnp.float32 if mapping.is_norm else dtype
            values = mapping.build(*(read_finite(tensors, name, source, kind) for name, _ in mapping.sources))
            held = _put(mapping, np.asarray(values), kind, placement)
        node[mapping.path[-1]] = held
    return params


def _put(mapping: ParamMapping, values: np.ndarray, dtype: DTypeLike, placement: Placement | None) -> jax.Array:
    if placement is None:
        return jnp.array(values, dtype=dtype)
    sharding = placement.sharding(values.shape, parameter_axes(mapping.path, values.ndim))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index].astype(dtype))


def abstract_params(module: Transformer) -> Any:
    """Returns the `params` collection of a module as `jax.ShapeDtypeStruct`s."""
    cache = jax.eval_shape(lambda: LanguageModel(module, {}).init_cache(1, 0))
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(module.init, jax.random.key(0), tokens, cache)["params"]


def abstract_model(config: TransformerConfig, dtype: DTypeLike) -> LanguageModel:
    """Returns a model whose parameters are `jax.ShapeDtypeStruct`s. It can be lowered, but not run."""
    module = Transformer(config, jnp.dtype(dtype))
    return LanguageModel(module, abstract_params(module))


_SHOWN = 5
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
_SIZES = (
    *("num_hidden_layers", "n_layer", "vocab_size", "hidden_size", "n_embd", "intermediate_size", "n_inner"),
    *("num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "n_positions", "num_nextn_predict_layers"),
    *("num_experts", "num_local_experts", "moe_intermediate_size"),
)
_MAY_LACK = ("num_key_value_heads", "head_dim", "n_inner", "n_positions")  # sizes with a default
_LAYER = re.compile(r"^(?:.*\.)?(?:layers|h)\.(\d{1,6})\.")
_MOST_SIZES = 16  # models have fewer distinct ones; a hostile file may have thousands


def of_model(
    family: Family, config: TransformerConfig, values: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, LazyTensor]:
    """Returns the tensors that a model uses, by their names without the family's prefix.

    Args:
      family: the model's family.
      config: the model's configuration.
      values: the contents of `config.json`.
      tensors: all tensors of the checkpoint.
    """
    constants = re.compile(family.constants)
    # Modules that predict further tokens are heads, not part of the model: `load_head` reads them.
    further = range(config.num_layers, config.num_layers + (values.get("num_nextn_predict_layers") or 0))
    named = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    if config.tied_head and (head := named.pop("lm_head.weight", None)):
        # Writers that store a tied weight once may store it under either name.
        named.setdefault(_embedding(family.map_params(config)), head)
    return {
        name: tensor for name, tensor in named.items() if not constants.search(name) and _layer(name) not in further
    }


def _embedding(mappings: Iterable[ParamMapping]) -> str:
    """Returns the name of the tensor of the token embedding."""
    return next(one.sources[0][0] for one in mappings if one.path == ("embedding",))


def mismatch(mappings: Iterable[ParamMapping], tensors: Mapping[str, LazyTensor]) -> str:
    """Describes the tensors that are missing, unexpected or of the wrong shape; empty if all fit."""
    expected = dict(pair for mapping in mappings for pair in mapping.sources)
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    misshapen = [
        f"{name} has {tensors[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    return ". ".join(
        f"{len(names)} {what}: {'; '.join(names[:_SHOWN])}{' ...' * (len(names) > _SHOWN)}"
        for what, names in (("missing", missing), ("unexpected", extra), ("of the wrong shape", misshapen))
        if names
    )


def check_fit(values: Mapping[str, Any], problem: str, tensors: Mapping[str, LazyTensor]) -> None:
    """Raises an error that names the wrong setting, if changing a single one makes the configuration fit.

    Args:
      values: the contents of a `config.json` that does not fit the tensors.
      problem: the description of the tensors that do not fit.
      tensors: all tensors of the checkpoint.

    Raises:
      SettingError: there is such a setting, or a choice of them, such as the number of heads and their size.
    """
    repairs = dict(_repairs(values, tensors))
    if not repairs:
        return
    said = " or ".join(f"{values.get(key)!r} does not fit the tensors, {fit!r} would" for key, fit in repairs.items())
    raise SettingError(" or ".join(repairs), f"{said}. {problem}")


def check_quantization(family: Family, values: Mapping[str, Any], problem: str) -> None:
    """Raises an error if a model's quantization is not supported.

    Args:
      family: the model's family.
      values: the contents of a `config.json`.
      problem: the description of the tensors that do not fit; empty if all fit.

    Raises:
      SettingError: the tensors do not fit, and the configuration describes an unsupported method; or it is
        supported, but not for this family.
    """
    said = values.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    what = f"the model is quantized ({str(method)[:40]})" if method else "the model is quantized"
    if is_read(values):
        if family.inputs_first:
            problem = f"{what}, which is not supported for {family.model_type}; load the unquantized model"
            raise SettingError("quantization_config", problem)
    elif said and problem:
        supported = f"supported methods: {', '.join(METHODS)}; load the unquantized model"
        raise SettingError("quantization_config", f"{what}, which is not supported; {supported}. {problem}")


def without_idle_biases(tensors: Mapping[str, LazyTensor], mappings: Iterable[ParamMapping]) -> dict[str, LazyTensor]:
    """Drops all-zero biases that the model does not have: quantization programs add them."""
    expected = {name for mapping in mappings for name, _ in mapping.sources}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in expected or not name.endswith(".bias") or tensor.read().any()
    }


def check_tied(head: LazyTensor | None, embedding: LazyTensor) -> None:
    """Checks that an output head that is stored, although it is tied to the embedding, equals the embedding.

    Raises:
      SettingError: they differ.
    """
    if head is not None and (head.shape != embedding.shape or (head.read() != embedding.read()).any()):
        raise SettingError("tie_word_embeddings", "true, but lm_head.weight is not the embedding; set it to false")


def _repairs(values: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, Any]]:
    """Yields each setting that alone, changed to the yielded value, makes the configuration fit."""
    found = False
    sizes = [key for key in _SIZES if key in values or key in _MAY_LACK]
    changes = dict.fromkeys(sizes, _suggested(values, tensors)) | {key: [False, True] for key in _FLAGS}
    for key, candidates in changes.items():
        fit = next((one for one in candidates if one != values.get(key) and _fits({**values, key: one}, tensors)), None)
        if fit is not None:
            found = True
            yield key, fit
    kinds = [] if found else [family.model_type for family in FAMILIES]
    yield from (("model_type", kind) for kind in kinds if _fits({**values, "model_type": kind}, tensors))


def _suggested(values: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> list[int]:
    """Lists the sizes of the tensors, their quotients by settings, and the number of layers."""
    sizes = collections.Counter(size for tensor in tensors.values() for size in tensor.shape)
    common = [size for size, _ in sizes.most_common(_MOST_SIZES)]
    known = [x for key in _SIZES if type(x := values.get(key)) is int and x > 0]
    layers = 1 + max(map(_layer, tensors), default=0)
    further = layers - (values.get("num_hidden_layers") or layers)
    parts = [size // part for size in common for part in known if size % part == 0]
    # A missing `head_dim` is the keys' size over their heads; the queries' size over that is the number of heads.
    parts += [size // part for size in common for part in set(parts) if part and size % part == 0]
    own = layers - (values.get("num_nextn_predict_layers") or 0)
    return list(dict.fromkeys([layers, own, further, *common, *parts]))


def _layer(name: str) -> int:
    """Returns the index of a tensor's layer; -1 if it is in no layer."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def _fits(values: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> bool:
    try:
        config, family = read_config(values), find_family(values)
    except ValueError:
        return False
    # Most candidates fail at the first tensor, so that many are cheap even for a file of many tensors.
    for mapping in family.map_params(config):
        for name, shape in mapping.sources:
            tensor = tensors.get(family.full_name(name)) or tensors.get(name)
            if tensor is None or tensor.shape != shape:
                return False
    return not mismatch(family.map_params(config), of_model(family, config, values, tensors))
