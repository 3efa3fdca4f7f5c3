"""The cache folder that is kept between runs, and the features that work without it."""

from pathlib import Path

import jax
import platformdirs
import pytest

import jaxspec
from jaxspec.drafters.cost_file import saved_costs
from jaxspec.io.cache import cache_root, enable_compilation_cache
from jaxspec.nn import convert
from jaxspec.ops.native.build import register
from tests._fixtures import tiny


@pytest.fixture
def no_home(monkeypatch):
    def none(name):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("JAXSPEC_CACHE", raising=False)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", none)


def test_it_is_the_variable_or_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAXSPEC_CACHE", "~/kept")
    assert cache_root() == tmp_path / "kept"
    monkeypatch.delenv("JAXSPEC_CACHE")
    assert cache_root() == Path(platformdirs.user_cache_dir("jaxspec"))


def test_without_a_home_the_variable_is_asked_for(no_home, monkeypatch):
    with pytest.raises(OSError, match="home directory; set JAXSPEC_CACHE"):
        cache_root()
    with pytest.raises(OSError, match="set JAXSPEC_CACHE"):
        register.__wrapped__()


def test_without_a_home_what_is_only_faster_is_left_out(no_home, monkeypatch):
    """No kernels, no costs of earlier runs, no compiled programs."""
    before = jax.config.jax_compilation_cache_dir
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == before
    model = tiny.transformer()
    # Its cache stays: XLA takes kernels from one path only, and a library just compiled is loaded from another later.
    monkeypatch.setattr(convert, "register", register.__wrapped__)
    assert convert.native_if_possible(model) is model
    assert saved_costs(model, jaxspec.NGramDrafter(k=2), (0, 2)) is None
