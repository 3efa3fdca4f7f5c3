"""Times `generate` on a GPU: `python -m tests.benchmarks.gpu --out FOLDER`.

Of each model plain decoding and speculation, greedy and at temperature 1, of one row and of eight: tokens a second,
the time of a plain step and of a round, the share of the card's bandwidth that a plain step reaches, and the kernels of
a round. `FOLDER/gpu-MODEL.json` is written after each case, so that a run that is cut off leaves what it has, and lists
the cases that `--budget` seconds did not suffice for; `gpu.svg` is drawn of all such files in the folder.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.timing import interleave
from jaxspec.io.cache import enable_compilation_cache
from tests.benchmarks import gpu_kernels, gpu_plot
from tests.benchmarks.gpu_cases import PLAIN, Case, Setup, program, setup
from tests.benchmarks.workload import show, show_machine

MODELS = ("smollm2-135m-instruct", "llama-3.1-8b")
# New tokens of the two calls whose difference is timed, so that the prompt and the call itself are left out.
SHORT, LONG = 32, 128
# Programs are lowered one by one, and compiled side by side; no longer than for this part of the budget.
_COMPILERS, _COMPILING = 4, 0.55


def copy_bandwidth(size: int, repeats: int) -> float:
    """Measures how many bytes a second the device reads and writes together, by copies of `size` bytes."""
    numbers, passes = jnp.arange(size // 4, dtype=jnp.int32), 8
    # One program a copy: of a loop of them the compiler could make fewer.
    once = jax.jit(lambda x: x + 1)
    copies = lambda: functools.reduce(lambda x, _: once(x), range(passes), numbers)  # noqa: E731
    return 2 * size * passes / interleave({"copies": copies}, repeats=repeats).median("copies")


def compile_all(made: Setup, until: float) -> dict[Case, Callable[[int], Any]]:
    """Compiles the cases in order, several side by side, until the clock says `until`; at least one.

    Returns:
      Programs, each a function of every row's budget of new tokens.
    """
    pool, begun = concurrent.futures.ThreadPoolExecutor(_COMPILERS), {}
    for case in made.cases():
        if begun and time.monotonic() > until:
            break
        function, arguments = program(made, case, LONG)
        lowered = jax.jit(function).lower(*arguments, jnp.full(case.batch, LONG, jnp.int32))
        begun[case] = pool.submit(_compile, lowered, arguments)
    first, *_ = begun.values()
    first.result()
    concurrent.futures.wait(begun.values(), timeout=max(until - time.monotonic(), 0))
    pool.shutdown(wait=False, cancel_futures=True)
    return {case: future.result() for case, future in begun.items() if future.done() and not future.cancelled()}


def _compile(lowered: Any, arguments: tuple[Any, ...]) -> Callable[[int], Any]:
    compiled, rows = lowered.compile(), arguments[3].shape[0]
    return lambda count: compiled(*arguments, jnp.full(rows, count, jnp.int32))


def measure(run: Callable[[int], Any], made: Setup, case: Case, bandwidth: float, repeats: int) -> dict[str, Any]:
    """Times a case's program: calls of `LONG` and of `SHORT` new tokens, in turns.

    Rates and tokens a round are of whole calls of `LONG`, prompt included, so that they belong together: a round's time
    times the rounds is all but the prompt of what the call takes. Of the tokens between the two calls alone a draft
    that gets better with the text, as n-grams do, would look better than it is.
    """
    samples = interleave({name: functools.partial(run, count) for name, count in _CALLS.items()}, repeats=repeats)
    rounds = {name: int(np.max(np.asarray(result.stats.rounds))) for name, result in samples.results.items()}
    seconds = (samples.median("long") - samples.median("short")) / (rounds["long"] - rounds["short"])
    read = made.about()["weight_bytes"]
    return {
        "drafter": case.drafter,
        "temperature": case.temperature,
        "batch": case.batch,
        "tokens_a_second": case.batch * LONG / samples.median("long"),
        "milliseconds_a_round": 1e3 * seconds,
        # Of all rows: the call ends with its slowest row.
        "tokens_a_round": case.batch * LONG / rounds["long"],
        "mean_acceptance_length": float(samples.results["long"].stats.mean_acceptance_length),
        # Of a round, drafting reads more than the target's weights.
        "share_of_bandwidth": read / seconds / bandwidth if case.drafter == PLAIN else None,
        "seconds": samples.seconds,
        "rounds": rounds,
    }


_CALLS = {"short": SHORT, "long": LONG}


def kernels(run: Callable[[int], Any]) -> dict[str, Any]:
    """Profiles a case's program; returns the kernels of a round, or why there are none."""
    counts = {name: int(np.max(np.asarray(run(count).stats.rounds))) for name, count in _CALLS.items()}
    try:
        short, long = (gpu_kernels.profiled(functools.partial(run, count)) for count in _CALLS.values())
    except Exception as error:  # a profile is an extra: without one the times still stand
        return {"error": f"{type(error).__name__}: {error}"}
    return gpu_kernels.by_round(short, long, counts["long"] - counts["short"])


