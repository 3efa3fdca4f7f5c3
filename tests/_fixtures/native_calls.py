"""Raw calls of the native kernels, with valid, unusual and invalid shapes.

`python -m tests._fixtures.native_calls` makes all of them, for a library that was compiled with sanitizers.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.native_sampling import DRAW, DRAW_NEXT, EXCESS, LOG_SUM_EXP, WARP
from jaxspec.ops.experts import project_by_expert
from jaxspec.ops.native.build import ATTENTION, PRODUCT, PRODUCT_BY_EXPERT, STORED_PRODUCT, STORED_ROWS
from jaxspec.ops.stored import BLOCKS, StoredWeight
from tests._fixtures.blocks import random_blocks

# Rows, width, outputs: of every form of a product, of tails in all directions, and of nothing.
PRODUCTS = [(rows, 37, 11) for rows in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 131)]
PRODUCTS += [(3, width, 5) for width in (0, 1, 7, 8, 15, 16, 17, 31, 33, 576)]
PRODUCTS += [(rows, 19, outputs) for rows in (1, 9) for outputs in (0, 1, 3, 23, 24, 25, 49)]
PRODUCTS += [(5, 4099, 6), (9, 4099, 26), (2, 3, 1000)]
# Rows of each of three experts, width or blocks of a row, outputs: experts that begin within a tile, and nothing.
BY_EXPERT = [((1, 0, 0), 8, 5), ((0, 9, 1), 17, 16), ((3, 2, 20), 33, 37), ((0, 0, 0), 8, 5), ((2, 2, 2), 1, 0)]
STORED_BY_EXPERT = [((1, 0, 0), 1, 5), ((0, 9, 1), 2, 16), ((3, 2, 20), 1, 37), ((0, 0, 0), 1, 5), ((2, 2, 2), 1, 0)]
# The shapes of x, experts, weights and result; the last numbers are of an expert that is not there.
WRONG_BY_EXPERT = [((3, 8), (2,), (3, 5, 8), (3, 5), 0), ((3, 8), (3,), (3, 5, 9), (3, 5), 0)]
WRONG_BY_EXPERT += [((3, 8), (3, 1), (3, 5, 8), (3, 5), 0), ((3, 8), (3,), (5, 8), (3, 5), 0)]
WRONG_BY_EXPERT += [((3, 8), (3,), (3, 5, 8), (3, 6), 0), *(((3, 8), (3,), (3, 5, 8), (3, 5), at) for at in (-1, 3))]
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
WRONG_ATTENTIONS += [{"layer": 2}, {"layer": -1}, {"window": -1}, {"result": (2, 3, 2, 2, 9)}, {"sinks": (2, 3)}]
WRONG_ATTENTIONS += [{"fresh_keys": (2, 2, 2, 8), "fresh_values": (2, 2, 2, 8), "positions": (2, 2), "mask": (2, 3, 2)}]
WRONG_PRODUCTS = [((3, 8), (5, 9), (3, 5)), ((3, 8), (5, 8), (3, 6)), ((3, 8), (5, 8), (2, 5)), ((8,), (5, 8), (5,))]

# Rows, blocks of a row, outputs: tiles that are full and not, every number of rows that has a form, and nothing.
STORED = [(rows, 1, 5) for rows in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 18)]
STORED += [(1, 1, 1), (2, 3, 16), (3, 17, 17), (8, 5, 15), (9, 1, 33), (16, 2, 200), (2, 1, 0), (5, 0, 5)]
# Valid: 3 rows of 64 inputs, 2 blocks of Q4_0, 5 outputs. Each case has one fault.
WRONG_STORED = [{"format": "Q4_2"}, {"format": ""}, {"format": "Q4_K"}, {"x": (3, 65)}, {"x": (3, 96)}, {"x": (192,)}]
WRONG_STORED += [{"result": result} for result in ((2, 5), (3, 50), (3,), (3, 5, 1))]
WRONG_STORED += [{"extra": extra} for extra in (-1, 1, 32)] + [{"dtype": jnp.int32}, {"tiles": jnp.int8}]
# Valid: rows 0 to 4 of that weight.
WRONG_ROWS = [{"format": "Q4_2"}, {"format": "Q4_K"}, {"rows": [5]}, {"rows": [-1]}, {"rows": [0, 2**31 - 1]}]
WRONG_ROWS += [{"outputs": outputs} for outputs in (-1, 0, 100, 2**31, 2**62, 2**63 - 1)] + [{"dtype": jnp.float32}]
WRONG_ROWS += [{"result": (2, 64)}, {"result": (5, 65)}, {"result": (5, 96)}, {"result": (5,)}, {"extra": 1}]

# Rows and tokens: of one block, tails of vectors and blocks, several parts of a sum, and nothing.
SAMPLED = [(2, count) for count in (1, 2, 15, 16, 17, 63, 64, 65, 310, 2047, 2049, 8193)] + [(0, 5), (3, 0)]
WARPERS: list[dict[str, Any]] = [{}, {"top_k": 5, "min_p": 0.1}, {"temperature": 0.0}, {"top_k": 9999, "top_p": 0.0}]
# Valid: 3 rows of 70 tokens. Each case has one fault.
WRONG_WARPS = [{name: (4,)} for name in ("temperature", "top_k", "top_p", "min_p")]
WRONG_WARPS += [{"logits": (210,)}, {"result": (3, 71)}, {"result": (210,)}]
WRONG_DRAWS = [{"keys": keys} for keys in ((3, 3), (4, 2), (6,))] + [{"result": (4,)}, {"log_probs": (210,)}]
WRONG_DRAWS += [{"log_probs": (3, 0)}, {"places": 71}, {"ids": range(69)}, {"ids": [*range(69), 70]}]
WRONG_DRAWS += [{"ids": [*range(69), -1]}, {"ids": range(70), "places": 2**31}, {"places": -1}]
# Valid: 3 rows of 2 drafts and 70 tokens. Each case has one fault.
WRONG_CHAINS = [{name: (4,)} for name in ("tokens", "accepted", "rejected", "log_ratio", "result")]
WRONG_CHAINS += [{"keys": (3, 3)}, {"draft": (3, 1, 70)}, {"draft": (3, 2, 71)}, {"target": (3, 2, 70)}]
WRONG_CHAINS += [{"target": (3, 3, 0), "draft": (3, 2, 0)}, {"number": 3}, {"number": -1}, {"token": 70}, {"token": -1}]
WRONG_CHAINS += [{"excess": True, **case} for case in ({"draft": (3, 1, 70)}, {"ratios": (3, 3)}, {"result": (3, 3)})]


def stored_weight(name, blocks, outputs):
    """A weight of random blocks."""
    width = blocks * BLOCKS[name][0]
    return StoredWeight.of(random_blocks(name, outputs, width), name, (outputs, width), jnp.float32)


def odd_stored(name, case):
    """The product and all rows of a weight."""
    rows, blocks, outputs = case
    width = blocks * BLOCKS[name][0]
    x = jnp.asarray(np.random.default_rng(rows).normal(size=(rows, width)), jnp.float32)
    tiles = stored_weight(name, blocks, outputs).tiles if blocks else jnp.zeros(0, jnp.uint8)
    table = stored_rows(jnp.arange(outputs, dtype=jnp.int32), tiles, name, outputs, (outputs, width))
    return stored_product(x, tiles, name, (rows, outputs)), x, table


def stored_product(x, tiles, name, result):
    """The kernel's product of activations and tiles, into a result of this shape."""
    run = jax.ffi.ffi_call(STORED_PRODUCT, jax.ShapeDtypeStruct(result, jnp.float32))
    return np.asarray(jax.jit(lambda *arrays: run(*arrays, format=name))(x, jnp.int32(0), tiles))


