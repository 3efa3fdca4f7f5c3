"""Completes any number of prompts with an engine: a list in memory, or a file of JSON lines."""

import collections
import contextlib
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxspec.core.typed import typed
from jaxspec.decoding.hints import refuse_unknown
from jaxspec.io.files import as_path, decode_text, exclusive, reading, write_text
from jaxspec.io.manifest import sha256
from jaxspec.nn.digest import model_digest
from jaxspec.serving.batch import BatchRequest, failed, is_batch
from jaxspec.serving.engine import Engine
from jaxspec.serving.handle import Handle
from jaxspec.serving.rows import Outcome, answer_of, read_row

# Requests that are queued ahead, for each slot: enough that none is ever free.
_AHEAD = 4
# The most elements of an array of a model that are read to tell it from another one.
_SMALL = 65_536
# The errors of one request, which leave the others alone.
_OF_REQUEST = (TypeError, ValueError, FloatingPointError, TimeoutError)


@typed("engine")
def complete(engine: Engine, prompts: Iterable[Any], **options: Any) -> Iterator[Outcome]:
    """Yields the result of each prompt, in their order; rows of any lengths keep the engine's slots busy.

    Args:
      engine: decodes the prompts.
      prompts: texts, conversations (lists of messages), or dictionaries with a `prompt` or `messages` and options of
        their row; or requests of OpenAI's batches, with a `custom_id`, `method`, `url` and `body`, whose defaults are
        OpenAI's. Read as results are taken, so it may be endless.
      **options: options of all rows, as for `Engine.submit`.

    Yields:
      A `TextResult`, or the `TypeError`, `ValueError`, `FloatingPointError` or `TimeoutError` of a row that failed. For
      a request of a batch a dictionary, of an answer or an error: `id`, `custom_id`, `response` and `error`.

    Example:
        >>> rows = ["the sea", {"prompt": "hello", "max_new_tokens": 2}, {"prompt": ""}]
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     results = list(jaxspec.complete(engine, rows, max_new_tokens=4, temperature=0, stop_tokens=()))
        >>> [len(result.token_ids) for result in results[:2]], type(results[2]).__name__
        ([4, 2], 'ValueError')
    """
    is_one = isinstance(prompts, str | bytes | Mapping) or getattr(prompts, "ndim", 1) == 0
    if is_one or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts must be a list of texts or rows, got {type(prompts).__name__}; pass [prompt]")
    _check_options(options)
    queued: collections.deque[Handle | BatchRequest | Exception] = collections.deque()
    rows, ahead = iter(prompts), _AHEAD * engine.slots
    if engine.most_waiting is not None:
        ahead = min(ahead, engine.most_waiting)
    try:
        while True:
            for row in itertools.islice(rows, ahead - len(queued)):
                queued.append(_submit(engine, row, options))
            if not queued:
                return
            yield _outcome(queued.popleft())
    finally:  # if the caller reads no further, nobody wants the others
        for handle in queued:
            if not isinstance(handle, Exception):
                handle.cancel()


@typed("engine", "progress")
def complete_file(
    engine: Engine,
    prompts: str | os.PathLike[str],
    answers: str | os.PathLike[str],
    *,
    progress: Callable[[int, int, Outcome | None], None] | None = None,
    **options: Any,
) -> int:
    """Completes a file of JSON lines into another one, and goes on where an interrupted run ended.

    Each line is an object with a `prompt` or `messages` and, if it likes, options of `Engine.submit` and an `id`. Each
    answer is a line with the `index` and `id` of its row, and `text`, `stop_reason`, `token_ids`, `seed`,
    `prompt_tokens`, `tokens_per_round` and, if the row has them, `alternatives`; or with an `error`. A line may also be
    a request of an OpenAI batch, whose answer has the form of one. Answers are in the order of the prompts. Until the
    last one they are in `ANSWERS.part`, which the next run with the same model, prompts and options continues.

    Args:
      engine: decodes the prompts.
      prompts: the file of prompts.
      answers: the file to write.
      progress: called with the number of answers, that of rows, and the newest answer; `None` for those of an earlier
        run.
      **options: options of all rows.

    Returns:
      The number of rows that failed.

    Raises:
      ValueError: `ANSWERS.part` is damaged, or belongs to other prompts or options; there are no prompts; or the
        answers would replace them.
      OSError: a file cannot be read or written.

    Example:
        >>> source, answers = folder / "prompts.jsonl", folder / "answers.jsonl"
        >>> _ = source.write_text('{"prompt": "the sea"}\\n')
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     failed = jaxspec.serving.complete_file(engine, source, answers, max_new_tokens=4)
        >>> failed, len(answers.read_text().splitlines())
        (0, 1)
    """
    _check_options(options)
    source, target = as_path("prompts", prompts), as_path("answers", answers)
    with reading(source, advice="write a JSON object a line, in UTF-8"):
        raw = source.read_bytes()
        lines = [line for line in decode_text(raw).split("\n") if line.strip()]
    if not lines:
        raise ValueError(f"{source} has no prompts; write a JSON object a line, such as {{'prompt': 'The sea'}}")
    part = target.with_name(target.name + ".part")
    if target.is_dir() or any(one.exists() and one.samefile(source) for one in (target, part)):
        raise ValueError(f"answers must be a separate file, got {target}; pass another name")
    said = {"prompts": sha256(raw), "options": sha256(json.dumps(options, sort_keys=True, default=repr).encode())}
    # The arrays of a model may be gigabytes, and on several hosts none has them all.
    said["model"] = model_digest(engine.decoder.target, largest=_SMALL)
    lock = part.with_name(part.name + ".lock")
    with exclusive(part, lock, advice="choose another file"):
        done = _resume(part, said, len(lines))
        report = progress or (lambda *_: None)
        report(len(done), len(lines), None)
        rows = (read_row(line, index) for index, line in enumerate(lines[len(done) :], len(done)))
        with part.open("ab") as file:
            for index, result in enumerate(complete(engine, rows, **options), len(done)):
                written = json.dumps(_answer(index, lines[index], result), ensure_ascii=False)
                # An id, or the name of an unknown option, may have half of a surrogate pair.
                done.append(written.encode(errors="backslashreplace").decode())
                file.write(_sealed(index, done[-1]))
                file.flush()
                report(len(done), len(lines), result)
        write_text(target, "".join(f"{line}\n" for line in done))
        part.unlink()
        lock.unlink(missing_ok=True)
    return sum(failed(answer) if is_batch(answer) else "error" in answer for answer in map(json.loads, done))


