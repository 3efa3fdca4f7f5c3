"""Drafters that find their own number of drafts: by which costs, within which bounds, and with the same tokens."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.draft_length.costs import read_bytes, rising
from jaxspec.drafters import adapt as adapting
from jaxspec.drafters.adapt import LengthOption, adapt, describe, estimate_costs, for_rows, spare
from jaxspec.drafters.cost_file import cost_file, save_costs, saved_costs
from tests._fixtures import medusa, tiny
from tests._fixtures.eagle import HEAD, TARGET

LENGTHS = (0, 2, 4, 8)
PROMPT = jnp.asarray([[1, 2, 3, 1, 2, 3, 1], [0, 1, 0, 1, 0, 1, 0]], jnp.int32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))


def test_an_option_is_a_number_a_draft_length_or_a_word():
    length = jaxspec.draft_length.EntropyStop(4)
    assert (
        LengthOption.parse(3) == LengthOption.parse("3") == LengthOption(k=3) and LengthOption.parse(length).k is length
    )
    assert LengthOption.parse(None) == LengthOption.parse("fixed") == LengthOption()
    assert (
        LengthOption.parse("adaptive") == LengthOption(adaptive=True) and LengthOption.parse("adaptive:5").longest == 5
    )
    for word in ("adaptive:", "adaptive:0", "adaptive:-2", "fixed:3", "some", "", "2.5"):
        with pytest.raises(ValueError, match="a number, 'fixed', 'adaptive' or 'adaptive:8', got"):
            LengthOption.parse(word)
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        LengthOption.parse("-1")


def test_costs_by_what_is_read(monkeypatch):
    """Against the tables and the sizes, written out."""
    target = tiny.transformer(0, layers=3)
    draft = tiny.transformer(1, layers=1)
    ngram = estimate_costs(target, jaxspec.NGramDrafter(), LENGTHS)
    assert ngram == (1.0, 1.46, 1.67, round(1.75 + 0.11 / 3 + 0.03, 4))
    share = read_bytes(draft) / read_bytes(target)
    assert 0 < share < 1
    costs = estimate_costs(target, jaxspec.ModelDrafter(draft), (0, 2))
    share = 0.75 * share + 0.25 / 3
    assert costs == (1.0, round(1.43 + 0.02 + 0.4 * share + 2 * share, 4))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert estimate_costs(target, jaxspec.NGramDrafter(), (0, 1)) == (1.0, 1.08)
    # 64 rows of nine tokens are as dear as 576 of one row, by the last slope.
    many = estimate_costs(target, jaxspec.NGramDrafter(), (0, 8), batch=64)
    assert many[1] == round((1.35 + 544 * 0.2 / 24) / (1.35 + 32 * 0.2 / 24) + 0.03, 4)


@pytest.mark.parametrize(
    ("make", "target"),
    [
        (jaxspec.NGramDrafter, TARGET),
        (jaxspec.SuffixDrafter, TARGET),
        (lambda: jaxspec.EagleDrafter(HEAD), TARGET),
        (lambda: jaxspec.EarlyExitDrafter(1), TARGET),
        (jaxspec.contrib.SparseCacheDrafter, TARGET),
        (lambda: jaxspec.ModelDrafter(TARGET), TARGET),
    ],
    ids=["ngram", "suffix", "eagle", "early-exit", "sparse-cache", "model"],
)
def test_each_kind_gets_costs_that_rise(make, target):
    drafter = adapt(make(), target, 4)
    costs = drafter.draft_length.costs.tolist()
    assert drafter.lengths[-1] == drafter.max_drafts == 4 and costs[0] == 1 and (np.diff(costs) > 0).all()
    assert describe(drafter, target) == "adaptive up to 4, costs given or estimated"
    assert describe(make(), target) == str(make().max_drafts)


def test_both_halves_of_a_hybrid_adapt_by_their_own_costs():
    both = adapt(jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=4), jaxspec.EagleDrafter(HEAD)), TARGET)
    lengths_ = [both.lookup.draft_length, both.model.draft_length]
    assert [one.lengths for one in lengths_] == [LENGTHS] * 2 and both.max_drafts == 8
    assert lengths_[0].costs[1] < lengths_[1].costs[1]


def test_a_head_is_spared_where_it_would_save_less_than_a_tenth(monkeypatch):
    """With three fifths of its drafts accepted, as the formula says; by measured costs where there are some."""
    both = jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=4), jaxspec.EagleDrafter(HEAD))
    # Rounds of two drafts give 1.96 tokens, of four 2.3056.
    tables = {1: (1.0, 1.3, 1.6, 2.2), 6: (1.0, 1.9, 2.0959, 9.0), 8: (1.0, 1.7819, 2.0961, 9.0)}
    monkeypatch.setattr(adapting, "estimate_costs", lambda *_, batch: tables[batch])
    assert spare(both, TARGET) is both and spare(both, TARGET, batch=6) is both
    assert spare(both, TARGET, batch=8) is both.lookup and spare(both.model, TARGET, batch=8) is both.model
    save_costs(TARGET, both.model, dict(zip(LENGTHS, tables[1], strict=True)), batch=8)
    assert spare(both, TARGET, batch=8) is both
    # A head that is dear while it rests saves no more for that.
    save_costs(TARGET, both.model, dict(zip(LENGTHS, (1.2, 1.9, 2.6, 9.0), strict=True)), batch=8)
    assert spare(both, TARGET, batch=8) is both.lookup


def test_a_head_rests_where_nine_right_drafts_in_ten_would_not_save_a_tenth(monkeypatch):
    # Rounds of two drafts would give 2.71 tokens, of four 4.0951.
    tables = {1: (1.0, 1.3, 1.6, 2.2), 6: (1.0, 2.4637, 3.7227, 9.0), 8: (1.0, 2.4637, 3.7229, 9.0)}
    monkeypatch.setattr(adapting, "estimate_costs", lambda *_, batch: tables[batch])
    monkeypatch.setattr(adapting, "_lengths", lambda *_: LENGTHS)
    for head, rests in (jaxspec.EagleDrafter(HEAD), [False, False, True]), (jaxspec.ModelDrafter(TARGET), [False] * 3):
        both = adapt(jaxspec.HybridDrafter(jaxspec.NGramDrafter(), head), TARGET)
        assert [for_rows(both, TARGET, batch, rests=True).rests for batch in (1, 6, 8)] == rests
        assert not for_rows(both, TARGET, 8).rests


def test_measured_costs_come_before_estimates():
    drafter, other = jaxspec.EagleDrafter(HEAD), jaxspec.NGramDrafter()
    assert saved_costs(TARGET, drafter, LENGTHS) is None
    found = {0: 1.01, 2: 1.5, 4: 1.4, 8: 3.0}
    path = save_costs(TARGET, drafter, dict.fromkeys(LENGTHS, 9.0))
    assert path == save_costs(TARGET, drafter, found) == cost_file() and len(json.loads(path.read_text())) == 1
    adapted = adapt(drafter, TARGET)
    np.testing.assert_allclose(adapted.draft_length.costs, [1.01, 1.5, 1.5, 3.0])
    assert describe(adapted, TARGET) == "adaptive up to 8, costs measured"
    # Of another drafter, batch, model or length they say nothing.
    assert saved_costs(TARGET, other, LENGTHS) is None and saved_costs(TARGET, drafter, LENGTHS, batch=2) is None
    assert saved_costs(tiny.transformer(layers=3), drafter, LENGTHS) is None
    assert saved_costs(TARGET, drafter, (0, 3)) is None and saved_costs(TARGET, drafter, (0, 4)) == (1.01, 1.4)
    save_costs(TARGET, other, {0: 1.0, 2: 1.1})
    assert saved_costs(TARGET, drafter, (0, 2)) == (1.01, 1.5) and saved_costs(TARGET, other, (0, 2)) == (1.0, 1.1)
    path.write_text("damaged {")
    assert saved_costs(TARGET, drafter, LENGTHS) is None
    assert rising((1.0, 1.2, 1.1)) == (1.0, 1.2, 1.2)


def test_several_processes_do_not_read_each_its_own_costs(monkeypatch):
    drafter = jaxspec.NGramDrafter(k=4)
    save_costs(TARGET, drafter, dict.fromkeys(LENGTHS, 2.0))
    assert saved_costs(TARGET, drafter, LENGTHS) is not None
    monkeypatch.setattr("jax.process_count", lambda: 2)
    assert saved_costs(TARGET, drafter, LENGTHS) is None


@pytest.mark.slow
def test_by_name_drafts_adapt_and_the_tokens_are_those_of_plain_decoding():
    plain = jaxspec.generate(TARGET, None, PROMPT, max_new_tokens=40)
    named = jaxspec.load_drafter("ngram", TARGET)
    assert isinstance(named.draft_length, Adaptive) and named.lengths == LENGTHS
    head = jaxspec.EagleDrafter(HEAD, k=Adaptive((1.0, 1.2, 1.3), (0, 2, 4)))
    for drafter in (named, jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=Adaptive((1.0, 1.1), (0, 4))), head)):
        found = jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=40)
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        assert found.stats.drafted.sum() > 0


def test_words_that_do_not_fit():
    with pytest.raises(ValueError, match="nothing to draft with"):
        jaxspec.load_drafter("none", TARGET, k="adaptive")
    with pytest.raises(ValueError, match="drafts that compete need a fixed number"):
        jaxspec.load_drafter("ngram", TARGET, k="adaptive", num_drafts=2)
    with pytest.raises(ValueError, match="depends on the target"):
        jaxspec.text.names.drafter_of(TARGET, "adaptive")
    assert jaxspec.load_drafter("ngram", TARGET, k="fixed").k == jaxspec.load_drafter("ngram", TARGET, k="4").k == 4
    assert jaxspec.load_drafter("none", TARGET).max_drafts == 0


@pytest.mark.slow
def test_where_no_row_may_draft_none_is_searched():
    """The guess is left as it was, none of it is meant, and another one appears when the time has come."""
    drafter = jaxspec.NGramDrafter(k=Adaptive((1.0, 50.0), (0, 2)))
    result = jaxspec.generate(TARGET, drafter, PROMPT, max_new_tokens=12)
    assert result.stats.drafted.sum() == 0
    state = jaxspec.init(TARGET, drafter, PROMPT, max_new_tokens=12)
    tries = dataclasses.replace(state.drafter_state.length_state, due=jnp.ones(2, jnp.bool_))
    marked = dataclasses.replace(state.drafter_state.guess, tokens=jnp.full((2, 2), 9, jnp.int32))
    for length_state, searched in ((state.drafter_state.length_state, False), (tries, True)):
        before = dataclasses.replace(state.drafter_state, length_state=length_state, guess=marked)
        after, _ = jaxspec.step(TARGET, drafter, None, dataclasses.replace(state, drafter_state=before))
        assert bool((after.drafter_state.guess.tokens != 9).any()) == searched
        assert bool(after.drafter_state.guess.count.any()) == searched


def test_medusa_drafts_at_most_one_token_a_head():
    drafter = jaxspec.MedusaDrafter(medusa.paper_head(TARGET, heads=3))
    assert adapt(drafter, TARGET).lengths == (0, 2, 3) and adapt(drafter, TARGET, 2).lengths == (0, 2)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-9], "JSONDecodeError"),
        (lambda text: "[" * 100_000, "RecursionError"),
        (lambda text: "{}", "expected a list, got dict"),
        (lambda text: text.replace('"costs"', '"cost"'), r"\[0\]: costs: is missing"),
        (lambda text: text.replace(": 2.0", ': "2.0"', 1), r"\[0\]: costs: 0: expected int or float, got '2.0'"),
        (lambda text: text.replace(": 2.0", ": -2.0", 1), r"\[0\]: costs: expected numbers above 0"),
        (lambda text: text.replace(": 2.0", ": NaN", 1), r"\[0\]: costs: expected numbers above 0"),
        (lambda text: text.replace(": 2.0", ": 9.0", 1), r"\[0\]: it was changed after it was written"),
    ],
)
def test_a_damaged_file_of_costs_holds_nothing_and_is_named(damage, said, messages):
    drafter = jaxspec.NGramDrafter(k=4)
    path = save_costs(TARGET, drafter, dict.fromkeys(LENGTHS, 2.0))
    path.write_text(damage(path.read_text()))
    assert saved_costs(TARGET, drafter, LENGTHS) is None
    assert re.search(rf"^.*costs\.json: {said}.*; costs are estimated until", messages()[0])
    save_costs(TARGET, drafter, dict.fromkeys(LENGTHS, 2.0))
    assert saved_costs(TARGET, drafter, LENGTHS) == (2.0,) * len(LENGTHS)


def test_where_more_tokens_are_dear_one_draft_is_a_choice():
    """On a CPU, a pass over the drafts of several rows is bound by arithmetic; a single row's reads the weights."""
    native = jaxspec.native_kernels(tiny.transformer(0))
    one, two, four = (adapt(jaxspec.NGramDrafter(), native, batch=batch).k for batch in (1, 2, 4))
    assert one.lengths == two.lengths == (0, 2, 4, 8) and four.lengths == (0, 1, 2, 8)
    assert [adapt(jaxspec.NGramDrafter(), native, longest, batch=4).k.lengths for longest in (1, 2, 3, 16)] == [
        (0, 1),
        (0, 1, 2),
        (0, 1, 2, 3),
        (0, 1, 2, 4, 16),
    ]
    for lengths, costs in (LENGTHS, [1.0, 1.1, 1.2, 1.3]), ((0, 1, 2, 8), [1.0, 1.05, 1.1, 1.3]):
        found = dict(zip(LENGTHS, [1.0, 1.1, 1.2, 1.3], strict=True)) | dict(zip(lengths, costs, strict=True))
        save_costs(native, jaxspec.NGramDrafter(), found, batch=4)  # as earlier versions did, then with one draft
        measured = adapt(jaxspec.NGramDrafter(), native, batch=4).k
        assert measured.lengths == lengths
        np.testing.assert_allclose(measured.costs, costs)


