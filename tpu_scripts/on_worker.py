"""Runs a command on one worker of a TPU, started by worker.sh: `on_worker.py WORKERS COMMAND ARGUMENT...`."""

import argparse
import pathlib
import runpy
import sys

import jax

from jaxspec.sharding.multihost import join as join_processes

PLATFORM = "tpu"
TRACE = pathlib.Path("trace")


def main(arguments: list[str]) -> None:
    """Joins the other workers and runs one command."""
    workers, command, *rest = arguments
    join(int(workers))
    {"check": check, "generate": generate, "benchmark": benchmark, "profile": profile}[command](rest)


def join(workers: int) -> None:
    """Joins the processes of all workers into one JAX program."""
    # On a TPU VM, JAX reads the addresses of the others, in all slices, from the machine's metadata.
    if workers > 1 and not jax.distributed.is_initialized():
        join_processes()
    expect("platform", jax.default_backend(), PLATFORM)
    expect("processes", jax.process_count(), workers)


def check(rest: list[str]) -> None:
    """Counts the devices with a program that runs on all of them."""
    from jax.experimental import multihost_utils

    expect("arguments", rest, [])
    counts = multihost_utils.process_allgather(jax.numpy.asarray(jax.local_device_count()))
    expect("devices", int(counts.sum()), jax.device_count())
    kind = jax.devices()[0].device_kind
    print(f"process {jax.process_index()} of {jax.process_count()}: {jax.device_count()} devices, {kind}")


def generate(rest: list[str]) -> None:
    """Runs `jaxspec generate`, by default with the model split over all devices. The first worker prints."""
    from jaxspec.cli import main as jaxspec_command

    several = ["--distributed"] if jax.process_count() > 1 else []
    mesh = [] if any(word.startswith("--mesh") for word in rest) else ["--mesh", f"model={jax.device_count()}"]
    sys.argv = ["jaxspec", "generate", *several, *mesh, *rest]
    jaxspec_command()


def benchmark(rest: list[str]) -> None:
    """Runs `python -m tests.benchmarks` of this checkout."""
    sys.argv = ["tests.benchmarks", *rest]
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    runpy.run_module("tests.benchmarks", run_name="__main__", alter_sys=True)


def profile(rest: list[str]) -> None:
    """Generates once to compile and once under the profiler, with the models split over all devices."""
    import jaxspec

    parser = argparse.ArgumentParser(prog="run.sh profile ... --", description=profile.__doc__)
    parser.add_argument("prompt")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--drafter", default="ngram", help="'ngram', 'none', or a model")
    parser.add_argument("-k", type=int, help="number of tokens to draft per round")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(rest)
    mesh = jax.make_mesh((jax.device_count(),), ("model",))
    target = jaxspec.load(options.model, mesh=mesh)
    named = options.drafter in ("ngram", "none")
    drafter = options.drafter if named else jaxspec.load(options.drafter, mesh=mesh)
    decoder = jaxspec.SpeculativeDecoder(target, drafter, k=options.k)

    def decode():
        sampled = {"seed": options.seed} if options.temperature else {}
        return decoder.generate(
            options.prompt, max_new_tokens=options.max_new_tokens, temperature=options.temperature, **sampled
        )

    decode()
    with jax.profiler.trace(TRACE):
        result = decode()
    if jax.process_index() == 0:
        print(result.text)
    files = sorted(TRACE.rglob("*.xplane.pb"))
    expect("files of the profiler", len(files), 1)
    print(f"profile: {files[0]}, {files[0].stat().st_size} bytes")


def expect(what: str, got: object, expected: object) -> None:
    """Ends the program unless `got` equals `expected`."""
    if got != expected:
        sys.exit(f"error: got {what} {got}, expected {expected}; run setup.sh again, or see the messages above")


if __name__ == "__main__":
    main(sys.argv[1:])
