"""Times requests that come and go: speculation by live rows, and slots against fixed batches."""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jaxspec
from jaxspec.bench.timing import Spread
from jaxspec.text.result import TextResult
from tests.benchmarks.workload import SUBJECTS, TURNS, show, show_machine, show_ratio

_LIVE = (1, 2, 4, 8, 16)
_TOKENS = 160
_CAPACITY = 512
_SKEWED, _BATCH = 200, 8
# A text of about 1,500 tokens for a second turn, and one of about 2,000 that is fed while a row is decoded.
_TURN_WORDS, _PROMPT_WORDS = 1100, 1450


def rows(model_name: str, repeats: int) -> None:
    """Prints tokens a second at 1 to 16 live rows: drafts over none, and the engine over one call of `generate`."""
    show_machine()
    options = {"slots": _LIVE[-1], "capacity": _CAPACITY, "prompt_share": 1.0}
    engines = {name: _warm(model_name, drafter, **options) for name, drafter in (("default", "auto"), ("plain", None))}
    for live in _LIVE:
        texts = _texts(live)
        cases: dict[str, Callable[[], int]] = {
            name: lambda engine=engine: _tokens(engine, texts) for name, engine in engines.items()
        }
        cases["loop"] = lambda: _together(engines["plain"], texts, [_TOKENS] * live)
        rates = _in_turns(cases, repeats)
        for name, found in rates.items():
            show(f"{live} rows, {name}, tokens/s", f"{statistics.median(found):.1f}")
        show_ratio(f"{live} rows, default / plain", Spread.of_ratios(rates["default"], rates["plain"]))
        show_ratio(f"{live} rows, plain engine / one call of generate", Spread.of_ratios(rates["plain"], rates["loop"]))
    for engine in engines.values():
        engine.close()


def skewed(model_name: str, repeats: int) -> None:
    """Prints tokens a second of `complete` over fixed batches of the same size, for prompts of skewed lengths."""
    show_machine()
    random.seed(0)
    lengths = [min(512, int(16 * random.paretovariate(1.0))) for _ in range(_SKEWED)]
    texts = _texts(_SKEWED)
    for drafter in (None, "auto"):
        with _warm(model_name, drafter, slots=_BATCH, capacity=768, prompt_share=1.0) as engine:
            cases = {
                "complete": lambda engine=engine: _completed(engine, texts, lengths),
                "batches": lambda engine=engine: sum(
                    _together(engine, texts[at : at + _BATCH], lengths[at : at + _BATCH])
                    for at in range(0, _SKEWED, _BATCH)
                ),
            }
            rates = _in_turns(cases, repeats)
        for name, found in rates.items():
            show(f"{drafter or 'plain'}, {name}, tokens/s", f"{statistics.median(found):.1f}")
        show_ratio(f"{drafter or 'plain'}, complete / batches", Spread.of_ratios(rates["complete"], rates["batches"]))


def turn(model_name: str, repeats: int) -> None:
    """Prints the time to the first token of a chat's second turn, with the store of prefixes over without it."""
    show_machine()
    with (
        _warm(model_name, "auto", slots=2, capacity=3072, prefix_bytes=2**30) as kept,
        _warm(model_name, "auto", slots=2, capacity=3072, prefix_bytes=0) as none,
    ):
        found: dict[str, list[float]] = {"store": [], "none": []}
        for repeat in range(repeats + 1):
            story = _words(_TURN_WORDS, repeat)
            for name, engine in (("store", kept), ("none", none)):
                chat = [{"role": "user", "content": f"Summarize this: {story}"}]
                first = engine.submit(chat, max_new_tokens=48, temperature=0).result()
                chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Shorter."}]
                seconds, _ = _first(engine, chat)
                if repeat > 0:
                    found[name].append(seconds)
    for name, values in found.items():
        show(f"first token of the second turn, {name}, ms", f"{statistics.median(values) * 1e3:.0f}")
    show_ratio("store / none", Spread.of_ratios(found["store"], found["none"]))


