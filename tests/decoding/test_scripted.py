"""Mistakes of custom drafters and policies: ids outside the vocabulary, and empty distributions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import Status, StopReason
from jaxspec.core.pytree import register_dataclass
from jaxspec.core.state import Proposal
from jaxspec.testing.history_models import HistoryModel, history_model
from jaxspec.verifiers import KSequence, MultiDraftVerifier, TraversalVerifier, TreeVerifier

VOCAB, K = 5, 2
LAST = VOCAB - 1
# The last token is the likely one: -1, which wraps to it, would be accepted.
TARGET = HistoryModel(history_model(0, vocab=VOCAB).a.at[:, LAST].add(4.0), history_model(1, vocab=VOCAB).b)
# Two drafts a row, and how many come before the first invalid id.
CHAINS = [((-1, LAST), 0), ((LAST, -1), 1), ((VOCAB, LAST), 0), ((LAST, VOCAB), 1), ((2**31 - 1, 1), 0), ((LAST, 0), 2)]
CHAINS += [((-(2**31), LAST), 0), ((LAST, -(2**31)), 1)]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Scripted(jaxspec.Drafter):
    """Drafts the same tokens in each round: `ids [b, n]`, of which `submitted [b, n]`, in chains of two."""

    ids: jax.Array
    submitted: jax.Array
    certain: bool = dataclasses.field(metadata={"static": True})
    alike: bool = dataclasses.field(default=False, metadata={"static": True})
    deterministic = property(lambda self: self.certain)
    info = property(lambda self: jaxspec.drafters.DrafterInfo(identically_distributed=self.alike))

    @property
    def max_drafts(self):
        return K

    @property
    def tree(self):
        return self.ids.shape[1] > K

    @property
    def lengths(self):
        return (self.ids.shape[1],)

    def init(self, context, prefilled, slots):
        return ()

    def propose(self, rng, state, context):
        batch, nodes = self.ids.shape
        log_probs = jnp.full((batch, nodes, VOCAB), -jnp.log(float(VOCAB)), jnp.float32)
        log_probs = None if self.certain or context.sampling.greedy else log_probs
        parents = jnp.asarray([-1, 0, -1, 2][:nodes], jnp.int32)
        parents = jnp.broadcast_to(parents, (batch, nodes)) if self.tree else None
        depth = K if self.tree else 0
        return Proposal(self.ids, self.submitted & ~context.done[:, None], log_probs, parents, depth), state


def _scripted(tree, deterministic, withdrawn, **options):
    """The drafter, with the ids as they are, or with those that are no tokens withdrawn by hand."""
    cases = [chain + other for chain, (other, _) in zip([c for c, _ in CHAINS], CHAINS[::-1], strict=True)]
    counts = [[n, m] for (_, n), (_, m) in zip(CHAINS, CHAINS[::-1], strict=True)]
    nodes = 2 * K if tree else K
    ids, whole = np.array(cases)[:, :nodes], np.repeat(counts, K, axis=1)[:, :nodes]
    submitted = np.tile(np.arange(K), 2)[:nodes] < whole
    if withdrawn:
        return Scripted(
            jnp.asarray(np.where(submitted, ids, 0), jnp.int32), jnp.asarray(submitted), deterministic, **options
        )
    return Scripted(jnp.asarray(ids, jnp.int32), jnp.ones(ids.shape, jnp.bool_), deterministic, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verifier", "tree", "deterministic", "sampling"),
    [
        pytest.param(jaxspec.TokenVerifier(), False, False, jaxspec.Sampling(), id="token"),
        pytest.param(
            jaxspec.TokenVerifier(), False, True, jaxspec.Sampling(), id="token, certain", marks=pytest.mark.slow
        ),
        pytest.param(jaxspec.BlockVerifier(), False, False, jaxspec.Sampling(), id="block", marks=pytest.mark.slow),
        pytest.param(jaxspec.CoupledVerifier(), False, True, jaxspec.Sampling(), id="coupled", marks=pytest.mark.slow),
        pytest.param(MultiDraftVerifier(), True, False, jaxspec.Sampling(), id="multi-draft"),
        pytest.param(
            MultiDraftVerifier(KSequence()), True, False, jaxspec.Sampling(), id="k-seq", marks=pytest.mark.slow
        ),
        pytest.param(TraversalVerifier(), True, False, jaxspec.Sampling(), id="traversal", marks=pytest.mark.slow),
        pytest.param(TreeVerifier(), True, True, jaxspec.Sampling(), id="tree"),
        pytest.param(jaxspec.TokenVerifier(), False, True, jaxspec.Greedy(), id="greedy chain"),
        pytest.param(TreeVerifier(), True, True, jaxspec.Greedy(), id="greedy tree", marks=pytest.mark.slow),
    ],
)
def test_an_id_outside_of_the_vocabulary_is_as_if_it_were_not_drafted(verifier, tree, deterministic, sampling):
    """With all that follow it: the enumerated distributions are those of drafts that were withdrawn."""
    options = {"key": jax.random.split(jax.random.key(3), len(CHAINS)), "sampling": sampling, "verifier": verifier}
    same = isinstance(verifier, MultiDraftVerifier) and isinstance(verifier.rule, KSequence)
    found, expected = (
        jaxspec.generate(
            TARGET,
            _scripted(tree, deterministic, withdrawn, alike=same),
            [[0, 1]] * len(CHAINS),
            max_new_tokens=12,
            **options,
        )
        for withdrawn in (False, True)
    )
    assert found.status.tolist() == [Status.OK] * len(CHAINS)
    assert ((found.tokens >= 0) & (found.tokens < VOCAB)).all()
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.stats.accepted, expected.stats.accepted)
    np.testing.assert_array_equal(found.stats.drafted, expected.stats.drafted)
    assert found.stats.accepted.sum() > 0  # those that are tokens still are accepted


# The next token is the last plus one, with near certainty.
COUNTING = HistoryModel(90.0 * jnp.roll(jnp.eye(VOCAB), 1, axis=1), jnp.zeros((VOCAB, VOCAB)))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Leaving:
    """Leaves `left` as the log-probabilities of all tokens where token 3 is the most likely."""

    left: jax.Array
    greedy = False

    def log_probs(self, logits):
        broken = jnp.argmax(logits, axis=-1, keepdims=True) == 3
        return jnp.where(broken, self.left, jax.nn.log_softmax(logits))


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(None, id="plain", marks=pytest.mark.slow),
        pytest.param(jaxspec.ModelDrafter(COUNTING, k=3, sampling=jaxspec.Sampling()), id="chain"),
        pytest.param(
            jaxspec.ModelDrafter(COUNTING, k=2, num_drafts=2, sampling=jaxspec.Sampling()),
            id="tree",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_policy_that_leaves_nothing_ends_the_row(drafter):
    def run(left, stop):
        policy = Leaving(jnp.asarray(left, jnp.float32))
        options = {"key": jax.random.key(0), "max_new_tokens": 6, "stop_tokens": stop}
        return jaxspec.generate(COUNTING, drafter, [[0], [2], [3]], sampling=policy, **options)

    for left in (-jnp.inf, jnp.nan):
        found = run(left, -1)
        assert found.length.tolist() == [2, 0, 4]
        assert found.tokens[:, :4].tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [4, 0, 1, 2]]
        assert found.status.tolist() == [Status.NO_TOKEN_LEFT] * 3
        assert found.stop_reason.tolist() == [StopReason.ERROR] * 3
        with pytest.raises(FloatingPointError, match="row 0 stopped with NO_TOKEN_LEFT: the sampling policy left no"):
            found.raise_for_status()
        assert run(left, 2).status.tolist() == [Status.OK, Status.NO_TOKEN_LEFT, Status.OK]
