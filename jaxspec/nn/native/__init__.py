"""A product for few rows on a CPU, compiled for it when it is first asked for."""

from jaxspec.nn.native.build import NoCompilerError as NoCompilerError
from jaxspec.nn.native.build import register as register
from jaxspec.nn.native.kernel import NativeKernel as NativeKernel
