"""Reports the costs of a round on TPUs, for `jaxspec compile-report`: bytes, cycles, collectives and copies.

Each case compiles two programs, of speculative and of plain decoding. Everything is read
from them; nothing runs. Times are brackets (`jaxspec.compiled.bracket`).
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from jaxspec.compiled.ahead_of_time import Case, Compiled, compile_case
from jaxspec.compiled.arithmetic import flops
from jaxspec.compiled.bracket import Bracket, Code, Constants, Range
from jaxspec.compiled.copies import Copies, copies
from jaxspec.compiled.hlo import Instruction, Program
from jaxspec.compiled.round import least_bytes, name_of, round_of, trips
from jaxspec.ops.pallas.attention import BLOCK

# Bytes of a gathered array below which it is not a weight.
_LARGE = 2**20
# Largest number of drafts for which speed-ups are listed: a tree has more, but few on one path.
_MOST = 15
_UNREAD: Mapping[str, Code] = MappingProxyType({})
# Returns the known machine code of a newly compiled program, by instruction name.
ReadCode = Callable[[Program], Mapping[str, Code]]


@dataclasses.dataclass(frozen=True)
class Costs:
    """Holds the costs of one round, or of one step of plain decoding, on one device.

    Attributes:
      bytes: bytes moved from and to main memory.
      least_bytes: bytes of the weights and of the live cache, divided by the number of devices.
      flops: multiplications and additions of products; those of kernels are not counted.
      cycles: the compiler's estimate, summed over instructions; collectives have no estimate.
      operations: number of instructions that the compiler charges for.
      low: lower bound of the time, in seconds.
      high: upper bound of the time, in seconds.
      layer_collectives: number of collectives per layer of the target, by kind.
      layer_collective_bytes: bytes of the results of one layer's collectives.
      other_collectives: number of collectives outside the target's layers, by kind.
      gathered_bytes: bytes of collectives' results that are as large as a weight.
      copies: bytes of moved whole arrays that are as large as a cache or a weight.
      loops: assumed trip counts of loops whose length depends on data, by scope.
    """

    bytes: int
    least_bytes: float
    flops: int
    cycles: int
    operations: int
    low: float
    high: float
    layer_collectives: dict[str, float]
    layer_collective_bytes: float
    other_collectives: dict[str, int]
    gathered_bytes: int
    copies: Copies
    loops: dict[str, int]

    @property
    def copied_bytes(self) -> int:
        """Bytes of main memory read and written by copies of arrays as large as a cache or a weight."""
        return self.copies.main


def costs(
    case: Case,
    compiled: Compiled,
    constants: Constants = Constants(),  # noqa: B008 (frozen)
    read_code: ReadCode = lambda _: _UNREAD,
) -> Costs:
    """Reads the costs from a program that fits.

    Args:
      case: case that was compiled.
      compiled: its program.
      constants: ranges that the compiler does not state.
      read_code: function that reads the program's machine code, which raises the low end; by default none is known.

    Raises:
      ValueError: if the program does not have exactly one loop over rounds.
    """
    # The attention kernel reads the live blocks, whose number depends on data; here all are live.
    program = Program(compiled.text, blocks=math.ceil(case.context / BLOCK))
    loops: dict[str, int] = {}

    def counted(loop: Instruction) -> int:
        count, name = trips(case, loop), name_of(loop)
        loops[name] = max(count, loops.get(name, 0))
        return count

    steps = list(program.steps(round_of(program), counted))
    moved = sum(step.bytes * step.times for step in steps)
    layers = compiled.target.module.config.num_layers
    inside, outside, sizes, gathered = Counter(), Counter(), 0, 0
    for step in steps:
        for kind, arrays in program.collectives(step):
            size = sum(array.size for array in arrays)
            gathered += size * step.times if size >= _LARGE else 0
            if "/layer_" in step.instruction.scope and "/propose/" not in step.instruction.scope:
                inside[kind] += step.times / layers
                sizes += size * step.times / layers
            else:
                outside[kind] += step.times
    messages = round(layers * sum(inside.values())) + sum(outside.values())
    time = Bracket(program, counted, read_code(program), compiled.chip, constants).seconds(round_of(program), messages)
    return Costs(
        bytes=moved,
        least_bytes=least_bytes(case, compiled),
        flops=sum(flops(program, step.instruction, step.inside) * step.times for step in steps),
        cycles=sum(step.instruction.cycles * step.times for step in steps),
        operations=sum(step.times for step in steps if step.instruction.cycles),
        low=time.low,
        high=time.high,
        layer_collectives={kind: round(count, 2) for kind, count in sorted(inside.items())},
        layer_collective_bytes=sizes,
        other_collectives=dict(sorted(outside.items())),
        gathered_bytes=gathered,
        copies=copies(program, round_of(program), steps),
        loops=loops,
    )


@dataclasses.dataclass(frozen=True)
class Report:
    """Holds the costs of a case's two programs; `round` and `plain` are `None` if one does not fit.

    Attributes:
      devices: number of devices.
      memory: bytes that each device needs.
      available: bytes that each device has.
      source: origin of the bracket's constants.
    """

    case: Case
    devices: int
    memory: int
    available: int
    round: Costs | None
    plain: Costs | None
    source: str = Constants().source

    @property
    def fits(self) -> bool:
        """Whether the program fits in memory."""
        return self.round is not None

    @property
    def speed_up(self) -> dict[int, Range]:
        """Range of the speed-up over plain decoding, by mean number of tokens per round."""
        if self.round is None or self.plain is None:
            return {}
        most = 1 if self.case.drafter == "none" else min(self.case.k, _MOST) + 1
        ratios = sorted((self.plain.low / self.round.low, self.plain.high / self.round.high))
        return {tokens: Range(*(tokens * ratio for ratio in ratios)) for tokens in range(1, most + 1)}

    @property
    def breaks_even(self) -> Range | None:
        """Range of the mean number of tokens per round from which on drafts pay; `None` without drafts."""
        if self.round is None or self.plain is None or self.case.drafter == "none":
            return None
        return Range(*sorted((self.round.low / self.plain.low, self.round.high / self.plain.high)))


def report(
    case: Case,
    constants: Constants = Constants(),  # noqa: B008 (frozen)
    read_code: ReadCode = lambda _: _UNREAD,
) -> Report:
    """Compiles a case and reads its programs.

    Args:
      case: case to compile.
      constants: ranges that the compiler does not state.
      read_code: function that reads a program's machine code, as for `costs`.

    Raises:
      ValueError: if there is no such topology, model or number of devices.
      ImportError: if the TPU compiler is not installed.
    """
    compiled = compile_case(case)
    sizes = (case, compiled.devices, compiled.memory, compiled.chip.memory)
    if not compiled.text:
        return Report(*sizes, round=None, plain=None, source=constants.source)
    own = costs(case, compiled, constants, read_code)
    if case.drafter == "none":
        return Report(*sizes, round=own, plain=own, source=constants.source)
    alone = dataclasses.replace(case, drafter="none", k=0, draft_devices=None)
    plain = costs(alone, compile_case(alone), constants, read_code)
    return Report(*sizes, round=own, plain=plain, source=constants.source)


def as_json(one: Report) -> str:
    """Returns a report as one line of JSON."""
    return json.dumps(
        dataclasses.asdict(one) | {"fits": one.fits, "speed_up": one.speed_up, "breaks_even": one.breaks_even}
    )


def lines(one: Report) -> Iterator[tuple[str, str]]:
    """Yields the lines of a report, each a name and a value."""
    case, own, over = one.case, one.round, one.memory - one.available
    yield "target, drafter", f"{case.model}, {case.drafter}, k = {case.k}"
    yield (
        "devices",
        f"{one.devices} of {case.topology}, {_rows(case)}, context {case.context}, {case.weights} weights",
    )
    room = f"{-over / 1e9:.1f} GB to spare" if one.fits else f"does not fit: {over / 1e9:.1f} GB too much"
    yield "memory a device", f"{one.memory / 1e9:.2f} GB of {one.available / 1e9:.1f}, {room}"
    if own is None or one.plain is None:
        return
    yield "read a round", f"{own.bytes / 1e9:.3f} GB, {own.bytes / own.least_bytes:.2f} of the least possible"
    yield "products a round", f"{own.flops / 1e9:,.1f} billion multiplications and additions"
    yield "collectives a layer", f"{kinds(own.layer_collectives, ', ')}; {own.layer_collective_bytes:,.0f} bytes"
    others = kinds(own.other_collectives, ", ")
    yield "elsewhere in a round", f"{others}; as large as a weight: {own.gathered_bytes:,} bytes"
    yield "large copies a round", f"{own.copies.main:,} bytes in the main memory, {own.copies.chip:,} on the chip"
    yield "moved as they are", f"caches {own.copies.carried:,} bytes; weights, ahead of use: {own.copies.fetched:,}"
    yield "loops counted", ", ".join(f"{name} {count} x" for name, count in own.loops.items()) or "none"
    for name, program in (("round", own), ("plain step", one.plain)):
        yield name, f"{between(program.low * 1e3, program.high * 1e3)} ms"
        yield "", f"{program.operations:,} operations, charged {program.cycles:,} cycles"
    yield "constants", one.source
    if (pays := one.breaks_even) is not None:
        yield "drafts pay from", f"{between(*pays)} tokens a round"
    for tokens, ratio in one.speed_up.items():
        yield f"speed-up, {tokens} a round", between(*ratio)


def _rows(case: Case) -> str:
    return f"batch {case.batch}" if case.slots is None else f"{case.slots} slots, all live"


def between(low: float, high: float) -> str:
    """Formats both ends of a bracket."""
    return f"{low:.2f} to {high:.2f}"


def kinds(collectives: Mapping[str, int] | Mapping[str, float], between: str) -> str:
    """Formats the number of collectives of each kind."""
    return between.join(f"{count:g} {kind}" for kind, count in collectives.items()) or "none"
