"""Finds weights that a compiled program holds wider than they are stored."""

import math
from collections.abc import Iterator

import jax

from jaxspec.compiled.hlo import Array, Program
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import packed_weights

# Moves and views, for example two int4 as one int8: their array is that of another instruction.
_VIEWS = {"bitcast", "slice-start", "slice-done", "copy-start", "copy-done"}
_BODIES = {"while": ("body", "condition"), "call": ("to_apply",), "async-start": ("calls",)}


def widened(program: Program, computation: str, model: LanguageModel) -> set[tuple[str, str, tuple[int, ...]]]:
    """Returns name, dtype and shape of each array in a computation that is a weight, by its size, and is wider.

    The result of an instruction is in memory, or is carried around a loop; values inside a fusion are not. An array
    that only happens to be as large is found too: choose sizes that no other array has.
    """
    bits = {}
    for weight in packed_weights(model):
        values = weight.stored
        size = math.prod(values.sharding.shard_shape(values.shape))
        bits[size] = max(bits.get(size, 0), jax.numpy.iinfo(values.dtype).bits)
    return {
        (name, array.dtype, array.shape)
        for name, array in _arrays(program, computation)
        if (size := math.prod(array.shape)) in bits and 8 * array.size > bits[size] * size
    }


def _arrays(program: Program, computation: str) -> Iterator[tuple[str, Array]]:
    for one in program.computations[computation].values():
        if one.opcode not in _VIEWS:
            yield from ((one.name, array) for array in one.arrays)
        for attribute in _BODIES.get(one.opcode, ()):
            yield from _arrays(program, one.computation(attribute))
        if one.opcode == "conditional":
            for branch in one.branches:
                yield from _arrays(program, branch)
