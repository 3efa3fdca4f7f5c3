"""Reads the instructions, loops, bytes and collectives of a compiled program from its HLO.

If neither the compiler nor a while loop's condition gives its trip count, the caller does, by the name of the
scope that the loop was traced in.

The compiler charges nothing for a Pallas kernel, and knows only the bytes that its author stated. Here they follow
from its block specs: no step reads more than its blocks, and no operand is read more often than its size allows.
"""

import base64
import dataclasses
import functools
import math
import re
import string
from collections.abc import Callable, Iterator, Sequence

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?(\S+) = (.*)$")
_SPACE = re.compile(r"S\(\d+\)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%[^\s,]+)")
_NAMES = re.compile(r"%([^\s,{}]+)")
# Operations that take neither time nor bytes.
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id", "replica-id"}
FREE |= {"iota", "opt-barrier", "add-dependency", "domain"}
_SLICES = {"dynamic-slice", "slice", "gather"}
# A collective that overlaps several operations is named in each of them, and in the one that starts it.
_ALONG, _BEGINS = "async_collective_fusion_config", 'custom_call_target="AsyncCollectiveStart"'
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
_KERNEL_BODY, _KERNEL_STATED = re.compile(r'"body":\s*"([^"]+)"'), re.compile(r'"bytes_accessed":\s*"?(\d+)')
_KERNEL_WINDOW, _KERNEL_NUMBERS = re.compile(r"\{([^{}]*)\}"), re.compile(r"window_bounds = array<i64: ([-\d, ]+)>")
_KERNEL_TARGET = 'custom_call_target="tpu_custom_call"'


@dataclasses.dataclass(frozen=True)
class Array:
    """Describes one array of an instruction; `local` if it lies in on-chip memory.

    The layout is the compiler's text of the axis order and the tiles, without the memory.
    """

    dtype: str
    shape: tuple[int, ...]
    local: bool
    layout: str = ""

    @property
    def bits(self) -> int:
        """Bits of one element."""
        if (bits := _BITS.get(self.dtype)) is None:
            bits = int(self.dtype.lstrip(string.ascii_lowercase).split("e")[0])  # such as bf16, f8e4m3fn
        return bits

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.bits // 8

    @property
    def far(self) -> int:
        """Bytes in main memory."""
        return 0 if self.local else self.size


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Reads one line of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    inside: str
    text: str
    root: bool

    def find(self, pattern: str) -> str | None:
        """Returns the group of a pattern in the attributes, or `None`."""
        found = re.search(pattern, self.text)
        return found.group(1) if found else None

    def computation(self, attribute: str) -> str:
        """Returns the computation that an attribute names, or an empty name."""
        return self.find(rf"\b{attribute}=%?([^\s,}}]+)") or ""

    @property
    def branches(self) -> list[str]:
        """Computations that a conditional chooses from."""
        return [name for found in _BRANCHES.finditer(self.text) for name in _NAMES.findall(found.group())]

    @functools.cached_property
    def scope(self) -> str:
        """Names that it was traced under, separated by slashes."""
        return self.find(r'op_name="([^"]*)"') or ""

    @functools.cached_property
    def cycles(self) -> int:
        """The compiler's estimate, if it gives one."""
        return int(self.find(r'"estimated_cycles":"?(\d+)') or 0)

    @functools.cached_property
    def trips(self) -> int | None:
        """Trip count of a loop, if the compiler knows it."""
        found = self.find(r'"known_trip_count":\{"n":"(\d+)"')
        return None if found is None else int(found)


# Instructions by name.
Computation = dict[str, Instruction]


def _instruction(root: str | None, name: str, rest: str) -> Instruction:
    rest = _COMMENT.sub("", rest)
    end = _index_outside(" ", rest)
    opcode, _, tail = rest[end:].lstrip().partition("(")
    stop = _index_outside(")", tail)
    arrays = tuple(_array(*match.groups()) for match in _ARRAY.finditer(rest[:end]))
    operands = tuple(re.findall(r"%([^\s,()]+)", tail[:stop]))
    return Instruction(name, opcode, arrays, operands, tail[:stop], tail[stop:], bool(root))


def _index_outside(letter: str, text: str) -> int:
    """Returns the index of the first `letter` outside all brackets, or the length."""
    depth = 0
    for index, one in enumerate(text):
        if depth == 0 and one == letter:
            return index
        depth += (one in "({[") - (one in ")}]")
    return len(text)


def _array(dtype: str, sizes: str, layout: str | None) -> Array:
    shape = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
    return Array(dtype, shape, bool(layout and _SPACE.search(layout)), _SPACE.sub("", layout or ""))