def stored_rows(rows, tiles, name, outputs, result):
    """Rows of tiles as numbers, into a result of this shape."""
    run = jax.ffi.ffi_call(STORED_ROWS, jax.ShapeDtypeStruct(result, jnp.float32))
    return np.asarray(jax.jit(lambda *arrays: run(*arrays, format=name, outputs=np.int64(outputs)))(rows, tiles))


def wrong_stored(case):
    """Makes an invalid product."""
    x = jnp.ones(case.get("x", (3, 64)), case.get("dtype", jnp.float32))
    return stored_product(x, _tiles(case), case.get("format", "Q4_0"), case.get("result", (3, 5)))


def wrong_rows(case):
    """Makes an invalid call for rows."""
    rows = jnp.asarray(case.get("rows", range(5)), case.get("dtype", jnp.int32))
    result = case.get("result", (len(rows), 64))
    return stored_rows(rows, _tiles(case), case.get("format", "Q4_0"), case.get("outputs", 5), result)


def _tiles(case):
    tiles = stored_weight("Q4_0", 2, 5).tiles
    return jnp.resize(tiles, tiles.size + case.get("extra", 0)).astype(case.get("tiles", jnp.uint8))


def warp(logits, *, temperature=0.7, top_k=0, top_p=0.9, min_p=0.0, shapes=None):
    """The kernel's log-probabilities of rows of logits."""
    shapes = {} if shapes is None else shapes
    log_min_p = np.log(min_p) if min_p else -np.inf
    given = {"temperature": temperature, "top_k": np.int32(top_k), "top_p": top_p, "min_p": log_min_p}
    rows = [
        jnp.full(shapes.get(name, logits.shape[:1]), value, jnp.int32 if name == "top_k" else jnp.float32)
        for name, value in given.items()
    ]
    run = jax.ffi.ffi_call(WARP, jax.ShapeDtypeStruct(shapes.get("result", logits.shape), jnp.float32))
    return np.asarray(jax.jit(run)(logits, *rows))


