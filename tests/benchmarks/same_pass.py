"""Compares the target's pass in the compiled round and plain step: `python -m tests.benchmarks.same_pass`.

Prints each product and reduction of both programs side by side, and exits with 1 where shapes, layouts, contracted axes
or the kind of the fusion differ. Where a weight is read from, and what the compiler fetches ahead, do not count. From
that it chooses how a product is cut, too: such differences are counted, and whether they change a sum is not known.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxspec.compiled.ahead_of_time import Case, compile_case
from jaxspec.compiled.hlo import Array, Program
from jaxspec.compiled.round import round_of, trips
from jaxspec.families.table import SHAPES

_SUMS = ("dot", "convolution", "reduce", "reduce-window")
_TILES = ("kernel_window_bounds", "input_window_bounds", "output_window_bounds")


@dataclasses.dataclass(frozen=True)
class Sum:
    """Describes a product or a reduction as it was compiled.

    Attributes:
      scope: where in the transformer it was traced.
      arrays: the result, then the operands: dtype, shape, layout with tiles.
      dimensions: which axes of a product are contracted.
      fusion: the kind of the fusion that it is in.
    """

    scope: str
    opcode: str
    arrays: tuple[str, ...]
    dimensions: str | None
    fusion: str | None


# How the compiler cuts each, in as many ways as it stands in a program.
Sums = dict[Sum, set[tuple[str | None, ...]]]


def sums_of(case: Case, text: str) -> Sums:
    """Returns the products and reductions of the target's pass in a program's round."""
    program, found = Program(text), Sums()
    inside = {id(one): computation for computation in program.computations.values() for one in computation.values()}
    for step in program.steps(round_of(program), lambda loop: trips(case, loop)):
        outer = step.instruction
        for one in (outer, *program.called(outer)):
            scope = (one.scope or outer.scope).partition("/verify/Transformer/")[2]
            if one.opcode in _SUMS and scope:
                operands = [inside[id(one)][name] for name in one.operands if name in inside[id(one)]]
                arrays = tuple(_written(array) for each in (one, *operands) for array in each.arrays)
                tiles = tuple(outer.find(rf'"{name}":(\[[^\]]*\])') for name in _TILES)
                kind = outer.find(r"kind=(\w+)")
                own = Sum(scope, one.opcode, arrays, one.find(r"dim_labels=([^,]+)"), kind)
                found.setdefault(own, set()).add(tiles)
    return found


def _written(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}{{{array.layout}}}"


def cut_otherwise(mine: Sums, theirs: Sums) -> list[Sum]:
    """Returns what both programs have, and cut in other ways."""
    return [one for one in mine if one in theirs and mine[one] != theirs[one]]


def compare(case: Case) -> tuple[Sums, Sums]:
    """Compiles a round and a plain step, and returns the sums of both."""
    alone = dataclasses.replace(case, drafter="none", k=0, draft_devices=None)
    return sums_of(case, compile_case(case).text), sums_of(alone, compile_case(alone).text)


def shortened(model: str, layers: int, folder: Path) -> str:
    """Writes a configuration of `SHAPES` with fewer layers, and returns its path."""
    path = folder / "config.json"
    path.write_text(json.dumps(SHAPES[model] | {"num_hidden_layers": layers}))
    return str(path)


def lines(mine: Sums, theirs: Sums) -> Iterator[str]:
    """Yields each sum with how it is cut in the round, and then in the plain step."""
    for one in sorted(mine.keys() | theirs.keys(), key=repr):
        mark = "  " if one in mine and one in theirs else "r " if one in mine else "p "
        cut = "; ".join(str(sorted(each.get(one, ()), key=repr)) for each in (mine, theirs))
        yield f"{mark}{one.scope}: {one.opcode} {' '.join(one.arrays)} {one.dimensions} {one.fusion}; cut {cut}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.same_pass", description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pass-tokens", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = shortened(options.model, options.layers, Path(folder))
        mine, theirs = compare(Case(path, options.drafter, options.topology, pass_tokens=options.pass_tokens))
    print(*lines(mine, theirs), sep="\n")
    parts = mine.keys() ^ theirs.keys()
    print(
        f"{len(mine.keys() | theirs.keys())} products and reductions, {len(parts)} of one program alone; "
        f"{len(cut_otherwise(mine, theirs))} that the compiler cuts otherwise"
    )
    sys.exit(1 if parts else 0)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")
    main()
