"""Writes and checks the digests of a folder: a manifest lists the SHA-256 of each file, and of itself."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxspec.io.files import FileFormatError, check_fields, reading

_FILES, _OWN = "files", "sha256"
_MOST_SHOWN = 4


def with_digests(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest: the values, the digest of each file below the folder, and a digest of the manifest itself.

    Args:
      folder: the folder of the manifest, which is written after all other files.
      values: further entries, of JSON types.
    """
    digests = {name: file_digest(path) for name, path in sorted(_files(folder).items())}
    said = json.loads(json.dumps({**values, _FILES: digests}))
    return said | {_OWN: digest_of(said)}


def check_digests(path: Path, manifest: Mapping[str, Any], advice: str) -> None:
    """Compares a manifest and the files that it lists with their digests; the folder may hold other files.

    Args:
      path: the manifest's file.
      manifest: its contents.
      advice: what to do if they differ.

    Raises:
      FileFormatError: the manifest was changed, or a file is missing or was changed.
    """
    check_fields(path, "", manifest, {_FILES: dict, _OWN: str}, advice)
    if digest_of({name: value for name, value in manifest.items() if name != _OWN}) != manifest[_OWN]:
        raise FileFormatError(path, _OWN, "it was changed after it was written", advice)
    # Opens only files found in the folder: a listed name could point anywhere.
    found = _files(path.parent)
    for name, digest in manifest[_FILES].items():
        if name not in found:
            raise FileFormatError(path.parent / name, "", "there is no such file", advice)
        with reading(found[name], advice=advice):
            now = file_digest(found[name])
        if now != digest:
            raise FileFormatError(found[name], "", "its SHA-256 differs from the manifest's", advice)


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(said: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a JSON object, regardless of the order of its keys."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def sha256(data: bytes) -> str:
    """Returns the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def differences(before: Any, now: Any) -> str:
    """Lists the first few differences between two JSON values; empty if they are equal."""
    one, other = dict(_leaves(before)), dict(_leaves(now))
    differ = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    shown = "; ".join(f"{name} was {one.get(name)!r}, now {other.get(name)!r}" for name in differ[:_MOST_SHOWN])
    return shown + (f"; and {len(differ) - _MOST_SHOWN} more" if len(differ) > _MOST_SHOWN else "")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(value[key], f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            yield from _leaves(item, f"{name}[{place}]")
    else:
        yield name, value
