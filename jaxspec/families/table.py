"""Lists the families, and looks them up. A new family is one file, one test, and one row here."""

from collections.abc import Mapping
from typing import Any

from jaxspec.families.base import Family
from jaxspec.families.gemma import GEMMA3
from jaxspec.families.gpt2 import GPT2
from jaxspec.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from jaxspec.families.settings import SettingError, check_settings
from jaxspec.nn.config import TransformerConfig

# In the order in which `write_config` tries them.
FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3, GPT2)


def find_family(config: Mapping[str, Any]) -> Family:
    """Returns the family of a Hugging Face configuration.

    Args:
      config: the contents of `config.json`.

    Raises:
      ValueError: the architecture is not supported; a `SettingError`, as all errors of settings.

    Example:
      >>> jaxspec.families.find_family({"model_type": "gpt2"}).model_type
      'gpt2'
    """
    kind = config.get("model_type")
    for family in FAMILIES:
        if family.model_type == kind:
            return family
    raise SettingError(
        "model_type",
        f"unsupported architecture {kind!r} (architectures: {config.get('architectures')}); "
        f"supported model types: {', '.join(sorted(family.model_type for family in FAMILIES))}",
    )


def find_gguf_family(architecture: str | None) -> Family | None:
    """Returns the family whose GGUF files name this architecture, if there is one."""
    return next((family for family in FAMILIES if family.gguf and family.gguf.architecture == architecture), None)


def gguf_architectures() -> list[str]:
    """Returns the architectures that GGUF files may name, sorted."""
    return sorted(family.gguf.architecture for family in FAMILIES if family.gguf)


def read_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a Hugging Face configuration.

    Args:
      config: the contents of `config.json`. Rotary settings may stand in `rope_theta` and `rope_scaling` or, as
        transformers 5 writes them, in `rope_parameters`.

    Raises:
      SettingError: the architecture, its rotary embedding or one of its options is not supported, or a setting is
        missing, of another type or out of range.
    """
    check_settings(config)
    return find_family(config).read_config(config)


def write_config(config: TransformerConfig) -> tuple[Family, dict[str, Any]]:
    """Returns the first family that can describe a decoder, and its `config.json`, which reads back as the same.

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
        f"without sliding windows, are written as Hugging Face's, got {config}; use jaxspec.save"
    )
