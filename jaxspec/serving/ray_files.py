"""Reads prompts from files with Ray Data, and writes each answer once."""

import contextlib
import importlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# The columns of a line of JSON and of its number, whose names no column of prompts has.
LINE, PLACE = "__jaxspec_line", "__jaxspec_place"
# What some programs begin a file in UTF-8 with.
_MARK = b"\xef\xbb\xbf"
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


@contextlib.contextmanager
def checkpointed(data: Any, id_column: str, answers: str, *, deaths: int) -> Iterator[None]:
    """Makes the datasets that are created within it write each row once; a later run leaves out written rows."""
    context = data.DataContext.get_current()
    names = ("checkpoint_config", "max_consecutive_actor_init_deaths", "use_datasource_v2", "max_errored_blocks")
    before = {name: getattr(context, name) for name in names}
    context.checkpoint_config = importlib.import_module("ray.data.checkpoint").CheckpointConfig(
        id_column=id_column, checkpoint_path=f"{answers}.checkpoint", delete_checkpoint_on_success=False
    )
    context.max_consecutive_actor_init_deaths = deaths
    context.use_datasource_v2 = False  # the newer reader starts many processes; deaths were tested with this one
    context.max_errored_blocks = 0  # a block that fails ends the run, and is not left out
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)


def read_prompts(data: Any, prompts: Sequence[str], form: str, id_column: str) -> Any:
    """Returns a dataset of the rows of files.

    A line of JSON stays one value, the bytes in the column `LINE`, next to its number in `PLACE`: rows need not have
    equal fields, and a line that is no text becomes an error later.

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
            lines = lines_of(io.BufferedReader(f))
            while some := list(itertools.islice(lines, _LINES)):
                ids = [id_of(line, id_column, f"{path}:{place + 1}") for place, line in some]
                places, texts = zip(*some, strict=True)
                yield table.table({id_column: ids, PLACE: places, LINE: texts})

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


def lines_of(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank, with their places from 0, and without a mark of the byte order.

    Args:
      file: the lines of a file.

    Example:
        >>> from jaxspec.serving.ray_files import lines_of
        >>> list(lines_of([b"\\xef\\xbb\\xbf{}\\n", b"\\n", b"[1]"]))
        [(0, b'{}\\n'), (2, b'[1]')]
    """
    for place, line in enumerate(file):
        text = line if place else line.removeprefix(_MARK)
        if text.strip():
            yield place, text


def id_of(line: bytes, name: str, otherwise: str) -> str:
    """Returns the id in a line of JSON as a text.

    Args:
      line: the line.
      name: the field of the id.
      otherwise: the id of a line that is invalid or has none.

    Example:
        >>> from jaxspec.serving.ray_files import id_of
        >>> id_of(b'{"id": 7}', "id", "rows.jsonl:1"), id_of(b"{", "id", "rows.jsonl:2")
        ('7', 'rows.jsonl:2')
    """
    try:
        found = json.loads(line.decode())[name]
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
        >>> absolute("s3://bucket/rows/"), absolute("/data/../rows")
        ('s3://bucket/rows', '/rows')
    """
    text = os.fspath(path).removeprefix("file://")
    return text.rstrip("/") if "://" in text else os.path.abspath(text)
