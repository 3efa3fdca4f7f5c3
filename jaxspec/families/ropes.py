"""Reads and writes rotary embeddings as `config.json` describes them."""

import math
from collections.abc import Mapping
from typing import Any

from jaxspec.families.settings import SettingError
from jaxspec.ops.rope import Rope, RopeScaling

ROPE_DEFAULTS = {
    "rope_theta": 10_000.0,
    **dict.fromkeys(("rope_scaling", "rope_parameters")),
    **dict.fromkeys(("original_max_position_embeddings", "partial_rotary_factor")),
}
_KINDS = "default, linear, dynamic, llama3, yarn, longrope"


def read_rope(
    config: Mapping[str, Any], settings: Mapping[str, Any], place: str, theta_key: str = "rope_theta"
) -> Rope:
    """Reads a rotary embedding.

    Args:
      config: all settings of the family.
      settings: the contents of `rope_scaling`, or of `rope_parameters` as transformers 5 writes them.
      place: the name of `settings`, for errors.
      theta_key: the setting of `config` that holds the base if `settings` does not.

    Raises:
      SettingError: it is not supported.
    """
    found = {key: x for key, x in settings.items() if x is not None}
    theta, longest = float(found.get("rope_theta", config[theta_key])), config["max_position_embeddings"]
    if found.get("partial_rotary_factor", config["partial_rotary_factor"]) not in (1.0, None):
        raise SettingError(f"{place}.partial_rotary_factor", "partial rotary embedding (not 1) is not supported")
    kind = found.get("rope_type", found.get("type"))
    if kind is None and "factor" in found:
        raise SettingError(f"{place}.rope_type", f"rotary settings with a factor lack it; supported: {_KINDS}")
    length = config["original_max_position_embeddings"] or found.get("original_max_position_embeddings", longest)

    def need_of_rope(key: str) -> Any:
        if key not in found:
            raise SettingError(f"{place}.{key}", f"rotary settings of the type {kind} lack it")
        return found[key]

    match kind:
        case "default" | None:
            return Rope(theta)
        case "linear":
            return Rope(theta, RopeScaling("linear", float(need_of_rope("factor"))))
        case "dynamic":
            # Changes only texts of more than `max_position_embeddings` tokens, which the model does not take.
            need_of_rope("factor")
            return Rope(theta)
        case "llama3":
            low, high = float(need_of_rope("low_freq_factor")), float(need_of_rope("high_freq_factor"))
            if low >= high:
                raise SettingError(
                    f"{place}.low_freq_factor", f"expected less than high_freq_factor, {high}, got {low}"
                )
            return Rope(theta, RopeScaling("llama3", float(need_of_rope("factor")), low, high, length))
        case "yarn":
            return Rope(theta, _read_yarn(settings, found, longest, length))
        case "longrope":
            # One choice for all texts: a text's earlier keys could not be rotated again when it becomes longer.
            factors = need_of_rope("long_factor" if longest > length else "short_factor")
            factor = float(found.get("factor", longest / length))
            attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
            attention = float(found.get("attention_factor", attention))
            return Rope(
                theta,
                RopeScaling(
                    "longrope",
                    factor,
                    original_context_length=length,
                    attention_factor=attention,
                    factors=tuple(map(float, factors)),
                ),
            )
        case _:
            raise SettingError(f"{place}.rope_type", f"unsupported {kind!r}; supported: {_KINDS}")


def _read_yarn(
    settings: Mapping[str, Any], found: Mapping[str, Any], longest: int, original_length: int
) -> RopeScaling:
    """Reads YaRN's scaling from `settings`, which without nulls are `found`."""
    factor = float(found.get("factor", longest / original_length))

    def amplify(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    attention = amplify(1.0)
    if found.get("mscale") and found.get("mscale_all_dim"):
        attention = amplify(found["mscale"]) / amplify(found["mscale_all_dim"])
    return RopeScaling(
        "yarn",
        factor,
        original_context_length=original_length,
        attention_factor=float(found.get("attention_factor", attention)),
        beta_fast=float(found.get("beta_fast") or 32),
        beta_slow=float(found.get("beta_slow") or 1),
        # As in transformers, a null is false, unlike a missing setting.
        truncate=bool(settings.get("truncate", True)),
    )


def read_one_rope(config: Mapping[str, Any]) -> Rope:
    """Reads the rotary embedding of all layers, in the older format or that of transformers 5."""
    # transformers reads `rope_scaling` if there are both.
    place = "rope_scaling" if config["rope_scaling"] else "rope_parameters"
    return read_rope(config, config[place] or {}, place)


def write_scaling(scaling: RopeScaling) -> dict[str, Any]:
    """Returns the `rope_scaling` of `config.json`."""
    written = {"rope_type": scaling.kind, "factor": scaling.factor}
    match scaling.kind:
        case "llama3":
            names = {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
        case "yarn":
            names = {key: getattr(scaling, key) for key in ("attention_factor", "beta_fast", "beta_slow", "truncate")}
        case "longrope":
            factors = list(scaling.factors)
            names = {"attention_factor": scaling.attention_factor, "short_factor": factors, "long_factor": factors}
        case _:
            return written
    return written | names | {"original_max_position_embeddings": scaling.original_context_length}
