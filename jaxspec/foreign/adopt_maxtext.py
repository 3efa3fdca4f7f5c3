"""Tells what models of MaxText compute, and where their weights are."""

from typing import Any

from jax import Array

from jaxspec.foreign.places import Source


def describe_maxtext(params: Any, config: Any) -> tuple[Source, dict[str, Array]]:
    """Returns what a model of MaxText computes, and its arrays by path."""
    raise NotImplementedError
