"""Times a tunix model by its own sampler, and by `generate` with and without drafts, question by question in turns.

    pip install google-tunix
    python -m tests.benchmarks.foreign --questions 12 --tokens 64

Qwen2.5-Coder-0.5B-Instruct in float32 is written as safetensors, which tunix reads into its own Qwen2. All programs
continue the same chat turns greedily, one row each, and none stops early. One draft model is the file itself, whose
weights of 4 bits native kernels multiply. A step is the difference between answers of `--tokens` and of a quarter.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.questions import evenly, prompt_of, read_questions
from jaxspec.checkpoints.huggingface import export_folder
from tests.benchmarks.workload import show_machine

MODEL = "qwen2.5-coder-0.5b-instruct"
DRAFTERS = {
    "plain": lambda: None,
    "n-grams, k = 3": lambda: jaxspec.NGramDrafter(k=3),
    "n-grams, k = 6": lambda: jaxspec.NGramDrafter(k=6),
    "n-grams, k = 10": lambda: jaxspec.NGramDrafter(k=10),
    "the file's 4 bits, k = 4": lambda: jaxspec.ModelDrafter(jaxspec.load(MODEL), k=4),
}


class Ids:
    """A tokenizer of texts that are lists of ids already."""

    def __init__(self, tokenizer):
        self.stop = tokenizer.stop_tokens[0] if hasattr(tokenizer, "stop_tokens") else 0

    def encode(self, text):
        return json.loads(text)

    def decode(self, ids):
        return json.dumps([int(token) for token in ids])

    def bos_id(self):
        return 0

    def eos_id(self):
        return self.stop

    def pad_id(self):
        return 0


def tunix_model(model):
    """The same weights in tunix's own class, by its own reader."""
    from tunix.models.qwen2 import model as qwen2, params

    with tempfile.TemporaryDirectory() as folder:
        path = export_folder(model, Path(folder), "float32")
        config = qwen2.ModelConfig.qwen2p5_0p5b()
        return params.create_model_from_safe_tensors(str(path), config, dtype=jnp.float32)


def sampled(model, tokenizer, width, new):
    """`run(prompt, count)` by tunix's sampler."""
    from tunix.generate.sampler import CacheConfig, Sampler

    config = model.config
    cache = CacheConfig(width + new, config.num_layers, config.num_kv_heads, config.head_dim)
    sampler = Sampler(model, Ids(tokenizer), cache)

    def run(prompt, count):
        # No id that a prompt or an answer has.
        options = {"max_generation_steps": count, "max_prompt_length": width, "eos_tokens": [config.vocab_size - 1]}
        return np.asarray(sampler([json.dumps(list(map(int, prompt)))], **options).tokens[0])[:count]

    return run


def generated(target, drafter, width):
    """`run(prompt, count)` by `generate`: one program for all counts."""
    program = jax.jit(
        lambda target, drafter, tokens, length, count: (
            jaxspec.generate(target, drafter, tokens, prompt_length=length, max_new_tokens=count).tokens
        ),
        static_argnames="count",
    )

    def run(prompt, count):
        padded = np.zeros((1, width), np.int32)
        padded[0, : len(prompt)] = prompt
        return np.asarray(program(target, drafter, padded, jnp.asarray([len(prompt)]), count=count))[0]

    return run


def timed(run, prompt, count):
    start = time.perf_counter()
    tokens = run(prompt, count)
    return time.perf_counter() - start, tokens


def main(arguments):
    show_machine()
    ours = jaxspec.load(MODEL, weights="dequantized", dtype="float32")
    questions = evenly(read_questions("code"), arguments.questions)
    prompts = [prompt_of(ours.tokenizer, question, []) for question in questions]
    width, new = max(map(len, prompts)), arguments.tokens
    model = tunix_model(ours)
    tokenizer = ours.tokenizer
    del ours
    target = jaxspec.foreign.from_tunix(model, context_length=32768)
    programs = {"tunix's sampler": sampled(model, tokenizer, width, new)}
    programs |= {name: generated(target, make(), width) for name, make in DRAFTERS.items()}
    times = {name: [] for name in programs}
    for name, run in programs.items():
        for count in (new, new // 4):
            run(prompts[0], count)  # compiles
    equal = dict.fromkeys(programs, 0)
    for prompt in prompts:
        first = None
        for name, run in programs.items():
            (long, tokens), (short, _) = timed(run, prompt, new), timed(run, prompt, new // 4)
            first = tokens if first is None else first
            equal[name] += int(np.argmin(np.append(tokens == first, False)))
            times[name].append((long, (long - short) / (new - new // 4)))
    show(times, equal, len(prompts), new, arguments.out)


def show(times, equal, questions, new, out):
    """Prints each program's tokens a second, and ratios of the same question's times."""
    rows = []
    for name, own in times.items():
        ratio = lambda other, index: statistics.median(
            b[index] / a[index] for a, b in zip(own, times[other], strict=True)
        )
        rows.append(
            {
                "program": name,
                "tokens a second": round(questions * new / sum(long for long, _ in own), 2),
                "over the sampler": round(ratio("tunix's sampler", 0), 3),
                "over plain": round(ratio("plain", 0), 3),
                "step over the sampler's": round(1 / ratio("tunix's sampler", 1), 3),
                "first tokens equal to the sampler's": f"{equal[name]} of {questions * new}",
            }
        )
        print(*(f"{key}: {value}" for key, value in rows[-1].items()), sep="   ", flush=True)
    if out:
        Path(out).write_text(
            json.dumps({"model": MODEL, "questions": questions, "tokens": new, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out")
    main(parser.parse_args())
