"""Errors of contracts whose subclass leaves something out."""

import types

import numpy as np
import pytest

from jaxspec.testing.contracts.drafter import DrafterContract
from jaxspec.testing.contracts.tree_drafter import TreeDrafterContract


@pytest.mark.parametrize(
    ("contract", "ask", "said"),
    [
        (DrafterContract, lambda own: own.guess([1, 2], 0), r"Own does not define .*write guess\(text, offset\)"),
        (
            TreeDrafterContract,
            lambda own: own.expected([1, 2], [], 0),
            r"Own does not define .*write expected\(text, before, node\)",
        ),
    ],
)
def test_a_contract_says_what_its_author_must_write(contract, ask, said):
    with pytest.raises(NotImplementedError, match=said):
        ask(type("Own", (contract,), {})())


class _Ends(DrafterContract):
    """Copies tokens as long as they rise, as does its drafter, which drafts 0 after the last one."""

    drafter = types.SimpleNamespace(max_drafts=4)

    def guess(self, text, offset):
        return text[-1] + 1 if 0 < text[-1] < 3 else 5 if text[-1] == 0 else None


def _round(tokens, valid, log_probs=None):
    proposal = types.SimpleNamespace(tokens=np.array([tokens] * 4), valid=np.array([valid] * 4), log_probs=log_probs)
    return np.full((4, 1), 1), np.ones(4, int), proposal, None, None


def test_a_drafter_without_a_guess_is_not_asked_what_comes_after():
    """The invalid token 0 at the third place is no text to draft after, though `guess` would."""
    check = _Ends().test_the_reported_distribution_is_that_of_the_drafts
    check([_round([2, 3, 0, 0], [True, True, False, False])])
    for tokens, valid, said in (
        ([2, 3, 0, 0], [True, False, False, False], "draft 1 of row 0: the drafter proposes None, guess returned 3"),
        ([2, 4, 0, 0], [True, True, False, False], "draft 1 of row 0: the drafter proposes 4, guess returned 3"),
        ([2, 3, 0, 0], [True, True, True, False], "draft 2 of row 0: the drafter proposes 0, guess returned None"),
    ):
        with pytest.raises(AssertionError, match=said):
            check([_round(tokens, valid)])
    with pytest.raises(AssertionError, match="draft 0 of row 0: .*, but the proposal has log_probs"):
        check([_round([2, 3, 0, 0], [True, True, False, False], np.zeros((4, 4, 9)))])


class _Draws(_Ends):
    """Draws tokens where `_Ends` copies one, from two with equal chances."""

    def guess(self, text, offset):
        token = super().guess(text, offset)
        return None if token is None else np.bincount([token, token - 1], minlength=9) / 2


def test_a_drafter_that_draws_may_have_no_guess_either():
    check, log_probs = _Draws().test_the_reported_distribution_is_that_of_the_drafts, np.full((4, 4, 9), -np.inf)
    log_probs[:, 0, 1:3] = log_probs[:, 1, 2:4] = np.log(0.5)
    check([_round([2, 3, 0, 0], [True, True, False, False], log_probs)])
    for valid, said in (
        ([True, False, False, False], r"draft 1 of row 0: the drafter proposes None, guess returned \[0"),
        ([True, True, True, False], "draft 2 of row 0: the drafter proposes 0, guess returned None"),
    ):
        with pytest.raises(AssertionError, match=said):
            check([_round([2, 3, 0, 0], valid, log_probs)])


def test_what_is_not_a_draft_may_differ_from_a_fresh_drafter_s():
    """Nothing reads what invalid places hold."""
    one, other = (_round([2, 3, rest, 0], [True, True, False, False])[2] for rest in (0, 7))
    assert _Ends().check_as_new(one, other)
    with pytest.raises(AssertionError, match="Mismatched elements: 4 / 8"):
        _Ends().check_as_new(one, _round([2, 4, 0, 0], [True, True, False, False])[2])
