"""Keeps the arguments of a run next to its answers, so that another call goes on from it or is refused.

ANSWERS.run.json       the model, the prompts with their sizes and SHA-256, all options, and jaxspec's version
ANSWERS.lock           what the run that writes now has locked; only next to a local folder
ANSWERS.checkpoint     Ray's: the ids in each file of answers; X.pending.parquet until the file X is complete
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.core import validate
from jaxspec.io import manifest
from jaxspec.io.files import exclusive
from jaxspec.serving.ray_files import id_of, lines_of

_PENDING = ".pending.parquet"


def listed(prompts: Sequence[str]) -> dict[str, list[int | str]]:
    """Lists the files of prompts, and those in folders of prompts, with their sizes in bytes and SHA-256.

    All files are read for it: with another text in a file of the same size, answers would be to prompts of two kinds.

    Args:
      prompts: the files and folders.

    Raises:
      ValueError: there are none.
      FileNotFoundError: one does not exist.
    """
    fs = importlib.import_module("pyarrow.fs")
    found: dict[str, list[int | str]] = {}
    for one in prompts:
        system, path = fs.FileSystem.from_uri(one)
        info = system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"prompts must be files or folders, got {one}, which does not exist")
        inside = [info]
        if info.type == fs.FileType.Directory:
            inside = system.get_file_info(fs.FileSelector(path, recursive=True))
        for each in inside:
            ignored = each.path[len(path) :].lstrip("/").startswith((".", "_"))  # by Ray, in a folder
            if each.type == fs.FileType.File and not ignored:
                with system.open_input_stream(each.path) as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                found[one[: len(one) - len(path)] + each.path] = [each.size, digest]  # with the scheme, as Ray takes it
    if not found:
        raise ValueError(f"prompts must be files or folders of them, got {list(prompts)!r}, without any file")
    return found


def check_place(answers: str, prompts: Sequence[str]) -> None:
    """Raises `ValueError` if answers would be written among the prompts, where the next run would read them."""
    for one in prompts:
        if answers == one or answers.startswith(one.rstrip("/") + "/"):
            raise ValueError(f"answers must not be inside prompts, got {answers} in {one}; pass another folder")


def check_ids(files: Sequence[str], form: str, id_column: str) -> None:
    """Reads the ids of all rows, since a row that shares its id, or has none, would be lost in a later run.

    Eight bytes of each id are kept: of ten million rows, two that differ are taken for one with a chance of 3e-6.

    Args:
      files: the files.
      form: the format, `"jsonl"` or `"parquet"`.
      id_column: the column of ids, or the field of a line.

    Raises:
      ValueError: a row of Parquet has no id, or two rows have the same.
    """
    seen: list[np.ndarray] = []
    for one in files:
        if form == "jsonl":
            ids = _ids_of_lines(one, id_column)
        elif one.endswith(".parquet"):  # of a folder, Ray reads no others
            ids = _ids_of_table(one, id_column)
        else:
            continue
        seen.append(np.frombuffer(b"".join(map(_short_digest, ids)), np.uint64))
    hashes, counts = np.unique(np.concatenate(seen), return_counts=True) if seen else (np.zeros(0), np.zeros(0))
    if (counts > 1).any():
        wanted = hashes[counts > 1][0].tobytes()
        shared = next(
            each
            for one in files
            for each in (_ids_of_lines if form == "jsonl" else _ids_of_table)(one, id_column)
            if _short_digest(each) == wanted
        )
        raise ValueError(f"two rows must not have the same id, got {shared!r} twice in the field {id_column}")


def _short_digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _ids_of_lines(file: str, id_column: str) -> Iterator[str]:
    fs = importlib.import_module("pyarrow.fs")
    system, path = fs.FileSystem.from_uri(file)
    with system.open_input_stream(path) as stream:
        for place, line in lines_of(io.BufferedReader(stream)):
            yield id_of(line, id_column, f"{path}:{place + 1}")


def _ids_of_table(file: str, id_column: str) -> Iterator[str]:
    fs, dataset = importlib.import_module("pyarrow.fs"), importlib.import_module("pyarrow.dataset")
    system, path = fs.FileSystem.from_uri(file)
    rows = dataset.dataset(path, filesystem=system, format="parquet")
    if id_column not in rows.schema.names:
        raise ValueError(f"{file} needs the column {id_column}, got {', '.join(rows.schema.names)}; pass id_column")
    if count := rows.count_rows(filter=dataset.field(id_column).is_null()):
        raise ValueError(f"each row needs an id in the column {id_column}, got {count} without one in {file}")
    for batch in rows.to_batches(columns=[id_column]):
        yield from map(str, batch.column(0).to_pylist())


def only_writer(answers: str) -> AbstractContextManager[None]:
    """Locks a folder of answers on a local file system, which two runs at once would spoil.

    Args:
      answers: the folder. An address of a bucket has no locks, and nothing is done.

    Raises:
      ValueError: another run has it.
    """
    if "://" in answers:
        return contextlib.nullcontext()
    os.makedirs(os.path.dirname(answers), exist_ok=True)
    return exclusive(Path(answers), Path(f"{answers}.lock"), advice="pass another folder")


def said(name: str, value: Any) -> Any:
    """Returns a value as JSON that is the same in each process; a function or a class is `module:name`.

    Args:
      name: what an error calls it.
      value: the value.

    Raises:
      TypeError: its text may differ from one process to another.

    Example:
        >>> from jaxspec.serving.ray_runs import said
        >>> said("options", {"stop_tokens": {7, 5}, "processors": [dict.fromkeys]})
        {'stop_tokens': [5, 7], 'processors': ['builtins:dict.fromkeys']}
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): said(f"{name}[{key!r}]", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [said(name, one) for one in value]
    if isinstance(value, Set):
        return sorted((said(name, one) for one in value), key=repr)
    if hasattr(value, "tolist"):  # of NumPy
        return said(name, value.tolist())
    if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        return [said(name, one) for one in (value.func, value.args, value.keywords)]
    if hasattr(value, "__qualname__") and "<lambda>" not in value.__qualname__:  # which all have the same name
        return f"{getattr(value, '__module__', None) or 'builtins'}:{value.__qualname__}"
    raise TypeError(
        f"{name} must have a text that another call can be compared with, got {validate.shown(value)}; create it in a "
        "function that returns the engine, or pass names and numbers"
    )


def check_run(answers: str, options: Mapping[str, Any]) -> None:
    """Writes the options of a run next to its answers, or compares them with those that began it.

    Args:
      answers: the folder.
      options: the options, as `said` returns them.

    Raises:
      ValueError: the folder has answers to other options, or other files.
    """
    fs = importlib.import_module("pyarrow.fs")
    system, folder = fs.FileSystem.from_uri(answers)
    path, text = f"{folder}.run.json", json.dumps(options, sort_keys=True)
    if system.get_file_info(path).type == fs.FileType.File:
        with system.open_input_stream(path) as file:
            begun = file.readall().decode(errors="replace")
        if begun != text:
            try:
                other = manifest.differences(json.loads(begun), json.loads(text))
            except ValueError:  # it is damaged
                other = begun
            raise ValueError(f"{answers} was begun with other options ({other}); pass another folder")
        return
    if system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        raise ValueError(f"{answers} holds other files; pass a new folder")
    system.create_dir(folder, recursive=True)
    with system.open_output_stream(f"{path}.new") as file:
        file.write(text.encode())
    system.move(f"{path}.new", path)


def reconcile(answers: str) -> None:
    """Compares answers with their checkpoint. Lists of ids without answers are deleted: their rows are decoded again.

    Args:
      answers: the folder of answers; its checkpoint need not exist.

    Raises:
      ValueError: there are answers that the checkpoint does not list, whose rows would be answered twice.
    """
    fs = importlib.import_module("pyarrow.fs")
    system, folder = fs.FileSystem.from_uri(answers)

    def inside(path: str) -> dict[str, str]:
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return {one.base_name: one.path for one in found}

    lists, written = inside(f"{folder}.checkpoint"), list(inside(folder))
    if unlisted := not_listed(lists, written):
        raise ValueError(
            f"{answers}.checkpoint does not list the rows of {', '.join(unlisted[:3])}, which would be answered again; "
            "move these files away, or pass another folder"
        )
    for name in {*unsure(lists), *unanswered(lists, written)}:
        system.delete_file(lists[name])


def not_listed(lists: Iterable[str], written: Iterable[str]) -> list[str]:
    """Returns the files of answers whose ids no file of the checkpoint lists.

    Args:
      lists: the files of the checkpoint.
      written: the files of answers.

    Example:
        >>> from jaxspec.serving.ray_runs import not_listed
        >>> not_listed(["a-0.parquet", "b-0.pending.parquet"], ["a-0.jsonl", "b-0.jsonl", "c-0.jsonl"])
        ['c-0.jsonl']
    """
    known = tuple(one.removesuffix(_PENDING).removesuffix(".parquet") for one in lists)
    return sorted(one for one in written if not one.startswith(known))


def unanswered(lists: Iterable[str], written: Iterable[str]) -> list[str]:
    """Returns the complete files of a checkpoint whose answers are not there.

    Args:
      lists: the files of the checkpoint.
      written: the files of answers.

    Example:
        >>> from jaxspec.serving.ray_runs import unanswered
        >>> unanswered(["a-0.parquet", "b-0.parquet", "c-0.pending.parquet"], ["a-0.jsonl"])
        ['b-0.parquet']
    """
    written = list(written)
    complete = [one for one in lists if not one.endswith(_PENDING)]
    return [one for one in complete if not any(name.startswith(one.removesuffix(".parquet")) for name in written)]


def unsure(names: Iterable[str]) -> list[str]:
    """Returns the files of a checkpoint whose ids will have no answers.

    Before Ray reads a checkpoint, it deletes each file of answers that is pending. If its task was run again after it
    was complete, there are both `X.parquet` and `X.pending.parquet`, and the ids in the former are no longer answered.

    Args:
      names: the files of the checkpoint.

    Example:
        >>> from jaxspec.serving.ray_runs import unsure
        >>> unsure(["a.parquet", "a.pending.parquet", "b.parquet", "c.pending.parquet"])
        ['a.parquet']
    """
    names = list(names)
    pending = tuple(one.removesuffix(_PENDING) for one in names if one.endswith(_PENDING))
    # As Ray compares names: by how they begin.
    return [one for one in names if one.startswith(pending) and not one.endswith(_PENDING)]
