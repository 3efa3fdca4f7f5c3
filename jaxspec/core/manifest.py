"""Writes and checks the digests of a folder: a manifest lists the SHA-256 of each file beside it, and its own."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxspec.core.files import FileFormatError, check_fields, reading

_FILES, _OWN = "files", "sha256"


def with_digests(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest for JSON: the values, the digest of each file below the folder, and one of all that.

    Args:
      folder: where the manifest is to be written, after all other files.
      values: what else it says.
    """
    digests = {name: _digest(path) for name, path in sorted(_files(folder).items())}
    said = json.loads(json.dumps({**values, _FILES: digests}))
    return said | {_OWN: digest_of(said)}


def check_digests(path: Path, manifest: Mapping[str, Any], advice: str) -> None:
    """Compares a manifest and the files that it lists with their digests; others may lie beside them.

    Args:
      path: the manifest.
      manifest: what it holds.
      advice: what to do where they differ.

    Raises:
      FileFormatError: the manifest was changed, or a file is missing or was changed.
    """
    check_fields(path, "", manifest, {_FILES: dict, _OWN: str}, advice)
    if digest_of({name: value for name, value in manifest.items() if name != _OWN}) != manifest[_OWN]:
        raise FileFormatError(path, _OWN, "it was changed after it was written", advice)
    # Only files that were found are opened: a name may lead anywhere.
    found = _files(path.parent)
    for name, digest in manifest[_FILES].items():
        if name not in found:
            raise FileFormatError(path.parent / name, "", "there is no such file", advice)
        with reading(found[name], advice=advice):
            now = _digest(found[name])
        if now != digest:
            raise FileFormatError(found[name], "", "its SHA-256 is not the one that was written", advice)


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(said: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of JSON's values, whatever the order of their names."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
