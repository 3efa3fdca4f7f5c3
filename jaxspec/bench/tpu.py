"""Reports what a round costs on TPUs, for `jaxspec compile-report`: bytes, cycles, collectives and copies.

For a case two programs are compiled, of speculative and of plain decoding. Everything is read
from them; nothing is run. Times are brackets (`jaxspec.bench.compiled.bracket`).
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping

from jaxspec.bench.ahead_of_time import Case, Compiled, compile_case
from jaxspec.bench.compiled.bracket import Bracket
from jaxspec.bench.compiled.constants import Constants, Range
from jaxspec.bench.compiled.copies import Copies, copies
from jaxspec.bench.compiled.least import least_bytes
from jaxspec.bench.compiled.loops import name_of, round_of, trips
from jaxspec.bench.compiled.machine_code import of_instructions
from jaxspec.bench.hlo import Instruction, Program
from jaxspec.ops.pallas.attention import BLOCK

# A gathered array below this is no weight.
_LARGE = 2**20
# Drafts a round that gains are listed for: a tree has more, and few of them on one path.
_MOST = 15


@dataclasses.dataclass(frozen=True)
class Costs:
    """Gives the costs of one round, or one step of plain decoding, on one device.

    Attributes:
      bytes: moved from and to the main memory.
      least_bytes: the weights it must read and the live cache, over the number of devices.
      cycles: the compiler's estimate, summed over instructions; collectives have none.
      operations: how many instructions the compiler charges anything for.
      words: instruction words of the machine code of all of them, loops inside an operation once.
      waits: blocking waits in it.
      low: seconds that it takes at least.
      high: seconds that it takes at most.
      layer_collectives: how many of each kind a layer of the target has.
      layer_collective_bytes: how many bytes those of one layer yield.
      other_collectives: how many of each kind there are outside the target's layers.
      gathered_bytes: results of collectives that are as large as a weight.
      copies: bytes of arrays as large as a cache or a weight that are moved whole, wherever they lie.
      loops: the loops whose length depends on data, by their scopes, and how many trips of each are counted.
    """

    bytes: int
    least_bytes: float
    cycles: int
    operations: int
    words: float
    waits: int
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
        """Bytes of main memory that copies of arrays as large as a cache or a weight read and write."""
        return self.copies.main


def costs(case: Case, compiled: Compiled, constants: Constants = Constants()) -> Costs:  # noqa: B008 (frozen)
    """Reads the costs from a program that fits.

    Args:
      case: what was compiled.
      compiled: its program.
      constants: the ranges of what no compiler says.

    Raises:
      ValueError: the program has not exactly one loop over rounds.
    """
    # The attention kernel reads the live blocks, whose number depends on data: here all.
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
    code = of_instructions(program, compiled.code)
    found = [(step.times, code[step.instruction.name]) for step in steps if step.instruction.name in code]
    messages = round(layers * sum(inside.values())) + sum(outside.values())
    time = Bracket(program, counted, code, compiled.chip, constants).seconds(round_of(program), messages)
    return Costs(
        bytes=moved,
        least_bytes=least_bytes(case, compiled),
        cycles=sum(step.instruction.cycles * step.times for step in steps),
        operations=sum(step.times for step in steps if step.instruction.cycles),
        words=sum(times * each.bundles for times, each in found),
        waits=sum(times * each.waits for times, each in found),
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
    """Gives the costs of a case's two programs; `round` and `plain` are `None` if one does not fit.

    Attributes:
      devices: how many run it.
      memory: bytes that each needs.
      available: bytes that each has.
      source: what the bracket's constants come from.
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
        """Whether the program fits the memory."""
        return self.round is not None

    @property
    def speed_up(self) -> dict[int, Range]:
        """The gain over plain decoding at both ends of the bracket, the lesser first, by a round's mean tokens."""
        if self.round is None or self.plain is None:
            return {}
        most = 1 if self.case.draft == "none" else min(self.case.k, _MOST) + 1
        ratios = sorted((self.plain.low / self.round.low, self.plain.high / self.round.high))
        return {tokens: Range(*(tokens * ratio for ratio in ratios)) for tokens in range(1, most + 1)}


def report(case: Case, constants: Constants = Constants()) -> Report:  # noqa: B008 (frozen)
    """Compiles a case and reads its programs.

    Args:
      case: what to compile.
      constants: the ranges of what no compiler says.

    Raises:
      ValueError: there is no such topology, model or number of devices.
      ImportError: the TPU compiler is not installed.
    """
    compiled = compile_case(case)
    sizes = (case, compiled.devices, compiled.memory, compiled.chip.memory)
    if not compiled.text:
        return Report(*sizes, round=None, plain=None, source=constants.source)
    own = costs(case, compiled, constants)
    if case.draft == "none":
        return Report(*sizes, round=own, plain=own, source=constants.source)
    alone = dataclasses.replace(case, draft="none", k=0, draft_devices=None)
    plain = costs(alone, compile_case(alone), constants)
    return Report(*sizes, round=own, plain=plain, source=constants.source)


def as_json(one: Report) -> str:
    """Returns a report as one line of JSON."""
    return json.dumps(dataclasses.asdict(one) | {"fits": one.fits, "speed_up": one.speed_up})


def lines(one: Report) -> Iterator[tuple[str, str]]:
    """Yields a report line by line: a name and a value."""
    case, own, over = one.case, one.round, one.memory - one.available
    yield "target, draft", f"{case.model}, {case.draft}, k = {case.k}"
    yield (
        "devices",
        f"{one.devices} of {case.topology}, batch {case.batch}, context {case.context}, {case.weights} weights",
    )
    room = f"{-over / 1e9:.1f} GB to spare" if one.fits else f"does not fit: {over / 1e9:.1f} GB too much"
    yield "memory a device", f"{one.memory / 1e9:.2f} GB of {one.available / 1e9:.1f}, {room}"
    if own is None or one.plain is None:
        return
    yield "read a round", f"{own.bytes / 1e9:.3f} GB, {own.bytes / own.least_bytes:.2f} of the least possible"
    yield "collectives a layer", f"{kinds(own.layer_collectives, ', ')}; {own.layer_collective_bytes:,.0f} bytes"
    others = kinds(own.other_collectives, ", ")
    yield "elsewhere in a round", f"{others}; as large as a weight: {own.gathered_bytes:,} bytes"
    yield "large copies a round", f"{own.copies.main:,} bytes in the main memory, {own.copies.chip:,} on the chip"
    yield "moved as they are", f"caches {own.copies.carried:,} bytes; weights, ahead of use: {own.copies.fetched:,}"
    yield "loops counted", ", ".join(f"{name} {count} x" for name, count in own.loops.items()) or "none"
    for name, program in (("round", own), ("plain step", one.plain)):
        yield name, f"{between(program.low * 1e3, program.high * 1e3)} ms"
        charged = f"{program.operations:,} operations, charged {program.cycles:,} cycles"
        yield "", f"{charged}; machine code {program.words:,.0f} words, {program.waits:,} waits"
    yield "constants", one.source
    for tokens, ratio in one.speed_up.items():
        yield f"speed-up, {tokens} a round", between(*ratio)


def between(low: float, high: float) -> str:
    """Formats both ends of a bracket."""
    return f"{low:.2f} to {high:.2f}"


def kinds(collectives: Mapping[str, int] | Mapping[str, float], between: str) -> str:
    """Formats how many collectives there are of each kind."""
    return between.join(f"{count:g} {kind}" for kind, count in collectives.items()) or "none"
