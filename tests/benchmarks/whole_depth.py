"""Extrapolates what a step of a whole model costs from programs of two and of four layers.

The costs of one more layer are added as often as the model has layers. At full depth each program takes minutes to
compile.
"""

import dataclasses
import tempfile
from pathlib import Path

from jaxspec.compiled.ahead_of_time import Case, compile_case
from jaxspec.compiled.tpu import Costs, costs
from jaxspec.families.table import SHAPES
from tests.benchmarks import machine_code
from tests.benchmarks.same_pass import shortened

FEW, MANY = 2, 4


@dataclasses.dataclass(frozen=True)
class Step:
    """Gives what a step costs a device: bytes, those it must read, products, the compiler's cycles, and both ends.

    Also the bytes that the program needs, the collectives, and the bytes of caches and weights that are laid out anew.
    """

    bytes: float
    least: float
    flops: float
    cycles: float
    low: float
    high: float
    memory: float
    collectives: float
    copied: float


def step(model: str, case: Case, *, with_code: bool = True) -> Step:
    """Compiles a case with few layers and with more, and returns its costs with all.

    Args:
      model: the name of the model in `SHAPES`.
      case: the case; its model is replaced.
      with_code: whether low ends count machine code, which libtpu was asked to write (`machine_code.ask_for_it`).
    """
    return extrapolated(model, [_step(model, layers, case, with_code) for layers in (FEW, MANY)])


def extrapolated(model: str, found: list[Step]) -> Step:
    """Returns the costs of a whole model, from those with few layers and with more."""
    more = (SHAPES[model]["num_hidden_layers"] - FEW) / (MANY - FEW)
    pairs = zip(*map(dataclasses.astuple, found), strict=True)
    return Step(*(few + (many - few) * more for few, many in pairs))


def _step(model: str, layers: int, case: Case, with_code: bool) -> Step:
    with tempfile.TemporaryDirectory() as folder:
        own = dataclasses.replace(case, model=shortened(model, layers, Path(folder)))
        if with_code:
            machine_code.collect()
        compiled = compile_case(own)
        read = machine_code.read_code if with_code else lambda _: {}
        cost = costs(own, compiled, read_code=read)
    return of_costs(cost, compiled.memory, layers)


def of_costs(cost: Costs, memory: int, layers: int) -> Step:
    """Returns the costs of a compiled program of a model of some layers."""
    collectives = layers * sum(cost.layer_collectives.values()) + sum(cost.other_collectives.values())
    times = cost.low, cost.high
    return Step(cost.bytes, cost.least_bytes, cost.flops, cost.cycles, *times, memory, collectives, cost.copies.main)
