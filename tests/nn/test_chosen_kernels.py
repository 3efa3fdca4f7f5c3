"""Attention kernels are chosen by the device, by the caller, and for a draft by its target."""

import dataclasses
import types

import pytest

import jaxspec
from jaxspec.nn import chosen_kernels
from jaxspec.nn.attention_by_slot import BySlotHalfKVCache, BySlotKVCache
from jaxspec.nn.cache import KVCache
from jaxspec.nn.cache_half import HalfKVCache, NativeHalfKVCache
from jaxspec.nn.cache_int8 import Int8KVCache
from jaxspec.nn.cache_native import NativeKVCache
from jaxspec.nn.cache_pallas import BySlotPallasInt8KVCache, BySlotPallasKVCache, PallasInt8KVCache, PallasKVCache
from jaxspec.nn.chosen_kernels import kernels_like, with_kernels
from jaxspec.testing.random_models import random_model
from tests._fixtures import tiny
from tests._fixtures.medusa import paper_head


def model(head_dim):
    return random_model(dataclasses.replace(tiny.config(), head_dim=head_dim), 0, 0.1)


WIDE = model(128)


@pytest.fixture
def folder(tmp_path):
    jaxspec.save(WIDE, tmp_path / "wide")
    return tmp_path / "wide"


@pytest.fixture
def on(monkeypatch):
    """Lets the first device be of another kind."""
    return lambda kind: monkeypatch.setattr(
        chosen_kernels.jax, "devices", lambda: [types.SimpleNamespace(device_kind=kind)]
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("TPU v5 lite", PallasKVCache), ("TPU7x", PallasKVCache), ("TPU v5", KVCache)],
)
def test_by_the_device(on, kind, expected):
    on(kind)
    assert with_kernels(WIDE).cache_type is expected
    assert with_kernels(WIDE, "xla").cache_type is KVCache
    assert with_kernels(WIDE, "pallas").cache_type is PallasKVCache
    assert with_kernels(model(64)).cache_type is KVCache  # half a tile would be padding


@pytest.mark.parametrize(("kernels", "expected"), [(None, KVCache), ("xla", KVCache), ("pallas", PallasKVCache)])
def test_load_does_as_it_is_told(folder, kernels, expected):
    assert jaxspec.load(folder, kernels=kernels).cache_type is expected


def test_unknown_kernels_are_refused(folder):
    with pytest.raises(ValueError, match="kernels must be one of xla, pallas, got 'mosaic'; leave it out"):
        jaxspec.load(folder, kernels="mosaic")


@pytest.mark.parametrize(("kernels", "expected"), [(None, NativeKVCache), ("xla", KVCache), ("pallas", PallasKVCache)])
def test_a_native_cache_goes_where_others_are_asked_for(kernels, expected):
    native = dataclasses.replace(WIDE, cache_type=NativeKVCache)
    assert with_kernels(native, kernels).cache_type is expected


@pytest.mark.parametrize("kernels", ["xla", "pallas"])
def test_a_draft_follows_its_target(folder, kernels):
    target = jaxspec.load(folder, kernels=kernels)
    drafter = jaxspec.load_drafter(folder, target, k=2)
    assert drafter.model.cache_type is target.cache_type
    other = with_kernels(WIDE, "pallas" if kernels == "xla" else "xla")
    assert kernels_like(target, other).cache_type is target.cache_type
    assert kernels_like(target, dataclasses.replace(WIDE, cache_type=NativeKVCache)).cache_type is NativeKVCache


@pytest.mark.parametrize(
    ("cache", "found"),
    [
        (KVCache, Int8KVCache),
        (NativeKVCache, Int8KVCache),
        (PallasKVCache, PallasInt8KVCache),
        (BySlotPallasKVCache, BySlotPallasInt8KVCache),
    ],
)
def test_int8_caches_keep_the_kernels(cache, found):
    pass_tokens = 8 if issubclass(cache, BySlotKVCache) else None
    held = dataclasses.replace(WIDE, cache_type=cache, pass_tokens=pass_tokens)
    assert jaxspec.quantize_cache(held).cache_type is found


@pytest.mark.parametrize(
    ("cache", "found"),
    [(KVCache, HalfKVCache), (NativeKVCache, NativeHalfKVCache), (BySlotKVCache, BySlotHalfKVCache)],
)
def test_caches_of_float16_keep_the_kernels(cache, found):
    held = dataclasses.replace(WIDE, cache_type=cache, pass_tokens=8 if cache is BySlotKVCache else None)
    half = jaxspec.quantize_cache(held, "float16")
    assert half.cache_type is found
    assert with_kernels(half, "xla").cache_type is (BySlotHalfKVCache if cache is BySlotKVCache else HalfKVCache)


def test_kernels_are_chosen_before_and_after_passes_are_made_to_agree():
    exact = with_kernels(WIDE, "xla").bit_exact(8)
    assert with_kernels(exact, "pallas").cache_type is BySlotPallasKVCache
    assert with_kernels(with_kernels(exact, "pallas"), "xla").cache_type is BySlotKVCache
    assert kernels_like(with_kernels(exact, "pallas"), WIDE).cache_type is PallasKVCache
    assert kernels_like(exact, with_kernels(WIDE, "pallas")).cache_type is KVCache


def test_a_head_without_caches_stays_beside_any_target():
    head = paper_head(WIDE)
    for kernels in ("xla", "pallas"):
        assert kernels_like(with_kernels(WIDE, kernels), head) is head


@pytest.mark.parametrize(("head_dim", "expected"), [(64, PallasKVCache), (128, PallasKVCache), (96, KVCache)])
def test_by_the_heads_of_a_gpu(on, head_dim, expected):
    on("NVIDIA H100 80GB HBM3")
    assert with_kernels(model(head_dim)).cache_type is expected
    assert with_kernels(model(head_dim), "xla").cache_type is KVCache
