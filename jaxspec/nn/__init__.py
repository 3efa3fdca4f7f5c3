"""Neural network modules in Flax Linen. They know the Model protocol and nothing above it."""

from jaxspec.nn.config import Rope as Rope
from jaxspec.nn.config import RopeScaling as RopeScaling
from jaxspec.nn.config import TransformerConfig as TransformerConfig
from jaxspec.nn.transformer import Transformer as Transformer