def _check_options(options: Mapping[str, Any]) -> None:
    if options.get("prompt_alternatives") is not None:
        raise ValueError("prompt_alternatives are no part of a result; pass them to Engine.submit")


def _submit(engine: Engine, row: Any, options: Mapping[str, Any]) -> Handle | BatchRequest | Exception:
    try:
        if isinstance(row, Exception):
            return row
        if is_batch(row):
            return BatchRequest(engine, row, options)
        if not isinstance(row, Mapping):
            return engine.submit(row, **options)
        given = {**options, **row}
        found = [given.pop(name) for name in ("prompt", "messages") if name in given]
        if len(found) != 1:
            raise ValueError(f"a row needs a prompt or messages, got {sorted(map(str, row))}")
        _check_options(given)
        refuse_unknown(given, [one for one in given if isinstance(one, str)], {})
        return engine.submit(found[0], **given)
    except _OF_REQUEST as error:
        return error


def _outcome(handle: Handle | BatchRequest | Exception) -> Outcome:
    if isinstance(handle, Exception):
        return handle
    if isinstance(handle, BatchRequest):
        return handle.answer()
    try:
        return handle.result()
    except _OF_REQUEST as error:
        return error


def _sealed(index: int, answer: str) -> bytes:
    """Returns a line of `ANSWERS.part`: an answer after a checksum of it and its place."""
    return f"{zlib.crc32(f'{index} {answer}'.encode()):08x} {answer}\n".encode()


def _is_unsealed(line: bytes, index: int) -> bool:
    """Returns whether a line is an answer without a checksum, of this row or a request of a batch."""
    try:
        answer = json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and (is_batch(answer) or answer.get("index") == index)


def _resume(part: Path, said: Mapping[str, str], count: int) -> list[str]:
    """Returns the answers of an interrupted run, at most `count`, and makes the file end with a whole line."""
    if not part.exists():
        part.write_bytes(json.dumps(said).encode() + b"\n")
        return []
    raw = part.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    head, *sealed = whole.split(b"\n")[:-1] or [b""]
    if not head:  # ended before its first line was written
        part.unlink()
        return _resume(part, said, count)
    if head.decode(errors="replace") != json.dumps(said):
        raise ValueError(
            f"{part} was begun with another model, or other prompts or options; repeat the call that began it, or "
            "delete the file"
        )
    if sealed and all(map(_is_unsealed, sealed, itertools.count())):  # written by an earlier version
        sealed = [_sealed(one, line.decode())[:-1] for one, line in enumerate(sealed)]
        whole = b"".join(line + b"\n" for line in (head, *sealed))
        write_text(part, whole.decode())
        raw = whole
    answers = [one[9:].decode(errors="replace") for one in sealed]
    damaged = [one for one, line in enumerate(sealed) if _sealed(one, answers[one]) != line + b"\n"]
    if damaged or len(answers) > count:
        number = (damaged or [count])[0] + 2
        raise ValueError(f"{part} is damaged in line {number}; delete that line and those after it, or the file")
    if len(whole) < len(raw):
        with part.open("r+b") as file:
            file.truncate(len(whole))
    return answers


def _answer(index: int, line: str, result: Outcome) -> dict[str, Any]:
    if isinstance(result, dict):
        return result
    found: dict[str, Any] = {"index": index}
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):  # the row has none
        found["id"] = json.loads(line)["id"]
    return found | answer_of(result)
