"""Runs the kernels for accelerators as ordinary operations."""

import functools

import pytest

from jaxspec.nn import cache_pallas


@pytest.fixture
def interpreted(monkeypatch):
    """Lets caches of kernels use them here, as they would on a TPU."""
    _run_those_of("tpu", monkeypatch)


@pytest.fixture
def interpreted_on_gpu(monkeypatch):
    """Lets caches of kernels use them here, as they would on a GPU."""
    _run_those_of("cuda", monkeypatch)


def _run_those_of(platform, monkeypatch):
    def by_platform(kernels, default, *arguments):
        if platform not in kernels:
            return default(*arguments)
        return functools.partial(kernels[platform], interpret=True)(*arguments)

    monkeypatch.setattr(cache_pallas, "by_platform", by_platform)
