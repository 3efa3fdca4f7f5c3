"""Reads what a Pallas kernel moves from its own code: its grid, and the blocks of its operands that a step sees.

The compiler charges a kernel nothing, and knows the bytes that it moves from its author alone. Its block specs say
them without anyone's word: no step reads more than its blocks, and no operand is read more often than it is large.
"""

import base64
import dataclasses
import functools
import math
import re
from collections.abc import Sequence

_BODY, _STATED = re.compile(r'"body":\s*"([^"]+)"'), re.compile(r'"bytes_accessed":\s*"?(\d+)')
_WINDOW, _NUMBERS = re.compile(r"\{([^{}]*)\}"), re.compile(r"window_bounds = array<i64: ([-\d, ]+)>")
_TARGET = 'custom_call_target="tpu_custom_call"'


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Describes a Pallas kernel for TPU in a compiled program.

    Attributes:
      steps: how often its body runs.
      scalars: how many operands come before those that have blocks, bounds of the grid among them.
      blocks: how many elements of each operand, then of each result, a step sees; `None` where the kernel copies
        what it needs itself.
      stated: the bytes that its author says it moves; `None` if nothing was said.
    """

    steps: int
    scalars: int
    blocks: tuple[int | None, ...]
    stated: int | None

    def bytes(self, arrays: Sequence[tuple[int, int]]) -> int:
        """Returns the bytes of main memory that it moves.

        Where it copies part of an operand itself its blocks do not say how much: then it is what its author stated,
        if that is more, or else all of that operand.

        Args:
          arrays: of each operand, then each result, its bytes there and the bits of an element.
        """
        seen, whole = 0, 0
        for index, (size, bits) in enumerate(arrays):
            place = index - self.scalars
            block = self.blocks[place] if 0 <= place < len(self.blocks) else None
            if block is not None:
                seen += min(size, self.steps * block * bits // 8)
            elif index >= self.scalars:
                whole += size
        return seen + whole if self.stated is None or not whole else max(seen, self.stated)


def kernel_of(text: str, unknown: int = 1) -> Kernel | None:
    """Returns the kernel that a custom call runs; `None` if it is another call, or its code cannot be read.

    Args:
      text: the attributes of the call, as the compiler writes them.
      unknown: what is counted for a bound of its grid that depends on data.
    """
    if _TARGET not in text or (body := _BODY.search(text)) is None:
        return None
    stated = _STATED.search(text)
    return _read(body[1], unknown, None if stated is None else int(stated[1]))


@functools.lru_cache(maxsize=64)
def _read(body: str, unknown: int, stated: int | None) -> Kernel | None:
    from jax.experimental.mosaic.dialects import tpu
    from jaxlib.mlir import ir

    context = ir.Context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        for function in ir.Module.parse(base64.b64decode(body)).body.operations:
            attributes = {name: str(function.attributes[name]) for name in function.attributes}
            if "window_params" in attributes:
                bounds = [int(size) for size in re.findall(r"-?\d+", attributes["iteration_bounds"].partition(":")[2])]
                scalars = int(attributes.get("scalar_prefetch", "0").split()[0])
                # A bound that depends on data is below 0, and an operand before all others.
                scalars += sum(size <= 0 for size in bounds)
                steps = math.prod(size if size > 0 else unknown for size in bounds)
                return Kernel(steps, scalars, _blocks(attributes["window_params"]), stated)
    return None


def _blocks(windows: str) -> tuple[int | None, ...]:
    found = (_NUMBERS.search(one) for one in _WINDOW.findall(windows))
    sizes = (None if one is None else [max(1, int(size)) for size in one[1].split(",")] for one in found)
    return tuple(None if size is None else math.prod(size) for size in sizes)
