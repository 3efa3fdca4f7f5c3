"""Compiles the products of a layer of experts for a TPU, in each form: `python -m tests.benchmarks.expert_products`.

Prints for a loop around both products of Qwen3-30B-A3B's layer on one device what they move, over the bytes of the
chosen experts, the memory for anything but arguments and results, and what the compiler charges. No two rows chose the
same expert.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxspec.compiled import devices
from jaxspec.compiled.hlo import Program
from jaxspec.compiled.round import round_of
from jaxspec.ops import experts

_COUNT, _WIDTH, _INNER = 128, 2048, 768
_FORMS = {"ragged": experts.ragged, "blocks": experts.by_blocks, "groups": experts.by_groups}


def line(form: str, topology: str, rows: int) -> str:
    """Compiles both products, and returns a row of the table."""
    found, chip = devices.tpus(topology)
    place = NamedSharding(devices.mesh_of(found[:1]), PartitionSpec())
    like = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=place)  # noqa: E731
    product = _FORMS[form]

    def layer(x, gate_up, down, chosen):
        both = product(x, gate_up, chosen)
        return product(jax.nn.silu(both[:, 0]) * both[:, 1], down, chosen)

    def loop(x, *weights):
        with jax.named_scope("rounds"):
            return jax.lax.while_loop(lambda x: jnp.sum(x) > 0, lambda x: layer(x, *weights), x)

    shapes = (rows, _WIDTH), (_COUNT, 2, _INNER, _WIDTH), (_COUNT, _WIDTH, _INNER)
    arguments = *(like(shape, jnp.bfloat16) for shape in shapes), like((rows,), jnp.int32)
    compiled = jax.jit(loop).trace(*arguments).lower(lowering_platforms=("tpu",)).compile()
    program = Program(compiled.as_text() or "")
    steps = list(program.steps(round_of(program), lambda _: 1))
    chosen = min(rows, _COUNT) * 3 * _INNER * _WIDTH * 2
    moved = sum(step.bytes * step.times for step in steps) / chosen
    charged = sum(step.instruction.cycles * step.times for step in steps) / chip.clock
    operations = sum(step.times for step in steps if step.instruction.cycles)
    sizes: Any = compiled.memory_analysis()
    temporary = sizes.temp_size_in_bytes
    return f"| {form} | {rows} | {moved:.2f} | {temporary / 1e6:.0f} | {operations} | {charged * 1e6:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.expert_products", description=__doc__)
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--forms", nargs="+", choices=_FORMS, default=list(_FORMS))
    options = parser.parse_args()
    print("| form | rows | bytes over those of the chosen | other memory, MB | operations | charged, µs |")
    print("|---|---|---|---|---|---|")
    for form in options.forms:
        for rows in options.rows:
            print(line(form, options.topology, rows), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
