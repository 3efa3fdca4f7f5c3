"""The wheel with prebuilt kernels, installed where no compiler is, and kernels for processors that are emulated."""

import contextlib
import json
import os
import platform
import runpy
import shutil
import site
import subprocess
import sys
import zipfile

import jax
import pytest

from jaxspec.ops.native import build, prebuilt
from jaxspec.ops.native.library import NoCompilerError, find_compiler
from jaxspec.ops.stored import BLOCKS
from tests._fixtures.processes import ROOT

RELEASE = ROOT / ".ci" / "release" / "wheel.py"
# A product of stored weights, compared with that of their values.
_PROGRAM = """
import logging
import jax, jax.numpy as jnp, numpy as np
import jaxspec
logging.basicConfig(format="jaxspec: %(message)s")
from jaxspec.ops.native.build import register
from jaxspec.ops.stored import StoredWeight
weight = StoredWeight.pack(jax.random.normal(jax.random.key(0), (100, 256)))
x = jax.random.normal(jax.random.key(1), (1, 3, 256))
found, expected = jax.jit(weight.product)(x), x @ weight[:].T
print(jaxspec.__file__)
print(register()._name)
print(float(jnp.abs(found - expected).max() / jnp.abs(expected).max()))
"""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def usable():
    """The best level of this processor, and the last."""
    machine, flags = prebuilt.this_processor()
    usable = prebuilt.usable_levels(machine, flags)
    if len(usable) < 2 or not prebuilt.is_best(usable[0], flags):
        pytest.skip("a processor is needed that has two levels, one of which is its best")
    return usable[0], usable[-1]


@pytest.fixture(scope="module")
def wheel(usable, tmp_path_factory):
    if not all(map(shutil.which, ("g++", "readelf"))):
        pytest.skip("g++ and readelf are needed")
    out = tmp_path_factory.mktemp("wheel")
    # The build tools are installed for the tests.
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, ROOT)
    (pure,) = out.glob("*-py3-none-any.whl")
    words = [f"--level={level.name}" for level in usable]
    words += ["--machine", usable[0].machine, "--wheel", pure, "--out", out]
    run(sys.executable, RELEASE, *words, env=os.environ | {"PYTHONPATH": str(ROOT)})
    (made,) = out.glob("*manylinux*.whl")
    return pure, made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Installs the wheel on top of the packages of the tests; returns a function that runs the program there."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel[1])
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))

    def run_program():
        environment = {"PATH": str(python.parent), "JAX_PLATFORMS": "cpu", "JAXSPEC_CACHE": str(folder / "cache")}
        done = run(python, "-c", _PROGRAM, env=environment, cwd=folder)
        package, library, error = done.stdout.splitlines()
        assert package == str(packages / "jaxspec" / "__init__.py") and float(error) < 0.02
        assert not list((folder / "cache").rglob("*.so"))
        return library, done.stderr

    return packages / "jaxspec" / "ops" / "native" / "prebuilt", run_program


@pytest.mark.slow
def test_the_wheel_says_what_it_is(wheel, usable):
    pure, made = wheel
    assert made.name == pure.name.replace("-any", f"-manylinux_2_27_{usable[0].machine}")
    with zipfile.ZipFile(pure) as old, zipfile.ZipFile(made) as new:
        added = {*new.namelist()} - {*old.namelist()}
        folder = "jaxspec/ops/native/prebuilt/"
        assert added == {f"{folder}manifest.json", *(f"{folder}{level.name}.so" for level in usable)}
        (info,) = [name for name in new.namelist() if name.endswith(".dist-info/WHEEL")]
        said = new.read(info).decode()
        manifest = json.loads(new.read(f"{folder}manifest.json"))
        record = new.read(info.replace("WHEEL", "RECORD")).decode().splitlines()
    assert f"Tag: py3-none-manylinux_2_27_{usable[0].machine}\n" in said and "Root-Is-Purelib: false\n" in said
    assert manifest["sources"] == build.sources_digest()
    assert {line.split(",")[0] for line in record} == {*zipfile.ZipFile(made).namelist()}


