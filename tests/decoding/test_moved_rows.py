"""Rows that move to another batch between rounds go on with the tokens that they would have had."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.rows import row_axes
from jaxspec.processors import LogitBias, Penalties
from tests.golden.token_cases import LENGTHS, PROMPTS, cases

NEW, BATCH = 16, 4
# Of each drafter in the table of recorded tokens; where a batch agrees on its length, rows are not drawn alone.
KINDS = ("default | greedy", "coupled | sampled", "default | sampled")
CASES = {
    name: case
    for name, *case in cases()
    if name.partition(" | ")[2] in KINDS and name != "model, adaptive | default | sampled"
}
QUICK = ("eagle | default | greedy",)

step = jax.jit(functools.partial(jaxspec.step, lossy=True))


def start(target, drafter, policy, rows, *, seed=0, report=jaxspec.core.Report()):
    """A state of these rows of the recorded calls; of another seed with other keys and prompts."""
    rows = np.asarray(rows) % BATCH
    by_row = isinstance(policy, jaxspec.Sampling) and jnp.ndim(policy.temperature) > 0
    return jaxspec.init(
        target,
        drafter,
        jnp.asarray((PROMPTS + seed)[rows] % target.vocab_size, jnp.int32),
        prompt_length=jnp.asarray(LENGTHS[rows]),
        max_new_tokens=np.array([NEW, NEW - 3, NEW, NEW - 6])[rows],
        sampling=jaxspec.Sampling(policy.temperature[rows], top_p=policy.top_p) if by_row else policy,
        key=jax.random.split(jax.random.key(seed), BATCH)[rows],
        report=report,
    )


def run(target, drafter, verifier, state, rounds=None):
    while not state.done.all() and rounds != 0:
        state, _ = step(target, drafter, verifier, state)
        rounds = None if rounds is None else rounds - 1
    return state


def same(found, rows, expected, of_rows, *, drafts=True):
    """Compares everything that is returned of rows; where a batch agrees on its draft length, not what was drafted."""
    found, expected = (jaxspec.finish(state) for state in (found, expected))
    if not drafts:
        of_text = ("tokens", "length", "stop_reason", "status", "log_probs")
        found, expected = ([getattr(each, name) for name in of_text] for each in (found, expected))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = (np.asarray(leaf)[np.array(which)] for leaf, which in ((x, rows), (y, of_rows)))
        width = min(x.shape[1:2] + y.shape[1:2], default=0)
        x, y = (leaf[:, :width] if leaf.ndim > 1 else leaf for leaf in (x, y))
        np.testing.assert_allclose(x, y, atol=1e-5) if x.dtype == np.float32 else np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]
)
def test_rows_go_on_in_another_batch(name):
    """Two rows move into a batch that is two rounds ahead, whose rows then change places."""
    target, drafter, verifier, policy = CASES[name]
    axes = row_axes(lambda batch: start(target, drafter, policy, range(batch)))
    take, insert, gather = jax.jit(axes.take), jax.jit(axes.insert), jax.jit(axes.gather)
    own, others = (start(target, drafter, policy, range(BATCH), seed=seed) for seed in (0, 1))
    untouched, others_untouched = (run(target, drafter, verifier, state) for state in (own, others))
    own, others = run(target, drafter, verifier, own, 1), run(target, drafter, verifier, others, 3)
    others = insert(others, take(own, 3), 0)
    others = run(target, drafter, verifier, others, 1)
    others = gather(insert(others, take(own, 1), 2), jnp.asarray([2, 3, 1, 0]))
    found = run(target, drafter, verifier, others)
    drafts = not name.startswith("model, adaptive")
    same(found, [0, 3], untouched, [1, 3], drafts=drafts)
    same(found, [1, 2], others_untouched, [3, 1], drafts=drafts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model, adaptive | default | greedy", "model, adaptive | coupled | sampled"])
def test_what_a_batch_decides_together_moves_with_all_its_rows(name):
    """Their draft lengths too: rows that change places draft as where they were."""
    target, drafter, verifier, policy = CASES[name]
    axes = row_axes(lambda batch: start(target, drafter, policy, range(batch)))
    state = run(target, drafter, verifier, start(target, drafter, policy, range(BATCH)), 2)
    places = [2, 0, 3, 1]
    found = run(target, drafter, verifier, axes.gather(state, jnp.asarray(places)))
    same(found, range(BATCH), run(target, drafter, verifier, state), places)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle | default | sampled", "tree, without replacement | coupled | sampled"])
@pytest.mark.parametrize("rows", [[2], [3, 1], [0, 3, 3], [0, 0, 1, 1, 2, 2, 3, 3]], ids=str)
def test_rows_go_on_in_a_batch_of_another_width(name, rows):
    target, drafter, verifier, policy = CASES[name]
    axes = row_axes(lambda batch: start(target, drafter, policy, range(batch)))
    state = start(target, drafter, policy, range(BATCH))
    narrow = axes.gather(run(target, drafter, verifier, state, 2), jnp.asarray(rows))
    found = run(target, drafter, verifier, narrow)
    same(found, range(len(rows)), run(target, drafter, verifier, state), rows)


@pytest.mark.slow
def test_processors_and_reports_move_with_their_rows():
    """A processor of all rows has its arrays shared, one with values a row moves them; each row its counts."""
    target, drafter, verifier, _ = CASES["model | default | sampled"]
    policy = lambda rows: jaxspec.Greedy(
        processors=(
            Penalties(jnp.asarray([1.3, 1.0, 1.6, 1.1])[np.asarray(rows) % BATCH], 0.2),
            LogitBias.of({2: -1.0}),
        )
    )
    begin = lambda rows, seed: start(
        target, drafter, policy(rows), rows, seed=seed, report=jaxspec.core.Report(alternatives=2)
    )
    axes = row_axes(lambda batch: begin(range(batch), 0))
    own, others = begin(range(BATCH), 0), begin(range(BATCH), 1)
    untouched, own = run(target, drafter, None, own), run(target, drafter, None, own, 2)
    found = run(target, drafter, None, axes.insert(others, axes.take(own, 2), 1))
    same(found, [1], untouched, [2])
