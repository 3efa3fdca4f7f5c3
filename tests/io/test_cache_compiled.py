"""Compiled programs that are kept between runs: a damaged one is compiled again, once, and never runs."""

import jax
import pytest
from jax._src import compilation_cache
from jax._src.lru_cache import LRUCache

from jaxspec.io.cache import CheckedCache, enable_compilation_cache
from tests._fixtures import disk_faults

FILES = ("empty", "half", "longer", "first bit", "middle bit", "last bit", "zeros", "another file")


def _cache(folder):
    return CheckedCache(LRUCache(str(folder), max_size=-1), str(folder))


@pytest.mark.parametrize("what", FILES)
def test_a_damaged_program_is_made_again_once(what, tmp_path, messages):
    _cache(tmp_path).put("jit_f-1", b"program" * 9)
    (path,) = tmp_path.iterdir()
    disk_faults.DAMAGES[what](path)
    assert _cache(tmp_path).get("jit_f-1") is None and not path.exists()
    said = messages()
    marked = what in ("half", "longer", "middle bit", "last bit")  # others look like those of before
    assert said == ([f"{path} is damaged; compiling it again"] if marked else [])
    _cache(tmp_path).put("jit_f-1", b"program" * 9)
    assert _cache(tmp_path).get("jit_f-1") == b"program" * 9
    assert _cache(tmp_path).get("jit_f-2") is None and not messages()


def test_it_is_in_the_cache_folder_and_checked(monkeypatch, tmp_path):
    monkeypatch.setattr(compilation_cache, "get_file_cache", compilation_cache.get_file_cache)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    before = jax.config.jax_compilation_cache_dir
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == before
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    set_to = {}
    monkeypatch.setattr(jax.config, "update", set_to.__setitem__)
    for _ in range(2):
        enable_compilation_cache()
    assert set_to["jax_compilation_cache_dir"] == str(tmp_path / "compiled")
    found, _ = compilation_cache.get_file_cache(str(tmp_path))
    assert isinstance(found, CheckedCache) and isinstance(found._cache, LRUCache)
