"""Times twelve calls that differ in all that a user changes, and counts what each compiles."""

import collections
import statistics
import time

import jax

import jaxspec
from jaxspec.core.programs import count_mappings
from tests.benchmarks.workload import PROMPT, show, show_machine

_PROMPTS = ("The sea", PROMPT, "Say this again: " + "far away, " * 280)
_CALLS = (
    {},
    {"max_new_tokens": 20},
    {"temperature": 1.0},
    {"top_p": None},
    {"top_k": 20},
    {"min_p": 0.05},
    {"max_new_tokens": 400},
    {"seed": 2},
    {"stop_tokens": 5},
    {"stop": ["\n\n"]},
    {"temperature": 0},
    {"temperature": 0, "max_new_tokens": 100},
)
_COMPILED, _LOWERED = "/jax/core/compile/backend_compile_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration"


def run(model_name: str, repeats: int) -> None:
    """Prints the seconds of each call's first time and of the next `repeats`, and what the first compiled."""
    show_machine()
    events: dict[str, list[float]] = collections.defaultdict(list)
    jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: events[event].append(seconds))
    for drafter in (None, "auto"):
        decoder = jaxspec.SpeculativeDecoder(model_name, drafter)
        began = count_mappings()
        for index, options in enumerate(_CALLS):
            call = {"max_new_tokens": 40, "seed": 1, **options}
            prompt = _PROMPTS[index % len(_PROMPTS)]
            events.clear()
            first = _seconds(decoder, prompt, call)
            large = sum(seconds > 0.5 for seconds in events[_COMPILED])
            spent = f"lowering {sum(events[_LOWERED]):.1f}, compiling {sum(events[_COMPILED]):.1f}"
            again = statistics.median(_seconds(decoder, prompt, call) for _ in range(repeats))
            changed = ", ".join(f"{name} {value!r}" for name, value in options.items())
            show(
                f"{drafter or 'plain'}: {changed or 'default'}",
                f"first {first:.1f} s, then {again:.2f} s; {large} programs of over 0.5 s ({spent})",
            )
        show("  mappings of its programs", str(count_mappings() - began))


def _seconds(decoder: jaxspec.SpeculativeDecoder, prompt: str, options: dict) -> float:
    start = time.perf_counter()
    decoder.generate(prompt, **options)
    return time.perf_counter() - start