@pytest.mark.slow
def test_it_is_fast_where_no_compiler_is(installed, usable):
    """The level that is the best for this processor is loaded, silently; a lower one where that is damaged."""
    folder, run_program = installed
    assert run_program() == (str(folder / f"{usable[0].name}.so"), "")
    (folder / f"{usable[0].name}.so").write_bytes(b"")
    library, said = run_program()
    assert library == str(folder / f"{usable[1].name}.so")
    assert [line.partition(": ")[0] for line in said.splitlines()] == ["jaxspec"] * 2
    assert f"{usable[0].name}.so are not used: its bytes" in said and "because compiling failed" in said


def dynamic(*libraries, **newest):
    """Returns what readelf says of a library that needs others, and these versions of their symbols."""
    lines = [f" 0x0000000000000001 (NEEDED)             Shared library: [{name}]" for name in libraries]
    lines += [f"  0x0010:   Name: {name}_{version}  Flags: none" for name, version in newest.items()]
    return "\n".join(lines)


NEEDS = {
    "as jaxlib's": (dynamic("libstdc++.so.6", "libm.so.6", "libc.so.6", GLIBC="2.27", GLIBCXX="3.4.21"), None),
    "ARM's loader": (dynamic("ld-linux-aarch64.so.1", GLIBC="2.17", GCC="3.0"), None),
    "a newer C library": (dynamic("libc.so.6", GLIBC="2.32"), "kernels.so needs GLIBC 2.32, newer than 2.27"),
    "a newer C++ runtime": (dynamic(GLIBCXX="3.4.29"), "kernels.so needs GLIBCXX 3.4.29, newer than 3.4.24"),
    "another library": (dynamic("libgomp.so.1"), "kernels.so needs libgomp.so.1, which a system may lack"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_library_that_needs_more_than_jaxlib_is_refused(monkeypatch, tmp_path, name):
    said, refused = NEEDS[name]
    (tmp_path / "readelf").write_text(f"#!/bin/sh\n/bin/cat <<'end'\n{said}\nend\n")
    (tmp_path / "readelf").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = runpy.run_path(str(RELEASE))["check_needs"]
    with pytest.raises(SystemExit, match=refused) if refused else contextlib.nullcontext():
        check(tmp_path / "kernels.so")


EMULATED = {"armv8.2-i8mm": "max", "armv8": "cortex-a53"}  # processors that qemu knows
LEVELS = {level.name: level for level in prebuilt.LEVELS}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["stored_products", "float_products", "sampled_tokens"])
@pytest.mark.parametrize("name", ["armv8.2-i8mm", "armv8", "x86-64-v3-vnni", "x86-64-v3"])
def test_kernels_of_a_level_compute(name, program, tmp_path):
    """As plain loops do, on such a processor or on an emulated one."""
    level, made = LEVELS[name], tmp_path / "program"
    compiler, emulator = _tools(level)
    options = [*build.COMMON_OPTIONS, *level.options, "-static", f"-I{build._HERE}", f"-I{jax.ffi.include_dir()}"]
    run(*compiler, *options, ROOT / "tests" / "_fixtures" / f"{program}.cpp", "-o", made)
    said = run(*emulator, made).stdout.splitlines()
    if program == "stored_products":
        byte_products = int("i8mm" in name or "vnni" in name)
        assert said[0] == f"lanes 8, byte products {byte_products}" and len(said) == 1 + len(BLOCKS)


def _tools(level):
    machine, flags = prebuilt.this_processor()
    if level in prebuilt.usable_levels(machine, flags):
        try:
            return find_compiler(), []
        except NoCompilerError as error:
            pytest.skip(str(error))
    compiler, emulator = shutil.which(f"{level.machine}-linux-gnu-g++"), shutil.which(f"qemu-{level.machine}")
    if platform.machine() == level.machine or not (compiler and emulator):
        pytest.skip(f"a processor of {level.name} is needed, or g++ for {level.machine} and qemu")
    return [compiler], [emulator, "-cpu", EMULATED[level.name]]
