"""Processors keep their contract: their logits are a function of the text, and that of `processed`."""

import dataclasses

import jax.numpy as jnp
import pytest

from jaxspec.core.processing import Processor
from jaxspec.core.pytree import register_dataclass
from jaxspec.testing.contracts.processor import ProcessorContract
from tests._fixtures import processed


class Case(ProcessorContract):
    """One of `processed.CASES`."""

    name: str

    def expected(self, logits, prompt, new):
        return processed.naive(self.name, logits, prompt, new)


class TestPenalties(Case):
    name = "penalties"
    processor = processed.CASES[name][0][0]


class TestPhrases(Case):
    name = "phrases"
    processor = processed.CASES[name][0][0]


@pytest.mark.slow
class TestAutomaton(Case):
    name = "automaton"
    processor = processed.CASES[name][0][0]


@pytest.mark.slow
class TestCounts(Case):
    name = "counts"
    processor = processed.CASES[name][0][0]


@pytest.mark.slow
class TestMinimum(Case):
    name = "minimum"
    processor = processed.CASES[name][0][0]


@pytest.mark.slow
class TestAllowed(Case):
    name = "allowed"
    processor = processed.CASES[name][0][0]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Forgetful(Processor):
    """Looks at drafts, and forgets them where they are committed."""

    def __call__(self, logits, state, path):
        return logits + jnp.sum(path >= 0, axis=2, keepdims=True).astype(logits.dtype)


def test_a_processor_that_forgets_what_is_committed_is_seen():
    case = type("Own", (ProcessorContract,), {"processor": Forgetful()})()
    with pytest.raises(AssertionError, match="Mismatched"):
        case.test_drafts_are_processed_as_if_they_were_committed()
