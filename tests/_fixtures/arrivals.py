"""Requests of all kinds that come, are cancelled and go at random, compared with separate calls."""

import functools
import itertools
import json
import random
import time

import jax
import numpy as np

import jaxspec
from jaxspec.serving import CancelledError

CAPACITY, SECONDS = 64, 120.0
BEGINNING = "the sea is wide and the sea"
TEXTS = ["the sea", "a", "grüße", "one two three", BEGINNING, BEGINNING + " is deep", BEGINNING + ", hello"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}

GREEDY, SEEDED = {"temperature": 0}, {"temperature": 1.0, "top_p": None}
KINDS = {
    "greedy": lambda draw: GREEDY,
    "coupled": lambda draw: SEEDED | {"seed": draw.randrange(2)},
    "warped": lambda draw: {"temperature": 0.8, "top_p": 0.7, "top_k": 5, "seed": draw.randrange(2)},
    "stop strings": lambda draw: GREEDY | {"stop": draw.sample(["e", "th", "a b", "z"], 2)},
    "stop tokens": lambda draw: GREEDY | {"stop_tokens": tuple(draw.sample(range(300), draw.randrange(4)))},
    "penalties": lambda draw: GREEDY | {"repetition_penalty": draw.choice([1.1, 1.6]), "presence_penalty": 0.3},
    "biases": lambda draw: SEEDED | {"seed": draw.randrange(2), "logit_bias": {draw.randrange(300): 3.0, 7: -9.0}},
    "allowed": lambda draw: GREEDY | {"allowed_tokens": sorted(draw.sample(range(4, 300), 40)), "min_new_tokens": 3},
    "log-probabilities": lambda draw: GREEDY | {"alternatives": draw.choice([1, 3, 5])},
    "choices": lambda draw: GREEDY | {"choices": ["yes", "no"]},
    "schema": lambda draw: SEEDED | {"schema": SCHEMA, "seed": draw.randrange(2)},
}


def requests(count, seed=0, kinds=tuple(KINDS)):
    """Returns prompts, options, and when each is cancelled: `None`, "at once", or after later ones have arrived."""
    draw, found = random.Random(seed), []
    for index in range(count):
        kind = kinds[index] if index < len(kinds) else draw.choice(kinds)
        options = {**KINDS[kind](draw), "max_new_tokens": draw.choice([1, 2, 9, 18])}
        fate = draw.choices([None, "at once", "later"], [9, 1, 1])[0]
        found.append((draw.choice(TEXTS), options, fate))
    return found


class Alone:
    """Decodes each request in a separate call, and remembers the result."""

    def __init__(self, target, drafter, verifier=None, **options):
        """Takes the arguments of the engine."""
        make = functools.partial(jaxspec.SpeculativeDecoder, target, drafter, **options)
        self._verifier, self._make = verifier, functools.cache(lambda verifier: make(verifier=verifier))
        tree = isinstance(drafter, jaxspec.Drafter) and drafter.tree
        self._coupled = None if tree else jaxspec.CoupledVerifier()
        self._found = {}

    def __call__(self, prompt, options):
        key = prompt, json.dumps(options, sort_keys=True)
        if key not in self._found:
            seeded = options.get("seed") is not None and options["temperature"] != 0
            verifier = self._coupled if seeded and self._verifier is None else self._verifier
            self._found[key] = self._make(verifier).generate(prompt, capacity=CAPACITY, **options)
        return self._found[key]


def serve(engine, asked, seed=0):
    """Submits requests at random times, cancels some, and returns the handle of each."""
    draw, handles, later = random.Random(seed), [], []
    for prompt, options, fate in asked:
        handles.append(engine.submit(prompt, **options))
        if fate == "at once":
            handles[-1].cancel()
        elif fate == "later":
            later.append(handles[-1])
        if later and draw.random() < 0.3:
            later.pop(0).cancel()
        time.sleep(draw.choice([0.0, 0.0, 0.001, 0.004, 0.02]))
    return handles


def compare(asked, handles, alone, *, exact=False):
    """Compares each request with a separate call; returns the number of those that were cancelled."""
    cancelled = 0
    for (prompt, options, fate), handle in zip(asked, handles, strict=True):
        expected = alone(prompt, options)
        try:
            found = handle.result(SECONDS)
        except CancelledError:
            assert fate is not None
            assert expected.text.startswith("".join(piece.text for piece in handle._pieces))
            cancelled += 1
            continue
        said = prompt, options
        assert found.token_ids == expected.token_ids, said
        assert (found.text, found.stop_reason, found.seed) == (expected.text, expected.stop_reason, expected.seed), said
        if found.stop_reason != "stop string":  # which is found after the rounds of a turn
            assert found.stats.emitted.tolist() == expected.stats.emitted.tolist(), said
            assert found.stats.accepted.tolist() == expected.stats.accepted.tolist(), said
        near = functools.partial(np.testing.assert_allclose, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-4)
        near(found.log_probs, expected.log_probs)
        pairs = zip(itertools.chain(*found.alternatives), itertools.chain(*expected.alternatives), strict=True)
        for one, other in pairs:
            assert one.token_id == other.token_id
            near(one.log_prob, other.log_prob)
    return cancelled


class Compilations:
    """Counts the programs that are compiled in this process, read from files or not, from now on."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event, duration, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"
