"""Processors against those of `transformers`, and cases copied from vLLM."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core import processing
from jaxspec.processors import AllowedTokens, BannedPhrases, LogitBias, MinNewTokens, Penalties

VOCAB, CASES = 40, 1000


def ours(processor, prompt, new, logits, stops=()):
    """The processed logits of one row: half of the new tokens are committed, the rest are drafts above the position."""
    spread = processor.spread(1)
    stop_tokens = jnp.asarray([list(stops) or [-1]], jnp.int32)
    start = processing.Prompt(jnp.asarray([prompt]), jnp.asarray([len(prompt)]), stop_tokens, VOCAB)
    half = len(new) // 2
    committed = jnp.asarray([new[:half] + [0] * (8 - half)], jnp.int32)
    path = jnp.asarray([[new[half:] + [-1] * (8 - len(new) + half)]], jnp.int32)
    return np.asarray(_processed(spread, start, committed, jnp.asarray([half]), path, jnp.asarray(logits)[None, None]))


@jax.jit
def _processed(processor, start, committed, count, path, logits):
    state = processor.commit(processor.init(start), committed, count)
    return processor(logits, state, path)[0, 0]


def random_cases(count=CASES):
    rng = np.random.default_rng(0)
    for _ in range(count):
        prompt = rng.integers(VOCAB, size=6).tolist()
        new = rng.integers(VOCAB, size=rng.integers(0, 9)).tolist()
        yield rng, prompt, new, (rng.normal(size=VOCAB) * 4).astype(np.float32)


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["bias", "repetition", "phrases", "minimum", "allowed", "suppressed"])
def test_it_is_that_of_transformers(kind):
    torch = pytest.importorskip("torch")
    import transformers

    for rng, prompt, new, logits in random_cases():
        text, stops = torch.tensor([prompt + new]), ()
        if kind == "bias":
            biases = {int(token): float(rng.normal()) for token in rng.integers(VOCAB, size=5)}
            own = LogitBias(
                np.array(list(biases)[:1] * (5 - len(biases)) + list(biases)),
                np.array([0.0] * (5 - len(biases)) + list(biases.values()), np.float32),
            )
            theirs = transformers.SequenceBiasLogitsProcessor({(token,): bias for token, bias in biases.items()})
        elif kind == "repetition":
            penalty = float(np.float32(rng.uniform(0.5, 2)))
            own, theirs = Penalties(jnp.float32(penalty)), transformers.RepetitionPenaltyLogitsProcessor(penalty)
        elif kind == "phrases":
            last = (prompt + new)[-2:]
            phrases = [
                [int(rng.integers(VOCAB))],
                [last[1], int(rng.integers(VOCAB))],
                [*last, int(rng.integers(VOCAB))],
            ]
            phrases.append([int(rng.integers(VOCAB)), last[1], int(rng.integers(VOCAB))])
            own, theirs = BannedPhrases.of(phrases), transformers.NoBadWordsLogitsProcessor(phrases)
        elif kind == "minimum":
            least, stops = int(rng.integers(0, 9)), rng.choice(VOCAB, size=2, replace=False).tolist()
            own = MinNewTokens(jnp.int32(least))
            theirs = transformers.MinNewTokensLengthLogitsProcessor(len(prompt), least, stops)
        elif kind == "allowed":
            ids = rng.choice(VOCAB, size=7, replace=False).tolist()
            own = AllowedTokens(np.array(ids))
            theirs = transformers.PrefixConstrainedLogitsProcessor(lambda batch, text, ids=ids: ids, 1)
        else:
            ids = rng.choice(VOCAB, size=7, replace=False).tolist()
            own = LogitBias(np.array(ids), np.full(7, -np.inf, np.float32))
            theirs = transformers.SuppressTokensLogitsProcessor(ids)
        expected = theirs(text, torch.tensor(logits)[None].clone())[0].numpy()
        np.testing.assert_allclose(
            ours(own, prompt, new, logits, stops), expected, atol=1e-6, rtol=1e-6, err_msg=str(kind)
        )


@pytest.mark.slow
def test_it_is_the_arithmetic_of_vllm():
    """`apply_penalties` of vLLM: repetition over prompt and output, then frequency, then presence of the output."""
    for rng, prompt, new, logits in random_cases(300):
        repetition, presence, frequency = np.float32(rng.uniform((0.5, -2, -2), (2, 2, 2)))
        counts = np.bincount(new, minlength=VOCAB).astype(np.float32)
        seen = (counts > 0) | (np.bincount(prompt, minlength=VOCAB) > 0)
        factor = np.where(seen, repetition, np.float32(1))
        expected = np.where(logits > 0, logits / factor, logits * factor)
        expected = expected - frequency * counts - presence * (counts > 0)
        own = Penalties(*map(jnp.float32, (repetition, presence, frequency)))
        np.testing.assert_allclose(ours(own, prompt, new, logits), expected, atol=1e-5, rtol=1e-6)


def test_a_frequency_penalty_of_two_after_two_tokens():
    """vLLM's own case: of equal logits the token that was written twice is lowered by twice the penalty."""
    found = ours(Penalties(frequency=2.0), [0], [7, 7, 9], np.ones(VOCAB, np.float32))
    assert found[7] == 1 - 4 and found[9] == 1 - 2 and found[0] == 1


def test_allowed_tokens_alone_are_left():
    """vLLM's own case of `allowed_token_ids`: all others are -inf."""
    found = ours(AllowedTokens([3, 4]), [0], [3], np.zeros(VOCAB, np.float32))
    assert np.flatnonzero(np.isfinite(found)).tolist() == [3, 4]
