"""Lists models by their sizes alone, to be compiled and not run, and the devices they are compiled for."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from jaxspec.families.table import read_config
from jaxspec.nn.config import TransformerConfig

_LLAMA_3 = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "rope_theta": 500000.0}
_LLAMA_3 |= {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5}


def _llama_3(layers: int, width: int, heads: int, inner: int, factor: float, **options: Any) -> dict[str, Any]:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    rope = scaling | {"original_max_position_embeddings": 8192}
    return _LLAMA_3 | sizes | {"intermediate_size": inner, "rope_scaling": rope} | options


# From the models' own config.json files.
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49152,
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "llama-3.2-1b": _llama_3(16, 2048, 32, 8192, 32.0, tie_word_embeddings=True),
    "llama-3.1-8b": _llama_3(32, 4096, 32, 14336, 8.0),
    "llama-3.3-70b": _llama_3(80, 8192, 64, 28672, 8.0),
    "llama-3.1-405b": _llama_3(126, 16384, 128, 53248, 8.0),
}


def shape(name: str) -> TransformerConfig:
    """Returns the configuration of a model of `SHAPES`, or of a `config.json`.

    Raises:
      ValueError: no shape has this name, and there is no such file.
    """
    if name in SHAPES:
        return read_config(SHAPES[name])
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"the model must be one of {', '.join(SHAPES)}, or a config.json or its folder, got {name!r}")
    try:
        return read_config(json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Chip:
    """The sizes of one chip of a TPU generation, or of one device, where a chip is several.

    Attributes:
      memory: bytes of main memory.
      bandwidth: bytes of it that can be read in a second.
      clock: cycles a second.
    """

    memory: int
    bandwidth: float
    clock: float

    def part(self, count: int) -> Self:
        """Returns one of the `count` devices of a chip."""
        return dataclasses.replace(self, memory=self.memory // count, bandwidth=self.bandwidth / count)


# By `device_kind`; of Cloud TPU's documentation.
CHIPS = {
    "TPU v4": Chip(32 * 2**30, 1.228e12, 1.05e9),
    "TPU v5 lite": Chip(16 * 2**30, 0.819e12, 1.5e9),
    "TPU v5": Chip(95 * 2**30, 2.765e12, 1.75e9),
    "TPU v6 lite": Chip(32 * 2**30, 1.64e12, 1.75e9),
    "TPU7x": Chip(192 * 2**30, 7.38e12, 1.9e9),
}
