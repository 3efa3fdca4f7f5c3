"""The files of a training set: a manifest, the hashes of its turns, and shards of token sequences."""

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.core.model import Model

MANIFEST = "manifest.json"
VERSION = 1
# All else in a manifest follows from these, or changes while the set is made.
_MAKING = ("target", "options", "prompts", "excluded")
_MOST_SAMPLES = 4096


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Token sequences, one after the other.

    Attributes:
      tokens: of all sequences, uint16 or int32.
      offsets: `[n + 1]` int64; sequence `i` is `tokens[offsets[i] : offsets[i + 1]]`.
      answer: for each token, whether it is a part of an answer.
      category: `[n]` int32, an index into the manifest's names.
      conversation: `[n]` uint64, a hash of the user's turns.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    answer: np.ndarray
    category: np.ndarray
    conversation: np.ndarray

    def to_bytes(self) -> bytes:
        """As an npz file; equal sequences give equal bytes."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **vars(self))
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sequences":
        """Reads what `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in dataclasses.fields(cls)})


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The folder's manifest, or `None`.

    Raises:
      ValueError: it is damaged, or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text("utf-8"))
        version = manifest["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no manifest of a training set ({error!r})") from None
    if version != VERSION:
        raise ValueError(f"{path} has version {version}, expected {VERSION}; make the set anew")
    return manifest


def check_same_making(folder: Path, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a folder's set is made in another way than it is now asked to be."""
    before, now = (dict(_leaves({part: manifest[part] for part in _MAKING})) for manifest in (known, wanted))
    differ = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if differ:
        told = "; ".join(f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in differ[:4])
        more = f"; and {len(differ) - 4} more" if len(differ) > 4 else ""
        raise ValueError(f"{folder} holds a training set made otherwise: {told}{more}. Pass the same, or another --out")


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, atomically."""
    write_bytes(folder / MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def sha256(data: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def weights_digest(target: Model) -> str:
    """A digest of a model's arrays: their names, shapes, dtypes and a sample of each one's values.

    It tells models apart; it does not prove that two of them are equal.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(target):
        # On the host: arrays that are split over a mesh cannot be flattened where they lie.
        flat = np.asarray(leaf).reshape(-1)
        sample = flat[:: max(1, flat.size // _MOST_SAMPLES)]
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}\n".encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(value[key], f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{name}[{place}]")
    else:
        yield name, value
