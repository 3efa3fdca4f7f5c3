"""Builds a release wheel for one machine type: the wheel that `pip` makes of a checkout, plus prebuilt kernels.

    python .ci/release/wheel.py                        for this machine
    python .ci/release/wheel.py --machine aarch64      for ARM, with its compiler, such as `g++-aarch64-linux-gnu`
    python .ci/release/wheel.py --level x86-64-v3      with kernels for one processor level only

Kernels are compiled with the headers of the installed jaxlib. A library that needs more of the system than jaxlib's
own wheels (tagged `manylinux_2_27`) is refused.
"""

import argparse
import base64
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import jax

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from jaxspec.ops.native import build, prebuilt  # noqa: E402
from jaxspec.ops.native.prebuilt import LEVELS, Level  # noqa: E402

# Libraries that kernels may link to, and the newest allowed version of their symbols.
NEEDED = re.compile(r"(libstdc\+\+\.so\.6|libgcc_s\.so\.1|lib(m|c)\.so\.6|libpthread\.so\.0|ld-linux-[\w-]+\.so\.\d)")
NEWEST = {"GLIBC": (2, 27), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
TAG = "manylinux_2_27"
FOLDER = prebuilt.FOLDER.relative_to(ROOT).as_posix()


def main() -> None:
    """Builds a wheel and prints its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default=platform.machine(), choices=sorted({level.machine for level in LEVELS}))
    parser.add_argument("--level", action="append", help="a processor level; may be repeated; default: all")
    parser.add_argument("--wheel", type=pathlib.Path, help="a wheel of this checkout; default: pip builds one")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("dist"))
    given = parser.parse_args()
    known = [level for level in LEVELS if level.machine == given.machine]
    levels = [level for level in known if given.level is None or level.name in given.level]
    if unknown := set(given.level or ()) - {level.name for level in levels}:
        parser.error(f"--level must be of {', '.join(level.name for level in known)}, got {', '.join(unknown)}")
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = compile_levels(levels, find_compiler(given.machine), folder)
        made = add_files(given.wheel or make_wheel(folder), files, f"{TAG}_{given.machine}", given.out)
    print(made)


def find_compiler(machine: str) -> str:
    """Returns the g++ that compiles for a machine."""
    for name in (f"{machine}-linux-gnu-g++", *(["g++"] if machine == platform.machine() else [])):
        if found := shutil.which(name):
            return found
    raise SystemExit(f"no compiler for {machine}: install g++-{machine.replace('_', '-')}-linux-gnu")


def compile_levels(levels: list[Level], compiler: str, folder: pathlib.Path) -> dict[str, bytes]:
    """Returns the libraries and their manifest as a dictionary from file name to contents."""
    files, old = {}, pathlib.Path(__file__).with_name("old_libraries.cpp")
    for level in levels:
        made = folder / level.name / f"{level.name}.so"
        made.parent.mkdir()
        build.compile_kernels(made, [compiler], (*build.COMMON_OPTIONS, *level.options), [old])
        check_needs(made)
        files[made.name] = made.read_bytes()
        print(f"{made.name}: {len(files[made.name])} bytes", file=sys.stderr)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    manifest = {
        "sources": build.sources_digest(),
        "compiler": version.splitlines()[0],
        "jaxlib": importlib.metadata.version("jaxlib"),
        "xla_ffi": ffi_version(),
        "libraries": {name.removesuffix(".so"): hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    return files | {prebuilt.MANIFEST: json.dumps(manifest, indent=2).encode()}


def ffi_version() -> str:
    """Returns the version of XLA's foreign function interface in jaxlib's headers."""
    text = pathlib.Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    return ".".join(re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", text))


def check_needs(library: pathlib.Path) -> None:
    """Raises `SystemExit` if a library needs more of the system than jaxlib's wheels do."""
    said = subprocess.run(
        ["readelf", "--dynamic", "--version-info", "--wide", str(library)], capture_output=True, text=True, check=True
    ).stdout
    for name in re.findall(r"Shared library: \[(.*?)\]", said):
        if not NEEDED.fullmatch(name):
            raise SystemExit(f"{library.name} needs {name}, which a system may lack")
    for name, version in re.findall(r"Name: ([A-Z]+)_([\d.]+)", said):
        if tuple(map(int, version.split("."))) > NEWEST[name]:
            newest = ".".join(map(str, NEWEST[name]))
            raise SystemExit(f"{library.name} needs {name} {version}, newer than {newest}: see old_libraries.cpp")


def make_wheel(folder: pathlib.Path) -> pathlib.Path:
    """Returns the wheel of the checkout without prebuilt kernels."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True)
    (made,) = folder.glob("*.whl")
    return made


def add_files(wheel: pathlib.Path, files: dict[str, bytes], platform_tag: str, out: pathlib.Path) -> pathlib.Path:
    """Writes a copy of a wheel with more files, tagged for one platform; returns its path."""
    made = out / f"{wheel.stem.rpartition('-')[0]}-{platform_tag}.whl"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        (record,) = [info for info in old.infolist() if info.filename.endswith(".dist-info/RECORD")]
        lines = old.read(record).decode().splitlines()
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(".dist-info/WHEEL"):
                text = data.decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
                data = re.sub(r"Tag: py3-none-\S+", f"Tag: py3-none-{platform_tag}", text).encode()
                lines = [line for line in lines if not line.startswith(f"{info.filename},")]
                lines.append(record_line(info.filename, data))
            if info is not record:
                new.writestr(info, data, zipfile.ZIP_DEFLATED)
        for name, data in files.items():
            info = zipfile.ZipInfo(f"{FOLDER}/{name}", record.date_time)
            info.external_attr = 0o100644 << 16
            new.writestr(info, data, zipfile.ZIP_DEFLATED)
            lines.append(record_line(info.filename, data))
        new.writestr(record, "\n".join([*lines, ""]), zipfile.ZIP_DEFLATED)
    return made


def record_line(name: str, data: bytes) -> str:
    """Returns the line for a file in a wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(data)}"


if __name__ == "__main__":
    main()
