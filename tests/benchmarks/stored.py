"""Times a GGUF file, as stored, against llama.cpp: decoding, passes over several tokens, prompts, memory.

    python -m tests.benchmarks.stored --model smollm2-135m-instruct --llama-bench PATH

In each turn both do everything once, one after the other; ratios are of the same turn. llama.cpp runs with each of the
numbers of threads, and its best one counts. Its pass over several tokens makes the logits of the last one alone.

    python -m tests.benchmarks.stored --quality questions.jsonl

compares the model with its own weights dequantized, on pieces of the questions' text, and times nothing.
"""

import argparse
import functools
import json
import statistics
import subprocess
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.questions import read_questions
from jaxspec.checkpoints.load import locate
from jaxspec.draft_length.costs import read_bytes
from jaxspec.nn.convert import kernels_of
from jaxspec.nn.language_model import LanguageModel
from tests.benchmarks.int8 import quality
from tests.benchmarks.workload import PROBE_BYTES, bandwidth_probe, chat_prompt, filled_cache, show, show_machine

COUNTS = (1, 2, 3, 5, 8)
_CAPACITY, _USED, _NEW, _PROMPT, _PIECES = 1024, 150, 64, 512, 12


class PeakMemory(threading.Thread):
    """Samples how much memory that no file backs this process holds; `peak` is in bytes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self._done = 0, threading.Event()

    def run(self):
        while not self._done.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            self.peak = max(self.peak, *(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")))

    def stop(self) -> int:
        """Stops sampling, and returns the peak."""
        self._done.set()
        self.join()
        return self.peak


def own_runs(model: LanguageModel):
    """Returns what is timed, by name, each with the number of its tokens."""
    decode = jax.jit(lambda model, prompt: jaxspec.generate(model, None, prompt, max_new_tokens=_NEW).tokens)
    forward = jax.jit(lambda model, tokens, cache: model(tokens, cache).logits)
    runs = {"decoding": (functools.partial(decode, model, jnp.asarray(chat_prompt(model)[:, :8])), _NEW)}
    cache = filled_cache(model, _CAPACITY, _USED)
    for count in COUNTS:
        runs[f"pass of {count}"] = (functools.partial(forward, model, jnp.ones((1, count), jnp.int32), cache), count)
    # Only the last logits of a prompt are computed, as in llama.cpp.
    last = jax.jit(lambda model, tokens: jaxspec.init(model, None, tokens, max_new_tokens=1))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 1000, (1, _PROMPT)), jnp.int32)
    runs["prompt"] = (functools.partial(last, model, tokens), _PROMPT)
    return runs


def seconds(run) -> float:
    """Returns the time of one call."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def peer_seconds(program: str, file: Path, threads: int) -> dict[str, float]:
    """Returns what llama-bench takes for the same, by name."""
    counts = ",".join(map(str, (*COUNTS, _PROMPT)))
    options = ["-t", str(threads), "-p", counts, "-n", str(_NEW), "-r", "1", "-o", "jsonl"]
    done = subprocess.run([program, "-m", str(file), *options], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        name = f"pass of {row['n_prompt']}" if row["n_prompt"] else "decoding"
        found["prompt" if row["n_prompt"] == _PROMPT else name] = row["avg_ns"] / 1e9
    return found


def turns(model: LanguageModel, file: Path, program: str | None, threads: list[int], repeats: int):
    """Yields seconds by name: own, llama.cpp's and the bandwidth's probe."""
    runs, probe = own_runs(model), bandwidth_probe()
    for run, _ in runs.values():
        seconds(run)
    for _ in range(repeats):
        own = {name: min(seconds(run) for _ in range(3)) for name, (run, _) in runs.items()}
        own["bandwidth"] = min(seconds(probe) for _ in range(5))
        peer: dict[str, float] = {}
        for count in threads if program else []:
            for name, found in peer_seconds(program, file, count).items():
                peer[name] = min(found, peer.get(name, found))
        yield own, peer


def show_quality(name: str, questions: str, pieces: int) -> None:
    """Prints the effect of rounded activations: perplexity next to float32's, and how often the top-1 token agrees."""
    stored, plain = jaxspec.load(name, weights="stored"), jaxspec.load(name, weights="dequantized")
    text = "\n".join(turn for question in read_questions(questions) for turn in question.turns)
    tokens = jnp.asarray(plain.tokenizer.encode(text)[: pieces * _PROMPT], jnp.int32).reshape(-1, _PROMPT)
    there = jnp.ones(tokens.shape, jnp.bool_)
    found = quality(stored, plain, tokens, there)
    own = quality(plain, plain, tokens, there)
    show("pieces and tokens of each", str(tokens.shape))
    show("perplexity over float32's", f"{found.perplexity / own.perplexity:.4f} of {own.perplexity:.2f}")
    show("top-1 token the same; overlap", f"{found.same:.4f}; {found.overlap:.4f}")


def spread(values: list[float]) -> str:
    """Returns the median and the range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--llama-bench", help="the program; without it only jaxspec is timed")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of llama.cpp, each tried")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quality", metavar="FILE", help="questions whose text is scored")
    asked = parser.parse_args()
    show_machine()
    if asked.quality:
        show_quality(asked.model, asked.quality, _PIECES)
        return
    file = locate(asked.model)
    sampler = PeakMemory()
    sampler.start()
    start = time.perf_counter()
    model = jaxspec.load(asked.model, weights="stored")
    show("file, kernels, seconds to load", f"{file.name}, {kernels_of(model)}, {time.perf_counter() - start:.1f}")
    tokens = {name: count for name, (_, count) in own_runs(model).items()}
    seconds(own_runs(model)["decoding"][0])
    peak = sampler.stop()
    size = file.stat().st_size
    show("peak memory, files' pages left out", f"{peak / 1e9:.2f} GB, {peak / size:.2f} files")
    pairs = list(turns(model, file, asked.llama_bench, asked.threads, asked.repeats))
    for name in [name for name in tokens if not name.startswith("pass")]:
        show(f"{name}, tokens/s", spread([tokens[name] / own[name] for own, _ in pairs]))
        if asked.llama_bench:
            show(f"{name}, llama.cpp's tokens/s", spread([tokens[name] / peer[name] for _, peer in pairs]))
            show(f"{name}, over llama.cpp", spread([peer[name] / own[name] for own, peer in pairs]))
    for count in COUNTS:
        single = [min(own["pass of 1"], peer.get("pass of 1", np.inf)) for own, peer in pairs]
        show(f"pass of {count}, ms", spread([own[f"pass of {count}"] * 1e3 for own, _ in pairs]))
        over = [own[f"pass of {count}"] / one for (own, _), one in zip(pairs, single, strict=True)]
        show(f"pass of {count} over the faster single one", spread(over))
        if asked.llama_bench:
            over = [peer[f"pass of {count}"] / peer["pass of 1"] for _, peer in pairs]
            show(f"pass of {count}, llama.cpp's over its single one", spread(over))
    share = [read_bytes(model) / own["pass of 1"] * own["bandwidth"] / PROBE_BYTES for own, _ in pairs]
    show("share of the bandwidth that the probe reads at", spread(share))
    show("probe, GB/s", spread([PROBE_BYTES / own["bandwidth"] / 1e9 for own, _ in pairs]))


if __name__ == "__main__":
    main()
