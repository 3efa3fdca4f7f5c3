"""Runs many copies of an engine with Ray: over files of prompts by Ray Data, and at one address by Ray Serve."""

import dataclasses
import hashlib
import importlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from jaxspec._version import __version__
from jaxspec.core import validate
from jaxspec.core.typed import typed
from jaxspec.decoding.hints import refuse_unknown
from jaxspec.decoding.program_cache import use_by_default
from jaxspec.serving.completion import complete
from jaxspec.serving.engine import Engine
from jaxspec.serving.kinds import warm
from jaxspec.serving.ray_files import LINE, PLACE, absolute, checkpointed, format_of, read_prompts, write_answers
from jaxspec.serving.ray_runs import check_ids, check_place, check_run, listed, only_writer, reconcile, said
from jaxspec.serving.rows import answer_of, read_row, with_token_ids
from jaxspec.text.request import TextOptions

_LOGGER = logging.getLogger("jaxspec")
# A model's name or path, or a function that creates the engine in the process of its copy.
Source: TypeAlias = str | Callable[[], Engine]
_NONE: Mapping[str, Any] = MappingProxyType({})
_INSTALL = 'pip install "jaxspec-decode[ray]"'
# Batches that a worker decodes at a time: while the last rows of one end, those of the next fill the slots.
_BATCHES = 2
# The columns of answers, whose types are in `_kinds`.
_COLUMNS = frozenset(
    ("text", "stop_reason", "token_ids", "prompt_tokens", "seed", "tokens_per_round", "alternatives", "error")
)
# Options of all rows, as `Engine.submit` takes them.
_OPTIONS = frozenset(field.name for field in dataclasses.fields(TextOptions)) - {"answers", "capacity"}
_OPTIONS |= {"priority", "timeout", "cache_salt", "prompt_alternatives"}
# The number of times in a row that a worker may die before it is ready; Ray's default is 0.
_DEATHS_AT_START = 3
# Processors that reading, writing and leaving out answered rows take besides the workers.
_OTHERS = 2
# Seconds that a copy which is to stop waits for running requests, if they have no time limit.
_LONGEST = 600


class Completer:
    """Completes batches of prompts with one engine; Ray Data's `map_batches` takes the class.

    A row has a prompt or messages, an id, and options of `Engine.submit`, each in a column of its name. Nulls are left
    out. Each row has a seed made from its id, so it is verified by `CoupledVerifier`: its tokens are those of a lone
    call with this seed, in any batch and on any worker, and each time that it is decoded.

    Example:
        >>> engine = jaxspec.Engine(target, "ngram", slots=2, capacity=32)
        >>> worker = jaxspec.serving.Completer(lambda: engine, max_new_tokens=4)
        >>> found = worker.answers({"id": ["a", "b"], "prompt": ["the sea", ""]})
        >>> len(found[0]["token_ids"]) <= 4, found[1]["error"][:10]
        (True, 'the prompt')
        >>> engine.close()
    """

    def __init__(
        self,
        engine: Source,
        *,
        id_column: str = "id",
        keep: Sequence[str] = (),
        seed: int = 0,
        engine_options: Mapping[str, Any] = _NONE,
        **options: Any,
    ) -> None:
        """Creates the engine.

        Args:
          engine: the name or path of a model, or a function that creates the engine.
          id_column: the column of ids, which differ from row to row.
          keep: columns that are passed on, and are no options.
          seed: the number from which, with the id of a row, its seed is made.
          engine_options: arguments of `Engine` besides the model's name; `prompt_share` is 1 unless given.
          **options: options of all rows, as for `Engine.submit`.

        Raises:
          TypeError, ValueError: as in `Engine`, or an argument is invalid.
        """
        _check(id_column, keep, seed, options)
        self._id, self._keep, self._seed, self._options = id_column, tuple(keep), int(seed), options
        self._engine = _engine(engine, engine_options, prompt_share=1.0)

    def __call__(self, batch: Any) -> Any:
        """Completes a batch, as columns or as a table of Arrow, and returns a table of Arrow.

        Args:
          batch: the rows.

        Returns:
          The columns of the answers, the id and the kept columns first. A row that failed has its `error` alone.
        """
        table = _needed("pyarrow")
        rows, found = _rows(batch), self.answers(batch)
        passed = {name: batch[name] for name in (self._id, *self._keep)}
        if isinstance(batch, Mapping):
            passed = {name: table.array([row[name] for row in rows]) for name in passed}
        columns = {name: table.array([row.get(name) for row in found], kind) for name, kind in _kinds(table).items()}
        return table.table({**passed, **columns})

    def answers(self, batch: Any) -> list[dict[str, Any]]:
        """Completes a batch, and returns a dictionary for each row.

        Args:
          batch: the rows: columns by name, or a table of Arrow.

        Returns:
          The answers: `text`, `stop_reason`, `token_ids`, `prompt_tokens`, `tokens_per_round` and perhaps
          `alternatives`, as JSON; or the `error`; and in each the `seed`.

        Raises:
          ValueError: a column is missing, or a row has no id.
          RuntimeError: the engine has failed.
        """
        rows = [self._row(row) for row in _rows(batch)]
        results = complete(self._engine, (row for row, _ in rows), **self._options)
        found = []
        for (_, seed), result in zip(rows, results, strict=True):
            assert not isinstance(result, dict)
            answer = {"seed": seed, **answer_of(result)}
            if "alternatives" in answer:
                answer["alternatives"] = json.dumps(answer["alternatives"], ensure_ascii=False)
            if "error" in answer:  # Arrow has no half of a surrogate pair
                answer["error"] = str(answer["error"]).encode(errors="backslashreplace").decode()
                answer["seed"] = seed if type(seed) is int and 0 <= seed < 2**32 else None  # it may be the error
            found.append(answer)
        return found

    def _row(self, row: Mapping[str, Any]) -> tuple[Mapping[str, Any] | Exception, Any]:
        """Returns a row as `complete` takes it, and its seed."""
        missing = [name for name in (self._id, *self._keep) if name not in row]
        if missing:
            raise ValueError(f"a batch needs the columns {', '.join(missing)}, got {', '.join(row)}")
        if LINE not in row:
            row = {name: _exact(one) for name, one in row.items()}
        if (key := row[self._id]) is None:
            raise ValueError(f"each row needs an id in the column {self._id}, got none")
        seed, given = seed_of(key, self._seed), row
        if (line := row.get(LINE)) is not None:  # from a file of JSON lines
            given = read_row(line, row[PLACE])
            if isinstance(given, Exception):
                return given, seed
        columns = (self._id, *self._keep)
        given = {name: one for name, one in given.items() if name not in columns and one is not None}
        if "custom_id" in given:
            return ValueError("a request of an OpenAI batch has no row here; pass the file to complete_file"), seed
        given = {"seed": seed, **with_token_ids(given)}
        return given, given["seed"]


