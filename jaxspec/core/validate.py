"""Validates arguments: each error names the value, the expected one, and what to pass instead.

Shapes and static options are always checked. Values are checked when they are concrete; inside a caller's `jit`,
`check_policy.traced_status` reports them in the result instead.
"""

import inspect
import itertools
import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Int

# A round of drafts is a program with that many steps; more than 16 are hardly worth it.
MOST_DRAFTS = 1024
_PROMPT = ("prompt", "prompt_length")


def draft_length(k: object, name: str = "k") -> None:
    """Raises unless `k`, or one of several `lengths`, is an integer of at least 0."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise TypeError(f"{name} must be a static integer, got {type(k).__name__}; k fixes the shapes of a round")
    if k < 0:
        raise ValueError(f"{name} must be at least 0, got {k}; pass k=0 for plain decoding")
    if k > MOST_DRAFTS:
        raise ValueError(
            f"{name} must be at most {MOST_DRAFTS}, got {k}, whose logits alone take {4 * int(k):,} bytes per row for "
            "each token of the vocabulary; pass fewer, such as k=8"
        )


def draft_lengths(lengths: object, smallest: int = 0) -> tuple[int, ...]:
    """Returns draft lengths as an increasing tuple; an integer `k` becomes `smallest`, then 2, 4, 8, ... and `k`."""
    if isinstance(lengths, int | np.integer):
        draft_length(lengths)
        k = int(lengths)
        return (*(n for n in (smallest, 2, 4, 8, 16, 32, 64, 128) if n < k), k)
    if not isinstance(lengths, tuple | list) or not lengths:
        raise TypeError(f"lengths must be an integer or a tuple of them, got {shown(lengths)}; pass (0, 2, 4, 8)")
    for length in lengths:
        draft_length(length, "in lengths, k")
    if any(second <= first for first, second in itertools.pairwise(lengths)):
        raise ValueError(f"lengths must rise, got {tuple(lengths)}; pass {tuple(sorted(set(lengths)))}")
    return tuple(int(length) for length in lengths)


def in_range(owner: str, **values: tuple[Any, float, float]) -> None:
    """Raises unless each value is a number between its bounds; `name=(value, low, high)`."""
    for name, (value, low, high) in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise TypeError(f"{owner} needs a number as {name}, got {type(value).__name__}")
        if not low <= value <= high or abs(value) > LARGEST:
            bounds = f"at least {low}" if high == math.inf else f"between {low} and {high}"
            bounds = "finite" if low == -math.inf else bounds
            raise ValueError(f"{owner} needs {name} {bounds}, got {value}")


def counts(owner: str, **values: object) -> None:
    """Raises unless each value is a static integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"{owner} needs an integer as {name}, got {shown(value)}; it fixes shapes")
        if value < 1:
            raise ValueError(f"{owner} needs {name} of at least 1, got {value}")
        if value > LARGEST:
            raise ValueError(f"{owner} needs {name} of at most {LARGEST}, got {value}")


def integers(owner: str, advice: str = "", **values: tuple[Any, int, int]) -> None:
    """Raises unless each value is an integer between its bounds; `name=(value, low, high)`; `advice` ends the error."""
    for name, (value, low, high) in values.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"{owner} needs an integer as {name}, got {shown(value)}{advice and '; '}{advice}")
        if not low <= value <= high:
            raise ValueError(f"{owner} needs {name} between {low} and {high}, got {value}{advice and '; '}{advice}")


def one_of(name: str, value: object, names: Collection[str], advice: str = "") -> None:
    """Raises `ValueError` unless a value is one of several names; `advice` ends the error."""
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, got {shown(value)}{advice and '; '}{advice}")


