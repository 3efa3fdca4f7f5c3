"""Stepping by hand is the same decoding: `init`, `step`, `jit_step`, `finish`, `stream`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.history_models import history_model, nearby
from tests._fixtures import tiny

TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFTER = jaxspec.ModelDrafter(nearby(TARGET, 0.3), k=2)
VERIFIER = jaxspec.BlockVerifier()
PROMPT = jnp.asarray(np.random.default_rng(1).integers(0, tiny.VOCAB, (3, 16)), jnp.int32)


def options():
    return {
        "prompt_length": jnp.array([5, 1, 16], jnp.int32),
        "key": jax.random.split(jax.random.key(4), 3),
        "sampling": jaxspec.Sampling(jnp.array([0.9, 0.0, 1.2])),
        "max_new_tokens": jnp.array([10, 12, 3], jnp.int32),
        "stop_tokens": jnp.array([[7], [-1], [-1]], jnp.int32),
    }


@pytest.fixture(scope="module")
def whole():
    return jaxspec.generate(TARGET, DRAFTER, PROMPT, **options())


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def run(state, step):
    while not state.done.all():
        state, _ = step(TARGET, DRAFTER, VERIFIER, state)
    return state


@pytest.mark.slow
def test_stepping_by_hand(whole):
    same(jaxspec.finish(run(jaxspec.init(TARGET, DRAFTER, PROMPT, **options()), jaxspec.jit_step())), whole)


@pytest.mark.slow
def test_the_state_passed_to_a_step_stays_alive():
    state = jaxspec.init(TARGET, DRAFTER, PROMPT, **options())
    first, _ = jaxspec.jit_step()(TARGET, DRAFTER, VERIFIER, state)
    again, _ = jaxspec.jit_step()(TARGET, DRAFTER, VERIFIER, state)
    same(first.tokens, again.tokens)
    assert not state.cache.tokens.is_deleted()


@pytest.mark.slow
def test_donated_steps_reuse_the_state_and_leave_the_arguments_alone(whole):
    given = options()
    state = jaxspec.init(TARGET, DRAFTER, PROMPT, **given)
    after, _ = jaxspec.jit_step(donate=True)(TARGET, DRAFTER, VERIFIER, state)
    assert state.cache.tokens.is_deleted()
    same(jaxspec.finish(run(after, jaxspec.jit_step(donate=True))), whole)
    alive(given)


def alive(given):
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((given, PROMPT, TARGET, DRAFTER)))


@pytest.mark.slow
def test_a_finished_state_does_not_change(whole):
    end = run(jaxspec.init(TARGET, DRAFTER, PROMPT, **options()), jaxspec.jit_step())
    after, info = jaxspec.jit_step()(TARGET, DRAFTER, VERIFIER, end)
    assert not info.count.any() and not info.drafted.any() and not info.accepted.any()
    for name in ("tokens", "log_probs", "length", "done", "stop_reason", "status", "stats"):
        same(getattr(after, name), getattr(end, name))
    same(after.cache.length, end.cache.length)
    same(jaxspec.finish(after), whole)


@pytest.mark.slow
def test_finish_may_come_early(whole):
    state, info = jaxspec.jit_step()(TARGET, DRAFTER, VERIFIER, jaxspec.init(TARGET, DRAFTER, PROMPT, **options()))
    partial = jaxspec.finish(state)
    assert partial.length.tolist() == info.count.tolist()
    assert (partial.stop_reason[:2] == jaxspec.StopReason.RUNNING).any()
    for row, count in enumerate(info.count.tolist()):
        same(partial.tokens[row, :count], whole.tokens[row, :count])


def test_the_state_has_one_shape():
    """Shapes and dtypes in equal those out, so that any loop can carry it."""
    given = options()
    state = jax.eval_shape(lambda: jaxspec.init(TARGET, DRAFTER, PROMPT, **given))
    after, _ = jax.eval_shape(lambda state: jaxspec.step(TARGET, DRAFTER, VERIFIER, state), state)
    assert jax.tree.structure(state) == jax.tree.structure(after)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), after)


@pytest.mark.slow
def test_a_stream_yields_what_is_generated(whole):
    given = options()
    rows = [[], [], []]
    pieces = jaxspec.stream(TARGET, DRAFTER, PROMPT, **given)
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            same(end.value, whole)
            break
        assert any(len(new) for new in piece)
        for row, new in zip(rows, piece, strict=True):
            row.extend(new.tolist())
    for row in range(3):
        assert rows[row] == whole.tokens[row, : whole.length[row]].tolist()
    alive(given)


def test_each_token_is_an_accepted_draft_or_ends_its_round(whole):
    """By the rounds of a stream: accepted drafts first, then the target's own token unless the row ended before it."""
    rows = [[], [], []]
    step, state = jaxspec.jit_step(), jaxspec.init(TARGET, DRAFTER, PROMPT, **options())
    while not state.done.all():
        state, info = step(TARGET, DRAFTER, VERIFIER, state)
        for row, count, accepted in zip(rows, info.count.tolist(), info.accepted.tolist(), strict=True):
            row += [place < accepted for place in range(count)]
    assert whole.from_draft.dtype == jnp.bool_
    for row, found, count in zip(rows, whole.from_draft, whole.length.tolist(), strict=True):
        assert row == found[:count].tolist() and not found[count:].any()
    same(whole.from_draft.sum(axis=1), whole.stats.accepted)
    assert 0 < whole.from_draft.sum() < whole.length.sum()


def test_statistics_add_up(whole):
    stats = whole.stats
    same(stats.emitted, whole.length)
    same(stats.histogram.sum(axis=1), stats.rounds)
    same((stats.histogram * jnp.arange(3, dtype=jnp.int32)[None]).sum(axis=1), stats.accepted)
    same(stats.drafted_at.sum(axis=1), stats.drafted)
    same(stats.accepted_at.sum(axis=1), stats.accepted)
    assert (stats.accepted_at <= stats.drafted_at).all()
    assert (stats.drafted_at <= stats.rounds[:, None]).all()
    assert stats.mean_acceptance_length == pytest.approx(float(whole.length.sum() / stats.rounds.sum()))
    assert stats.acceptance_rate == pytest.approx(float(stats.accepted.sum() / stats.drafted.sum()))
    np.testing.assert_allclose(stats.acceptance_by_position, stats.accepted_at.sum(0) / stats.rounds.sum())