def normalizers(logits, result=None):
    """The kernel's log-sum-exp of rows of logits."""
    run = jax.ffi.ffi_call(LOG_SUM_EXP, jax.ShapeDtypeStruct(result or logits.shape[:1], jnp.float32))
    return np.asarray(jax.jit(run)(logits))


def wrong_warp(case):
    """Makes an invalid call of warpers."""
    return warp(jnp.ones(case.get("logits", (3, 70))), shapes=case)


def drawn(log_probs, keys, ids=(), *, places=None, result=None, partitionable=True):
    """The kernel's tokens of rows of log-probabilities."""
    run = jax.ffi.ffi_call(DRAW, jax.ShapeDtypeStruct(log_probs.shape[:1] if result is None else result, jnp.int32))
    options = {"places": np.int64(log_probs.shape[-1] if places is None else places), "partitionable": partitionable}
    ids = jnp.asarray([*ids], jnp.int32)
    return np.asarray(jax.jit(lambda *x: run(*x, **options))(log_probs, keys, ids))


def wrong_draw(case):
    """Makes an invalid call of draws."""
    keys = jnp.ones(case.get("keys", (3, 2)), jnp.uint32)
    options = {"places": case.get("places"), "result": case.get("result")}
    return drawn(jnp.ones(case.get("log_probs", (3, 70))), keys, case.get("ids", ()), **options)


def chain(
    *,
    target=(3, 3, 70),
    draft=(3, 2, 70),
    tokens=(3,),
    accepted=(3,),
    rejected=(3,),
    log_ratio=(3,),
    keys=(3, 2),
    result=None,
    number=1,
    token=5,
    excess=False,
    ratios=(3, 2),
):
    """The kernel's next token after a chain of drafts, or its excess, of arrays of these shapes."""
    rng = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(rng.normal(size=shape) - 9, jnp.float32)  # noqa: E731
    if excess:
        run = jax.ffi.ffi_call(EXCESS, jax.ShapeDtypeStruct(ratios if result is None else result, jnp.float32))
        return np.asarray(jax.jit(run)(draw(target), draw(draft), jnp.zeros(ratios)))
    run = jax.ffi.ffi_call(DRAW_NEXT, jax.ShapeDtypeStruct((3,) if result is None else result, jnp.int32))
    arrays = [draw(target), draw(draft), jnp.full(tokens, token, jnp.int32), jnp.full(accepted, number, jnp.int32)]
    arrays += [jnp.ones(rejected, jnp.bool_), jnp.zeros(log_ratio), jnp.ones(keys, jnp.uint32)]
    return np.asarray(jax.jit(lambda *x: run(*x, partitionable=True))(*arrays))


def odd_sampling(rows, count):
    """Warps rows that are drawn, tied, excluded and no numbers, and draws from each."""
    rng = np.random.default_rng(count)
    values = rng.normal(size=(rows, count)).astype(np.float32) * 4
    others = [values, np.round(values), np.where(values > 3, -np.inf, values), np.where(values > 9, np.nan, values)]
    keys = jnp.asarray(rng.integers(0, 2**32, size=(rows, 2), dtype=np.uint32))
    for one in (*others, np.full_like(values, np.inf), -1e38 * np.ones_like(values)):
        for options in WARPERS:
            log_probs = jnp.asarray(warp(jnp.asarray(one), **options))
            if count:
                normalizers(log_probs)
                drawn(log_probs, keys)
                drawn(log_probs, keys, np.arange(count)[::-1] * 3, places=3 * count, partitionable=False)


