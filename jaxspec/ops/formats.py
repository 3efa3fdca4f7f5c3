"""Lists the weight formats by name; each is defined in a separate file."""

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
# Constructors of weights from rows of blocks, by GGML's format names; each takes the rows, the name, a shape and a
# dtype.
BLOCK_FORMATS: Mapping[str, Callable[..., PackedWeight]] = MappingProxyType(dict.fromkeys(BLOCKS, StoredWeight.of))
# The class of integer weights with a scale, and a zero, for each group of inputs.
GROUPED_FORMAT: type[GroupedWeight] = GroupedWeight