def flag(name: str, value: object, advice: str = "") -> None:
    """Raises `TypeError` unless a value is `True` or `False`; `advice` ends the error."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}{advice and '; '}{advice}")


def threshold(owner: str, value: Any) -> None:
    """Raises unless a threshold is one number in [0, 1]; traced values are not checked."""
    value = numbers(f"threshold of {owner}", value, "a number", advice="pass 0.4, say")
    if value.shape:
        raise ValueError(f"{owner} needs one threshold for all rows, got shape {value.shape}")
    if is_concrete(value):
        in_range(owner, threshold=(float(value), 0, 1))


def costs(values: Any, lengths: tuple[int, ...]) -> None:
    """Raises unless there is one positive cost for each length."""
    hint = "pass the result of jaxspec.bench.costs.measure_costs for these lengths"
    if values is None or isinstance(values, tuple | list) or jnp.shape(values) != (len(lengths),):
        raise ValueError(f"costs must be one float for each of the lengths {lengths}, got {shown(values)}; {hint}")
    numbers("costs", values, "floats", advice=hint)
    if is_concrete(values) and not np.all(np.isfinite(values) & (np.asarray(values) > 0)):
        raise ValueError(f"costs must be positive, got {np.asarray(values).tolist()}; {hint}")


def reads_no_log_probs(owner: str, length: Any) -> None:
    """Raises if a draft length reads the distribution of drafts, and the drafter has none."""
    if length.reads_log_probs:
        raise ValueError(
            f"{type(length).__name__} stops by the distribution of drafts, but {owner} copies and draws nothing; "
            f"pass {owner}(k=Adaptive(...)), or an integer k"
        )


def same_draft_length(k: int, expected: int) -> None:
    """Raises unless a drafter has the `k` that a state was made for."""
    if k != expected:
        raise ValueError(
            f"the state was made for k={expected}, got a drafter with k={k}; pass the drafter given to init"
        )


def same_vocabulary(*, draft: int, target: int) -> None:
    """Raises unless draft and target have equal vocabulary sizes."""
    if draft != target:
        raise ValueError(
            f"draft and target must share one vocabulary, got a draft of {draft} tokens for a target of "
            f"{target}; pass a draft model with the target's tokenizer, in a ResizedModel if only padding differs, or "
            "CrossVocabularyDrafter with any other"
        )


def prompt(tokens: Any, prompt_length: Any, vocab_size: int, names: tuple[str, str] = _PROMPT) -> None:
    """Raises unless the prompt is `[b, t]` integers with ids in range and lengths in `[1, t]`."""
    if not hasattr(tokens, "ndim") or tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        shape, dtype = getattr(tokens, "shape", None), getattr(tokens, "dtype", type(tokens).__name__)
        raise ValueError(
            f"{names[0]} must be an integer array [batch, time], got shape {shape} and dtype {dtype}; "
            f"pass jnp.asarray([[1, 2, 3]]), shorter rows padded on the right and named in {names[1]}"
        )
    if tokens.shape[0] == 0 or tokens.shape[1] == 0:
        raise ValueError(f"{names[0]} is empty, got shape {tokens.shape}; pass at least one row of at least one token")
    if prompt_length is not None:
        (shape, dtype), rows = shape_and_dtype(names[1], prompt_length), tokens.shape[0]
        if shape not in ((), (rows,)) or not jnp.issubdtype(dtype, jnp.integer):
            raise ValueError(
                f"{names[1]} must be one integer or one per row, got shape {shape} and dtype {dtype} for {rows} rows"
            )
        if is_concrete(prompt_length):
            lengths = np.asarray(prompt_length)
            if lengths.min() < 1 or lengths.max() > tokens.shape[1]:
                raise ValueError(
                    f"{names[1]} must be in [1, {tokens.shape[1]}] (the width of {names[0]}), got {lengths.tolist()}; "
                    "an empty prompt has no distribution to sample from: pass at least a start token"
                )
    if is_concrete(tokens, prompt_length):
        ids, width = np.asarray(tokens), tokens.shape[1]
        lengths = np.broadcast_to(width if prompt_length is None else np.asarray(prompt_length), ids.shape[:1])
        used = ids[np.arange(width)[None] < lengths[:, None]]
        bad = used[(used < 0) | (used >= vocab_size)]
        if bad.size:
            raise ValueError(
                f"{names[0]} has token id {bad[0]}, expected ids in [0, {vocab_size}); "
                "was it encoded with another model's tokenizer?"
            )


def max_new_tokens(value: object, batch: int) -> None:
    """Raises unless `value` is one non-negative integer, one per row, or `None`."""
    if value is None:
        return
    shape, dtype = shape_and_dtype("max_new_tokens", value)
    if shape not in ((), (batch,)) or not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(
            f"max_new_tokens must be one integer or one per row, got shape {shape} and dtype {dtype} for {batch} rows"
        )
    if is_concrete(value) and np.min(np.asarray(value)) < 0:
        raise ValueError(f"max_new_tokens must be at least 0, got {np.asarray(value).tolist()}")


def capacity(value: Any) -> int | None:
    """Converts a capacity to a Python integer, whose sums never overflow, or `None`.

    Raises:
      TypeError, ValueError: it is not a static positive integer.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"capacity must be a static integer or None, got {type(value).__name__}; it fixes shapes")
    if value < 1:
        raise ValueError(f"capacity must be at least 1, got {value}; pass prompt and new tokens together")
    return int(value)


