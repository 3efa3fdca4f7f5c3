"""Faults of many copies of an engine, and of what starts them."""

from tests.mutants.mutant import Mutant

_RAY, _RUNS, _SLICES, _MANIFESTS = (
    f"tests/serving/test_{name}.py" for name in ("ray", "ray_runs", "slices", "manifests")
)

MUTANTS = (
    Mutant(
        "all rows have the seed of the run",
        "serving/ray.py",
        'f"{seed} {key}".encode',
        'f"{seed}".encode',
        (f"{_RAY}::test_seeds_depend_on_the_text_of_an_id_alone",),
    ),
    Mutant(
        "the seed of an id wins over that of its row",
        "serving/ray.py",
        'given = {"seed": seed, **with_token_ids(given)}',
        'given = {**with_token_ids(given), "seed": seed}',
        (f"{_RAY}::test_rows_are_answered_as_each_is_alone",),
    ),
    Mutant(
        "an error has what Arrow does not hold",
        "serving/ray.py",
        'str(answer["error"]).encode(errors="backslashreplace").decode()',
        'str(answer["error"])',
        (f"{_RAY}::test_bad_rows_are_errors_and_end_no_others",),
    ),
    Mutant(
        "rows of a file that Ray deletes count as answered",
        "serving/ray_runs.py",
        "return [one for one in names if one.startswith(pending)",
        "return [one for one in names if one in pending",
        (f"{_RUNS}::test_an_id_is_sure_if_its_file_is_complete",),
    ),
    Mutant(
        "answers that no list has are written again",
        "serving/ray_runs.py",
        "sorted(one for one in written if not one.startswith(known))",
        "[]",
        (f"{_RUNS}::test_answers_and_their_lists_belong_together",),
    ),
    Mutant(
        "a file is completed by another model than the one that began it",
        "serving/completion.py",
        'said["model"] = model_digest(engine.decoder.target, largest=_SMALL)',
        'said["model"] = ""',
        ("tests/serving/test_completion.py::test_an_interrupted_run_goes_on",),
    ),
    Mutant(
        "two runs write one folder",
        "io/files.py",
        'filelock.FileLock(lock or written / ".lock", timeout=0).acquire()',
        "contextlib.nullcontext()",
        (f"{_RUNS}::test_one_run_at_a_time_writes_a_folder",),
    ),
    Mutant(
        "the id of a line is its field id under each id_column",
        "serving/ray_files.py",
        "json.loads(line.decode())[name]",
        'json.loads(line.decode())["id"]',
        (f"{_RAY}::test_each_line_has_an_id_that_is_a_text",),
    ),
    Mutant(
        "slices of eight chips in a plane have two hosts",
        "serving/slices.py",
        '("1x1", "1x1x1", "2x4")',
        '("1x1", "1x1x1")',
        (f"{_SLICES}::test_hosts_and_chips",),
    ),
    Mutant(
        "one host uses one device for each chip of TPU7x",
        "serving/manifests.py",
        "model={part.devices}",
        "model={part.chips}",
        (f"{_MANIFESTS}::test_commands_are_those_of_serve",),
    ),
    Mutant(
        "a JobSet's Service has the clients' name",
        "serving/manifests.py",
        'f"{name}-hosts"',
        "name",
        (f"{_MANIFESTS}::test_names_differ",),
    ),
    Mutant(
        "a server that SIGTERM ended has done its work",
        "cli/serve.py",
        "raise typer.Exit(128 + heard[0])",
        "raise typer.Exit(0)",
        ("tests/cli/test_serve_signals.py",),
    ),
    Mutant(
        "a pod that is lost comes back alone",
        "serving/manifests.py",
        '"backoffLimit": 0,',
        '"backoffLimit": 6,',
        (f"{_MANIFESTS}::test_pods_fit_their_slice",),
    ),
)
