"""Lists well-known models by their sizes alone, and reads the sizes of others."""

import json
from pathlib import Path
from typing import Any

from jaxspec.core.files import read_json
from jaxspec.families.settings import settings_of
from jaxspec.families.table import read_config
from jaxspec.nn.config import TransformerConfig

# From the models' own config.json files.
SHAPES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text("utf-8"))


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
    with settings_of(path):
        return read_config(read_json(path))
