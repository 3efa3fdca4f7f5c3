"""Reports the costs of a round on GPUs, for `jaxspec compile-report --gpu`: kernels, waits of the host, and bytes.

Each case compiles two programs, of speculative and of plain decoding. Everything is read from them; nothing
runs, and no time is reported.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator

from jaxspec.compiled.ahead_of_time import Case, Compiled, compile_case
from jaxspec.compiled.hlo import Computation, Instruction, Program
from jaxspec.compiled.round import least_bytes, round_of, trips
from jaxspec.compiled.tpu import kinds
from jaxspec.nn.cache import BLOCK

_VIEWS = ("bitcast", "get-tuple-element")
_KERNEL = 'custom_call_target="__gpu$xla.gpu.triton"'


class GpuProgram(Program):
    """Reads a program compiled for GPUs."""

    def moved(self, one: Instruction, inside: Computation) -> int:
        """Returns the bytes that an instruction reads and writes; kernels touch one layer of a cache."""
        if _KERNEL not in one.text:
            return super().moved(one, inside)
        read = sum(_read(array) for name in one.operands if name in inside for array in inside[name].arrays)
        return read + sum(array.size for array in one.arrays)

    def in_layers(self) -> set[str]:
        """Returns the instructions in the target's layers by name; split products have no scope, but their users do."""
        found = set[str]()
        for inside in self.computations.values():
            for one in inside.values():
                if "/layer_" in one.scope and "/propose/" not in one.scope:
                    found |= {one.name, *self._unnamed(one, inside)}
        return found

    def _unnamed(self, one: Instruction, inside: Computation) -> Iterator[str]:
        for read in (inside[name] for name in one.operands if name in inside):
            if read.opcode in _VIEWS:
                yield from self._unnamed(read, inside)
            elif not read.scope:
                yield read.name

    def conditions(self, computation: str, case: Case, times: int = 1) -> int:
        """Counts the conditions that the host reads from the card in a computation, including each loop's last."""
        total = 0
        for one in self.computations[computation].values():
            if one.opcode == "while":
                known = self.trips(one)
                count = trips(case, one) if known is None else known
                total += times * (count + 1) if known is None else 0
                total += self.conditions(one.computation("body"), case, times * count)
            elif one.opcode == "conditional":
                total += times + self.conditions(self.branch(one, lambda loop: trips(case, loop)), case, times)
            elif one.opcode == "call":
                total += self.conditions(one.computation("to_apply"), case, times)
        return total


def _read(array) -> int:
    """Returns the bytes of an operand that a kernel reads; one layer of a cache."""
    of_cache = len(array.shape) >= 4 and array.shape[3] >= BLOCK and array.shape[3] % BLOCK == 0
    return array.size // array.shape[0] if of_cache else array.size


@dataclasses.dataclass(frozen=True)
class GpuCosts:
    """Holds the costs of one round, or of one step of plain decoding, on one GPU.

    Attributes:
      bytes: bytes moved from and to main memory, regardless of on-chip caches.
      least_bytes: bytes of the weights and of the live cache, divided by the number of devices.
      kernels: number of kernels.
      layer_kernels: number of kernels per layer of the target.
      conditions: number of conditions that the host reads from the card before it continues, including the round's.
      layer_collectives: number of collectives per layer of the target, by kind.
      other_collectives: number of collectives outside the target's layers, by kind.
    """

    bytes: int
    least_bytes: float
    kernels: int
    layer_kernels: float
    conditions: int
    layer_collectives: dict[str, float]
    other_collectives: dict[str, int]


@dataclasses.dataclass(frozen=True)
class GpuReport:
    """Holds the costs of a case's two programs; `round` and `plain` are `None` if one does not fit.

    Attributes:
      devices: number of devices.
      memory: bytes that each device needs.
      available: bytes that each device has.
    """

    case: Case
    devices: int
    memory: int
    available: int
    round: GpuCosts | None
    plain: GpuCosts | None


def costs(case: Case, compiled: Compiled) -> GpuCosts:
    """Reads the costs from a program that fits.

    Raises:
      ValueError: if the program does not have exactly one loop over rounds.
    """
    program = GpuProgram(compiled.text)
    body = round_of(program)
    steps = list(program.steps(body, lambda loop: trips(case, loop)))
    layers = compiled.target.module.config.num_layers
    in_layers = program.in_layers()
    kernels, inside, outside = Counter(), Counter(), Counter()
    for step in steps:
        own = step.instruction.name in in_layers
        kernels[own] += 0 if step.instruction.opcode.endswith("-done") else step.times
        for kind, _ in program.collectives(step):
            (inside if own else outside)[kind] += step.times
    return GpuCosts(
        bytes=sum(step.bytes * step.times for step in steps),
        least_bytes=least_bytes(case, compiled),
        kernels=sum(kernels.values()),
        layer_kernels=round(kernels[True] / layers, 1),
        conditions=program.conditions(body, case) + 1,
        layer_collectives={kind: round(count / layers, 2) for kind, count in sorted(inside.items())},
        other_collectives=dict(sorted(outside.items())),
    )


def report(case: Case) -> GpuReport:
    """Compiles a case and reads its programs.

    Raises:
      ValueError: if there is no such topology, model or number of devices.
      ImportError: if the GPU compiler is not installed.
    """
    compiled = compile_case(case)
    sizes = (case, compiled.devices, compiled.memory, compiled.chip.memory)
    if not compiled.text or compiled.memory > compiled.chip.memory:
        return GpuReport(*sizes, round=None, plain=None)
    own = costs(case, compiled)
    alone = dataclasses.replace(case, drafter="none", k=0, draft_devices=None)
    plain = own if case.drafter == "none" else costs(alone, compile_case(alone))
    return GpuReport(*sizes, round=own, plain=plain)


def as_json(one: GpuReport) -> str:
    """Returns a report as one line of JSON."""
    return json.dumps(dataclasses.asdict(one))


def lines(one: GpuReport) -> Iterator[tuple[str, str]]:
    """Yields the lines of a report, each a name and a value."""
    case, over = one.case, one.memory - one.available
    yield "target, drafter", f"{case.model}, {case.drafter}, k = {case.k}"
    sizes = f"batch {case.batch}, context {case.context}, {case.weights} weights"
    yield "devices", f"{one.devices} of {case.topology}, {sizes}"
    room = f"{-over / 1e9:.1f} GB to spare" if over <= 0 else f"does not fit: {over / 1e9:.1f} GB too much"
    yield "memory a device", f"{one.memory / 1e9:.2f} GB of {one.available / 1e9:.1f}, {room}"
    for name, own in (("round", one.round), ("plain step", one.plain)):
        if own is None:
            continue
        yield name, f"{own.bytes / 1e9:.3f} GB, {own.bytes / own.least_bytes:.2f} of the least possible"
        yield "", f"{own.kernels:,} kernels, {own.layer_kernels:g} in a layer of the target"
        yield "", f"{own.conditions} conditions that the host reads from the card"
        yield "", f"a layer: {kinds(own.layer_collectives, ', ')}; elsewhere: {kinds(own.other_collectives, ', ')}"
