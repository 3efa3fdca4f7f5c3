"""Calls that are wrong in one argument: which argument, the value, and the call.

python -m tests._fixtures.bad_calls      what is wrong with how they end, where nothing checks annotations
"""

import dataclasses
import functools
import itertools
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np

import jaxspec
from jaxspec import drafters
from jaxspec.contrib import CascadeDrafter, UnionDrafter
from jaxspec.core import memory
from jaxspec.testing.history_models import HistoryModel, history_model
from jaxspec.text import decoder as _decoder  # noqa: F401 (see DECODES)
from tests._fixtures import text_models, tiny

VOCAB = 310
MODEL = history_model(0, vocab=5)
PROMPT = [[0, 1, 2], [3, 2, 1]]
NAN, INF = float("nan"), float("inf")
NO_NUMBERS = ("4", b"4", {}, {3}, object(), 1j, [[1], [2, 3]], max)
NO_INTEGERS = (*NO_NUMBERS, 1.5, NAN, INF, True)
NO_IDS = tuple(value for value in NO_INTEGERS if not isinstance(value, set))
HUGE = (2**31, 2**32 + 3, 2**63, 10**30, np.int64(2**40), np.uint64(2**63))
SMALL = (-1, -(2**31), -(10**30), np.int64(-5))
COUNTS = (*NO_INTEGERS, *SMALL, 0, None, [1, 2], ())
NO_TEXTS = (5, 1.5, b"text", object(), "a\ud800", max)


# Names that an error may use for an argument.
NAMES = {
    "model": "model",
    "name_or_path": "name_or_path|model|draft|there is no file or folder",
    "target": "target|unknown model|there is no file or folder|name_or_path",
    "drafter": "draft|ngram takes no argument|there is no file or folder",
    "lookup": "lookup",
    "prompts": "prompts?",
    "messages": "messages?",
    "maximum": "unexpected keyword argument .maximum",
    "repetition_penalty": r"Penalties\.repetition|repetition_penalty",
    "presence_penalty": r"Penalties\.presence|presence_penalty",
    "frequency_penalty": r"Penalties\.frequency|frequency_penalty",
    "min_new_tokens": "MinNewTokens|min_new_tokens",
    "allowed_tokens": "AllowedTokens|allowed_tokens",
    "logit_bias": "LogitBias|logit_bias|biases",
    "bad_words": "bad_words",
    "biases": "biases|LogitBias",
    "phrases": "phrases?",
    "tables": "tables?",
    "source": "source|schema|choices",
    "module": "module|from_nnx",
    "regex": "regex|expression",
}


class Accepted(Exception):
    """Says that a call got past its checks."""


@dataclasses.dataclass(frozen=True)
class BadCall:
    """One wrong call, not yet made."""

    place: str
    argument: str
    value: Any
    make: Callable[[], Any]

    def faults(self) -> str:
        """Makes the call; returns what is wrong with how it ends, nothing if an error names the argument."""
        try:
            self.make()
        except Accepted:
            return f"silent: {self}"
        except jaxtyping.TypeCheckError as error:  # where the tests check annotations, before the call does
            named = f"parameter '{self.argument}'" in str(error)
            return "" if named else f"obscure: {self}: {error!s:.200}"
        except (ValueError, TypeError, OSError) as error:
            text = str(error)
            named = re.search(NAMES.get(self.argument, self.argument), text, re.IGNORECASE)
            obscure = "\n" in text or not named
            return f"obscure: {self}: {text!r:.200}" if obscure else ""
        except Exception as error:  # noqa: BLE001 (any other error breaks the promise)
            return f"obscure: {self}: {type(error).__name__}: {error!s:.200}"
        return f"silent: {self}"

    def __str__(self) -> str:
        return f"{self.place}({self.argument}={self.value!r:.40})"


def calls(place: str, function: Callable[..., Any], /, **wrong: tuple[Any, ...]) -> Iterator[BadCall]:
    for argument, values in wrong.items():
        for value in values:
            yield BadCall(place, argument, value, functools.partial(function, **{argument: value}))


def _sampling(call, **options):
    return call(sampling=jaxspec.Sampling(**options), key=jax.random.key(0))


