"""Errors that a program cannot raise are reported: bad traced values and NaN logits end only their row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import Status, StopReason
from jaxspec.testing.history_models import HistoryModel, history_model, nearby

VOCAB, BROKEN = 5, 4
CLEAN = history_model(0, vocab=VOCAB, scale=2.0)
# After token 4, every logit is NaN; token 4 itself is never drawn.
TARGET = HistoryModel(CLEAN.a.at[:, BROKEN].set(-1e9).at[BROKEN].set(jnp.nan), CLEAN.b)
DRAFTER = jaxspec.ModelDrafter(nearby(CLEAN, 0.3), k=2)
KEYS = jax.random.split(jax.random.key(0), 3)
GOOD = {
    "prompt": jnp.array([[0, 1, 2], [3, 2, 1], [2, 2, 0]], jnp.int32),
    "prompt_length": jnp.array([3, 3, 2], jnp.int32),
    "temperature": jnp.array([1.0, 0.5, 0.0]),
    "top_p": jnp.array([0.9, 1.0, 0.5]),
    "min_p": jnp.array([0.0, 0.1, 0.0]),
    "top_k": jnp.array([0, 5, 7], jnp.int32),
    "max_new_tokens": jnp.array([8, 5, 8], jnp.int32),
}


@jax.jit
def generate(values):
    sampling = jaxspec.Sampling(values["temperature"], values["top_k"], values["top_p"], values["min_p"])
    return jaxspec.generate(
        TARGET,
        DRAFTER,
        values["prompt"],
        prompt_length=values["prompt_length"],
        key=KEYS,
        sampling=sampling,
        max_new_tokens=values["max_new_tokens"],
        capacity=11,
    )


@pytest.fixture(scope="module")
def good():
    return generate(GOOD)


@pytest.mark.slow
def test_good_values_are_fine(good):
    assert good.status.tolist() == [Status.OK] * 3
    assert good.length.tolist() == [8, 5, 8]
    good.raise_for_status()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("temperature", -1.0, Status.BAD_SAMPLING),
        ("temperature", np.nan, Status.BAD_SAMPLING),
        ("temperature", np.inf, Status.BAD_SAMPLING),
        ("top_p", 0.0, Status.BAD_SAMPLING),
        ("top_p", 1.5, Status.BAD_SAMPLING),
        ("top_p", np.nan, Status.BAD_SAMPLING),
        ("min_p", -0.1, Status.BAD_SAMPLING),
        ("min_p", 1.1, Status.BAD_SAMPLING),
        ("top_k", -1, Status.BAD_SAMPLING),
        ("prompt", [0, VOCAB, 0], Status.TOKEN_OUT_OF_RANGE),
        ("prompt", [-1, 0, 0], Status.TOKEN_OUT_OF_RANGE),
        ("prompt_length", 0, Status.BAD_PROMPT_LENGTH),
        ("prompt_length", 4, Status.BAD_PROMPT_LENGTH),
        ("max_new_tokens", -1, Status.BAD_MAX_NEW_TOKENS),
        ("max_new_tokens", 9, Status.BAD_MAX_NEW_TOKENS),
        ("prompt", [1, 2, BROKEN], Status.NOT_FINITE_LOGITS),
    ],
)
def test_a_bad_row_ends_with_its_status_and_disturbs_no_other(good, name, value, status):
    found = generate(GOOD | {name: GOOD[name].at[1].set(jnp.asarray(value, GOOD[name].dtype))})
    assert found.status.tolist() == [Status.OK, status, Status.OK]
    assert found.stop_reason[1] == StopReason.ERROR and found.length[1] == 0
    assert not found.tokens[1].any() and not found.log_probs[1].any()
    for row in (0, 2):
        np.testing.assert_array_equal(found.tokens[row], good.tokens[row])
        np.testing.assert_array_equal(found.log_probs[row], good.log_probs[row])
    error = FloatingPointError if status is Status.NOT_FINITE_LOGITS else ValueError
    with pytest.raises(error, match=f"row 1 stopped with {status.name}: .+"):
        found.raise_for_status()


@pytest.mark.slow
def test_ids_beyond_the_prompt_s_end_are_no_error(good):
    found = generate(GOOD | {"prompt": GOOD["prompt"].at[2, 2].set(99)})
    assert found.status.tolist() == [Status.OK] * 3
    np.testing.assert_array_equal(found.tokens, good.tokens)


def greedy(target, drafter, **options):
    return jaxspec.generate(target, drafter, GOOD["prompt"], max_new_tokens=8, **options)


def breaking_after(token):
    """The clean model, but with NaN for every logit after `token`."""
    return HistoryModel(CLEAN.a.at[token].set(jnp.nan), CLEAN.b)


@pytest.mark.parametrize("drafter", [None, jaxspec.ModelDrafter(CLEAN, k=3)], ids=["plain", "speculative"])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_what_came_before_nan_logits_is_kept(drafter, place):
    """For any drafts: the tokens before the NaN, then the error."""
    clean = greedy(CLEAN, None).tokens.tolist()
    broken = clean[0][place]
    found = greedy(breaking_after(broken), drafter)
    for row, last in enumerate(GOOD["prompt"][:, -1].tolist()):
        text = [last, *clean[row]]
        count = text.index(broken) if broken in text[:-1] else 8
        assert found.tokens[row, : found.length[row]].tolist() == clean[row][:count]
        assert found.status[row] == (Status.OK if count == 8 else Status.NOT_FINITE_LOGITS)
        assert int(found.stats.emitted[row]) == count == int(found.length[row])
    assert found.status[0] == Status.NOT_FINITE_LOGITS


@pytest.mark.slow
@pytest.mark.parametrize("drafter", [None, jaxspec.ModelDrafter(CLEAN, k=3)], ids=["plain", "speculative"])
def test_nan_logits_after_a_stop_token_are_no_error(drafter):
    stop = int(greedy(CLEAN, None).tokens[0, 1])
    found = greedy(breaking_after(stop), drafter, stop_tokens=[stop])
    assert found.stop_reason[0] == StopReason.STOP_TOKEN and found.status[0] == Status.OK
