"""Counts and picks, row by row."""

import jax.numpy as jnp

from jaxspec.core.leading import count_leading, first_true, take_row


def test_leading_flags_are_counted():
    flags = jnp.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]], jnp.bool_)
    assert count_leading(flags).tolist() == [2, 0, 4]
    assert count_leading(flags[:, :0]).tolist() == [0, 0, 0]


def test_the_first_flag_is_found_or_0():
    flags = jnp.array([[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], jnp.bool_)
    assert first_true(flags).tolist() == [2, 0, 0]


def test_each_row_gives_its_own_entry():
    values = jnp.arange(12, dtype=jnp.int32).reshape(3, 4)
    index = jnp.array([3, 0, 1], jnp.int32)
    assert take_row(values, index).tolist() == [3, 4, 9]
    assert take_row(values[..., None], index).tolist() == [[3], [4], [9]]
