"""Lists the weight formats by name: each class in a file of its own, which states the rest."""

from collections.abc import Mapping
from types import MappingProxyType

from jaxspec.ops.grouped import GroupedWeight
from jaxspec.ops.int8 import Int8Weight
from jaxspec.ops.native_float import NativeWeight
from jaxspec.ops.packed import PackedWeight

FORMATS: Mapping[str, type[PackedWeight]] = MappingProxyType(
    {kind.name: kind for kind in (Int8Weight, GroupedWeight, NativeWeight)}
)
