"""What `jaxspec bench` decodes with: a drafter at numbers of drafts, and at its own finding."""

import pytest

import jaxspec
from jaxspec.bench.speed.cases import load_cases, with_halves
from jaxspec.bench.speed.setting import Setting
from jaxspec.schedules import Adaptive, Fixed
from tests import tiny

TARGET = tiny.transformer()


def test_numbers_and_adaptive_stand_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    cases = load_cases(Setting("some", ("ngram",), lengths=(2, "adaptive:4"), batches=(1, 8)), TARGET)
    assert [(case.label, case.k) for case in cases] == [("plain", 0), ("ngram, k=2", 2), ("ngram, k=adaptive", None)]
    assert isinstance(cases[1].drafter.schedule, Fixed) and isinstance(cases[2].drafter.schedule, Adaptive)
    alone = load_cases(Setting("some", ("ngram",), lengths=("adaptive:4",)), TARGET)[1].drafter
    # Costs are those of the largest batch.
    assert cases[2].drafter.schedule.costs[-1] > alone.schedule.costs[-1]


def test_without_a_number_each_drafter_has_its_own():
    cases = load_cases(Setting("some", ("ngram", "suffix")), TARGET)
    assert [case.label for case in cases] == ["plain", "ngram, k=4", "suffix, k=8"]
    assert [case.k for case in with_halves(Setting("some", ("ngram",)), cases[:2], TARGET)] == [0, 2, 4]


def test_a_pair_is_called_by_its_own_names(tmp_path):
    jaxspec.save(TARGET, tmp_path / "a+draft")
    pair = f"ngram+{tmp_path / 'a+draft'}"
    cases = load_cases(Setting("some", (pair, str(tmp_path / "a+draft")), lengths=(2,)), TARGET)
    assert [case.label for case in cases] == ["plain", "ngram+a+draft, k=2", "a+draft, k=2"]


@pytest.mark.parametrize("lengths", [("some",), ("fixed",), ("adaptive", "adaptive:4")])
def test_other_words(lengths):
    with pytest.raises(ValueError, match="k must be"):
        Setting("some", ("ngram",), lengths=lengths)