def decoding() -> Iterator[BadCall]:
    """Returns bad calls of `generate`, `init` and `stream`."""

    def call(function, **options):
        given = {"target": MODEL, "drafter": None, "prompt": PROMPT, "max_new_tokens": 4} | options
        return function(given.pop("target"), given.pop("drafter"), given.pop("prompt"), **given)

    shared = {
        "target": (None, "smollm2", 5, object(), max, HistoryModel),
        "drafter": ("ngram", 5, MODEL, jaxspec.NGramDrafter, object(), True),
        "prompt": ("text", None, 5, [1, 2], [], [[]], [["a"]], [[1.5]], [[1, 2], [3]], [[5]], [[-1]], [[2**32 + 1]]),
        "prompt_length": (*NO_INTEGERS, *HUGE, *SMALL, 0, 4, [1, 2, 3], (), [1, 9]),
        "max_new_tokens": (*NO_INTEGERS, *HUGE, *SMALL, [1, 2, 3], (), [1, -1], None, 10**10),
        "stop_tokens": (*NO_IDS, *HUGE, -2, -(10**30), 5, [1, 5], [[1]] * 3, [[[1]]]),
        "capacity": (*NO_INTEGERS, *HUGE, *SMALL, 0, 6, [9], ()),
        "key": (5, "key", jnp.zeros(2), object(), jax.random.split(jax.random.key(0), 3)),
        "sampling": (0.7, "greedy", None, jaxspec.Sampling, object()),
    }
    verifiers = {
        "verifier": ("token", 5, jaxspec.TokenVerifier, jaxspec.verifiers.KSequence(), object()),
        "lossy": (5, "yes", None),
    }
    for name in ("generate", "init", "stream"):
        function = functools.partial(call, getattr(jaxspec, name))
        yield from calls(name, function, **shared, **({} if name == "init" else verifiers))
    copying = functools.partial(call, jaxspec.generate, drafter=jaxspec.NGramDrafter())
    yield from calls(
        "generate, drafting",
        copying,
        answers=(*NO_INTEGERS, *SMALL, 0, None, [1, 2], 2**31, 10**30),
        max_drafts=(*NO_INTEGERS, *SMALL, [1, 2, 3], (), [1, -1]),
        prediction=(*NO_IDS, 5, -2, "text", [5], [[1], [1], [1]], [[[1]]], [1.5], [2**40], [[1], [1, 2]]),
        report=(None, 5, "all", True, jaxspec.core.Report),
    )
    policy = functools.partial(_sampling, functools.partial(call, jaxspec.generate))
    numbers = (*NO_NUMBERS, NAN, -1, -INF, [1.0] * 3, True)
    yield from calls(
        "generate, Sampling", policy, temperature=(*numbers, INF, None, 1e300), top_p=(*numbers, 0, 1.5, INF)
    )
    yield from calls("generate, Sampling", policy, min_p=(*numbers, 1.5, INF), top_k=(*numbers, 1.5, INF, -(10**30)))