def run_model(made: Setup, options: argparse.Namespace) -> dict[str, Any]:
    """Compiles and times the cases of a model, and writes its file after each."""
    start = time.monotonic()
    left = lambda: options.budget - (time.monotonic() - start)  # noqa: E731
    found = {**made.about(), **machine(), "new_tokens": [SHORT, LONG], "cases": []}
    found["copy_bandwidth"] = bandwidth = copy_bandwidth(options.copy_bytes, options.repeats)
    show("copy bandwidth, read and written, GB/s", f"{bandwidth / 1e9:.0f}")
    programs = compile_all(made, time.monotonic() + _COMPILING * options.budget)
    found["compile_seconds"] = round(time.monotonic() - start, 1)
    show(f"{made.name}: {len(programs)} programs compiled in, s", f"{found['compile_seconds']}")
    found["not_run"] = [vars(case) for case in made.cases()]
    for case, run in programs.items():
        if found["cases"] and left() < 0:
            break
        one = measure(run, made, case, bandwidth, options.repeats)
        found["cases"].append(one)
        found["not_run"].remove(vars(case))
        write(options.out, found)
        _show_case(made, case, one)
        if options.profile and case.temperature == 0 and case.batch == 1:
            one["kernels"] = kernels(run)
            write(options.out, found)
            shown = one["kernels"]
            show("  kernels a round, ms", shown.get("error") or f"{shown['kernels']}, {shown['milliseconds']}")
    write(options.out, found)
    return found


def _show_case(made: Setup, case: Case, one: dict[str, Any]) -> None:
    share = one["share_of_bandwidth"]
    show(
        f"{made.name}: {case.drafter}, T={case.temperature:g}, batch {case.batch}",
        f"{one['tokens_a_second']:8.1f} tokens/s, {one['milliseconds_a_round']:.3f} ms a round, "
        f"{one['tokens_a_round']:.2f} tokens a round of all rows"
        + ("" if share is None else f", {share:.1%} of the bandwidth"),
    )


def machine() -> dict[str, Any]:
    """Returns device, versions and compiler flags."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def write(folder: pathlib.Path, found: dict[str, Any]) -> None:
    """Replaces the model's file."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".gpu-{found['model']}.partial"
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(folder / f"gpu-{found['model']}.json")


def parser() -> argparse.ArgumentParser:
    """Returns the command's options."""
    found = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    found.add_argument("--model", action="append", help=f"of the zoo, or of shapes alone; by default {MODELS}")
    found.add_argument("--out", type=pathlib.Path, required=True, help="folder of the JSON files and the plot")
    found.add_argument("--dtype", default="bfloat16", help="of weights and activations")
    found.add_argument("--layers", type=int, help="number of layers to make of a model of shapes; by default all")
    found.add_argument("--budget", type=float, default=600, help="seconds for each model, compilation included")
    found.add_argument("--repeats", type=int, default=3, help="turns that count")
    found.add_argument("--copy-bytes", type=int, default=2**31, help="size of the array that is copied")
    found.add_argument("--profile", action="store_true", help="profile greedy rounds of one row too")
    return found


def main(options: argparse.Namespace) -> None:
    """Times all models, and draws what is in the folder."""
    enable_compilation_cache()
    show_machine()
    for name in options.model or MODELS:
        run_model(setup(name, options.dtype, options.layers), options)
    gpu_plot.plot(options.out)


if __name__ == "__main__":
    main(parser().parse_args())
