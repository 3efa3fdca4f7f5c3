"""`VerifierContract` fails, among its quick tests, for a verifier that is biased."""

import ast
import dataclasses
import pathlib

import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.core.leading import count_leading, take_row
from jaxspec.core.parts import argmax
from jaxspec.core.pytree import register_dataclass
from jaxspec.testing.contracts.tree_verifier import TreeVerifierContract
from jaxspec.testing.contracts.verifier import DISTRIBUTION, VerifierContract
from jaxspec.verifiers.rejection import log_acceptance, next_log_probs


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Biased(jaxspec.Verifier):
    """Accepts drafts `e ** bonus` times as often as it may; a draft that it rejects may be drawn again."""

    bonus: float = 0.0
    residual: bool = True

    def verify(self, rng, proposal, target_log_probs):
        chance = log_acceptance(proposal, target_log_probs) + self.bonus
        accepted = count_leading(proposal.valid & (jnp.log(rng.uniforms(proposal.tokens.shape[1])) < chance))
        residual = next_log_probs(proposal, target_log_probs, accepted)
        log_probs = jnp.where(self.residual, residual, take_row(target_log_probs, accepted))
        return jaxspec.core.Verdict(accepted, argmax(log_probs + rng.next_noise(log_probs.shape[-1])))


class Contract(VerifierContract):
    verifier = Biased()


@pytest.mark.parametrize(("bonus", "residual"), [(0.1, True), (0.0, False), (0.0, True)])
def test_a_biased_verifier_fails_a_quick_test(bonus, residual, monkeypatch):
    monkeypatch.setattr(Contract, "verifier", Biased(bonus, residual))
    assert not set(DISTRIBUTION) & {*VerifierContract.slow_tests, *TreeVerifierContract.slow_tests}
    if (bonus, residual) == (0.0, True):
        Contract().test_the_distribution_through_the_real_keys()
        return
    with pytest.raises(AssertionError, match="p-value"):
        Contract().test_the_distribution_through_the_real_keys()


def test_only_verifiers_that_are_enumerated_check_their_distribution_slowly():
    for path in pathlib.Path(__file__).parent.glob("test_*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        slowly = any("DISTRIBUTION" in ast.unparse(node.value) for node in _assigned(path, "slow_tests"))
        assert not slowly or names & {"enumerate_round", "TreeVerifierContract"}, path.name


def _assigned(path, name):
    """Returns the assignments to a name in the classes of a file."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    assigned = [node for each in classes for node in each.body if isinstance(node, ast.Assign)]
    return [node for node in assigned if name in map(ast.unparse, node.targets)]
