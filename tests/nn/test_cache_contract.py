"""Caches keep their contract; one that cuts all rows alike does not."""

import dataclasses

import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.core.pytree import register_dataclass
from jaxspec.testing.contracts.cache import CacheContract
from jaxspec.testing.history_models import HistoryModel, TokenCache, history_model
from tests._fixtures import tiny


class TestHistory(CacheContract):
    model = history_model(0)


class TestTransformer(CacheContract):
    quick_tests = ("test_gathered_rows_hold_what_they_held",)
    model = tiny.transformer()


@pytest.mark.slow
class TestEightBits(CacheContract):
    model = jaxspec.quantize_cache(tiny.transformer())
    tolerance = 0.2


@pytest.mark.slow
class TestHalf(CacheContract):
    model = jaxspec.quantize_cache(tiny.transformer(), "float16")
    tolerance = 5e-3


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Lagging(TokenCache):
    """Cuts all rows to the shortest."""

    def append(self, entries):
        longer = super().append(entries)
        return Lagging(longer.tokens, longer.positions, longer.length)

    def truncate(self, length):
        return dataclasses.replace(self, length=jnp.full_like(length, length.min()))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LaggingModel(HistoryModel):
    def init_cache(self, batch, capacity):
        cache = super().init_cache(batch, capacity)
        return Lagging(cache.tokens, cache.positions, cache.length)


def test_a_cache_whose_rows_are_cut_alike_is_seen():
    model = history_model(0)
    case = type("Own", (CacheContract,), {"model": LaggingModel(model.a, model.b)})()
    with pytest.raises(AssertionError):
        case.test_a_row_that_was_cut_goes_on_as_if_the_rest_had_not_been_fed()
