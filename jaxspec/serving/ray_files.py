"""Reads prompts from files with Ray Data, and writes each answer once."""

import contextlib
import importlib
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Lines of a file that are read at a time.
_LINES = 1024


def format_of(prompts: Sequence[str]) -> str:
    """Returns the format of files by their suffix.

    Raises:
      ValueError: the suffix says none.

    Example:
        >>> from jaxspec.serving.ray_files import format_of
        >>> format_of(["rows.jsonl.gz"]), format_of(["a.parquet", "b.parquet"])
        ('jsonl', 'parquet')
    """
    first = prompts[0] if prompts else ""
    for ending in ("", ".gz", ".zst", ".bz2"):
        for word, found in (("parquet", "parquet"), ("jsonl", "jsonl"), ("json", "jsonl"), ("ndjson", "jsonl")):
            if first.endswith(f".{word}{ending}"):
                return found
    raise ValueError(f"the ending of {first!r} names no format; pass prompts_format='jsonl' or 'parquet'")


def check_run(answers: str, said: Mapping[str, Any]) -> None:
    """Writes the options of a run next to its answers, or compares them with those that began it.

    Raises:
      ValueError: the folder has answers to other options, or other files.
    """
    fs = importlib.import_module("pyarrow.fs")
    system, folder = fs.FileSystem.from_uri(answers)
    path, text = f"{folder}.run.json", json.dumps(said, sort_keys=True, default=repr)
    if system.get_file_info(path).type == fs.FileType.File:
        with system.open_input_stream(path) as file:
            begun = file.readall().decode()
        if begun != text:
            raise ValueError(f"{answers} was begun with other options, {begun}, got {text}; pass another folder")
        return
    if system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        raise ValueError(f"{answers} holds other files; pass a new folder")
    system.create_dir(folder, recursive=True)
    with system.open_output_stream(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def checkpointed(data: Any, id_column: str, answers: str, *, deaths: int) -> Iterator[None]:
    """Makes the datasets that are created within it write each row once; a later run leaves out written rows."""
    context = data.DataContext.get_current()
    before = context.checkpoint_config, context.max_consecutive_actor_init_deaths
    context.checkpoint_config = importlib.import_module("ray.data.checkpoint").CheckpointConfig(
        id_column=id_column, checkpoint_path=f"{answers}.checkpoint", delete_checkpoint_on_success=False
    )
    context.max_consecutive_actor_init_deaths = deaths
    try:
        yield
    finally:
        context.checkpoint_config, context.max_consecutive_actor_init_deaths = before


def read_prompts(data: Any, prompts: Sequence[str], form: str, id_column: str) -> Any:
    """Returns a dataset of the rows of files.

    A line of JSON stays one text, the column `line`, next to its number in `place`: rows need not have equal fields.

    Args:
      data: the module `ray.data`.
      prompts: the files or folders.
      form: the format.
      id_column: the name of the column of ids.
    """
    if form == "parquet":
        return data.read_parquet(list(prompts))
    base, table = importlib.import_module("ray.data.datasource").FileBasedDatasource, importlib.import_module("pyarrow")

    class Lines(base):
        """Reads files of JSON lines."""

        def _read_stream(self, f: Any, path: str) -> Iterator[Any]:
            lines = ((place, one.decode()) for place, one in enumerate(io.BufferedReader(f)) if one.strip())
            while some := list(itertools.islice(lines, _LINES)):
                ids = [id_of(line, f"{path}:{place + 1}") for place, line in some]
                places, texts = zip(*some, strict=True)
                yield table.table({id_column: ids, "place": places, "line": texts})

    return data.read_datasource(Lines(list(prompts)))


def write_answers(data: Any, answers: Any, folder: str, form: str, rows: int) -> None:
    """Writes a dataset of answers into files of a folder.

    Args:
      data: the module `ray.data`.
      answers: the dataset.
      folder: the folder.
      form: the format. Lines of JSON leave out nulls.
      rows: the least number of rows in a file but the last ones.
    """
    if form == "parquet":
        answers.write_parquet(folder, min_rows_per_file=rows)
        return
    base = importlib.import_module("ray.data.datasource").BlockBasedFileDatasink

    class Lines(base):
        """Writes files of JSON lines."""

        def write_block_to_file(self, block: Any, file: Any) -> None:
            for row in block.to_arrow().to_pylist():
                file.write(line_of(row).encode())

    answers.write_datasink(Lines(folder, file_format="jsonl", min_rows_per_file=rows))


def id_of(line: str, otherwise: str) -> str:
    """Returns the id in a line of JSON as a text.

    Args:
      line: the line.
      otherwise: the id of a line that is invalid or has none.

    Example:
        >>> from jaxspec.serving.ray_files import id_of
        >>> id_of('{"id": 7}', "rows.jsonl:1"), id_of("{", "rows.jsonl:2")
        ('7', 'rows.jsonl:2')
    """
    try:
        found = json.loads(line)["id"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return otherwise
    return str(found).encode(errors="backslashreplace").decode() if isinstance(found, str | int) else otherwise


def line_of(row: Mapping[str, Any]) -> str:
    """Returns an answer as a line of JSON, without nulls.

    Args:
      row: the answer, as a row of a table.

    Example:
        >>> from jaxspec.serving.ray_files import line_of
        >>> line_of({"id": "a", "text": None, "error": "the prompt is empty"})
        '{"id": "a", "error": "the prompt is empty"}\\n'
    """
    found = {name: one for name, one in row.items() if one is not None}
    if "alternatives" in found:
        found["alternatives"] = json.loads(found["alternatives"])
    return json.dumps(found, ensure_ascii=False) + "\n"


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns a path as other processes need it, whose working folder is another; an address stays as it is.

    Args:
      path: the path, or the address of a bucket.

    Example:
        >>> from jaxspec.serving.ray_files import absolute
        >>> absolute("s3://bucket/rows"), absolute("/data/../rows")
        ('s3://bucket/rows', '/rows')
    """
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)
