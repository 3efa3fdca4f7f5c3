"""Lists the weight formats by name: each class in a file of its own, which states the rest."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from jaxspec.ops.grouped import GroupedWeight
from jaxspec.ops.int8 import Int8Weight
from jaxspec.ops.native_float import NativeWeight
from jaxspec.ops.packed import PackedWeight
from jaxspec.ops.stored import BLOCKS, StoredWeight

FORMATS: Mapping[str, type[PackedWeight]] = MappingProxyType(
    {kind.name: kind for kind in (Int8Weight, GroupedWeight, NativeWeight, StoredWeight)}
)
# What makes a weight of rows of blocks, by GGML's names of formats: takes the rows, the name, a shape and a dtype.
BLOCK_FORMATS: Mapping[str, Callable[..., PackedWeight]] = MappingProxyType(dict.fromkeys(BLOCKS, StoredWeight.of))
