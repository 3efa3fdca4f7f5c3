"""Writes and reads training sets: folders with a manifest, the hashes of the turns, and shards of token sequences."""

import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.io.files import FileFormatError, check_fields, read_json, write_text
from jaxspec.io.manifest import differences, digest_of

MANIFEST, _DIGEST = "manifest.json", "sha256"
VERSION = 1
# Everything else in a manifest follows from these, or changes while the set is made.
_MAKING = {"target": dict, "options": dict, "prompts": list, "excluded": list}
_ALL = {**_MAKING, "categories": list, "shards": list, "complete": bool}
_TARGET = {"vocab_size": int, "tokenizer": str}
_SHARD = {"file": str, "sha256": str, "sequences": int, "tokens": int, "answer_tokens": int, "left_out": dict}
MAKE_ANEW = "run `jaxspec data` again, into another --out"


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Holds concatenated token sequences.

    Attributes:
      tokens: the tokens of all sequences, uint16 or int32.
      offsets: `[n + 1]` int64; sequence `i` is `tokens[offsets[i] : offsets[i + 1]]`.
      answer: for each token, whether it is part of an answer.
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
        """Reads the result of `to_bytes`."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in dataclasses.fields(cls)})


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Reads a folder's manifest; returns `None` if it has none.

    Raises:
      FileFormatError: the manifest is damaged, or of another version.
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
    digest = manifest.pop(_DIGEST, None)  # older manifests have none
    if digest is not None and digest != digest_of(manifest):
        raise FileFormatError(path, _DIGEST, "it was changed after it was written", MAKE_ANEW)
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest atomically, with the SHA-256 of its contents."""
    manifest = {**manifest, _DIGEST: digest_of(json.loads(json.dumps(manifest)))}
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def check_same_making(folder: Path, known: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Compares how a folder's set was made with how it is to be made now.

    Raises:
      ValueError: they differ; the message lists the differences.
    """
    before, now = ({part: manifest[part] for part in _MAKING} for manifest in (known, requested))
    if found := differences(before, now):
        raise ValueError(f"{folder} holds a training set made differently: {found}. Pass the same, or another --out")
