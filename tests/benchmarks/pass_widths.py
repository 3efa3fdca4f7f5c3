"""Compiles passes of several tokens for TPUs: `python -m tests.benchmarks.pass_widths`.

Prints what a plain step moves whose passes are filled up to some tokens (`jaxspec.nn.bit_exact`), or a round that
verifies a chain of `--nodes` nodes (the last committed token and drafts that were copied, drawn from at
temperature 1), what the compiler charges it, and its bracket, over a plain step by the first of `--kernels`. Programs
of two and of four layers are compiled, and what a layer adds is taken as often as the model has layers: at full depth
each takes minutes.
"""

import argparse
import dataclasses

from jaxspec.compiled.ahead_of_time import KERNELS, Case
from jaxspec.compiled.tpu import between
from tests.benchmarks import machine_code
from tests.benchmarks.whole_depth import step

PLACES = {
    "v5p:2x2x1": ("qwen3-4b", 1),
    "v5e:2x2": ("llama-3.1-8b", None),
    "v6e:2x4": ("llama-3.1-8b", None),
    "tpu7x:2x2x1": ("llama-3.1-8b", None),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pass_widths", description=__doc__)
    parser.add_argument("--topologies", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--pass-tokens", nargs="*", type=int, default=[8, 16])
    parser.add_argument("--nodes", nargs="*", type=int, default=[])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS[1:], default=list(KERNELS[1:]))
    options = parser.parse_args()
    machine_code.ask_for_it()
    print("| model, topology | kernels, pass | GB | million cycles charged | bracket, ms | over one token's |")
    print("|---|---|---|---|---|---|")
    for topology in options.topologies:
        model, devices = PLACES[topology]
        one = None
        for kernels in options.kernels:
            plain = Case(model, "none", topology, 0, devices=devices, kernels=kernels)
            wide = {f"{count} tokens": dataclasses.replace(plain, pass_tokens=count) for count in options.pass_tokens}
            for nodes in options.nodes:
                wide[f"{nodes} nodes"] = dataclasses.replace(plain, drafter="ngram", k=nodes - 1)
            for name, case in ({"one token": plain} | wide).items():
                own = step(model, case)
                one = one or own
                over = ", ".join(f"{getattr(own, key) / getattr(one, key):.3f}" for key in ("bytes", "cycles", "high"))
                sizes = f"{own.bytes / 1e9:.3f} | {own.cycles / 1e6:.2f} | {between(own.low * 1e3, own.high * 1e3)}"
                print(f"| {model}, {topology} | {kernels}, {name} | {sizes} | {over} |", flush=True)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")
    main()