def _yielded(one: Instruction) -> tuple[Array, ...]:
    """Returns the results of an instruction; the start of an asynchronous one also names its operands."""
    if one.opcode in ("all-gather-start", "collective-permute-start"):
        return one.arrays[len(one.operands) : 2 * len(one.operands)]
    return one.arrays


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Describes a Pallas kernel for TPU in a compiled program.

    Attributes:
      steps: number of times that its body runs.
      scalars: number of operands before those with blocks, including bounds of the grid.
      blocks: number of elements of each operand, then of each result, that a step sees; `None` for arrays that the
        kernel copies from itself.
      stated: bytes that its author states; `None` if not stated.
    """

    steps: int
    scalars: int
    blocks: tuple[int | None, ...]
    stated: int | None

    def bytes(self, arrays: Sequence[tuple[int, int]]) -> int:
        """Returns the bytes of main memory that it moves.

        If the kernel copies part of an operand itself, its blocks do not give the amount: then the author's
        statement counts if it is larger, else the whole operand.

        Args:
          arrays: bytes in main memory and bits per element, of each operand, then of each result.
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
    """Returns the kernel that a custom call runs; `None` for other calls, or if its code cannot be read.

    Args:
      text: attributes of the call, as the compiler writes them.
      unknown: value of grid bounds that depend on data.
    """
    if _KERNEL_TARGET not in text or (body := _KERNEL_BODY.search(text)) is None:
        return None
    stated = _KERNEL_STATED.search(text)
    return _read_kernel(body[1], unknown, None if stated is None else int(stated[1]))


@functools.lru_cache(maxsize=64)
def _read_kernel(body: str, unknown: int, stated: int | None) -> Kernel | None:
    from jax.experimental.mosaic.dialects import tpu
    from jaxlib.mlir import ir

    context = ir.Context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        try:
            module = ir.Module.parse(base64.b64decode(body))
        except ir.MLIRError:  # the compiler's own kernels, such as that of a ragged product, have other dialects
            return None
        for function in module.body.operations:
            attributes = {name: str(function.attributes[name]) for name in function.attributes}
            if "window_params" in attributes:
                bounds = [int(size) for size in re.findall(r"-?\d+", attributes["iteration_bounds"].partition(":")[2])]
                scalars = int(attributes.get("scalar_prefetch", "0").split()[0])
                # A bound that depends on data is negative, and passed as an operand before all others.
                scalars += sum(size <= 0 for size in bounds)
                steps = math.prod(size if size > 0 else unknown for size in bounds)
                return Kernel(steps, scalars, _blocks(attributes["window_params"]), stated)
    return None


def _blocks(windows: str) -> tuple[int | None, ...]:
    found = (_KERNEL_NUMBERS.search(one) for one in _KERNEL_WINDOW.findall(windows))
    sizes = (None if one is None else [max(1, int(size)) for size in one[1].split(",")] for one in found)
    return tuple(None if size is None else math.prod(size) for size in sizes)


@dataclasses.dataclass(frozen=True)
class Step:
    """Describes one instruction that runs.

    Attributes:
      instruction: the instruction.
      times: how often it runs.
      bytes: bytes of main memory that it moves each time.
      inside: computation that it is in.
    """

    instruction: Instruction
    times: int
    bytes: int
    inside: Computation = dataclasses.field(repr=False)


