"""Compares a configuration with the tensors beside it, and finds the setting that is wrong where they do not fit."""

import collections
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxspec.checkpoints.quantized.table import METHODS, is_read
from jaxspec.families.base import Family, LazyTensor, ParamMapping
from jaxspec.families.settings import SettingError
from jaxspec.families.table import FAMILIES, find_family, read_config
from jaxspec.nn.config import TransformerConfig

_SHOWN = 5
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
_SIZES = (
    *("num_hidden_layers", "n_layer", "vocab_size", "hidden_size", "n_embd", "intermediate_size", "n_inner"),
    *("num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "n_positions", "num_nextn_predict_layers"),
)
_MAY_LACK = ("num_key_value_heads", "head_dim", "n_inner", "n_positions")  # sizes with a default
_LAYER = re.compile(r"^(?:.*\.)?(?:layers|h)\.(\d{1,6})\.")
_MOST_SIZES = 16  # models have fewer different ones; a hostile file may have thousands


def of_model(
    family: Family, config: TransformerConfig, values: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, LazyTensor]:
    """Returns the tensors that a model is made of, by their names without the family's prefix.

    Args:
      family: the model's.
      config: its hyperparameters.
      values: the contents of `config.json`.
      tensors: all tensors of the checkpoint.
    """
    constants, ignored = re.compile(family.constants), set()
    if config.tied_head:
        ignored.add("lm_head.weight")
    # Modules that predict further tokens are drafted from, and no part of the model: `load_head` reads them.
    further = range(config.num_layers, config.num_layers + (values.get("num_nextn_predict_layers") or 0))
    named = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    return {
        name: tensor
        for name, tensor in named.items()
        if name not in ignored and not constants.search(name) and _layer(name) not in further
    }


def mismatch(mappings: Iterable[ParamMapping], tensors: Mapping[str, LazyTensor]) -> str:
    """Returns which tensors are missing, left over or of the wrong shape; nothing where all are as they should be."""
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
    """Raises the error of the settings that are wrong, if a change of a single one makes a configuration fit.

    Args:
      values: the contents of a `config.json` that does not fit the tensors.
      problem: which tensors are not as it says.
      tensors: all tensors of the checkpoint.

    Raises:
      SettingError: there is such a setting; there may be several, as of heads and their size.
    """
    repairs = dict(_repairs(values, tensors))
    if not repairs:
        return
    said = " or ".join(f"{values.get(key)!r} does not fit the tensors, {fit!r} would" for key, fit in repairs.items())
    raise SettingError(" or ".join(repairs), f"{said}. {problem}")


def check_quantization(family: Family, values: Mapping[str, Any], problem: str) -> None:
    """Raises the error of a quantized model whose quantization is not read.

    Args:
      family: the model's.
      values: the contents of a `config.json`.
      problem: which tensors are not as it says; empty if all are.

    Raises:
      SettingError: the tensors do not fit, and the configuration says that the model is quantized by a method that is
        not read; or by one that is, of a family whose quantized weights are not read.
    """
    said = values.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    what = f"the model is quantized ({str(method)[:40]})" if method else "the model is quantized"
    if is_read(values):
        if family.inputs_first:
            problem = f"{what}, which is not supported of {family.model_type}; load it as it was before"
            raise SettingError("quantization_config", problem)
    elif said and problem:
        supported = f"supported methods: {', '.join(METHODS)}; load it as it was before"
        raise SettingError("quantization_config", f"{what}, which is not supported; {supported}. {problem}")


def without_idle_biases(tensors: Mapping[str, LazyTensor], mappings: Iterable[ParamMapping]) -> dict[str, LazyTensor]:
    """Returns the tensors without biases of 0 that the model has not: programs that quantize add them."""
    expected = {name for mapping in mappings for name, _ in mapping.sources}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in expected or not name.endswith(".bias") or tensor.read().any()
    }


def check_tied(head: LazyTensor | None, embedding: LazyTensor) -> None:
    """Checks that an output head which is stored although the embedding takes its place is the same.

    Raises:
      SettingError: it is another one.
    """
    if head is not None and (head.shape != embedding.shape or (head.read() != embedding.read()).any()):
        raise SettingError("tie_word_embeddings", "true, but lm_head.weight is not the embedding; set it to false")


def _repairs(values: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, Any]]:
    """Yields the settings of which each alone, changed to a value that the tensors suggest, makes them fit."""
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
    """Lists the sizes of the tensors, what is left of them divided by settings, and the number of layers."""
    sizes = collections.Counter(size for tensor in tensors.values() for size in tensor.shape)
    common = [size for size, _ in sizes.most_common(_MOST_SIZES)]
    known = [x for key in _SIZES if type(x := values.get(key)) is int and x > 0]
    layers = 1 + max(map(_layer, tensors), default=0)
    further = layers - (values.get("num_hidden_layers") or layers)
    parts = [size // part for size in common for part in known if size % part == 0]
    # Without `head_dim`, it is the keys' size by their heads; the queries' size by that is the number of heads.
    parts += [size // part for size in common for part in set(parts) if part and size % part == 0]
    own = layers - (values.get("num_nextn_predict_layers") or 0)
    return list(dict.fromkeys([layers, own, further, *common, *parts]))


def _layer(name: str) -> int:
    """Returns the number of the layer that a tensor belongs to, -1 if to none."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def _fits(values: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> bool:
    try:
        config, family = read_config(values), find_family(values)
    except ValueError:
        return False
    # Most candidates fail at the first tensor, so that many of them cost little even for a file of many tensors.
    for mapping in family.map_params(config):
        for name, shape in mapping.sources:
            tensor = tensors.get(family.full_name(name)) or tensors.get(name)
            if tensor is None or tensor.shape != shape:
                return False
    return not mismatch(family.map_params(config), of_model(family, config, values, tensors))
