"""Reads and writes models: the zoo, the model hub, safetensors, GGUF and orbax."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.checkpoints.orbax import save as save
    from jaxspec.checkpoints.tokenizer import Tokenizer as Tokenizer
    from jaxspec.checkpoints.zoo import ZooEntry as ZooEntry, list_models as list_models
