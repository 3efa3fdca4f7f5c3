"""Rows of a batch: each has its own parameters, and does not depend on the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.history_models import history_model, nearby
from tests._fixtures import tiny

TARGET = history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFTER = jaxspec.ModelDrafter(nearby(TARGET, 0.3), k=3)
ROWS = 5
PROMPT = np.random.default_rng(1).integers(0, tiny.VOCAB, (ROWS, 7))
LENGTH = np.array([7, 1, 4, 3, 5])
KEYS = jax.random.split(jax.random.key(8), ROWS)
# Each row's own: every pair of rows differs in every parameter.
OWN = {
    "temperature": np.array([0.5, 0.0, 1.0, 2.0, 1.5], np.float32),
    "top_k": np.array([0, 2, 7, 5, 3], np.int32),
    "top_p": np.array([0.9, 1.0, 0.5, 0.99, 0.8], np.float32),
    "min_p": np.array([0.0, 0.01, 0.2, 0.05, 0.1], np.float32),
}
STOPS = np.array([[3, -1], [-1, -1], [5, 9], [0, 1], [2, 4]])
BUDGET = np.array([24, 9, 20, 3, 17])


def generate(rows=range(ROWS), *, prompt=PROMPT, own=OWN, **options):
    rows = np.asarray(rows)
    return jaxspec.generate(
        TARGET,
        DRAFTER,
        jnp.asarray(prompt[rows]),
        prompt_length=jnp.asarray(LENGTH[rows]),
        sampling=jaxspec.Sampling(**{name: jnp.asarray(value[rows]) for name, value in own.items()}),
        key=KEYS[rows],
        stop_tokens=STOPS[rows],
        max_new_tokens=BUDGET[rows],
        **options,
    )


@pytest.fixture(scope="module")
def together():
    return generate()


@pytest.mark.slow
@pytest.mark.parametrize("row", [1, *(pytest.param(row, marks=pytest.mark.slow) for row in range(ROWS) if row != 1)])
def test_a_row_alone_is_the_row_in_the_batch(together, row):
    """With the row's own parameters: one that took row 0's would differ."""
    alone = generate([row])
    count = int(alone.length[0])
    assert count == together.length[row]
    np.testing.assert_array_equal(alone.tokens[0, :count], together.tokens[row, :count])
    np.testing.assert_allclose(alone.warped_log_probs[0, :count], together.warped_log_probs[row, :count], atol=1e-5)
    assert alone.stop_reason[0] == together.stop_reason[row]
    assert alone.stats.rounds[0] == together.stats.rounds[row]


@pytest.mark.slow
def test_order_and_neighbors_do_not_matter(together):
    order = [3, 3, 0, 4, 1]
    moved = generate(order)
    width = moved.tokens.shape[1]
    np.testing.assert_array_equal(moved.tokens, np.asarray(together.tokens)[order, :width])


def test_what_pads_the_prompt_does_not_matter(together):
    padding = np.arange(7)[None] >= LENGTH[:, None]
    found = generate(prompt=np.where(padding, 10 - PROMPT, PROMPT))
    np.testing.assert_array_equal(found.tokens, together.tokens)


@pytest.mark.slow
def test_wider_padding_and_more_capacity_do_not_matter(together):
    found = generate(prompt=np.pad(PROMPT, ((0, 0), (0, 30))), capacity=80)
    np.testing.assert_array_equal(found.tokens, together.tokens)


def test_stops_and_budgets_are_each_row_s_own(together):
    for row in range(ROWS):
        tokens = together.tokens[row, : together.length[row]].tolist()
        stops = {stop for stop in STOPS[row].tolist() if stop >= 0}
        if together.stop_reason[row] == jaxspec.StopReason.STOP_TOKEN:
            assert tokens[-1] in stops and not stops & set(tokens[:-1])
        else:
            assert not stops & set(tokens) and len(tokens) == BUDGET[row]
        assert not together.tokens[row, len(tokens) :].any()
    assert set(together.stop_reason.tolist()) == {jaxspec.StopReason.STOP_TOKEN, jaxspec.StopReason.MAX_NEW_TOKENS}


@pytest.mark.slow
def test_rows_at_temperature_zero_are_greedy(together):
    greedy = jaxspec.generate(
        TARGET, None, jnp.asarray(PROMPT), prompt_length=jnp.asarray(LENGTH), max_new_tokens=24, stop_tokens=STOPS
    )
    np.testing.assert_array_equal(together.tokens[1, :9], greedy.tokens[1, :9])


def test_each_parameter_matters(together):
    """Changing one row's parameter changes that row, and only that row."""
    changes = {"temperature": (0, 3.0), "top_k": (2, 1), "top_p": (3, 0.1), "min_p": (4, 1.0)}
    for name, (row, value) in changes.items():
        changed = OWN | {name: OWN[name].copy()}
        changed[name][row] = value
        found = np.asarray(generate(own=changed).tokens)
        differs = (found != np.asarray(together.tokens)).any(axis=1)
        assert differs.tolist() == [i == row for i in range(ROWS)], name


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [jaxspec.TokenVerifier(), jaxspec.CoupledVerifier()])
def test_a_smaller_budget_gives_a_prefix(verifier):
    """Rounds end in other places, and what is cut there is what would have come."""
    most = np.full(ROWS, 24)
    whole = generate_with(most, verifier)
    for budget in (1, 2, 5, 11):
        part = generate_with(np.minimum(most, budget), verifier)
        np.testing.assert_array_equal(part.tokens, whole.tokens[:, :budget])


def generate_with(budget, verifier):
    return jaxspec.generate(
        TARGET,
        DRAFTER,
        jnp.asarray(PROMPT),
        prompt_length=jnp.asarray(LENGTH),
        sampling=jaxspec.Sampling(temperature=1.3),
        key=KEYS,
        max_new_tokens=budget,
        verifier=verifier,
    )
