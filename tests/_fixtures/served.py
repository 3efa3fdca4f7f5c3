"""Serves random requests through slots, and compares each with a separate call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from tests.golden.token_cases import cases

CAPACITY, ROUNDS, COUNT = 48, 3, 3
KINDS = ("default | greedy", "coupled | sampled", "default | sampled")
CASES = {
    name: case
    for name, *case in cases()
    if name.partition(" | ")[2] in KINDS and not name.startswith("model, adaptive")
}

insert = jax.jit(jaxspec.serving.insert, donate_argnums=0)
release = jax.jit(jaxspec.serving.release, donate_argnums=0)
advance = jax.jit(functools.partial(jaxspec.serving.advance, lossy=True), static_argnames="rounds", donate_argnums=3)


def requests(count, vocab_size, seed=0):
    """Prompts and options of rows: lengths, budgets, keys and, for every other row, stop tokens."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(0, vocab_size, (1, rng.integers(1, 20))),
            {
                "max_new_tokens": int(rng.integers(1, 24)),
                "key": jax.random.key(index),
                "stop_tokens": [index % 2 * rng.integers(0, vocab_size)] if index % 2 else [-1],
            },
        )
        for index in range(count)
    ]


def text_of(result):
    return np.asarray(result.tokens)[0, : int(result.length[0])].tolist()


def serve(target, drafter, verifier, asked, policy_of, seed=0, feed=jaxspec.serving.feed):
    """Runs requests through slots, with arrivals and numbers of rounds at random, and returns each one's result."""
    rng = np.random.default_rng(seed)
    slots = jaxspec.serving.slots(target, drafter, COUNT, capacity=CAPACITY, sampling=policy_of(0), stop_tokens=[-1])
    waiting, live, results = list(enumerate(asked)), {}, {}
    while waiting or live:
        for slot in set(range(COUNT)) - live.keys():
            if waiting and rng.random() < 0.7:
                index, (prompt, options) = waiting.pop(0)
                row = feed(target, drafter, prompt, capacity=CAPACITY, sampling=policy_of(index), **options)
                slots, live[slot] = insert(slots, row, slot), (index, [])
        most, until_end = int(rng.integers(1, ROUNDS + 1)), bool(rng.integers(2))
        slots, found = advance(target, drafter, verifier, slots, rounds=ROUNDS, most=most, until_end=until_end)
        found = jax.device_get(found)
        for slot, (index, emitted) in list(live.items()):
            for tokens, count in zip(found.rounds.tokens[:, slot], found.rounds.count[:, slot], strict=True):
                emitted += tokens[:count].tolist()
            if found.done[slot]:
                results[index] = jaxspec.finish(jaxspec.serving.take(slots, slot))
                assert text_of(results[index]) == emitted
                slots = release(slots, jnp.arange(COUNT) == slot)
                del live[slot]
    return [results[index] for index in range(len(asked))]


def policies(policy):
    """The policy of each row: greedy as `policy`, or with a separate temperature."""
    temperatures = 0.4 + 0.2 * np.arange(9)
    sampled = isinstance(policy, jaxspec.Sampling)
    return lambda index: jaxspec.Sampling(temperatures[index], top_p=0.9) if sampled else jaxspec.Greedy()


def check(target, drafter, verifier, policy_of, asked=None, feed=jaxspec.serving.feed):
    """Compares tokens, stop reasons and numbers of rounds; `None` asks nine random requests."""
    asked = requests(9, target.vocab_size) if asked is None else asked
    found = serve(target, drafter, verifier, asked, policy_of, feed=feed)
    for index, ((prompt, options), result) in enumerate(zip(asked, found, strict=True)):
        alone = jaxspec.generate(
            target,
            drafter,
            prompt,
            capacity=CAPACITY,
            sampling=policy_of(index),
            verifier=verifier,
            lossy=True,
            **options,
        )
        assert text_of(result) == text_of(alone)
        assert int(result.stop_reason[0]) == int(alone.stop_reason[0])
        np.testing.assert_array_equal(result.stats.rounds, alone.stats.rounds)
