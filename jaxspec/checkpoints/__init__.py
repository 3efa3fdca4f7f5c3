"""Reads and writes models: the zoo, the model hub, safetensors, GGUF and orbax."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.checkpoints.orbax import save as save
    from jaxspec.checkpoints.tokenizer import Tokenizer as Tokenizer
    from jaxspec.checkpoints.zoo import ZooEntry as ZooEntry
    from jaxspec.checkpoints.zoo import list_models as list_models

__getattr__, __dir__ = lazy(
    __name__,
    {
        "orbax": ("save",),
        "zoo": ("ZooEntry", "list_models"),
        "tokenizer": ("Tokenizer",),
    },
)
