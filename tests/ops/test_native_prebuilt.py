"""Prebuilt kernels: which of them a processor gets, when they are used, and which are rejected."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import jax
import pytest

from jaxspec.io.cache import cache_root
from jaxspec.ops.native import build, prebuilt
from jaxspec.ops.native.build import NoCompilerError, register
from jaxspec.ops.native.library import find_compiler
from tests._fixtures import native_cache

try:
    register()
    COMPILER, ENVIRONMENT = find_compiler(), dict(os.environ)
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)
WHOLE = next((cache_root() / "native").glob(f"kernels-{build._digest()}-*.so"))
RUNS = len(build._SOURCES) + 1  # of the compiler, for one library

V3 = "ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 avx2 bmi2"
V4 = f"{V3} avx512f avx512dq avx512cd avx512bw avx512vl"
ARM = "fp asimd evtstrm aes sha2 crc32 atomics fphp asimdhp cpuid asimdrdm"
# What processors list, the levels that they get, and how many of those are the best for them.
PROCESSORS = {
    "Zen 4": ("x86_64", [f"{V4} avx512_bf16 avx512_vnni"], "x86-64-v4-vnni x86-64-v4 x86-64-v3", 1),
    "Sapphire Rapids": (
        "x86_64",
        [f"{V4} avx_vnni avx512_vnni"],
        "x86-64-v4-vnni x86-64-v4 x86-64-v3-vnni x86-64-v3",
        1,
    ),
    "Skylake-X": ("x86_64", [V4], "x86-64-v4 x86-64-v3", 1),
    "Alder Lake": ("x86_64", [f"{V3} avx_vnni"] * 2, "x86-64-v3-vnni x86-64-v3", 1),
    "Haswell": ("x86_64", [V3], "x86-64-v3", 1),
    "Knights Landing": ("x86_64", [f"{V3} avx512f avx512cd"], "x86-64-v3", 0),
    "Sandy Bridge": ("x86_64", [V3.replace(" avx2", "")], "", 0),
    "cores of two kinds": ("x86_64", [f"{V3} avx_vnni", V3], "x86-64-v3", 1),
    "Neoverse V1": ("aarch64", [f"{ARM} asimddp i8mm bf16"], "armv8.2-i8mm armv8", 1),
    "Neoverse N1": ("aarch64", [f"{ARM} asimddp"], "armv8", 1),
    "Cortex-A53": ("aarch64", ["fp asimd evtstrm aes crc32"], "armv8", 1),
    "ARM's flags on another machine": ("armv7l", [ARM], "", 0),
}


def cpuinfo(machine, cores):
    """Returns the text of `/proc/cpuinfo`."""
    name = "flags\t\t" if machine == "x86_64" else "Features\t"
    return "\n\n".join(f"processor\t: {i}\n{name}: {flags}\npower management:" for i, flags in enumerate(cores))


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_has_levels(monkeypatch, tmp_path, name):
    machine, cores, names, best = PROCESSORS[name]
    monkeypatch.setattr(prebuilt, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: machine)
    assert prebuilt.this_processor() == (machine, frozenset())
    (tmp_path / "cpuinfo").write_text(cpuinfo(machine, cores))
    found, flags = prebuilt.this_processor()
    usable = prebuilt.usable_levels(found, flags)
    assert [level.name for level in usable] == names.split()
    assert [prebuilt.is_best(level, flags) for level in usable] == [True] * best + [False] * (len(usable) - best)


def test_an_option_of_the_compiler_for_each_level():
    """No two are the same; what a level's flags add to those of another of its machine, its options do."""
    options = [level.options for level in prebuilt.LEVELS]
    assert len(set(options)) == len({level.name for level in prebuilt.LEVELS}) == len(options)
    byte_products = {"-mavx512vnni", "-mavxvnni", "-march=armv8.2-a+i8mm"}
    for level in prebuilt.LEVELS:
        assert any("vnni" in flag or flag == "i8mm" for flag in level.flags) == bool(byte_products & {*level.options})


