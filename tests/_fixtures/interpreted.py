"""Runs the kernels for TPUs as ordinary operations."""

import functools

import pytest

from jaxspec.nn import cache_pallas


@pytest.fixture
def interpreted(monkeypatch):
    """Lets caches of kernels use them here, as they would on a TPU."""
    run = lambda kernel, default, *arguments: functools.partial(kernel, interpret=True)(*arguments)  # noqa: E731
    monkeypatch.setattr(cache_pallas, "on_tpu", run)
