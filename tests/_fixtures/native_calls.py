"""Raw calls of the native kernels, with shapes of every kind: right and odd ones, and wrong ones.

`python -m tests._fixtures.native_calls` makes all of them, for a library that was compiled with sanitizers.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.ops.native.build import ATTENTION, PRODUCT

# Rows, width, outputs: of every form of a product, of tails in all directions, and of nothing.
PRODUCTS = [(rows, 37, 11) for rows in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 131)]
PRODUCTS += [(3, width, 5) for width in (0, 1, 7, 8, 15, 16, 17, 31, 33, 576)]
PRODUCTS += [(rows, 19, outputs) for rows in (1, 9) for outputs in (0, 1, 3, 23, 24, 25, 49)]
PRODUCTS += [(5, 4099, 6), (9, 4099, 26), (2, 3, 1000)]
# Batch, fed tokens, pending ones, heads, group, width, slots, window, whether slots say their positions.
ATTENTIONS = [
    (1, 1, 0, 1, 1, 1, 1, 0, False),
    (2, 3, 1, 2, 2, 8, 16, 0, True),
    (1, 2, 0, 3, 1, 22, 33, 5, False),
    (3, 5, 4, 1, 3, 17, 31, 0, True),
    (2, 1, 40, 2, 4, 15, 129, 9, True),
    (1, 33, 0, 1, 3, 64, 300, 40, False),
    (2, 97, 3, 1, 1, 20, 257, 0, False),
    (1, 49, 0, 2, 2, 7, 128, 3, True),
    (1, 4, 0, 1, 5, 80, 0, 0, False),
    (0, 3, 0, 1, 2, 8, 16, 0, True),
    (2, 0, 3, 1, 2, 8, 16, 0, True),
    (1, 3, 0, 1, 2, 0, 16, 0, False),
    (2, 3, 0, 0, 2, 8, 16, 0, False),
]
_NAMES = ("queries", "fresh_keys", "fresh_values", "positions", "mask", "keys", "values", "lengths", "cache_positions")
_SHAPES = dict(
    zip(
        _NAMES,
        ((2, 3, 2, 2, 8), (2, 4, 2, 8), (2, 4, 2, 8), (2, 4), (2, 3, 4), *[(2, 2, 2, 16, 8)] * 2, (2,), (2, 16)),
        strict=True,
    )
)
# One thing wrong in each: the last axis, the first one, the rank; a layer, a window, a result; more fed than fresh.
WRONG_ATTENTIONS = [{name: (*shape[:-1], shape[-1] + 1)} for name, shape in _SHAPES.items()]
WRONG_ATTENTIONS += [{name: (shape[0] + 1, *shape[1:])} for name, shape in _SHAPES.items() if name not in ("keys",)]
WRONG_ATTENTIONS += [{name: shape[:-1]} for name, shape in _SHAPES.items()]
WRONG_ATTENTIONS += [{"layer": 2}, {"layer": -1}, {"window": -1}, {"result": (2, 3, 2, 2, 9)}]
WRONG_ATTENTIONS += [{"fresh_keys": (2, 2, 2, 8), "fresh_values": (2, 2, 2, 8), "positions": (2, 2), "mask": (2, 3, 2)}]
WRONG_PRODUCTS = [((3, 8), (5, 9), (3, 5)), ((3, 8), (5, 8), (3, 6)), ((3, 8), (5, 8), (2, 5)), ((8,), (5, 8), (5,))]


def product(x, weights, result):
    """The kernel's product of two arrays, into a result of this shape."""
    run = jax.ffi.ffi_call(PRODUCT, jax.ShapeDtypeStruct(result, jnp.float32))
    return np.asarray(jax.jit(run)(x, weights))


def attention(arrays, *, layer=1, window=0, scale=0.3, result=None):
    """The kernel's attention over arrays by their names."""
    queries = arrays["queries"]
    shape = jax.ShapeDtypeStruct(queries.shape if result is None else result, jnp.float32)
    options = {"layer": np.int64(layer), "window": np.int64(window), "scale": np.float32(scale)}
    return np.asarray(jax.jit(lambda *x: jax.ffi.ffi_call(ATTENTION, shape)(*x, **options))(*arrays.values()))


def wrong_attention(case):
    """A call in which something is wrong."""
    shapes = {name: case.get(name, shape) for name, shape in _SHAPES.items()}
    options = {name: value for name, value in case.items() if name not in shapes}
    return attention(_arrays(shapes, np.random.default_rng(0)), **options)


def odd_attention(case):
    """A call of odd shapes, and its arrays."""
    batch, time, pending, heads, group, width, slots, window, numbered = case
    fresh = pending + time
    shapes = ((batch, time, heads, group, width), *[(batch, fresh, heads, width)] * 2, (batch, fresh))
    shapes += (
        (batch, time, fresh),
        *[(2, batch, heads, slots, width)] * 2,
        (batch,),
        (batch, slots) if numbered else (0, 0),
    )
    arrays = _arrays(dict(zip(_NAMES, shapes, strict=True)), np.random.default_rng(slots + time))
    return attention(arrays, window=window), arrays


def _arrays(shapes, rng):
    slots = shapes["keys"][3]
    arrays = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    # One history of no length at all, one of more than there are slots, and one that no program would write.
    lengths = np.resize([slots // 2 + 1, -300, slots + 7], shapes["lengths"])
    arrays["lengths"] = jnp.asarray(lengths, jnp.int32)
    for name in ("positions", "cache_positions"):
        places = np.arange(np.prod(shapes[name], dtype=int)).reshape(shapes[name])
        arrays[name] = jnp.asarray(places % max(1, shapes[name][-1]), jnp.int32)
    own = np.arange(shapes["mask"][-1]) % 2 == 0
    arrays["mask"] = jnp.asarray((rng.random(shapes["mask"]) < 0.5) | own)
    return arrays


def _fails(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return "INVALID_ARGUMENT" in str(error)
    return False


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)  # of the compiler
    from jaxspec.ops.native.build import register

    register()
    draw = np.random.default_rng(0)
    for rows, width, outputs in PRODUCTS:
        for dtype in (jnp.float32, jnp.bfloat16):
            x, weights = draw.normal(size=(rows, width)), jnp.asarray(draw.normal(size=(outputs, width)), dtype)
            product(jnp.asarray(x, jnp.float32), weights, (rows, outputs))
    for case in ATTENTIONS:
        odd_attention(case)
    for shapes in WRONG_PRODUCTS:
        x, weights, result = shapes
        assert _fails(product, jnp.ones(x), jnp.ones(weights), result), shapes
    for case in WRONG_ATTENTIONS:
        assert _fails(wrong_attention, case), case
    print("all calls were made")
