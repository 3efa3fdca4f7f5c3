"""Decodes for a long time in many threads, and counts differences from one thread and growth of memory.

    python -m tests.soak --minutes 30 --threads 16

Greedy and sampled texts of tiny models, whole, streamed, and streams that are left in the middle. Exits with 1 if a
token is wrong, or if memory has grown by more than 1 % since the first five minutes (of a shorter run since its first
half).
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import sys
import threading
import time

import jax
import numpy as np

import jaxspec
from jaxspec.nn.convert import native_if_possible
from tests._fixtures import text_models, tiny

WARM_UP_MINUTES, MOST_GROWTH = 5, 0.01
_SECONDS_BETWEEN = 1.0
ONE, TWO = "hello", ["the sea is wide", "hello there, hello"]
SAMPLED = {"temperature": 1.2, "top_p": None}


@dataclasses.dataclass(frozen=True)
class Case:
    """One request: a decoder, a prompt or a list of them, and options."""

    decoder: jaxspec.SpeculativeDecoder
    prompts: str | list[str]
    options: dict

    def results(self):
        """All its results, of one prompt too as a list."""
        found = self.decoder.generate(self.prompts, **self.options)
        return found if isinstance(found, list) else [found]


@dataclasses.dataclass
class Report:
    """Counts of a run."""

    requests: int = 0
    cancelled: int = 0
    tokens: int = 0
    wrong: int = 0
    memory: int = 0
    growth: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.cancelled} of them left in the middle; {self.tokens} tokens, "
            f"{self.wrong} wrong; {self.memory / 1e6:.0f} MB, {self.growth:+.2%}"
        )


def cases() -> list[Case]:
    """Requests by lookup and by a draft model, by XLA's and by native kernels, greedy and sampled."""
    tokenizer = text_models.byte_level()
    target = tiny.transformer(3, vocab=tokenizer.vocab_size)
    draft = tiny.transformer(4, vocab=tokenizer.vocab_size)
    decode = lambda model, drafter: jaxspec.SpeculativeDecoder(model, drafter, tokenizer=tokenizer)
    decoders = (
        (decode(target, jaxspec.NGramDrafter(k=3)), TWO),
        (decode(target, jaxspec.ModelDrafter(draft, k=2)), ONE),
        (decode(native_if_possible(target), jaxspec.NGramDrafter(k=3)), ONE),
    )
    ways = ({"temperature": 0}, SAMPLED | {"seed": 1}, SAMPLED | {"seed": 2})
    options = [{"max_new_tokens": 40, "stop_tokens": (), **way} for way in ways]
    return [Case(decoder, prompts, each) for decoder, prompts in decoders for each in options]


def references(cases: list[Case]) -> list[list]:
    """The results of each in one thread, where streams are compiled too: threads that come at once would each do it."""
    for case in cases:
        for _ in case.decoder.stream(case.prompts, **case.options):
            pass
    return [case.results() for case in cases]


def soak(cases: list[Case], expected: list[list], *, minutes: float, threads: int, tell=lambda line: None) -> Report:
    """Makes requests in threads until the time is over, at least one in each.

    Args:
      cases: the requests.
      expected: their `references`.
      minutes: how long.
      threads: how many.
      tell: is called with a line a minute.
    """
    report, lock, begin = Report(), threading.Lock(), time.monotonic()
    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        work = [pool.submit(_work, number, cases, expected, report, lock, over) for number in range(threads)]
        first, warm_up, told = 0, min(WARM_UP_MINUTES, minutes / 2), 0
        try:
            while (passed := (time.monotonic() - begin) / 60) < minutes and not any(each.done() for each in work):
                report.memory = memory()
                if first == 0 and passed >= warm_up:
                    first = report.memory
                report.growth = report.memory / first - 1 if first else 0.0
                if passed >= told + 1:
                    told = int(passed)
                    tell(f"{told} minutes: {report}")
                over.wait(_SECONDS_BETWEEN)
        finally:
            over.set()
        for each in work:
            each.result()
    return report


def _work(number, cases, expected, report, lock, over):
    rng = np.random.default_rng(number)
    while True:
        index, way = rng.integers(len(cases)), rng.integers(3)
        case, right = cases[index], expected[index]
        if way == 0:
            tokens, wrong = _compared(case.results(), right)
        else:
            most = int(rng.integers(1, 6)) if way == 2 else None
            tokens, wrong = _streamed(case, right, most)
        with lock:
            report.requests += 1
            report.cancelled += int(way == 2)
            report.tokens += tokens
            report.wrong += wrong
        if over.is_set():
            return


def _compared(found: list, right: list) -> tuple[int, int]:
    """How many tokens there are, and how many of them differ."""
    pairs = [(a.token_ids, b.token_ids) for a, b in zip(found, right, strict=True)]
    wrong = sum(sum(x != y for x, y in zip(a, b)) + abs(len(a) - len(b)) for a, b in pairs)
    return sum(len(a) for a, _ in pairs), wrong


def _streamed(case, right, most):
    """Counts a stream, which is left after `most` pieces; the text of those is counted as one token."""
    stream, texts = case.decoder.stream(case.prompts, **case.options), [""] * len(right)
    for count, piece in enumerate(stream, 1):
        row, text = (0, piece) if isinstance(piece, str) else piece
        texts[row] += text
        if count == most:
            return len(texts), sum(not result.text.startswith(text) for text, result in zip(texts, right, strict=True))
    found = stream.result if isinstance(stream.result, list) else [stream.result]
    tokens, wrong = _compared(found, right)
    return tokens, wrong + sum(text != result.text for text, result in zip(texts, right, strict=True))


def memory() -> int:
    """The bytes of this process that are in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Runs by the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=16)
    arguments = parser.parse_args()
    made = cases()
    report = soak(
        made,
        references(made),
        minutes=arguments.minutes,
        threads=arguments.threads,
        tell=lambda line: print(line, flush=True),
    )
    print(f"{arguments.minutes:g} minutes, {arguments.threads} threads, {jax.device_count()} devices: {report}")
    return int(report.wrong > 0 or report.growth > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
