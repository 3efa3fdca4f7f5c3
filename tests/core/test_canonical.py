"""Which values have an encoding that is the same in all processes, and which have none."""

import dataclasses
import enum
import functools
import inspect
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.canonical import UnknownValueError, canonical_bytes
from jaxspec.core.layout import Unsharded
from jaxspec.decoding.generate import start
from tests._fixtures import text_models, tiny

TOKENIZER = text_models.byte_level()
DIFFERENT = (
    *(None, True, False, 1, 0, 1.0, 0.1, -0.0, math.nan, "1", b"1", "", "none"),
    *((), (1,), [1], (1, 2), (2, 1), ((1,), 2), (1, (2,)), ("ab", "c"), ("a", "bc"), ("abc",)),
    *({}, {1: 2}, {2: 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, frozenset({1, 2}), {1, 2}, frozenset({(1, 2)})),
    *(np.dtype("int32"), jnp.int32, np.int32, np.int32(1), np.float32(1), np.array([1, 2]), np.array([[1], [2]])),
    *(jaxspec.generate, jnp.sin, functools.partial(jnp.sin), functools.partial(jnp.sin, 1), jaxspec.NGramDrafter),
    *(jaxspec.NGramDrafter(k=2), jaxspec.NGramDrafter(k=3), jaxspec.SuffixDrafter(k=2), Unsharded()),
    *map(jax.tree.structure, (jaxspec.NGramDrafter(k=2), jaxspec.NGramDrafter(k=3), (1, None), (1, 2), {"a": 1}, 1)),
    *(jaxspec.StopReason.ERROR, jaxspec.StopReason.RUNNING, TOKENIZER, tiny.transformer().module),
)


class Own:
    pass


class OwnTuple(tuple):
    __slots__ = ()


class OwnInt(int):
    pass


class OwnEnum(enum.Enum):
    A = 1


@dataclasses.dataclass(frozen=True)
class OwnData:
    a: int = 1


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnDrafter(jaxspec.NGramDrafter):
    pass


def own_function():
    pass


OWN = (
    *(Own(), Own, OwnTuple((1,)), OwnInt(1), OwnEnum.A, OwnData(), own_function, lambda: None, object()),
    *(functools.partial(own_function), np.array([Own()]), jax.tree.structure(OwnDrafter()), [{"a": (OwnData(),)}]),
    *(jnp.ones(1), functools.wraps(jaxspec.generate)(lambda: None), jaxspec),
)


def test_different_values_differ():
    assert len({canonical_bytes(value) for value in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize("value", OWN, ids=lambda value: type(value).__name__)
def test_what_is_not_known_is_refused(value):
    with pytest.raises(UnknownValueError):
        canonical_bytes(value)
    with pytest.raises(UnknownValueError):
        canonical_bytes((1, {"a": value}))


def test_equal_values_agree():
    for make in (tiny.transformer, text_models.byte_level, lambda: jaxspec.NGramDrafter(k=2), lambda: {"a": 1.5}):
        assert canonical_bytes(jax.tree.structure(make())) == canonical_bytes(jax.tree.structure(make()))
    assert canonical_bytes(text_models.byte_level()) == canonical_bytes(TOKENIZER)


def test_a_decorated_function_has_the_place_of_its_name():
    assert canonical_bytes(start) == canonical_bytes(inspect.unwrap(start))


@pytest.mark.slow
def test_all_processes_agree():
    """Sets are in another order there."""
    say = "import jaxspec, hashlib; from jaxspec.core.canonical import canonical_bytes as c; "
    say += "print(hashlib.sha256(c((frozenset('abcdef'), jaxspec.NGramDrafter(k=2), jaxspec.generate))).hexdigest())"
    run = lambda seed: subprocess.check_output([sys.executable, "-c", say], env={"PYTHONHASHSEED": seed})  # noqa: E731
    assert run("1") == run("2")
