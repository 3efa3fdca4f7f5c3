"""Where parameters come from: the zoo, the model hub, safetensors, GGUF, llama2.c and orbax."""

from jaxspec.weights.families import transformer_config as transformer_config
from jaxspec.weights.heads import load_head as load_head
from jaxspec.weights.load import load as load
from jaxspec.weights.native import native_products as native_products
from jaxspec.weights.quantise import quantise_cache as quantise_cache
from jaxspec.weights.quantise import quantise_weights as quantise_weights
from jaxspec.weights.saved import save as save
from jaxspec.weights.zoo import ZooEntry as ZooEntry
from jaxspec.weights.zoo import list_models as list_models