class Program:
    """Reads a compiled program: its computations by name, its entry, and the instructions that run."""

    def __init__(self, text: str, blocks: int = 1):
        """Parses the text of a program; kernels whose grid depends on data have `blocks` blocks."""
        self._blocks = blocks
        self.computations: dict[str, Computation] = {}
        self.entry, current = "", Computation()
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                current = self.computations.setdefault(match.group(2), {})
                self.entry = match.group(2) if match.group(1) else self.entry
            elif match := _INSTRUCTION.match(line):
                instruction = _instruction(*match.groups())
                current[instruction.name] = instruction
        starts = (one for inside in self.computations.values() for one in inside.values() if _BEGINS in one.text)
        self._begun = {name for one in starts for name in one.operands}

    def loops(self, computation: str) -> list[Instruction]:
        """Returns the while loops directly in a computation."""
        return [one for one in self.computations[computation].values() if one.opcode == "while"]

    def trips(self, loop: Instruction) -> int | None:
        """Returns a loop's trip count: the compiler's, or the constant at which its condition ends it, or `None`."""
        if loop.trips is not None:
            return loop.trips
        condition = self.computations.get(loop.computation("condition"), {})
        ends = next((one for one in condition.values() if one.root), None)
        if ends is None or ends.opcode != "compare" or ends.find(r"direction=(\w+)") != "LT":
            return None
        counter, bound = (condition.get(name) for name in ends.operands)
        if counter is None or counter.opcode != "get-tuple-element" or bound is None or bound.opcode != "constant":
            return None
        return int(bound.inside)  # JAX's loops count up from 0

    def steps(self, computation: str, trips: Callable[[Instruction], int], times: int = 1) -> Iterator[Step]:
        """Yields all instructions that run in a computation; of several branches, those of the most bytes."""
        inside = self.computations[computation]
        for one in inside.values():
            if one.opcode == "while":
                count = self.trips(one)
                count = trips(one) if count is None else count
                yield from self.steps(one.computation("body"), trips, times * count)
            elif one.opcode == "conditional":
                yield from self.steps(self.branch(one, trips), trips, times)
            elif one.opcode == "call":
                yield from self.steps(one.computation("to_apply"), trips, times)
            elif one.opcode not in FREE:
                yield Step(one, times, self.moved(one, inside), inside)

    def branch(self, one: Instruction, trips: Callable[[Instruction], int]) -> str:
        """Returns the branch of a conditional that is counted: the one that moves the most bytes."""
        size = lambda name: sum(step.bytes * step.times for step in self.steps(name, trips))  # noqa: E731
        return max(one.branches, key=size)

    def collectives(self, step: Step) -> Iterator[tuple[str, tuple[Array, ...]]]:
        """Yields the kind and the results of each collective that an instruction is or contains."""
        for one in (step.instruction, *self.called(step.instruction)):
            kind = one.opcode.removesuffix("-start")
            if kind in COLLECTIVES and not (_ALONG in one.text and one.name not in self._begun):
                yield kind, _yielded(one)

    def called(self, one: Instruction) -> Iterator[Instruction]:
        """Yields the instructions of the computations that one calls, directly or indirectly."""
        # A TPU7x starts a call for work on its sparse cores, such as a gather.
        attribute = "to_apply" if one.opcode == "call-start" else "calls"
        for inner in self.computations.get(one.computation(attribute), {}).values():
            yield inner
            yield from self.called(inner)

    def kernel(self, one: Instruction) -> Kernel | None:
        """Returns the Pallas kernel that an instruction runs, or `None`."""
        return kernel_of(one.text, self._blocks) if one.opcode == "custom-call" else None

    def moved(self, one: Instruction, inside: Computation) -> int:
        """Returns the bytes of main memory that an instruction reads and writes."""
        if one.opcode.endswith("-done") or one.opcode.endswith("-update"):
            return 0
        operands = [inside[name].arrays for name in one.operands if name in inside]
        if one.opcode.endswith("-start") and one.opcode.removesuffix("-start") in ("copy", "slice"):
            into = one.arrays[1]
            return into.size if not (into.local and one.arrays[0].local) else 0
        if (kernel := self.kernel(one)) is not None:
            return kernel.bytes([(array.far, array.bits) for arrays in (*operands, one.arrays) for array in arrays])
        if one.opcode in _SLICES:
            return sum(2 * array.far for array in one.arrays) if not one.arrays[0].local else one.arrays[0].size
        if one.opcode == "dynamic-update-slice":
            return 2 * sum(array.far for array in operands[1])
        if one.opcode == "fusion" and (fused := self.computations.get(one.computation("calls"))):
            read = sum(self._read(fused, index, arrays) for index, arrays in enumerate(operands))
            return read + self._written(one, fused)
        return sum(array.far for arrays in (*operands, _yielded(one)) for array in arrays)

    def _read(self, fused: Computation, index: int, arrays: tuple[Array, ...]) -> int:
        """Returns the bytes that a fusion reads of an operand: slices of it, or all."""
        far = sum(array.far for array in arrays)
        parameter = next((x for x in fused.values() if x.opcode == "parameter" and x.inside == str(index)), None)
        if far == 0 or parameter is None:
            return far
        return min(far, self._used(fused, parameter))

    def _used(self, fused: Computation, value: Instruction) -> int:
        total, whole = 0, sum(array.size for array in value.arrays)
        for user in fused.values():
            for place in (i for i, name in enumerate(user.operands) if name == value.name):
                if user.opcode in _SLICES and place == 0:
                    total += sum(array.size for array in user.arrays)
                elif user.opcode == "dynamic-update-slice" and place == 0:
                    continue
                elif self.is_view(user):
                    total += self._used(fused, user) if not user.root else whole
                elif user.opcode == "fusion" and (inner := self.computations.get(user.computation("calls"))):
                    total += self._read(inner, place, tuple(dataclasses.replace(a, local=False) for a in value.arrays))
                else:
                    return whole
        return total

    def is_view(self, user: Instruction) -> bool:
        """Returns whether an instruction is only a view of its operand, or a fusion of only a copy of it."""
        if user.opcode != "fusion":
            return user.opcode == "bitcast"
        inner = self.computations.get(user.computation("calls"), {})
        return all(one.opcode in ("parameter", "bitcast", "copy") for one in inner.values())

    def _written(self, one: Instruction, fused: Computation) -> int:
        """Returns the bytes that a fusion writes; only the update, for a buffer that it updates in place."""
        root = next(x for x in fused.values() if x.root)
        parts = [fused[name] for name in root.operands] if root.opcode == "tuple" else [root]
        total = 0
        for array, part in zip(one.arrays, parts, strict=False):
            while part.opcode == "bitcast" and part.operands[0] in fused:
                part = fused[part.operands[0]]
            update = fused.get(part.operands[1]) if part.opcode == "dynamic-update-slice" else None
            total += array.far if update is None else min(array.far, sum(x.size for x in update.arrays))
        return total