def constructors() -> Iterator[BadCall]:
    """Returns bad calls of the constructors of drafters, trees and draft lengths."""
    models = (None, 5, "name", object(), HistoryModel)
    lengths = (*NO_INTEGERS, *SMALL, 10**6, 2**40, 10**30, None, [2], ())
    yield from calls(
        "NGramDrafter", jaxspec.NGramDrafter, k=lengths, max_ngram=(*COUNTS, 10**9), min_ngram=(*COUNTS, 99)
    )
    suffix = lambda **options: _checked(jaxspec.SuffixDrafter(**options))  # noqa: E731
    yield from calls("SuffixDrafter", suffix, k=lengths, max_match=COUNTS, candidates=COUNTS, store=(5, "x"))
    chain = lambda model=MODEL, **options: _checked(jaxspec.ModelDrafter(model, **options))  # noqa: E731
    yield from calls(
        "ModelDrafter", chain, model=models, k=lengths, num_drafts=COUNTS, sampling=(0.7, "greedy", jaxspec.Greedy)
    )
    tree = lambda model=MODEL, topology=jaxspec.Tree.chains(2, 2), **o: _checked(
        drafters.TreeDrafter(model, topology, **o)
    )  # noqa: E731
    yield from calls(
        "TreeDrafter", tree, model=models, topology=(None, 5, (2, 2), "x", jaxspec.Tree), sampling=(0.7, "greedy")
    )
    dynamic = lambda model=MODEL, **options: _checked(
        drafters.DynamicTreeDrafter(model, **({"top_k": 2, "depth": 2, "nodes": 4} | options))
    )  # noqa: E731
    yield from calls(
        "DynamicTreeDrafter",
        dynamic,
        model=models,
        top_k=(*COUNTS, 10**6),
        depth=(*COUNTS, 10**6),
        nodes=(*COUNTS, 10**6),
    )
    lookup, model = jaxspec.NGramDrafter(k=2), jaxspec.ModelDrafter(MODEL, k=2)
    hybrid = lambda lookup=lookup, model=model, **options: jaxspec.HybridDrafter(lookup, model, **options)  # noqa: E731
    shares = (*NO_NUMBERS, NAN, -1, 2, INF, None, True)
    yield from calls(
        "HybridDrafter",
        hybrid,
        lookup=(model, *models),
        model=(MODEL, *models),
        cost=(*NO_NUMBERS, NAN, 0.5, -1, INF, None, True),
        prior=shares,
        rate=shares,
    )
    cascade = lambda model=MODEL, cheap=lookup, **options: _checked(CascadeDrafter(model, cheap, **options))  # noqa: E731
    yield from calls("CascadeDrafter", cascade, model=models, cheap=models, k=COUNTS)
    yield from calls(
        "UnionDrafter", lambda drafters: UnionDrafter(drafters), drafters=((), None, 5, "x", (5,), (lookup, None))
    )
    yield from calls(
        "Tree", jaxspec.Tree, parents=(None, 5, "x", (), (0,), (-2,), (-1, 1), (-1, 1.5), (-1, 10**30), (True,))
    )
    chains = lambda num_drafts=2, k=2: jaxspec.Tree.chains(num_drafts, k)  # noqa: E731
    yield from calls("Tree.chains", chains, num_drafts=(*COUNTS, 10**6, 10**30), k=(*COUNTS, 10**6, 10**30))
    yield from calls(
        "Tree.balanced", jaxspec.Tree.balanced, branching=((), (0,), (1.5,), (10**6,), (99, 99, 99), ("x",), 5, None)
    )
    store = lambda texts=2, width=2: drafters.TextStore.empty(texts, width)  # noqa: E731
    yield from calls("TextStore.empty", store, texts=(*COUNTS, 2**40), width=(*COUNTS, 2**40))
    adaptive = lambda costs=(1.0, 1.1), lengths=(0, 2): jaxspec.Adaptive(costs, lengths).check()  # noqa: E731
    yield from calls(
        "Adaptive",
        adaptive,
        costs=(None, 5, "x", (1.0,), (1.0, NAN), (1.0, -1.0), (1.0, "x"), (1.0, INF)),
        lengths=(None, "x", (), (2, 0), (0, 0), (0, 1.5), (0, 10**30), (-1, 2)),
    )


def _checked(drafter):
    drafter.check(MODEL)
    return drafter


@functools.cache
def decoder():
    tokenizer = text_models.byte_level()
    target = dataclasses.replace(tiny.transformer(3, vocab=VOCAB), tokenizer=tokenizer)
    return jaxspec.SpeculativeDecoder(target, "ngram", k=2)


