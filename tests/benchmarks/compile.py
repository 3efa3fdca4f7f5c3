"""Times the compilation of new shapes, and counts what a second call compiles."""

import time

import jax

import jaxspec
from jaxspec.checkpoints.load import load
from tests.benchmarks.workload import chat_prompt, show, show_machine


def run(model_name: str, repeats: int) -> None:
    """Prints seconds of the first call for each of `repeats` shapes, and what later calls compile."""
    show_machine()
    model = load(model_name)
    prompt = chat_prompt(model)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(seconds) if "backend_compile" in event else None
    )
    for index in range(repeats):
        longer = prompt.repeat(1 + index, axis=1)
        first = _seconds(model, longer, 40)
        compiled.clear()
        second = _seconds(model, longer, 40)
        other = _seconds(model, longer, 48)
        show(f"prompt of {longer.shape[1]}: first call, s", f"{first:.1f}")
        show("  second call; another max_new_tokens, s", f"{second:.1f}; {other:.1f}")
        show("  programs of over 1 s compiled in those", str(sum(seconds > 1 for seconds in compiled)))


def _seconds(model, prompt, new_tokens: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(jaxspec.generate(model, jaxspec.NGramDrafter(k=4), prompt, max_new_tokens=new_tokens))
    return time.perf_counter() - start
