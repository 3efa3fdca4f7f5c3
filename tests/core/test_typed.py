"""Arguments and fields are what their annotations say, or the error names them; what cannot be checked passes."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Float, Int, Shaped

import jaxspec
from jaxspec.core.typed import check_fields, typed


class Unknown(Protocol):
    def method(self) -> None: ...


_Number = TypeVar("_Number", bound=int)
ARRAY, NAMES, SHAPE = jnp.ones((2, 3)), np.array(["a"]), jax.ShapeDtypeStruct((2, 3), jnp.float32)
# A type, values of it, and others.
TYPES = [
    (int, (5, np.int64(5), -1), (True, 1.5, None, "5", int, [5], NAMES)),
    (float, (5, 1.5, np.float32(1), float("nan")), (True, 1j, None, "5", ARRAY)),
    (bool, (True, np.bool_(False)), (1, None, "a")),
    (str, ("a",), (b"a", None, 5, str)),
    (str | None, ("a", None), (5, [])),
    (Literal["a", 1], ("a", 1), ("b", True, 1.0, None, [])),
    (Float[jax.Array, "b n"], (ARRAY, np.ones((2, 3))), (ARRAY[0], ARRAY > 0, 5, None, [[1.0]], NAMES, SHAPE)),
    (Int[jax.Array, "*b"], (jnp.arange(3), jnp.int32(5)), (5, ARRAY, NAMES, jnp, np.ma.array([1, 2], mask=[0, 1]))),
    (np.ndarray, (np.ones(2), ARRAY, ARRAY.astype("bfloat16")), ([1], None, NAMES, jax.random.key(0), jnp)),
    (Shaped[jax.Array, "b n"], (ARRAY,), (jnp, np, [[1]])),
    (tuple[int, ...], ((), (1, 2)), ([1], (1, "a"), 5, "ab")),
    (tuple[int, str], ((1, "a"),), ((1,), (1, 2), ("a", 1))),
    (Sequence[float], ([1, 2.5], (), (1,)), ("ab", [None], {1: 2}, 5)),
    (Mapping[str, int], ({}, {"a": 1}), ({1: 1}, {"a": "b"}, [], None)),
    (Callable[[int], int], (abs, int, lambda: 0), (5, None, "a")),
    (jaxspec.Greedy, (jaxspec.Greedy(),), (None, jaxspec.Greedy, 5)),
    (jaxspec.core.Model, (jaxspec.testing.history_model(),), (None, 5)),
    (_Number, (5,), ("a", None)),
    (Unknown, (5, None), ()),
    (Any, (5, None, object()), ()),
]


@pytest.mark.parametrize("place", range(len(TYPES)))
def test_a_value_has_the_type_of_its_annotation(place):
    hint, good, bad = TYPES[place]

    def function(a, *rest, **options):
        return a

    function.__annotations__ = {"a": hint}
    checked = typed()(function)
    for value in good:
        assert checked(value, 1, b=2) is value
    for value in bad:
        with pytest.raises(TypeError, match=r"^a of test_.*function must be .*, got [^\n]*$"):
            checked(value)


def test_traced_arrays_have_types():
    @typed()
    def double(x: Float[jax.Array, "b n"]) -> jax.Array:
        return 2 * x

    assert jax.vmap(jax.jit(double))(ARRAY[None]).shape == (1, 2, 3)
    with pytest.raises(TypeError, match=r"x of .*double must be Float array \[b n\], got float32\[3\]"):
        jax.vmap(double)(ARRAY)


@pytest.mark.skipif(bool(os.environ.get("JAXSPEC_CHECK_TYPES")), reason="checks of `_is` itself forget the sizes")
def test_axes_of_one_name_have_one_size():
    @typed()
    def dot(x: Float[jax.Array, "n"], y: Float[jax.Array, "n"]) -> jax.Array:
        return x @ y

    assert dot(ARRAY[0], ARRAY[1]) == 3
    with pytest.raises(TypeError, match=r"y of .*dot must be Float array \[n\], got float32\[2\]"):
        dot(ARRAY[0], ARRAY[:, 0])


def test_only_named_arguments_are_checked_and_none_is_unbounded():
    @typed("name", count=(1, 8))
    def function(other: int, name: str = "a", count: int | None = None) -> int:
        return other

    assert function("x") == "x" and function(1, count=None) == 1 and function(1, "b", 8) == 1
    for count in (0, 9, 2**70):
        with pytest.raises(ValueError, match=f"count of .*function must be between 1 and 8, got {count}"):
            function(1, count=count)
    for wrong in ({"count": "a"}, {"name": 5}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} of .* must be"):
            function(1, **wrong)


def test_fields_of_a_record():
    @dataclasses.dataclass
    class Record:
        size: int
        name: str = "a"

    check_fields(Record(5))
    check_fields(Record(5, 7), "size")
    with pytest.raises(TypeError, match="name of Record must be str, got 7"):
        check_fields(Record(5, 7))
    with pytest.raises(ValueError, match="size of Record must be between 1 and 4, got 5"):
        check_fields(Record(5), size=(1, 4))
