"""Faults of many copies of an engine, and of what starts them."""

from tests.mutants.mutant import Mutant

_RAY, _SLICES, _MANIFESTS = (f"tests/serving/test_{name}.py" for name in ("ray", "slices", "manifests"))

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
        "a pod that is lost comes back alone",
        "serving/manifests.py",
        '"backoffLimit": 0,',
        '"backoffLimit": 6,',
        (f"{_MANIFESTS}::test_pods_fit_their_slice",),
    ),
)
