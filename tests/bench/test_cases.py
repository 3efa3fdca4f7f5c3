"""Cases of `jaxspec bench`: a drafter with fixed numbers of drafts, and with the one it finds."""

import pytest

import jaxspec
from jaxspec.bench.cases import Setting, load_cases
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.base import Fixed
from jaxspec.drafters.adapt import adapt
from tests._fixtures import tiny

TARGET = tiny.transformer()


def test_numbers_and_adaptive_stand_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    cases = load_cases(Setting("some", ("ngram",), lengths=(2, "adaptive:4"), batches=(1, 8)), TARGET)
    assert [case.label for case in cases] == ["plain", "ngram, k=2", "ngram, k=adaptive"]
    assert [(case.drafter.max_drafts, case.adaptive) for case in cases] == [(0, False), (2, False), (4, True)]
    assert isinstance(cases[1].drafter.draft_length, Fixed) and isinstance(cases[2].drafter.draft_length, Adaptive)


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_what_adapts_counts_with_the_costs_of_each_batch(name, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    cases = load_cases(Setting("some", (name,), lengths=(2, "adaptive:4"), batches=(1, 8)), TARGET)
    alone, together = ([case.for_rows(TARGET, rows) for case in cases] for rows in (1, 8))
    assert [case.label for case in together] == [case.label for case in cases]
    assert together[:2] == cases[:2]
    one, eight = alone[2].drafter.draft_length, together[2].drafter.draft_length
    assert one.lengths == eight.lengths == (0, 2, 4)
    assert eight.costs[-1] > one.costs[-1]
    assert one.costs.tolist() == adapt(cases[1].drafter, TARGET, 4, batch=1).draft_length.costs.tolist()


def test_without_a_number_each_drafter_has_its_own():
    cases = load_cases(Setting("some", ("ngram", "suffix")), TARGET)
    assert [case.label for case in cases] == ["plain", "ngram, k=4", "suffix, k=8"]
    halves = load_cases(Setting("some", ("ngram",)), TARGET, halves=True)
    assert [case.drafter.max_drafts for case in halves] == [0, 2, 4]


@pytest.mark.slow
def test_a_pair_is_called_by_its_own_names(tmp_path):
    jaxspec.save(TARGET, tmp_path / "a+draft")
    pair = f"ngram+{tmp_path / 'a+draft'}"
    cases = load_cases(Setting("some", (pair, str(tmp_path / "a+draft")), lengths=(2,)), TARGET)
    assert [case.label for case in cases] == ["plain", "ngram+a+draft, k=2", "a+draft, k=2"]


@pytest.mark.parametrize("lengths", [("some",), ("fixed",), ("adaptive", "adaptive:4")])
def test_other_words(lengths):
    with pytest.raises(ValueError, match="k must be"):
        Setting("some", ("ngram",), lengths=lengths)
