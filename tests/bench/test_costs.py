"""Repeating a round: no state carries over to the next, and each round makes all its drafts."""

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.bench import costs as costing
from jaxspec.bench.cases import Setting
from jaxspec.bench.costs import measure_costs, repeat_round
from jaxspec.core.model import Cache
from jaxspec.drafters.adapt import adapt
from jaxspec.drafters.base import draft_length_of
from tests._fixtures import dflash as blocks, tiny

TARGET = tiny.transformer(0)
DRAFTER = jaxspec.DFlashDrafter(blocks.random_head(TARGET), k=2)


@pytest.mark.slow
def test_every_round_begins_with_the_state_of_the_first():
    prompt = np.array([[1, 2, 3, 4, 1, 2]], np.int32)
    start = jaxspec.init(TARGET, DRAFTER, prompt, max_new_tokens=8)
    after = repeat_round(TARGET, DRAFTER, None, start, count=3)
    is_cache = lambda x: isinstance(x, Cache)
    for ours, first in zip(
        jax.tree.leaves(after.drafter_state, is_leaf=is_cache),
        jax.tree.leaves(start.drafter_state, is_leaf=is_cache),
        strict=True,
    ):
        ours, first = (ours.length, first.length) if is_cache(ours) else (ours, first)
        np.testing.assert_array_equal(ours, first)
    np.testing.assert_array_equal(after.length, start.length)
    assert after.stats.rounds.tolist() == [3]


@pytest.mark.slow
def test_rounds_are_timed_with_all_drafts(monkeypatch):
    repeat, drafted = costing.repeat_round, {}

    def kept(target, drafter, verifier, state, *, count):
        info = jaxspec.jit_step()(target, drafter, verifier, state)[1]
        drafted.setdefault(str(getattr(draft_length_of(drafter), "count", None)), info.drafted.tolist())
        return repeat(target, drafter, verifier, state, count=count)

    monkeypatch.setattr(costing, "repeat_round", kept)
    found = measure_costs(TARGET, jaxspec.NGramDrafter(k=2), (0, 2), batch=2, text=10, repeats=1)
    assert len(found) == 2 and drafted == {"None": [0, 0], "0": [0, 0], "2": [2, 2]}


def test_costs_of_several_rows_are_kept_for_the_lengths_that_those_choose_from(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    target, measured = jaxspec.native_kernels(tiny.transformer(0)), {}

    def measure(target, drafter, lengths, *, batch, **_):
        measured[batch] = lengths
        return tuple(1 + 0.1 * n for n in lengths)

    monkeypatch.setattr(costing, "load_target", lambda setting: (setting.model, target))
    monkeypatch.setattr(costing, "load_drafter", lambda *_, **__: adapt(jaxspec.NGramDrafter(), target))
    monkeypatch.setattr(costing, "measure_costs", measure)
    assert costing.keep_costs(Setting("tiny", ("ngram",), batches=(1, 4))).is_relative_to(tmp_path)
    assert measured == dict.fromkeys((1, 4), (0, 1, 2, 4, 8))
    for batch, lengths in ((1, (0, 2, 4, 8)), (4, (0, 1, 2, 8))):
        length = adapt(jaxspec.NGramDrafter(), target, batch=batch).k
        assert length.lengths == lengths
        np.testing.assert_allclose(length.costs, [1 + 0.1 * n for n in lengths])