def test_costs_follow_the_number_of_rows_unless_they_are_the_user_s():
    drafters = jaxspec.NGramDrafter(), jaxspec.HybridDrafter(jaxspec.NGramDrafter(), jaxspec.EagleDrafter(HEAD))
    for drafter in drafters:
        one, many = (adapt(drafter, TARGET, batch=batch) for batch in (1, 16))
        found = for_rows(one, TARGET, 16)
        assert jax.tree.structure(found) == jax.tree.structure(many) and found.max_drafts == one.max_drafts
        states = [
            jax.eval_shape(lambda each=each: jaxspec.init(TARGET, each, PROMPT, max_new_tokens=8))
            for each in (one, found)
        ]
        assert states[0] == states[1]  # a row goes from one to the other
        assert [np.asarray(x).tolist() for x in jax.tree.leaves(found)] == [
            np.asarray(x).tolist() for x in jax.tree.leaves(many)
        ]
        assert [np.asarray(x).tolist() for x in jax.tree.leaves(many)] != [
            np.asarray(x).tolist() for x in jax.tree.leaves(one)
        ]
    mine = jaxspec.NGramDrafter(k=Adaptive((1.0, 1.1), (0, 2)))
    for drafter in (mine, many, jaxspec.NGramDrafter(k=3), jaxspec.drafters.base.NoDrafter()):
        assert for_rows(drafter, TARGET, 16) is drafter