@pytest.fixture
def carried(monkeypatch, tmp_path):
    """A wheel's folder with the library that was compiled here as two levels, of a processor that gets both."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "prebuilt")
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    processor(monkeypatch, V4)
    prebuilt.FOLDER.mkdir()
    for name in ("x86-64-v4", "x86-64-v3"):
        # A link: the same functions, as XLA takes one of a name.
        (prebuilt.FOLDER / f"{name}.so").symlink_to(WHOLE)
    write_manifest()
    return prebuilt.FOLDER


def processor(monkeypatch, flags, machine="x86_64"):
    monkeypatch.setattr(prebuilt, "this_processor", lambda: (machine, frozenset(flags.split())))


def write_manifest(**changed):
    digest = hashlib.sha256(WHOLE.read_bytes()).hexdigest()
    manifest = {"sources": build.sources_digest(), "libraries": {"x86-64-v4": digest, "x86-64-v3": digest}}
    (prebuilt.FOLDER / prebuilt.MANIFEST).write_text(json.dumps(manifest | changed))


def compiler(folder, text=f'ln -s "{WHOLE}" "$library"'):
    """Writes a compiler that links to the existing library: it needs a PATH."""
    return str(native_cache.compiler(folder / "compiler", f"PATH=/usr/bin:/bin\n{text}"))


def used():
    """The name of the library that is registered."""
    return Path(register.__wrapped__()._name)


def test_the_best_is_used_before_compiling(carried, monkeypatch, messages, tmp_path):
    """At once: neither is a compiler run nor a folder made."""
    monkeypatch.setenv("CXX", compiler(tmp_path))
    assert used() == carried / "x86-64-v4.so"
    assert native_cache.runs(tmp_path) == 0 and not cache_root().exists() and not messages()


def test_what_was_compiled_here_is_used_first(carried, monkeypatch, tmp_path):
    processor(monkeypatch, f"{V4} avx512_vnni")
    monkeypatch.setenv("CXX", compiler(tmp_path))
    made = used()
    assert made.name == "kernels.so" and native_cache.runs(tmp_path) == RUNS
    processor(monkeypatch, V4)
    assert used().parent == cache_root() / "native" and native_cache.runs(tmp_path) == RUNS


def test_a_lesser_one_is_used_where_none_is_compiled(carried, monkeypatch, messages, tmp_path):
    """Byte products would be compiled for this processor: what is carried is used without a compiler alone."""
    processor(monkeypatch, f"{V4} avx512_vnni")
    assert used() == carried / "x86-64-v4.so"
    (line,) = messages()
    assert line.startswith(f"using the prebuilt kernels {carried / 'x86-64-v4.so'}, because compiling failed")
    assert "none of c++, g++, clang++ is on the path" in line
    monkeypatch.setenv("CXX", compiler(tmp_path))
    assert used().name == "kernels.so" and native_cache.runs(tmp_path) == RUNS


def test_one_is_used_where_the_cache_cannot_be_written(carried, monkeypatch, messages, tmp_path):
    processor(monkeypatch, f"{V4} avx512_vnni")
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("CXX", compiler(tmp_path))
    assert used() == carried / "x86-64-v4.so" and "set JAXSPEC_CACHE" in messages()[0]


def test_a_damaged_kept_one_is_compiled_again_if_it_can_be(carried, monkeypatch, messages):
    """The message says so; otherwise the library in the wheel is used."""
    kept = cache_root() / "native" / f"kernels-{build._digest()}-{'0' * 64}.so"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"")
    assert used() == carried / "x86-64-v4.so"
    first, second = messages()
    assert first.endswith("compiling it again") and "because compiling failed" in second


def _replaced(path, data):
    path.unlink()
    path.write_bytes(data)


DAMAGE = {
    "other bytes": lambda path: _replaced(path, WHOLE.read_bytes()[:-1] + b"x"),
    "half of it": lambda path: _replaced(path, WHOLE.read_bytes()[:1000]),
    "no file": Path.unlink,
    "another library": lambda path: _replaced(path, b"another"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_one_is_refused(carried, messages, name):
    """A message says so, and the next level is used."""
    DAMAGE[name](carried / "x86-64-v4.so")
    assert used() == carried / "x86-64-v3.so"
    first, second = messages()
    assert first.startswith(f"the prebuilt kernels {carried / 'x86-64-v4.so'} are not used: it")
    assert second.startswith(f"using the prebuilt kernels {carried / 'x86-64-v3.so'}")


FOREIGN = {
    "other sources": ({"sources": "0" * 64}, "they were built from other sources than those next to them"),
    "another machine": (
        {"libraries": {"armv8": "0" * 64}},
        "they are for armv8, and this processor (x86_64) is none of these",
    ),
    "no libraries": ({"libraries": None}, "manifest.json is damaged: TypeError"),
    "a list": ({"libraries": ["x86-64-v3"]}, "manifest.json is damaged: ValueError"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_ones_are_refused(carried, messages, name):
    changed, reason = FOREIGN[name]
    write_manifest(**changed)
    with pytest.raises(NoCompilerError):
        used()
    (line,) = messages()
    assert line.startswith("the prebuilt kernels are not used: ") and reason in line


@pytest.mark.parametrize("text", ["", "[]", '{"sources": 1', "\udcff"])
def test_a_damaged_manifest_is_refused(carried, messages, text):
    (carried / prebuilt.MANIFEST).write_text(text, errors="surrogateescape")
    with pytest.raises(NoCompilerError):
        used()
    assert "manifest.json is damaged" in messages()[0]


def test_a_checkout_has_none(carried, messages):
    (carried / prebuilt.MANIFEST).unlink()
    with pytest.raises(NoCompilerError):
        used()
    assert not messages()


# Handlers that say which version of the interface they were compiled with, and do nothing.
_OTHER_VERSION = """
#include "xla/ffi/api/c_api.h"
XLA_FFI_Error* Answer(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Metadata_Extension* asked = (XLA_FFI_Metadata_Extension*)frame->extension_start;
  asked->metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  asked->metadata->api_version.minor_version = 1000;
  return 0;
}
#define ANSWERS(name) XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) { return Answer(frame); }
ANSWERS(JaxspecProduct) ANSWERS(JaxspecAttention) ANSWERS(JaxspecStoredProduct) ANSWERS(JaxspecStoredRows)
ANSWERS(JaxspecProductByExpert) ANSWERS(JaxspecStoredProductByExpert)
ANSWERS(JaxspecPack) ANSWERS(JaxspecTileBytes) ANSWERS(JaxspecLanes)
ANSWERS(JaxspecWarp) ANSWERS(JaxspecLogSumExp) ANSWERS(JaxspecDraw) ANSWERS(JaxspecDrawNext) ANSWERS(JaxspecExcess)
"""


def test_what_xla_does_not_take_is_refused(carried, messages, tmp_path):
    """It is rejected before it could crash the CPU backend."""
    source, made = tmp_path / "other.cpp", carried / "x86-64-v4.so"
    source.write_text(f'extern "C" {{{_OTHER_VERSION}}}')
    made.unlink()
    command = [*COMPILER, "-shared", "-fPIC", "-w", f"-I{jax.ffi.include_dir()}", str(source), "-o", str(made)]
    subprocess.run(command, env=ENVIRONMENT, check=True)
    digests = {"x86-64-v4": hashlib.sha256(made.read_bytes()).hexdigest()}
    write_manifest(libraries=digests | {"x86-64-v3": hashlib.sha256(WHOLE.read_bytes()).hexdigest()})
    assert used() == carried / "x86-64-v3.so"
    said = messages()[0]
    assert said.startswith(f"the prebuilt kernels {made} are not used: ") and "API version" in said
    assert jax.devices("cpu")
