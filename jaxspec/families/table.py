"""Lists the families, and the sizes of well-known models. A new family is one file, one test, and one row here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxspec.core.validate import shown
from jaxspec.families.base import Family
from jaxspec.families.experts import MIXTRAL, OLMOE, QWEN3_MOE
from jaxspec.families.gemma import GEMMA3
from jaxspec.families.gpt2 import GPT2
from jaxspec.families.gpt_oss import GPT_OSS
from jaxspec.families.granite import GRANITE
from jaxspec.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from jaxspec.families.olmo import OLMO2, OLMO3
from jaxspec.families.settings import SETTINGS, SHARED, SettingError, check_settings, settings_of
from jaxspec.families.smollm3 import SMOLLM3
from jaxspec.io.files import read_json
from jaxspec.nn.config import TransformerConfig

# In the order in which `write_config` tries them.
FAMILIES: tuple[Family, ...] = (
    *(LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3, GPT2, OLMO2, OLMO3, GRANITE, SMOLLM3),
    *(QWEN3_MOE, MIXTRAL, OLMOE, GPT_OSS),
)


def find_family(config: Mapping[str, Any]) -> Family:
    """Returns the family of a Hugging Face configuration.

    Args:
      config: the contents of `config.json`.

    Raises:
      ValueError: the architecture is not supported; it is a `SettingError`.

    Example:
      >>> jaxspec.families.find_family({"model_type": "gpt2"}).model_type
      'gpt2'
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be the contents of a config.json, a dictionary, got {shown(config)}")
    kind = config.get("model_type")
    for family in FAMILIES:
        if family.model_type == kind:
            return family
    raise SettingError(
        "model_type",
        f"unsupported architecture {kind!r} (architectures: {config.get('architectures')}); "
        f"supported model types: {', '.join(sorted(family.model_type for family in FAMILIES))}",
    )


def find_gguf_family(architecture: str | None, *, has_experts: bool = False) -> Family | None:
    """Returns the family whose GGUF files name this architecture, with or without experts; `None` if there is none."""
    wanted = architecture, has_experts
    layouts = ((family, family.gguf) for family in FAMILIES if family.gguf)
    return next((family for family, own in layouts if (own.architecture, own.has_experts) == wanted), None)


def gguf_architectures() -> list[str]:
    """Returns the architectures that GGUF files may name, sorted."""
    return sorted({family.gguf.architecture for family in FAMILIES if family.gguf})


def text_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings of the language model of a model of text and images; others are returned unchanged."""
    text, kind = config.get("text_config"), config.get("model_type")
    if not isinstance(text, Mapping) or any(family.model_type == kind for family in FAMILIES):
        return config
    return {**config, "model_type": f"{kind}_text", **text}


def read_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a Hugging Face configuration.

    Args:
      config: the contents of `config.json`. Rotary settings may be in `rope_theta` and `rope_scaling` or, in the format
        of transformers 5, in `rope_parameters`.

    Raises:
      SettingError: the architecture, its rotary embedding or an option is not supported, or a setting is missing, has
        another type or is out of range.
    """
    check_settings(config, {key: SETTINGS[key] for key in SHARED})
    return find_family(config).read_config(config)


def read_head_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads the configuration of a head's layers, like `read_config`.

    Raises:
      SettingError: they have experts, or as in `read_config`.
    """
    found = read_config(config)
    if found.experts is not None:
        kind = config["model_type"]
        raise SettingError("model_type", f"layers of experts ({kind!r}) are not supported in heads; pass a dense head")
    return found


def write_config(config: TransformerConfig) -> tuple[Family, dict[str, Any]]:
    """Returns the first family that can describe a decoder, and its `config.json`, which reads back equal.

    Raises:
      ValueError: none can.
    """
    for family in FAMILIES:
        if family.write_config is None:
            continue
        try:
            values = family.write_config(config)
        except ValueError:
            continue
        if family.read_config(values) == config:
            return family, values
    raise ValueError(
        f"only models of the families {', '.join(family.model_type for family in FAMILIES if family.write_config)}, "
        f"without sliding windows, are written in Hugging Face's format, got {config}; use jaxspec.save"
    )


# From the models' own config.json files.
SHAPES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text("utf-8"))


def shape(name: str) -> TransformerConfig:
    """Returns the configuration of a model in `SHAPES`, or in a `config.json`.

    Raises:
      ValueError: no shape has this name, and there is no such file.
    """
    if name in SHAPES:
        return read_config(SHAPES[name])
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(
            f"the model must be one of {', '.join(SHAPES)}, or a config.json or its folder, got {shown(name)}"
        )
    with settings_of(path):
        return read_config(text_settings(read_json(path)))
