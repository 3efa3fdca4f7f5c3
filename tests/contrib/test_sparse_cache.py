"""`SparseCacheDrafter`: the distribution of a target that sees the ends of the text and its own drafts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.contracts.drafter import LENGTHS, PROMPTS, DrafterContract
from jaxspec.testing.history_models import history_model
from tests._fixtures import tiny
from tests._fixtures.draft_lengths import PausesContract, Turns

SINKS, WINDOW, K, MOST_TEXT = 2, 3, 3, 64


@jax.jit
def stack_entries(model, tokens):
    return model(tokens, model.init_cache(1, MOST_TEXT)).entries


@jax.jit
def logits_of(model, tokens, mask, positions, pending):
    cache = model.init_cache(1, 1)
    return model(tokens, cache, mask=mask, positions=positions, pending=pending).logits[0]


def sparse_probs(model, text, offset) -> np.ndarray:
    """The distribution after `text`, of which the last `offset` tokens are drafts.

    True keys are picked out of a pass over the whole text, and lie in no cache.
    """
    held = len(text) - offset - 1
    kept = [at for at in range(held) if at < SINKS or at >= held - WINDOW]
    padded = kept + [0] * (SINKS + WINDOW - len(kept))
    true = stack_entries(model, jnp.asarray([text + [0] * (MOST_TEXT - len(text))], jnp.int32))
    pending = jax.tree.map(lambda x: x[:, :, :, jnp.asarray(padded)], true)
    fed = text[held:] + [0] * (K - offset - 1)
    seen = np.broadcast_to(np.arange(len(padded)) < len(kept), (K, len(padded)))
    mask = np.concatenate([seen, np.tril(np.ones((K, K), bool))], axis=1)
    positions = [*padded, *range(held, held + K)]
    as_int = lambda x: jnp.asarray([x], jnp.int32)
    logits = logits_of(model, as_int(fed), jnp.asarray(mask)[None], as_int(positions), pending)
    return np.asarray(jax.nn.softmax(logits[offset]))


class SparseCacheContract(DrafterContract):
    # One layer sees four positions back, so that it matters where the kept ones stand.
    target = tiny.transformer(1, layers=2, windows=(4, None))

    def guess(self, text, offset):
        return sparse_probs(self.target, text, offset)


@pytest.mark.slow
class TestSparseCache(SparseCacheContract):
    drafter = jaxspec.contrib.SparseCacheDrafter(SINKS, WINDOW, k=K)


@pytest.mark.slow
class TestPauses(PausesContract, SparseCacheContract):
    """Draft lengths in turn, down to 0."""

    drafter = jaxspec.contrib.SparseCacheDrafter(SINKS, WINDOW, k=Turns())


@pytest.mark.slow
def test_a_text_that_it_sees_whole_is_guessed_right():
    """Prompts of 1 to 7 tokens and 20 new ones: the drafts are the target's own tokens."""
    drafter = jaxspec.contrib.SparseCacheDrafter(sinks=20, window=40, k=K)
    found = jaxspec.generate(
        SparseCacheContract.target,
        drafter,
        jnp.asarray(PROMPTS),
        prompt_length=jnp.asarray(LENGTHS),
        max_new_tokens=20,
    )
    assert found.stats.rounds.tolist() == [5] * 4


@pytest.mark.slow
def test_it_keeps_nothing_between_rounds():
    prompt = jnp.asarray(PROMPTS)
    state = jaxspec.init(SparseCacheContract.target, TestSparseCache.drafter, prompt, max_new_tokens=5)
    assert jax.tree.leaves(state.drafter_state.draft_state) == []


def test_a_target_without_keys_does_not_fit():
    target = history_model(vocab=tiny.VOCAB)
    with pytest.raises(TypeError, match="got a target with a TokenCache"):
        jaxspec.generate(target, jaxspec.contrib.SparseCacheDrafter(), jnp.asarray(PROMPTS), max_new_tokens=3)


@pytest.mark.parametrize("options", [{"sinks": 0}, {"window": 0}, {"k": -1}])
def test_sizes_are_positive(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        jaxspec.contrib.SparseCacheDrafter(**options)
