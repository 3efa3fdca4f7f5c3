"""Writes files of runs and of training sets, completely or not at all.

A training set is a folder with a manifest, the hashes of its turns, and shards of token sequences.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import jax
import numpy as np

from jaxspec.core.files import FileFormatError, check_fields, read_json
from jaxspec.core.manifest import digest_of

MANIFEST, _DIGEST = "manifest.json", "sha256"
VERSION = 1
# All else in a manifest follows from these, or changes while the set is made.
_MAKING = {"target": dict, "options": dict, "prompts": list, "excluded": list}
_ALL = {**_MAKING, "categories": list, "shards": list, "complete": bool}
_TARGET = {"vocab_size": int, "tokenizer": str}
_SHARD = {"file": str, "sha256": str, "sequences": int, "tokens": int, "answer_tokens": int, "left_out": dict}
MAKE_ANEW = "run `jaxspec data` again, into another --out"
_MOST_SAMPLES, _SHOWN = 4096, 4


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Locks a folder against other processes.

    Raises:
      ValueError: another process holds it.
    """
    try:
        with filelock.FileLock(folder / ".lock", timeout=0):
            yield
    except filelock.Timeout:
        raise ValueError(f"another process is writing to {folder}; wait for it, or pass another --out") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def write_text(path: Path, text: str) -> None:
    """Writes a file of UTF-8 atomically."""
    write_bytes(path, text.encode("utf-8"))


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Holds token sequences, one after the other.

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
        """Returns an npz file; equal sequences give equal bytes."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **vars(self))
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sequences":
        """Reads what `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in dataclasses.fields(cls)})


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Reads a folder's manifest; `None` if it has none.

    Raises:
      FileFormatError: it is damaged, or of another version.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    manifest = read_json(path, MAKE_ANEW)
    version = check_fields(path, "", manifest, {"version": int}, MAKE_ANEW)["version"]
    if version != VERSION:
        raise FileFormatError(path, "version", f"expected {VERSION}, got {version}", MAKE_ANEW)
    check_fields(path, "", manifest, _ALL, MAKE_ANEW)
    check_fields(path, "target", manifest["target"], _TARGET, MAKE_ANEW)
    for place, name in enumerate(manifest["categories"]):
        if not isinstance(name, str):
            raise FileFormatError(path, f"categories[{place}]", f"expected str, got {name!r}", MAKE_ANEW)
    for place, shard in enumerate(manifest["shards"]):
        name = check_fields(path, f"shards[{place}]", shard, _SHARD, MAKE_ANEW)["file"]
        if set(name) & {"/", "\\", "\0"} or name in ("", ".", ".."):
            problem = f"expected a file of the same folder, got {name!r}"
            raise FileFormatError(path, f"shards[{place}]: file", problem, MAKE_ANEW)
    digest = manifest.pop(_DIGEST, None)  # earlier ones have none
    if digest is not None and digest != digest_of(manifest):
        raise FileFormatError(path, _DIGEST, "it was changed after it was written", MAKE_ANEW)
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest atomically, with the SHA-256 of what it says."""
    manifest = {**manifest, _DIGEST: digest_of(json.loads(json.dumps(manifest)))}
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def check_same_making(folder: Path, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Compares how a folder's set is made with how it is now asked to be made.

    Raises:
      ValueError: they differ; says in what.
    """
    before, now = ({part: manifest[part] for part in _MAKING} for manifest in (known, asked))
    if told := differences(before, now):
        raise ValueError(f"{folder} holds a training set made otherwise: {told}. Pass the same, or another --out")


def differences(before: Any, now: Any) -> str:
    """Lists where two JSON values differ, the first few of many; empty if they are equal."""
    one, other = dict(_leaves(before)), dict(_leaves(now))
    differ = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    told = "; ".join(f"{name} was {one.get(name)!r}, now {other.get(name)!r}" for name in differ[:_SHOWN])
    return told + (f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else "")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(value[key], f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            yield from _leaves(item, f"{name}[{place}]")
    else:
        yield name, value


def sha256(data: bytes) -> str:
    """Returns the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def weights_digest(model: object) -> str:
    """Hashes a model's arrays: their names, shapes, dtypes and a sample of each one's values.

    It tells models from each other; it does not prove that two of them are equal.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        # On the host: arrays that are split over a mesh cannot be flattened where they lie.
        flat = np.asarray(leaf).reshape(-1)
        sample = flat[:: max(1, flat.size // _MOST_SAMPLES)]
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}\n".encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()
