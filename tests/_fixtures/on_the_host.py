"""Outside of programs, JAX compiles a program for each operation and shape: 15 ms, in tests five of six programs.

NumPy gives the same bits where elements are moved or compared, for integers, and for sums and products of normal
floats. JAX compiles everything else as ever: sums over an axis of floats, `exp`, sorting.
"""

import functools
import weakref

import jax
import numpy as np
from jax._src import pjit

# Later versions describe a program in another way.
_KNOWN_BEFORE = (0, 11)
_MOST_STEPS = 60
_WHOLE, _FLOAT = "biu", "f"


class _Compiled(Exception):
    """NumPy might give other bits."""


def install() -> None:
    """From now on NumPy runs small functions of JAX that are called outside of programs, on one device.

    JAX has no public setting for it; where it has changed the private function, tests are slower.
    """
    compiled = getattr(pjit, "_pjit_call_impl_python", None)
    if compiled is None or jax.__version_info__ >= _KNOWN_BEFORE:
        return
    known = weakref.WeakKeyDictionary()

    @functools.wraps(compiled)
    def on_the_host(*args, jaxpr, **options):
        if jaxpr not in known:
            known[jaxpr] = _is_of_jax(jaxpr) and _known(jaxpr.jaxpr) and _float_steps(jaxpr.jaxpr) <= 1
        if known[jaxpr] and _is_plain(args, options):
            try:
                with np.errstate(all="ignore"):
                    found = _run(jaxpr.jaxpr, jaxpr.consts, [np.asarray(x) for x in args])
                return [_put(x, aval) for x, aval in zip(found, jaxpr.out_avals, strict=True)], None, None, []
            except _Compiled:
                known[jaxpr] = False
        return compiled(*args, jaxpr=jaxpr, **options)

    pjit._pjit_call_impl_python = on_the_host


def _is_of_jax(jaxpr) -> bool:
    """Whether a function is JAX's own: programs of jaxspec and of tests are compiled."""
    name = jaxpr.jaxpr.debug_info.func_filename or ""
    return "/jax/_src/" in name.replace("\\", "/")


def _float_steps(jaxpr) -> int:
    """The number of sums and products of floats, of which XLA might round several together."""
    inner = sum(_float_steps(step.params["jaxpr"].jaxpr) for step in jaxpr.eqns if step.primitive.name == "jit")
    sums = [step for step in jaxpr.eqns if step.primitive.name in ("add", "mul", "sub")]
    return inner + sum(step.outvars[0].aval.dtype.kind == "f" for step in sums)


def _known(jaxpr) -> bool:
    if len(jaxpr.eqns) > _MOST_STEPS or jaxpr.effects:
        return False
    if any(not isinstance(getattr(v.aval, "dtype", None), np.dtype) for v in (*jaxpr.invars, *jaxpr.outvars)):
        return False
    for step in jaxpr.eqns:
        name = step.primitive.name
        if name == "jit":
            if step.params["jaxpr"].consts or not _known(step.params["jaxpr"].jaxpr):
                return False
        elif name not in _STEPS or not all(_is_like(v.aval, _STEPS[name][1]) for v in (*step.invars, *step.outvars)):
            return False
    return True


