"""The loop over rounds from the host, and functions of models that are jitted for many calls."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.decoding.options import Arguments, Options
from jaxspec.decoding.rounds import Host, Rounds, jit_of
from jaxspec.testing.history_models import history_model
from tests._fixtures import tiny

TRACED = []
TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
PROMPT = np.array([[1, 2, 3, 1, 2], [2, 1, 2, 1, 2]], np.int32)


class Log(Host):
    """Records the rounds that it is shown."""

    def __init__(self, *, reads_drafts: bool):
        self.reads_drafts = reads_drafts  # pyright: ignore[reportAttributeAccessIssue]
        self.calls = []
        self.texts = PROMPT.tolist()

    def before(self, state):
        self.calls.append("before")
        return state

    def after_drafts(self, state, tokens, valid, parents):
        self.calls.append("drafts")
        assert tokens.shape == valid.shape and parents is None
        return state

    def after(self, tokens, count):
        self.calls.append("after")
        for text, new, own in zip(self.texts, tokens, count, strict=True):
            text += new[:own].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("reads_drafts", [False, True])
def test_the_host_takes_part_in_every_round(reads_drafts):
    """And the tokens are those of one program."""
    drafter, host = jaxspec.NGramDrafter(k=2, min_ngram=1), Log(reads_drafts=reads_drafts)
    rounds = Rounds(Arguments.check(TARGET, drafter, PROMPT, Options(max_new_tokens=6))[0], host)
    spent, count = [rounds.seconds], 0
    for emitted in rounds:
        count += 1
        spent.append(rounds.seconds)
        assert (emitted.accepted <= emitted.count).all() and not rounds.state.done[~rounds.done].any()
    assert host.calls == ["before", *["drafts"] * reads_drafts, "after"] * count
    assert spent == sorted(spent) and spent[0] > 0
    expected = jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=6).tokens
    assert host.texts == np.concatenate([PROMPT, expected], axis=1).tolist()


def test_rows_that_the_host_ends_emit_no_more():
    rounds = Rounds(Arguments.check(TARGET, None, PROMPT, Options(max_new_tokens=6))[0])
    next(iter(rounds))
    rounds.end(np.array([True, False]))
    rest = list(rounds)
    assert [emitted.count.tolist() for emitted in rest] == [[0, 1]] * 5
    assert rounds.done.all() and not list(rounds)


def last_logits(model, tokens, state):
    TRACED.append(tokens.shape)
    return state + model(tokens, model.init_cache(1, 8)).logits[:, -1]


@pytest.mark.slow
def test_models_of_one_structure_share_a_program():
    """Each call reads its own model's arrays, and reuses the buffers that it may."""
    tokens = jnp.asarray([[1, 2, 3]], jnp.int32)
    for seed in (0, 1):
        model = history_model(seed, vocab=7)
        program = jit_of(last_logits, (model,), donate=("state",))
        state = jnp.ones((1, 7))
        found = program(tokens=tokens, state=state)
        expected = 1 + model(tokens, model.init_cache(1, 8)).logits[:, -1]
        assert jnp.allclose(found, expected, atol=1e-5)
        assert state.is_deleted()
    assert TRACED == [(1, 3)]


def test_what_fixes_a_program_is_no_array():
    repeat = jit_of(lambda model, x, times: jnp.tile(x, times), (history_model(0, vocab=7),), static=("times",))
    assert repeat(x=jnp.ones(2), times=3).shape == (6,)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        repeat(x=jnp.ones(2), times=jnp.asarray(3))