def product(x, weights, result):
    """The kernel's product of two arrays, into a result of this shape."""
    run = jax.ffi.ffi_call(PRODUCT, jax.ShapeDtypeStruct(result, jnp.float32))
    return np.asarray(jax.jit(run)(x, jnp.int32(0), weights))


def product_by_expert(x, experts, weights, result):
    """The kernel's product of rows and the weights of their experts, into a result of this shape."""
    run = jax.ffi.ffi_call(PRODUCT_BY_EXPERT, jax.ShapeDtypeStruct(result, jnp.float32))
    return np.asarray(jax.jit(run)(x, experts, jnp.int32(0), weights))


def wrong_product_by_expert(case):
    """Makes an invalid product."""
    x, experts, weights, result, number = case
    return product_by_expert(jnp.ones(x), jnp.full(experts, number, jnp.int32), jnp.ones(weights), result)


def odd_stored_by_expert(name, case):
    """The kernel's product of rows and the blocks of their experts."""
    groups, blocks, outputs = case
    experts = jnp.asarray(np.repeat(np.arange(3, dtype=np.int32), groups))
    width = blocks * BLOCKS[name][0]
    weight = StoredWeight(stored_weight(name, blocks, 3 * outputs).tiles, (3, outputs, width), name)
    return np.asarray(project_by_expert(jnp.ones((sum(groups), width)), weight, experts))


def attention(arrays, *, layer=1, window=0, scale=0.3, result=None, sinks=(0, 0)):
    """The kernel's attention over arrays by their names."""
    queries = arrays["queries"]
    shape = jax.ShapeDtypeStruct(queries.shape if result is None else result, jnp.float32)
    arrays, options = (
        (*arrays.values(), jnp.int32(layer), jnp.ones(sinks)),
        {"window": np.int64(window), "scale": np.float32(scale)},
    )
    return np.asarray(jax.jit(lambda *x: jax.ffi.ffi_call(ATTENTION, shape)(*x, **options))(*arrays))


def wrong_attention(case):
    """Makes an invalid call of attention."""
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
    for groups, width, outputs in BY_EXPERT:
        for dtype in (jnp.float32, jnp.bfloat16):
            experts = jnp.asarray(np.repeat(np.arange(3, dtype=np.int32), groups))
            product_by_expert(
                jnp.ones((sum(groups), width)), experts, jnp.ones((3, outputs, width), dtype), (sum(groups), outputs)
            )
    for case in ATTENTIONS:
        odd_attention(case)
    for name in BLOCKS:
        for case in STORED:
            odd_stored(name, case)
        for case in STORED_BY_EXPERT:
            odd_stored_by_expert(name, case)
    for case in WRONG_BY_EXPERT:
        assert _fails(wrong_product_by_expert, case), case
    for shapes in WRONG_PRODUCTS:
        x, weights, result = shapes
        assert _fails(product, jnp.ones(x), jnp.ones(weights), result), shapes
    for case in WRONG_ATTENTIONS:
        assert _fails(wrong_attention, case), case
    for case in WRONG_STORED:
        assert _fails(wrong_stored, case), case
    for case in WRONG_ROWS:
        assert _fails(wrong_rows, case), case
    for rows, count in SAMPLED:
        odd_sampling(rows, count)
    for tokens in (1, 15, 16, 17, 70, 8193):
        for number in (0, 1, 2):
            chain(target=(3, 3, tokens), draft=(3, 2, tokens), number=number, token=tokens - 1)
            chain(target=(3, 3, tokens), draft=(3, 0, tokens), number=number, token=tokens // 2)
        chain(target=(3, 3, tokens), draft=(3, 2, tokens), excess=True)
    for case in WRONG_CHAINS:
        assert _fails(lambda case: chain(**case), case), case
    for case in WRONG_WARPS:
        assert _fails(wrong_warp, case), case
    for case in WRONG_DRAWS:
        assert _fails(wrong_draw, case), case
    print("all calls were made")