def _is_like(aval, kinds: str) -> bool:
    """Whether NumPy has the type: of floats, those of four and eight bytes."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in kinds and (dtype.kind != "f" or dtype.itemsize >= 4)


def _is_plain(args, options) -> bool:
    """Whether all arguments are on the one device that JAX chooses, or of the host."""
    if any(options["donated_invars"]) or not options["ctx_mesh"].empty or jax.config.jax_debug_nans:
        return False
    if jax.config.jax_default_device is not None:
        return False
    for x in args:
        if isinstance(x, jax.Array):
            if x.committed or x.is_deleted() or not x.is_fully_addressable or not isinstance(x.dtype, np.dtype):
                return False
        elif not isinstance(x, (np.ndarray, np.generic, bool, int, float)):
            return False
    return True


def _run(jaxpr, consts, args):
    values = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
    values.update((v, np.asarray(x, v.aval.dtype)) for v, x in zip(jaxpr.invars, args, strict=True))
    read = lambda v: np.asarray(v.val, v.aval.dtype) if hasattr(v, "val") else values[v]  # noqa: E731
    for step in jaxpr.eqns:
        inputs = [read(v) for v in step.invars]
        if step.primitive.name == "jit":
            outputs = _run(step.params["jaxpr"].jaxpr, [], inputs)
        else:
            outputs = _STEPS[step.primitive.name][0](*inputs, **step.params)
            outputs = outputs if step.primitive.multiple_results else [outputs]
            if step.primitive.name in _ARITHMETIC and any(map(_is_subnormal, (*inputs, *outputs))):
                raise _Compiled
        for v, x in zip(step.outvars, outputs, strict=True):
            x = np.asarray(x)
            if x.dtype != v.aval.dtype or x.shape != v.aval.shape:
                raise _Compiled
            values[v] = x
    return [read(v) for v in jaxpr.outvars]


def _is_subnormal(x: np.ndarray) -> bool:
    """Whether a float is so small that XLA may take it as 0."""
    return x.dtype.kind == "f" and bool(((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)).any())


def _put(x: np.ndarray, aval) -> jax.Array:
    from jax._src.literals import TypedNdArray

    return jax.device_put(TypedNdArray(np.array(x, order="C"), aval=aval))


def _converted(x, *, new_dtype, **_):
    new = np.dtype(new_dtype)
    exact = x.dtype == new or (x.dtype.kind in _WHOLE and (new.kind in "iu" or (new.kind == "f" and new.itemsize >= 4)))
    wider = x.dtype.kind == "f" and new.kind == "f" and new.itemsize > x.dtype.itemsize >= 4
    if not exact and not wider:
        raise _Compiled
    return x.astype(new)


def _broadcast(x, *, shape, broadcast_dimensions, **_):
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(x.reshape(sizes), shape)


def _sliced(x, *, start_indices, limit_indices, strides):
    strides = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def _sliced_dynamically(x, *starts, slice_sizes):
    at = [min(max(int(i), 0), n - size) for i, n, size in zip(starts, x.shape, slice_sizes, strict=True)]
    return x[tuple(slice(i, i + size) for i, size in zip(at, slice_sizes, strict=True))]


def _updated_dynamically(x, update, *starts):
    at = [min(max(int(i), 0), n - size) for i, n, size in zip(starts, x.shape, update.shape, strict=True)]
    x = np.array(x)
    x[tuple(slice(i, i + size) for i, size in zip(at, update.shape, strict=True))] = update
    return x


def _padded(x, value, *, padding_config):
    if any(low < 0 or high < 0 or inner for low, high, inner in padding_config):
        raise _Compiled
    return np.pad(x, [(low, high) for low, high, _ in padding_config], constant_values=value)


def _selected(which, *cases):
    if which.dtype != bool:
        raise _Compiled
    return np.where(which, cases[1], cases[0])


def _split(x, *, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _gathered(x, indices, *, dimension_numbers, slice_sizes, mode, fill_value, **_):
    numbers, batch = dimension_numbers, indices.shape[:-1]
    out_axes = len(batch) + len(numbers.offset_dims)
    inside = np.ones(batch, bool)
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(x.ndim) if axis not in dropped]
    along = lambda n, axis: np.arange(n).reshape([n if i == axis else 1 for i in range(out_axes)])  # noqa: E731
    places = []
    for axis in range(x.ndim):
        at = np.zeros((1,) * out_axes, int)
        if axis in numbers.start_index_map:
            start, most = (
                indices[..., numbers.start_index_map.index(axis)].astype(int),
                x.shape[axis] - slice_sizes[axis],
            )
            inside &= (start >= 0) & (start <= most)
            at = at + np.clip(start, 0, most).reshape(*batch, *[1] * len(kept))
        if axis in numbers.operand_batching_dims:
            other = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
            at = at + along(x.shape[axis], other)
        if axis in kept:
            at = at + along(slice_sizes[axis], len(batch) + kept.index(axis))
        places.append(at)
    found = np.broadcast_to(x[tuple(places)], (*batch, *(slice_sizes[axis] for axis in kept)))
    if "FILL" in str(mode).upper() and not inside.all():
        if fill_value is None:
            raise _Compiled
        found = np.where(inside.reshape(*batch, *[1] * len(kept)), found, np.asarray(fill_value, x.dtype))
    rest = iter(range(len(batch)))
    offsets = {axis: len(batch) + i for i, axis in enumerate(numbers.offset_dims)}
    return found.transpose([offsets[axis] if axis in offsets else next(rest) for axis in range(out_axes)])


def _threefry(key, other, x, y):
    """The hash of JAX's random numbers: twenty rounds of sums and rotations."""
    keys = key, other, key ^ other ^ np.uint32(0x1BD11BDA)
    turns = (13, 15, 26, 6), (17, 29, 16, 24)
    x, y = x + keys[0], y + keys[1]
    for number in range(5):
        for turn in turns[number % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(turn)) | (y >> np.uint32(32 - turn)))
        x, y = x + keys[(number + 1) % 3], y + keys[(number + 2) % 3] + np.uint32(number + 1)
    return x, y