def text() -> Iterator[BadCall]:
    """Returns bad calls of `SpeculativeDecoder` and its methods."""
    own = decoder()
    target = own.target
    make = lambda target=target, drafter="ngram", **options: jaxspec.SpeculativeDecoder(target, drafter, **options)  # noqa: E731
    yield from calls(
        "SpeculativeDecoder",
        make,
        target=(None, 5, object(), "", "no-such-model", "./nowhere", "a\ud800", b"x"),
        drafter=(
            "",
            "ngram+",
            "+ngram",
            "no-such",
            "./nowhere",
            "ngram:3",
            5,
            b"x",
            object(),
            tiny.transformer(vocab=7),
            max,
        ),
        k=(*(x for x in NO_INTEGERS if x != "4"), *SMALL, 10**6, 10**30, "", "adaptive:", "adaptive:-1", "fast"),
        num_drafts=(*(x for x in COUNTS if x is not True), 2, 10**6),
        verifier=("token", 5, jaxspec.TokenVerifier, jaxspec.verifiers.KSequence()),
        tokenizer=("x", 5, object()),
        lossy=(5, "yes", None),
    )
    options = {
        "max_new_tokens": (*NO_INTEGERS, *HUGE, *SMALL, [1, 2], (), 513, 10**9),
        "temperature": (*NO_NUMBERS, NAN, INF, -1, None, [1.0, 2.0], True, 1e300),
        "top_p": (*NO_NUMBERS, NAN, 0, 1.5, -1),
        "top_k": (*NO_NUMBERS, NAN, 1.5, -1, -(10**30)),
        "min_p": (*NO_NUMBERS, NAN, 1.5, -1),
        "seed": (*NO_INTEGERS, *HUGE[1:], *SMALL, 2**32, [1], np.array([1, 2])),
        "stop": (5, b".", {}, {"."}, object(), "", ["a", ""], ["a", 5], "\ud800", text_models.END),
        "stop_tokens": (*NO_IDS, *HUGE, -2, VOCAB, [[1]], [VOCAB]),
        "answers": (*NO_INTEGERS, *SMALL, 0, [1], 10**30),
        "max_drafts": (*NO_INTEGERS, *SMALL, [1, 2], ()),
        "allowed_tokens": (*NO_IDS, *HUGE, -1, VOCAB, [VOCAB], [1.5], [], [True]),
        "prediction": (*NO_TEXTS, [], ["a", "b"], [5], {"a": 1}),
        "shown_tokens": (*NO_IDS, *HUGE, None, [VOCAB], [1.5], [True]),
        "alternatives": (*NO_INTEGERS, *SMALL, None, VOCAB + 1, [1]),
        "grammar": (5, b"x", object(), {}, [None, None], [5]),
        "maximum": (5,),
    }
    for name in ("generate", "stream", "compare"):
        function = lambda name=name, prompts="the sea", **o: getattr(own, name)(prompts, **o)  # noqa: E731
        yield from calls(
            name, function, prompts=(*NO_TEXTS, None, "", [], [""], ["a", 5], {"a": 1}, {"a"}, "the sea " * 600)
        )
        yield from calls(
            name, function, **(options if name == "generate" else dict(itertools.islice(options.items(), 1)))
        )
    turn = {"role": "user", "content": "a"}
    for name in ("chat", "stream_chat"):
        function = lambda name=name, messages=None, **o: getattr(own, name)(messages, **o)  # noqa: E731
        wrong = (*NO_TEXTS, None, [], {}, turn, [5], [[]], [{}], [{"role": "user"}], [[turn], 5], [turn, 5])
        wrong += tuple([turn | {name: value}] for name in turn for value in (*NO_TEXTS, None))
        yield from calls(name, function, messages=wrong)
    yield from calls(
        "load",
        lambda name_or_path: jaxspec.load(name_or_path),
        name_or_path=(None, 5, "", "no-such", "./nowhere", "\ud800", b"x", max),
    )
    yield from calls(
        "load_drafter",
        lambda name_or_path="ngram", **o: jaxspec.load_drafter(name_or_path, target, **o),
        name_or_path=(None, 5, "", "no-such", "./nowhere", "ngram+", "\ud800", b"x", max),
        k=("fast", -1, 10**6),
        num_drafts=(0, 2, "x"),
        batch=(0, -1, "x", 1.5),
    )


def accepted(*arguments: Any, **options: Any) -> Any:
    """Replaces the functions that compile and decode."""
    raise Accepted


# The functions that a call reaches if it gets past its checks. All places of one are replaced: a module that was first
# imported meanwhile would keep the replacement.
DECODES = (
    "decoding.generate.run",
    "decoding.generate.start",
    "decoding.rounds.start",
    "text.decoder.Rounds",
    "text.stream.TextStream.__init__",
)
KINDS = (decoding, constructors, text)


def faults(kind: Callable[[], Iterator[BadCall]]) -> tuple[int, list[str]]:
    """Makes all calls of a kind; returns how many, and what is wrong with how some end."""
    made = list(kind())
    return len(made), [fault for fault in (call.faults() for call in made) if fault]


if __name__ == "__main__":
    for place in DECODES:
        owner, _, name = place.rpartition(".")
        setattr(pkgutil.resolve_name(f"jaxspec.{owner}"), name, accepted)
    memory.available = lambda: 2**33
    found = [faults(kind) for kind in KINDS]
    print(json.dumps({"calls": sum(count for count, _ in found), "faults": [one for _, some in found for one in some]}))