def fits(prompt: int, new: int, capacity: int | None, context: int | None) -> None:
    """Raises unless a row's prompt and new tokens fit the capacity and the target's context."""
    total = prompt + new
    if capacity is not None and total > capacity:
        raise ValueError(
            f"prompt and new tokens need {total} slots, capacity is {capacity}; "
            f"pass capacity={total} or more, or a shorter prompt"
        )
    if context is not None and total > context:
        left = context - prompt
        raise ValueError(
            f"prompt and new tokens are {total} together, the target model's context is {context}; "
            + (f"pass max_new_tokens={left} or less, or shorten the prompt" if left > 0 else "shorten the prompt")
        )


def stop_tokens(value: object, batch: int, vocab_size: int) -> Int[Array, "b n"]:
    """Converts stop tokens to `[b, n]`, from one id or a sequence for all rows, or a row of ids for each (-1 pads)."""
    if isinstance(value, set | frozenset):
        value = list(value)
    shape, dtype = shape_and_dtype("stop_tokens", value)
    if len(shape) > 2 or (len(shape) == 2 and shape[0] != batch):
        raise ValueError(f"stop_tokens must be [n] or [batch, n], got shape {shape} for {batch} rows")
    array = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
    array = array.reshape(shape or (1,))
    if array.size == 0:
        array = array.astype(np.int32)
    elif not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"stop_tokens must be integers, got dtype {dtype}; text goes in stop")
    elif is_concrete(value) and (array.min() < -1 or array.max() >= vocab_size):
        raise ValueError(f"stop_tokens must be in [0, {vocab_size}), or -1 for padding, got {array.tolist()}")
    return jnp.broadcast_to(to_int32(array), (batch, array.shape[-1]))


def lossy_allowed(lossless: bool, lossy: object, name: str) -> None:
    """Raises if a verifier changes the distribution and the caller has not agreed."""
    flag("lossy", lossy)
    if not lossless and not lossy:
        raise ValueError(f"{name} does not keep the target's distribution; pass lossy=True to accept that")


def instance(name: str, value: object, kind: type, advice: str = "") -> None:
    """Raises `TypeError` unless a value is an instance of a class; `advice` ends the error."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {shown(value)}{advice and '; '}{advice}")


def mappings(name: str, value: object, advice: str = "") -> None:
    """Raises `TypeError` unless a value is a list or tuple of dictionaries; `advice` ends the error."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) for one in value):
        raise TypeError(f"{name} must be a list of dictionaries, got {shown(value)}{advice and '; '}{advice}")


def shown(value: object) -> str:
    """Returns a value as a short text of one line, for errors."""
    return " ".join(repr(value).split())[:80]


def text(name: str, value: object, advice: str = "pass a text") -> str:
    """Checks that a text can be encoded, and returns it; `advice` ends the error for other types.

    Raises:
      TypeError: it is not a string.
      ValueError: it has a lone surrogate, which Python makes of bytes that it could not decode.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}; {advice}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has a lone surrogate, {value[error.start]!r} at character {error.start}, which no tokenizer "
            "takes; pass text.encode(errors='replace').decode()"
        ) from None
    return value


def unmasked(name: str, value: Any) -> None:
    """Raises `TypeError` for a masked array, whose mask JAX does not know."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be without a mask (pass its filled() values, or lengths), got a masked array")


def _is_array(value: Any) -> bool:
    """Returns whether a value is an array, traced or not: modules have shapes and dtypes too, as functions."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return False
    return hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple)


def shape_and_dtype(name: str, value: Any) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype of an array or number; raises `TypeError` for anything else."""
    unmasked(name, value)
    if not _is_array(value):
        try:
            value = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
        except (ValueError, TypeError) as error:  # lists of different lengths, or not of numbers
            raise ValueError(f"{name} must be numbers, one or one per row, got {shown(value)}: {error}") from None
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        raise TypeError(f"{name} must be numbers, got keys of jax.random, {value.dtype}{list(value.shape)}")
    if value.dtype == object and all(isinstance(leaf, int) for leaf in np.ravel(value)):
        raise ValueError(f"{name} must be numbers of at most 64 bits, got {value.tolist()}")
    return tuple(value.shape), value.dtype


