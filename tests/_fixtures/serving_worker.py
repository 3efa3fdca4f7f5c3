"""`serving_worker COORDINATOR PROCESSES ID FOLDER WHAT COUNT`: one of several processes with one engine.

The first process decodes `COUNT` requests and writes their tokens to the folder (`end`), or decodes for ever after it
has said "ready" (`go on`). The last process begins some seconds late (`end`), makes no more calls after some rounds
(`hang`), has another version (`version`), or does not come (`missing`).
"""

import contextlib
import json
import pathlib
import random
import sys
import threading
import time

import jax

from jaxspec.grammar import Grammar
from jaxspec.serving import lockstep, meeting
from jaxspec.serving.group import Group
from jaxspec.sharding.multihost import join

LONG = [5 * number % 256 for number in range(300)]
TEXTS = ["the sea", "a", "grüße", "one two three", LONG, [*LONG, 7, 8], [*LONG[:290], 9]]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
GREEDY, SEEDED = {"temperature": 0}, {"temperature": 1.0, "top_p": None, "seed": 3}
LATE_SECONDS = 3.0
KINDS = (
    GREEDY,
    SEEDED,
    GREEDY | {"repetition_penalty": 1.3, "logit_bias": {7: 1.5, 40: -3.0}},
    SEEDED | {"grammar": Grammar.json_schema(SCHEMA)},
    GREEDY | {"alternatives": 2, "stop": ["th"]},
    GREEDY | {"prompt_alternatives": 2},
    SEEDED | {"top_k": 5, "seed": 2**31},
)


def requests(count):
    """Returns prompts and options: one of each kind, then any."""
    draw = random.Random(0)
    found = []
    for index in range(count):
        options = KINDS[index] if index < len(KINDS) else draw.choice(KINDS)
        text = TEXTS[-1 - index] if index < len(TEXTS) else draw.choice(TEXTS)
        found.append((text, {**options, "max_new_tokens": draw.choice([1, 6, 20])}))
    return found


def decode(engine, count):
    """Decodes all at once, next to some requests that are cancelled or out of time; returns what each has become."""
    handles = [engine.submit(text, **options) for text, options in requests(count)]
    engine.submit("hello", max_new_tokens=60, **GREEDY).cancel()
    late = engine.submit("hello", max_new_tokens=60, timeout=0.3, **SEEDED)
    found = []
    for handle in handles:
        result, scores = handle.result(), handle.prompt_scores
        said = [] if scores is None else scores.rank.tolist()
        found.append([list(result.token_ids), result.text, result.stop_reason, said])
    with contextlib.suppress(TimeoutError):
        late.result()
    return found


def engine_of(folder, mesh):
    import jaxspec

    target = jaxspec.load(folder / "model", mesh=mesh)
    return jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=384)


def main(coordinator, processes, process, folder, what, count):
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)
    folder, process, last = pathlib.Path(folder), int(process), int(processes) - 1
    if what == "end" and process == last:
        time.sleep(LATE_SECONDS)
    # A process that ends waits this long for one that does not.
    join(coordinator, int(processes), process, timeout=10 if what == "missing" else 60)
    mesh = jax.make_mesh((2, int(processes)), ("data", "model"))
    if what == "missing":
        meeting.START_SECONDS = LATE_SECONDS
    if process == last:
        change_last(what)
    with engine_of(folder, mesh) as engine:
        if process > 0:
            engine.follow()
        elif what == "end":
            (folder / "found.json").write_text(json.dumps(decode(engine, int(count))))
            (folder / "reused").write_text(str(engine.reused_tokens))
        else:
            go_on(engine)
    print("end", flush=True)


def go_on(engine):
    options = GREEDY | {"max_new_tokens": 20, "stop_tokens": ()}
    engine.submit("the sea", **options).result()
    print("ready", flush=True)
    while True:
        engine.submit("the sea", **options).result()


def change_last(what):
    if what == "hang":
        hang_after(40)
    elif what == "version":
        lockstep.__version__ = "0.0"
    elif what == "missing":
        lockstep.enter = lambda *_: threading.Event().wait()


def hang_after(count):
    real, calls = Group.advance, iter(range(count))

    def advance(self, *arguments):
        if next(calls, None) is None:
            threading.Event().wait()
        return real(self, *arguments)

    Group.advance = advance


if __name__ == "__main__":
    main(*sys.argv[1:])
