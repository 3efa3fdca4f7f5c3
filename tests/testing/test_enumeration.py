"""The oracle sees bias: rules and key assignments that are known to be wrong do not pass it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.leading import take_row
from jaxspec.testing.enumeration.drafting import chain, chains, drawn, drawn_without_replacement, enumerate_drafts
from jaxspec.testing.enumeration.leaves import Comparison, Leaf
from jaxspec.testing.enumeration.rounds import deviation, enumerate_round
from jaxspec.testing.enumeration.rules import chain_rule, first_failure, last_success, walk_rule
from jaxspec.testing.enumeration.several_rounds import KeyNames, several_rounds
from jaxspec.testing.enumeration.tables import make_table, pair, total_variation
from jaxspec.verifiers import block, rejection as token
from jaxspec.verifiers.multi_draft import RecursiveRejection
from tests._fixtures.rules import block_rule, token_rule

SEEN = 1e-3


def fresh(length: int) -> KeyNames:
    return KeyNames((("draft", length),), (("accept", length),), ("next", length))


def bias(names, *, rule=token_rule, k=1, length=3, seed=2) -> float:
    target, draft = pair("full support", 3, length + k, seed=seed)
    found = several_rounds(target, drawn(chain(k), draft), rule, length=length, names=names)
    assert sum(found.values()) == pytest.approx(1)
    return total_variation(found, target.text_probs(length))


def test_fresh_draws_are_exact():
    assert bias(fresh) < 1e-9


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(lambda length: fresh(0), id="one key for every round"),
        pytest.param(lambda n: KeyNames((("draft", n),), (("x", n),), ("x", n)), id="acceptance and next share a key"),
        pytest.param(lambda n: KeyNames((("x", n),), (("x", n),), ("next", n)), id="draft and acceptance share a key"),
        pytest.param(lambda n: KeyNames((("x", n),), (("a", n),), ("x", n)), id="draft and next share a key"),
        pytest.param(lambda n: KeyNames((("draft", n),), ("a",), ("next", n)), id="one acceptance draw for all rounds"),
    ],
)
def test_reused_draws_are_seen(names):
    assert bias(names) > SEEN


def by_position(k: int):
    """Each draw of a draft hangs on its absolute position, as if rounds could share them."""

    def names(length: int) -> KeyNames:
        positions = range(length, length + k)
        return KeyNames(
            tuple(("draft", i) for i in positions), tuple(("accept", i) for i in positions), ("next", length)
        )

    return names


@pytest.mark.parametrize("k", [2, 3])
def test_block_verification_with_draws_by_absolute_position_is_seen(k):
    """It has looked at the draws after the cut: drawn again with the same key, they are not independent."""
    assert bias(by_position(k), rule=block_rule, k=k) > SEEN
    assert bias(by_position(k), rule=token_rule, k=k) < 1e-9


@pytest.mark.parametrize("shared", [False, True])
def test_drafts_side_by_side_that_share_a_key_are_seen(shared):
    """The rule takes them for independent, and they are equal."""
    target, draft = pair("full support", 3, 3)
    drafts = lambda n: (("draft", n),) * 2 if shared else (("first", n), ("second", n))
    names = lambda n: KeyNames(drafts(n), (("accept", n, 0), ("accept", n, 1)), ("next", n))
    rule = walk_rule(RecursiveRejection().descend)
    found = several_rounds(target, drawn(chains(2, 1), draft), rule, length=2, names=names)
    assert (total_variation(found, target.text_probs(2)) > SEEN) == shared


def one_round_bias(rule, k=3) -> float:
    target, draft = pair("full support", 4, k + 1, seed=1)
    return deviation(enumerate_round(target, drawn(chain(k), draft), rule), target, k + 1)


def test_drawing_from_the_target_instead_of_the_residual_is_seen():
    from_target = lambda proposal, target, accepted: take_row(target, accepted)
    assert one_round_bias(chain_rule(token.log_acceptance, from_target, first_failure), k=1) > SEEN


def test_a_most_likely_draft_with_a_soft_distribution_is_seen():
    """KerasHub's fault: [.5, .5] drafted by argmax against [.6, .4]."""
    target, draft = pair("full support", 3, 2)
    round_ = enumerate_round(target, drawn(chain(1), draft), token_rule)
    likely = draft.probs(()).argmax()
    round_.drafts.chance[:] = round_.drafts.tokens[:, 0] == likely
    assert deviation(round_, target, 2) > SEEN


def test_block_verification_that_stops_at_the_first_failure_is_seen():
    assert one_round_bias(chain_rule(block.log_thresholds, block.next_log_probs, first_failure)) > SEEN


def test_block_verification_with_the_residual_of_a_token_is_seen():
    assert one_round_bias(chain_rule(block.log_thresholds, token.next_log_probs, last_success)) > SEEN


def test_thresholds_that_reach_past_the_end_of_a_row_are_seen():
    """The rule of the last draft belongs to the last that a row submits, not to the last column."""
    target, draft = pair("full support", 3, 4)
    submitted = lambda place: place.node < 2
    to_the_end = lambda proposal, target: block.log_thresholds(
        dataclasses.replace(proposal, valid=jnp.ones_like(proposal.valid)), target
    )
    rule = chain_rule(to_the_end, block.next_log_probs, last_success)
    assert deviation(enumerate_round(target, drawn(chain(3), draft, submitted=submitted), rule), target, 4) > SEEN


def test_the_children_of_a_tree_are_drawn_as_told():
    """Without replacement, with an exhausted distribution, and by several models: chances and distributions agree."""
    table = make_table(3, 3, lambda: [0.5, 0.5, 0.0])
    other = make_table(3, 3, lambda: [0.0, 0.0, 1.0])
    drafts = enumerate_drafts(table, drawn_without_replacement((-1, -1, -1, 2), table))
    assert np.unique(drafts.tokens[:, :2], axis=0).tolist() == [[0, 1], [1, 0]]
    assert drafts.chance.sum() == 1
    assert (drafts.submitted == [True, True, False, False]).all()
    drafts = enumerate_drafts(table, drawn((-1, -1, 1), (table, other, other)))
    assert drafts.tokens.tolist() == [[0, 2, 2], [1, 2, 2]]
    np.testing.assert_array_equal(drafts.draft_probs[:, 1:], [[[0, 0, 1]] * 2] * 2)


def test_a_uniform_that_is_compared_twice_has_one_interval():
    twice = lambda low, high: Leaf((Comparison(0, high, True), Comparison(0, low, False)), (), np.ones(1))
    assert twice(0.25, 0.75).chance() == 0.5
    assert twice(0.75, 0.25).chance() == 0


@pytest.mark.parametrize("places", [[1, 2**70], [(0, -1)], [()]])
def test_places_of_drafts_are_checked(places):
    with pytest.raises(ValueError, match="drafts of key_names must be places of integers from 0 to 2147483647, got "):
        jaxspec.testing.key_names(jaxspec.TokenVerifier(), jax.random.key(0), length=2, drafts=places)