def numbers(name: str, value: Any, expected: str = "numbers", *, whole: bool = False, advice: str = "") -> Any:
    """Converts a number, nested lists or an array to an array of integers or floats; traced values stay traced.

    Args:
      name: the argument, for errors.
      value: the value that a user passed.
      expected: describes the values, for errors.
      whole: whether they must be integers; an empty list has none that is not.
      advice: what to pass instead, for errors.

    Raises:
      TypeError: it holds anything else, such as text, booleans or complex numbers.
      ValueError: rows have different lengths, or an integer has more than 64 bits.
    """
    unmasked(name, value)
    array, kinds = value, (jnp.integer,) if whole else (jnp.integer, jnp.floating)
    if not _is_array(value):
        try:
            array = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:  # lists of different lengths, or not of numbers
            raise ValueError(f"{name} must be {expected}, got {shown(value)}: {str(error).splitlines()[0]}") from None
    if whole and getattr(array, "size", 1) == 0:
        array = np.zeros(array.shape, np.int64)
    dtype: Any = getattr(array, "dtype", None)
    if isinstance(value, type) or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        if getattr(dtype, "kind", "") == "O" and array.size and all(type(leaf) is int for leaf in np.ravel(array)):
            raise ValueError(f"{name} must be numbers of at most 64 bits, got {shown(value)}")
        got = shown(value) if isinstance(value, type) or array.ndim == 0 else f"{dtype}: {shown(value)}"
        raise TypeError(f"{name} must be {expected}, got {got}{advice and '; '}{advice}")
    return array


def takes(name: str, function: object, arguments: str) -> None:
    """Raises `TypeError` unless a user's function can be called with these positional arguments ("params, tokens")."""
    if not callable(function):
        raise TypeError(f"{name} must be callable as {name}({arguments}), got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # functions written in C may have none
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        raise TypeError(f"{name} must be callable as {name}({arguments}), got one that takes {signature}") from None


def logits(name: str, found: Any, shape: tuple[int, ...], hint: str = "") -> Array:
    """Returns the logits that a user's function returned, if they are floats of this shape.

    Raises:
      TypeError: it returned something else, such as None, integers or a tuple.
      ValueError: the shape differs; `hint` ends the message.
    """
    dtype: Any = getattr(found, "dtype", None)
    if not isinstance(found, Array | np.ndarray) or not jnp.issubdtype(dtype, jnp.floating):
        got = type(found).__name__ if dtype is None else f"{dtype}"
        raise TypeError(f"{name} must return logits, floats of shape {shape}, got {got}")
    if found.shape != shape:
        raise ValueError(f"{name} must return logits of shape {shape}, got shape {found.shape}{hint and '; '}{hint}")
    return jnp.asarray(found)


def arrays(name: str, tree: Any) -> None:
    """Raises `TypeError` unless a pytree holds only arrays of numbers; `{}` holds none."""
    for path, leaf in [((), None)] if tree is None else jax.tree.leaves_with_path(tree):
        known = isinstance(leaf, int | float | jax.ShapeDtypeStruct) or _is_array(leaf)
        if not known or getattr(getattr(leaf, "dtype", None), "kind", "") in ("U", "S", "O"):
            place = name + jax.tree_util.keystr(path)
            raise TypeError(f"{place} must be an array, got {shown(leaf)}; {name} is a pytree of arrays, {{}} for none")


def dtype_of(name: str, value: Any, allowed: Collection[str]) -> jnp.dtype:
    """Converts a dtype or its name; raises `ValueError` unless it is one of `allowed`."""
    # NumPy takes the dtype of any value that has one.
    is_value = hasattr(value, "dtype") and not isinstance(value, type)
    try:
        parsed = None if value is None or isinstance(value, bytes) or is_value else jnp.dtype(value)
    except (TypeError, ValueError):
        parsed = None
    if parsed is None or parsed.name not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {parsed or shown(value)}")
    return parsed


LARGEST = 2**31 - 1
# The largest float32 that fits int32.
_LARGEST_FLOAT = float(2**31 - 128)


def is_concrete(*values: object) -> bool:
    """Returns whether the host can read the values: none is traced, or partly on other processes."""
    return not any(_is_unreadable(leaf) for value in values for leaf in jax.tree.leaves(value))


def _is_unreadable(leaf: object) -> bool:
    if isinstance(leaf, Tracer):
        return True
    return isinstance(leaf, Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def to_int32(value: Any) -> Int[Array, "..."]:
    """Converts whole numbers to int32; values out of range are clipped instead of wrapped, so that they stay invalid.

    Example:
        >>> from jaxspec.core.validate import to_int32
        >>> to_int32([7, 2**32 + 1, 10**30]).tolist()
        [7, 2147483647, 2147483647]
    """
    array = value
    if not hasattr(value, "dtype"):
        array = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
    if array.dtype == object:  # beyond int64
        array = np.asarray(array.clip(-LARGEST, LARGEST), np.int64)
    elif jnp.issubdtype(array.dtype, jnp.floating):
        array = array.clip(-_LARGEST_FLOAT, _LARGEST_FLOAT)
    elif array.dtype.itemsize > 4:
        array = array.clip(None if jnp.issubdtype(array.dtype, jnp.unsignedinteger) else -LARGEST, LARGEST)
    return jnp.asarray(array, jnp.int32)