def seed_of(key: Any, seed: int = 0) -> int:
    """Returns the seed of a row, which depends on the text of its id and on nothing else of a run.

    Args:
      key: the id, a text or an integer.
      seed: the number that is common to all rows.

    Example:
        >>> from jaxspec.serving.ray import seed_of
        >>> seed_of(7) == seed_of("7"), seed_of(7) == seed_of(8)
        (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {key}".encode(errors="backslashreplace")).digest()[:4], "big")


@typed("prompts", "answers", "prompts_format", "answers_format")
def complete_files(
    engine: Source,
    prompts: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    answers: str | os.PathLike[str],
    *,
    workers: int = 1,
    batch_size: int = 64,
    rows_per_file: int = 1024,
    prompts_format: Literal["jsonl", "parquet"] | None = None,
    answers_format: Literal["jsonl", "parquet"] | None = None,
    id_column: str = "id",
    keep: Sequence[str] = (),
    seed: int = 0,
    engine_options: Mapping[str, Any] = _NONE,
    actor_options: Mapping[str, Any] = _NONE,
    **options: Any,
) -> None:
    """Completes files of prompts on a Ray cluster, and answers each row once, even if processes and nodes die.

    An interrupted run goes on if it is called again: rows with an answer are left out, and so are all rows if the run
    was complete. `ANSWERS.checkpoint` lists their ids, and `ANSWERS.run.json` the options and prompts. Prompts are read
    once more before it begins, since other ones of the same names are refused.

    Args:
      engine: the name or path of a model, or a function that creates the engine in a worker.
      prompts: files or folders that every node of the cluster can read.
      answers: the folder to write, which every node can write to.
      workers: the number of workers.
      batch_size: the number of rows that a worker takes at a time; it has two such batches.
      rows_per_file: the least number of rows in a file of answers but the last ones.
      prompts_format: `"jsonl"` or `"parquet"`; `None` goes by the suffix of the prompts.
      answers_format: `"jsonl"` or `"parquet"`; `None` is that of the prompts.
      id_column: the column of ids, or the field of a line. No two rows may have the same; texts of ids are compared. A
        line without one has its path and number.
      keep: columns that are passed on, of prompts in Parquet.
      seed: the number from which, with the id of a row, its seed is made.
      engine_options: arguments of `Engine` besides the model.
      actor_options: resources of a worker and other options of a Ray actor, such as `{"num_gpus": 1}`.
      **options: options of all rows, as for `Engine.submit`.

    Raises:
      TypeError, ValueError: an argument is invalid; the folder belongs to a run with other prompts or options, or is
        written by another run now; two rows have the same id; or a row in Parquet has none.
      FileNotFoundError: a file of prompts does not exist.
      ImportError: Ray is not installed.

    Example:
        >>> options = {"workers": 2, "actor_options": {"num_gpus": 1}, "max_new_tokens": 64}
        >>> jaxspec.serving.complete_files("MODEL", "prompts.jsonl", "answers", **options)  # doctest: +SKIP
    """
    data = _needed("ray.data")
    validate.counts("complete_files", workers=workers, batch_size=batch_size, rows_per_file=rows_per_file)
    paths = [absolute(one) for one in ([prompts] if isinstance(prompts, str | os.PathLike) else prompts)]
    folder, reads = absolute(answers), prompts_format or format_of(paths)
    writes = answers_format or reads
    _check(id_column, keep, seed, options)
    _check_source(engine, engine_options)
    if reads == "jsonl" and keep:
        raise ValueError("keep names columns of Parquet; leave it out for JSON lines")
    given = {"id_column": id_column, "keep": tuple(keep), "seed": seed, "engine_options": engine_options, **options}
    check_place(folder, paths)
    files = listed(paths)
    check_ids(list(files), reads, id_column)
    run = {"engine": said("engine", engine), "prompts": files, "format": writes, "version": __version__}
    run |= {name: said(name, one) for name, one in given.items()}
    with only_writer(folder):
        check_run(folder, run)
        reconcile(folder)
        _check_processors(workers * actor_options.get("num_cpus", 1))
        with checkpointed(data, id_column, folder, deaths=_DEATHS_AT_START):
            rows = read_prompts(data, paths, reads, id_column)
            rows = rows.repartition(target_num_rows_per_block=batch_size)
            found = rows.map_batches(
                Completer,
                fn_constructor_args=(engine,),
                fn_constructor_kwargs=given,
                batch_size=batch_size,
                batch_format="pyarrow",
                compute=data.ActorPoolStrategy(
                    size=workers,
                    max_tasks_in_flight_per_actor=2 * _BATCHES,
                    max_concurrent_calls_per_actor=_BATCHES,
                    enable_true_multi_threading=True,
                ),
                **actor_options,
            )
            write_answers(data, found, folder, writes, rows_per_file)


def build_serve(
    engine: Source,
    *,
    model: str,
    replicas: int | tuple[int, int] = 1,
    slots: int = 8,
    most_waiting: int = 1024,
    api_key: str | None = None,
    timeout: float | None = None,
    engine_options: Mapping[str, Any] = _NONE,
    actor_options: Mapping[str, Any] = _NONE,
    **deployment: Any,
) -> Any:
    """Builds a Ray Serve application whose copies answer OpenAI's clients; `ray.serve.run` starts it.

    Each copy has an engine and the application of `build_app`. A copy that is to stop, in an update or when fewer are
    needed, completes its running requests first. One whose engine has failed is replaced.

    Args:
      engine: the name or path of a model, or a function that creates the engine in a copy.
      model: the name under which the model is served.
      replicas: the number of copies, or the least and the most, between which Ray chooses by load.
      slots: the number of requests that a copy decodes at a time.
      most_waiting: the number of requests that may wait in a copy.
      api_key: the key that clients must send; `None` lets everybody in.
      timeout: seconds after which a request is dropped; `None` means no limit.
      engine_options: arguments of `Engine` besides the model.
      actor_options: resources of a copy, such as `{"num_gpus": 1}`.
      **deployment: more options of `ray.serve.deployment`.

    Raises:
      TypeError, ValueError: an argument is invalid.
      ImportError: Ray Serve is not installed.

    Example:
        >>> app = jaxspec.serving.build_serve("MODEL", model="chat", replicas=(1, 8))  # doctest: +SKIP
        >>> ray.serve.run(app)  # doctest: +SKIP
    """
    serve = _needed("ray.serve", 'pip install "jaxspec-decode[ray,serve]" "ray[serve]"')
    validate.text("model", model)
    validate.counts("build_serve", slots=slots, most_waiting=most_waiting)
    least, most = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    validate.counts("build_serve", replicas=least)
    validate.integers("build_serve", replicas=(most, least, 2**20))
    scale: dict[str, Any] = {"num_replicas": least}
    if most > least:
        bounds = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": slots}
        scale = {"autoscaling_config": bounds}
    sizes = {"slots": slots, "most_waiting": most_waiting}
    settings = {
        "name": "jaxspec",
        **scale,
        "max_ongoing_requests": slots + most_waiting,
        "graceful_shutdown_timeout_s": (timeout or _LONGEST) + 1,
        "ray_actor_options": dict(actor_options),
        **deployment,
    }
    kind = serve.deployment(**settings)(serve.ingress()(_Copy))
    return kind.bind(engine, sizes, dict(engine_options), {"model": model, "api_key": api_key, "timeout": timeout})


class _Copy:
    """Serves one copy of the engine."""

    def __init__(
        self, engine: Source, sizes: Mapping[str, int], engine_options: Mapping[str, Any], app: Mapping[str, Any]
    ) -> None:
        self._app, slots = app, sizes["slots"]
        self._engine = _engine(engine, engine_options, **sizes)
        if self._engine.slots != slots:
            raise ValueError(
                f"slots must be {self._engine.slots}, those of the engine, got {slots}; pass it to build_serve"
            )
        warm(self._engine)

    def __serve_build_asgi_app__(self) -> Any:
        from jaxspec.serving.app import build_app

        return build_app(self._engine, **self._app)

    def check_health(self) -> None:
        """Raises `RuntimeError` if the engine takes no requests; then Ray replaces this copy."""
        if not self._engine.open:
            raise RuntimeError("the engine has failed; its log says why")

    def __del__(self) -> None:
        if "_engine" in vars(self):
            self._engine.close()


def _engine(source: Source, options: Mapping[str, Any], **defaults: Any) -> Engine:
    """Creates the engine, in the process that uses it."""
    _check_source(source, options)
    use_by_default()
    if isinstance(source, str):
        return Engine(source, **{**defaults, **options})
    engine = source()
    validate.instance("the result of engine", engine, Engine, "return jaxspec.Engine(target, drafter)")
    return engine


def _check_source(source: Source, options: Mapping[str, Any]) -> None:
    if isinstance(source, str):
        return
    if options:
        raise ValueError(f"engine_options are for a model's name, got {', '.join(options)}; pass them in the function")
    if not callable(source):
        raise TypeError(f"engine must be a model's name or a function, got {validate.shown(source)}; pass a function")


def _check(id_column: str, keep: Sequence[str], seed: int, options: Mapping[str, Any]) -> None:
    """Checks the arguments of `Completer`, which `complete_files` does before it begins anything."""
    validate.text("id_column", id_column)
    validate.integers("Completer", seed=(seed, 0, 2**62))
    if isinstance(keep, str):
        raise TypeError(f"keep must be a list of names of columns, got {keep!r}; pass [{keep!r}]")
    if taken := {id_column, *keep} & _COLUMNS:
        raise ValueError(f"id_column and keep must not be columns of answers, got {', '.join(taken)}; rename them")
    if options.get("prompt_alternatives") is not None:
        raise ValueError("prompt_alternatives are no part of a result; pass them to Engine.submit")
    refuse_unknown(options, _OPTIONS, TextOptions.HINTS)


def _needed(module: str, install: str = _INSTALL) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {error.name or module}, which is not installed; run {install}") from error


def _check_processors(taken: float) -> None:
    """Logs that workers would leave no processor to read with, where Ray waits without a word."""
    ray = _needed("ray")
    if not ray.is_initialized():
        ray.init()
    if (have := ray.cluster_resources().get("CPU", 0)) < taken + _OTHERS:
        _LOGGER.warning(
            "the cluster has %g processors, of which workers take %g and reading and writing %d: the run waits until "
            "there are more; pass fewer workers, or less num_cpus in actor_options",
            have,
            taken,
            _OTHERS,
        )


def _kinds(table: Any) -> dict[str, Any]:
    """Returns the types of the columns of answers: the same in each file, even where all are null."""
    return {
        "text": table.string(),
        "stop_reason": table.string(),
        "token_ids": table.list_(table.int32()),
        "prompt_tokens": table.int32(),
        "seed": table.int64(),
        "tokens_per_round": table.float64(),
        "alternatives": table.string(),
        "error": table.string(),
    }


def _rows(batch: Any) -> list[dict[str, Any]]:
    """Returns the rows of columns or of a table, in Python's types."""
    if isinstance(batch, Mapping):
        names = list(batch)
        return [dict(zip(names, map(_plain, row), strict=True)) for row in zip(*batch.values(), strict=True)]
    return [{name: _plain(one) for name, one in row.items()} for row in batch.to_pylist()]


def _exact(value: Any) -> Any:
    """Returns a value as it was before a column with nulls became one of floats: without NaN, and whole numbers."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else int(value) if value.is_integer() else value


def _plain(value: Any) -> Any:
    """Returns a value in Python's types, without fields that are null; a list of pairs is a dictionary."""
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            return dict(value)
        return [_plain(one) for one in value]
    return value
