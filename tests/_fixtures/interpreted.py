"""Runs the kernels for accelerators as ordinary operations."""

import functools

import pytest

from jaxspec.nn import cache_pallas, norm
from jaxspec.ops import grouped


@pytest.fixture
def interpreted(monkeypatch):
    """Lets models use the kernels of a TPU here."""
    _run_those_of("tpu", monkeypatch, cache_pallas)


@pytest.fixture
def interpreted_on_gpu(monkeypatch):
    """Lets models use the kernels of a GPU here; returns the names of those that were called."""
    return _run_those_of("cuda", monkeypatch, cache_pallas, norm, grouped)


def _run_those_of(platform, monkeypatch, *modules):
    called = set()

    def by_platform(kernels, default, *arguments):
        if platform not in kernels:
            return default(*arguments)
        kernel = kernels[platform]
        called.add(getattr(kernel, "func", kernel).__name__)
        return functools.partial(kernel, interpret=True)(*arguments)

    for module in modules:
        monkeypatch.setattr(module, "by_platform", by_platform)
    return called
