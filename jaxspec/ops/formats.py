"""The table of weight formats: one row a class, each in a file of its own."""

from jaxspec.ops.int8 import Int8Weight
from jaxspec.ops.native_float import NativeWeight
from jaxspec.ops.packed import PackedWeight

FORMATS: tuple[type[PackedWeight], ...] = (Int8Weight, NativeWeight)
