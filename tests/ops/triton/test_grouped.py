"""The GPU's product with integers in groups, interpreted, against sums in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.ops.triton import grouped

CASES = {
    "int4, five rows": {},
    "one row, with zeros": {"rows": 1, "zero": True},
    "int8, more rows than a program has": {"rows": 70, "bits": 8, "zero": True},
    "groups in two pieces": {"group": 256, "zero": True},
    "groups of 16": {"group": 16, "groups": 9, "out": 16},
    "one group of many inputs": {"groups": 1, "group": 11 * 64, "bits": 8},
    "enough outputs for no split": {"out": 64 * 256, "group": 32, "groups": 2},
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if "zeros" in name else pytest.mark.slow) for name in CASES]
)
def test_it_is_the_product(case):
    """Within float32's rounding of the terms that are summed."""
    rows, groups, out, group, bits, zero = _sizes(**CASES[case])
    rng, most = np.random.default_rng(0), {4: 7, 8: 127}[bits]
    values = rng.integers(-most - 1, most + 1, size=(groups, out, group))
    scale = rng.uniform(0.01, 0.1, size=(groups, out)).astype(np.float32)
    zeros = rng.integers(-most - 1, most + 1, size=(groups, out)) if zero else np.zeros((groups, out), np.int64)
    x = rng.normal(size=(rows, groups * group)).astype(np.float32)
    stored = jnp.asarray(values, {4: jnp.int4, 8: jnp.int8}[bits]), jnp.asarray(scale)
    found = grouped.product(x, *stored, jnp.asarray(zeros, jnp.int8) if zero else None, interpret=True)
    terms = np.einsum("rni,noi->rno", *_wide(x.reshape(rows, groups, group), values - zeros[..., None]))
    expected = np.einsum("rno,no->ro", terms, scale.astype(np.float64))
    sizes = np.einsum(
        "rni,noi->rno", *_wide(np.abs(x).reshape(rows, groups, group), np.abs(values) + np.abs(zeros)[..., None])
    )
    bound = 2 * groups * group * 2.0**-24 * np.einsum("rno,no->ro", sizes, scale.astype(np.float64))
    assert found.dtype == jnp.float32 and (np.abs(np.asarray(found, np.float64) - expected) <= bound).all()


def _sizes(rows=5, groups=3, out=48, group=128, bits=4, zero=False):
    return rows, groups, out, group, bits, zero


def _wide(*arrays):
    return (x.astype(np.float64) for x in arrays)


@pytest.mark.slow
def test_integers_are_exact_in_bfloat16():
    """The sums are float32's: nothing but the activations is rounded to eight bits."""
    rng = np.random.default_rng(1)
    values, x = rng.integers(-127, 128, size=(2, 16, 64)), jnp.asarray(rng.normal(size=(3, 128)), jnp.bfloat16)
    found = grouped.product(x, jnp.asarray(values, jnp.int8), jnp.ones((2, 16)), None, interpret=True)
    expected = np.einsum("rni,noi->ro", *_wide(np.asarray(x, np.float32).reshape(3, 2, 64), values))
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize(("shape", "expected"), [((3, 48, 16), True), ((3, 40, 16), False), ((1, 48, 40), False)])
def test_what_it_takes(shape, expected):
    assert grouped.fits(jnp.zeros(shape, jnp.int4)) is expected


@pytest.mark.parametrize(("programs", "pieces", "expected"), [(8, 64, 32), (8, 3, 4), (512, 64, 1)])
def test_pieces_are_spread_so_that_the_card_is_full(programs, pieces, expected):
    assert grouped._splits(programs, pieces) == expected
