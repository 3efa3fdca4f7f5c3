"""`jaxspec.rl.generator`: rows that fill a batch up, what compiles, and where stop strings end a row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.rl import History, generator
from jaxspec.rl.skyrl import _end
from tests._fixtures.rollouts import Params, Policy, float64_log_probs, to_model

IDS = jnp.asarray([[0, 0, 0], [1, 3, 4], [0, 0, 0], [1, 5, 0]], jnp.int32)
MASK = jnp.asarray([[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]], jnp.int32)
ROWS = [Params(1.0, 6, seed) for seed in range(4)]


def test_rows_without_tokens_have_none():
    generate, policy = generator(to_model, drafter=None), Policy()
    out = generate(policy, IDS, MASK, sampling_params=ROWS, prompt_logprobs=True)
    assert [len(ids) for ids in out.generated_ids] == [0, 6, 0, 6]
    assert out.stop_reasons == ["length"] * 4 and [len(one) for one in out.prompt_logprobs] == [0, 2, 0, 1]
    for ids, log_probs, prompt in zip(out.generated_ids, out.logprobs, [[], [1, 3, 4], [], [1, 5]], strict=True):
        np.testing.assert_allclose(log_probs, float64_log_probs(policy, prompt, ids), atol=1e-5)
    empty = generate(policy, IDS, MASK * 0, sampling_params=ROWS)
    assert (empty.generated_ids, empty.stop_reasons, empty.prompt_logprobs) == ([[]] * 4, ["length"] * 4, None)
    empty.generated_ids[0].append(5)  # a caller's change of one list is that of no other
    assert (empty.generated_ids[1], empty.logprobs[0]) == ([], [])


@pytest.mark.slow
def test_rows_without_tokens_leave_nothing_in_the_history():
    history = History()
    generator(to_model, history=history)(Policy(), IDS, MASK, sampling_params=ROWS)
    assert len(history) == 2 and history.state()["lengths"].tolist() == [6, 6]


def test_other_values_compile_nothing():
    generate, compiled = generator(to_model, drafter=None), []
    first = generate(Policy(), IDS, MASK, sampling_params=ROWS)
    listen = lambda event, duration_secs, **_: compiled.append(event) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        other = [dataclasses.replace(one, top_k=2, top_p=0.7, stop_tokens=[2, 6], temperature=0.5) for one in ROWS]
        generate(Policy(), IDS, jnp.ones_like(MASK), sampling_params=other)
        again = generate(Policy(), IDS, MASK, sampling_params=ROWS)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled and again == first


class Bytes:
    """A tokenizer of bytes, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def decode(self, ids):
        self.calls += 1
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("strings", [["é"], ["ab", "zé"], ["z"], ["a"], ["é€"], ["none", "€z"], ["none"]])
@pytest.mark.parametrize("text", ["zzzé€zabzzéz" + "a" * 400, "a", "", "é€"])
def test_the_first_prefix_with_a_stop_string_ends_a_row(text, strings):
    tokens, tokenizer = list(text.encode()), Bytes()
    prefixes = [bytes(tokens[:count]).decode(errors="replace") for count in range(1, len(tokens) + 1)]
    first = [count for count, prefix in enumerate(prefixes, 1) if any(one in prefix for one in strings)]
    assert _end(tokens, strings, tokenizer) == ((first[0], True) if first else (len(tokens), False))
    assert tokenizer.calls <= int(np.log2(len(tokens) + 1)) + 8