def prompt(model_name: str, repeats: int) -> None:
    """Prints a row's mean time between tokens while a prompt of 2,000 tokens is fed, over that of the row alone."""
    show_machine()
    found: dict[str, list[float]] = {"alone": [], "fed": []}
    pauses: dict[str, list[float]] = {"alone": [], "fed": []}
    with _warm(model_name, None, slots=2, capacity=3072) as engine:
        for repeat in range(repeats + 1):
            for name in found:
                times = _times(engine, _words(_PROMPT_WORDS, repeat) if name == "fed" else None)
                if repeat > 0:
                    found[name].append((times[-1] - times[0]) / (len(times) - 1))
                    pauses[name].append(max(after - before for before, after in itertools.pairwise(times)))
    for name, values in found.items():
        show(f"time between tokens of a row, {name}, ms", f"{statistics.median(values) * 1e3:.1f}")
        show(f"longest pause of a row, {name}, ms", f"{statistics.median(pauses[name]) * 1e3:.0f}")
    show_ratio("while a prompt is fed / alone", Spread.of_ratios(found["fed"], found["alone"]))


def _times(engine: jaxspec.Engine, text: str | None) -> list[float]:
    """Returns when the tokens of a row came, from the 20th on: while the prompt is fed, if there is one."""
    row, fed, times = engine.submit("Once upon a time", max_new_tokens=400, temperature=0, stop_tokens=()), None, []
    for count, _ in enumerate(row):
        if count == 20 and text is not None:
            fed = engine.submit(text, max_new_tokens=1, temperature=0)
        if count >= 20 and (fed is None or not fed.done):
            times.append(time.perf_counter())
    return times


def _warm(model_name: str, drafter: str | None, **options: Any) -> jaxspec.Engine:
    """Returns an engine whose programs of greedy requests are compiled."""
    engine = jaxspec.Engine(model_name, drafter, kinds=[{"temperature": 0, "stop_tokens": ()}], **options)
    while not engine.ready or engine._groups.compiling:
        time.sleep(0.1)
    return engine


def _texts(count: int) -> list[str]:
    return [TURNS[at % len(TURNS)].format(SUBJECTS[at // len(TURNS) % len(SUBJECTS)]) for at in range(count)]


def _words(count: int, seed: int) -> str:
    words = " ".join(_texts(len(TURNS) * len(SUBJECTS))).split()
    return " ".join(random.Random(seed).choices(words, k=count))


def _submitted(engine: jaxspec.Engine, text: str, tokens: int):
    chat = [{"role": "user", "content": text}]
    return engine.submit(chat, max_new_tokens=tokens, temperature=0, stop_tokens=())


def _tokens(engine: jaxspec.Engine, texts: Sequence[str]) -> int:
    handles = [_submitted(engine, text, _TOKENS) for text in texts]
    return sum(len(handle.result().token_ids) for handle in handles)


def _completed(engine: jaxspec.Engine, texts: Sequence[str], lengths: Sequence[int]) -> int:
    lines = [
        {"messages": [{"role": "user", "content": text}], "max_new_tokens": length}
        for text, length in zip(texts, lengths, strict=True)
    ]
    return sum(_count(one) for one in jaxspec.complete(engine, lines, temperature=0, stop_tokens=()))


def _count(result: TextResult | Exception) -> int:
    if isinstance(result, Exception):
        raise result
    return len(result.token_ids)


def _together(engine: jaxspec.Engine, texts: Sequence[str], lengths: Sequence[int]) -> int:
    """Decodes one fixed batch, which ends with its longest row."""
    chats = [[{"role": "user", "content": text}] for text in texts]
    decoder, most = engine.decoder, max(lengths)
    found = decoder.chat(chats, max_new_tokens=most, temperature=0, stop_tokens=(), capacity=engine.capacity)
    assert len(found) == len(texts)
    return sum(lengths)


def _first(engine: jaxspec.Engine, chat: Sequence[dict[str, str]]) -> tuple[float, str]:
    began = time.perf_counter()
    handle = engine.submit(chat, max_new_tokens=1, temperature=0, stop_tokens=())
    return (handle.result(), time.perf_counter() - began)[1], handle.result().text


def _in_turns(cases: dict[str, Callable[[], int]], repeats: int) -> dict[str, list[float]]:
    """Returns the tokens a second of each case in each turn, after one that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats + 1):
        for name, case in cases.items():
            began = time.perf_counter()
            count = case()
            if repeat > 0:
                rates[name].append(count / (time.perf_counter() - began))
    return rates