def _shifted_left(x, count):
    unsigned, count = np.dtype(f"u{x.dtype.itemsize}"), _unsigned(count)
    return np.where(count < 8 * x.dtype.itemsize, x.view(unsigned) << count, unsigned.type(0)).view(x.dtype)


def _shifted_right(x, count):
    unsigned, count = np.dtype(f"u{x.dtype.itemsize}"), _unsigned(count)
    return np.where(count < 8 * x.dtype.itemsize, x.view(unsigned) >> count, unsigned.type(0)).view(x.dtype)


def _shifted_with_sign(x, count):
    return x >> np.minimum(_unsigned(count), 8 * x.dtype.itemsize - 1).astype(x.dtype)


def _unsigned(count):
    """XLA takes a negative count for a large one."""
    return count.view(np.dtype(f"u{count.dtype.itemsize}"))


def _extreme(choose):
    def run(x, y):
        if x.dtype.kind == "f" and any((np.isnan(each) | (each == 0)).any() for each in (x, y)):
            raise _Compiled
        return choose(x, y)

    return run


def _divided(divide):
    def run(x, y):
        if (y == 0).any() or (x.dtype.kind == "i" and (x == np.iinfo(x.dtype).min).any()):
            raise _Compiled
        return divide(x, y).astype(x.dtype)

    return run


def _accumulated(function):
    def run(x, *, axis, reverse):
        return np.flip(function(np.flip(x, axis), axis, x.dtype), axis) if reverse else function(x, axis, x.dtype)

    return run


def _counted(*, shape):
    """The numbers from 0 in the given shape, as two halves of 32 bits each."""
    numbers = np.arange(np.prod(shape, dtype=np.uint64), dtype=np.uint64).reshape(shape)
    return [(numbers >> np.uint64(32)).astype(np.uint32), numbers.astype(np.uint32)]


def _reduced(function):
    return lambda x, *, axes, **_: function(x, tuple(axes)).astype(x.dtype)


def _without_options(function):
    return lambda *x, **_: function(*x)


_MOVES = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *x, dimension: np.concatenate(x, dimension),
    "convert_element_type": _converted,
    "copy": lambda x: x,
    "dynamic_slice": _sliced_dynamically,
    "dynamic_update_slice": _updated_dynamically,
    "gather": _gathered,
    "iota": lambda *, dtype, shape, dimension, **_: np.broadcast_to(
        np.arange(shape[dimension]).astype(dtype).reshape([-1 if i == dimension else 1 for i in range(len(shape))]),
        shape,
    ),
    "pad": _padded,
    "reshape": lambda x, *, new_sizes, **_: x.reshape(new_sizes),
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "select_n": _selected,
    "slice": _sliced,
    "split": _split,
    "squeeze": lambda x, *, dimensions: np.squeeze(x, tuple(dimensions)),
    "stack": lambda *x, axis: np.stack(x, axis),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
    "unstack": lambda x, *, axis: list(np.moveaxis(x, axis, 0)),
}
_ANY = {
    name: _without_options(getattr(np, function))
    for name, function in {
        "add": "add",
        "eq": "equal",
        "ge": "greater_equal",
        "gt": "greater",
        "le": "less_equal",
        "lt": "less",
        "mul": "multiply",
        "ne": "not_equal",
        "neg": "negative",
        "sub": "subtract",
    }.items()
}
_ARITHMETIC = {*_ANY}
_ANY |= {"is_finite": np.isfinite, "max": _extreme(np.maximum), "min": _extreme(np.minimum)}
_OF_WHOLE = {
    "abs": np.abs,
    "and": np.bitwise_and,
    "clamp": lambda least, x, most: np.minimum(np.maximum(x, least), most),
    "cumsum": _accumulated(np.cumsum),
    "cumprod": _accumulated(np.cumprod),
    "div": _divided(lambda x, y: np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))),
    "iota_2x32_shape": _counted,
    "not": np.invert,
    "or": np.bitwise_or,
    "rem": _divided(np.fmod),
    "shift_left": _shifted_left,
    "shift_right_arithmetic": _shifted_with_sign,
    "shift_right_logical": _shifted_right,
    "threefry2x32": _threefry,
    "sign": np.sign,
    "xor": np.bitwise_xor,
    "reduce_and": _reduced(np.logical_and.reduce),
    "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_or": _reduced(np.logical_or.reduce),
    "reduce_sum": _reduced(np.sum),
}
# Each primitive with what runs it, and the kinds of types for which that gives XLA's bits.
_STEPS = {name: (run, _WHOLE + _FLOAT) for name, run in (_MOVES | _ANY).items()}
_STEPS |= {name: (run, _WHOLE) for name, run in _OF_WHOLE.items()}
