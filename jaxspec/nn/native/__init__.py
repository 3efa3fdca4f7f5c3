"""Products and attention for few rows on a CPU, compiled for it when they are first asked for."""

from jaxspec.nn.native.build import NoCompilerError as NoCompilerError
from jaxspec.nn.native.build import register as register
from jaxspec.nn.native.cache import NativeKVCache as NativeKVCache
from jaxspec.nn.native.kernel import NativeKernel as NativeKernel
