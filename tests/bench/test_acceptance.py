"""Expected acceptance of drafters, against sums over all tokens and against what real rounds accept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.acceptance import AcceptanceOptions, ChainExpectation, Text, expected_acceptance
from jaxspec.bench.acceptance_report import Acceptance, MeasuredRounds
from jaxspec.core.state import Proposal
from jaxspec.testing.enumeration import formulas
from jaxspec.testing.enumeration.drafting import chain, drawn, enumerate_drafts
from jaxspec.testing.enumeration.tables import pairs
from jaxspec.testing.history_models import history_model, history_probs, nearby
from jaxspec.testing.statistics import FALSE_ALARM
from tests._fixtures import tiny

TARGET = history_model(0, vocab=4)
DRAFT = nearby(TARGET, 0.7)
K = 2
PAIRS = list(pairs(3, 4))
PROMPTS = ([1, 2, 3], [0], [2, 2], [3, 1, 1, 0])
GIVEN = [Text((1, 2, 3), (0, 0, 1, 2)), Text((2,), (1, 3)), Text((3, 1, 1, 0), (2, 2, 0, 1, 1))]


@pytest.fixture(scope="module")
def enumerated():
    """Of every pair of tables each draft that can be drawn: what is expected of it, and how likely it is."""
    drafts = {name: enumerate_drafts(target, drawn(chain(3), draft)) for name, target, draft in PAIRS}
    of_all = lambda field: np.concatenate([getattr(one, field) for one in drafts.values()])
    log = lambda x: jnp.log(jnp.asarray(x, jnp.float32))
    proposal = Proposal(jnp.asarray(of_all("tokens")), jnp.asarray(of_all("submitted")), log(of_all("draft_probs")))
    found = jax.jit(ChainExpectation.of)(proposal, log(of_all("target_probs")))
    ends = np.cumsum([len(one.chance) for one in drafts.values()])
    parts = zip(*(np.split(np.asarray(x, np.float64), ends) for x in (found.reach, found.accept, found.block)))
    return {name: (drafts[name].chance, *one) for name, one in zip(drafts, parts, strict=False)}


@pytest.mark.parametrize(("name", "target", "draft"), [pytest.param(*pair, id=pair[0]) for pair in PAIRS])
def test_expectations_are_the_sums_over_all_texts(enumerated, name, target, draft):
    chance, reach, accept, block = enumerated[name]
    for k in (1, 2, 3):
        by_token, by_block = (chance @ np.sum(x[:, :k], axis=1) for x in (reach * accept, block))
        assert by_token == pytest.approx(formulas.token_accepted(target, draft, k), abs=1e-6)
        assert by_block == pytest.approx(formulas.block_accepted(target, draft, k), abs=1e-6)


def test_a_draft_that_is_not_submitted_is_never_reached():
    log_probs = jnp.log(jnp.full((1, 3, 4), 0.25))
    proposal = Proposal(jnp.asarray([[1, 2]], jnp.int32), jnp.asarray([[True, False]]), log_probs[:, :2])
    found = jax.jit(ChainExpectation.of)(proposal, log_probs)
    assert np.allclose(found.reach, [[1, 0]]) and np.allclose(found.block, [[1, 0]])


@pytest.fixture(scope="module")
def certain():
    """Given texts, drafted for by the draft's most likely tokens, so that each number is one of a formula."""
    drafter = jaxspec.ModelDrafter(DRAFT, k=K, sampling=jaxspec.Greedy())
    return expected_acceptance(TARGET, drafter, GIVEN, options=AcceptanceOptions(batch=3))


@pytest.mark.slow
def test_every_place_of_a_given_text_is_measured(certain):
    found = sorted(zip(certain.measured.text.tolist(), certain.measured.context.tolist(), strict=True))
    places = [range(len(one.prompt), len(one.prompt) + len(one.answer)) for one in GIVEN]
    assert found == [(text, place) for text, of_text in enumerate(places) for place in of_text]


def test_certain_drafts_are_accepted_as_often_as_the_target_says_them(certain):
    measured = certain.measured
    for row, (index, context) in enumerate(zip(measured.text, measured.context, strict=True)):
        text, chance = (*GIVEN[index].prompt, *GIVEN[index].answer)[:context], 1.0
        for place in range(K):
            likely = history_probs(TARGET, text)
            guess = int(np.argmax(history_probs(DRAFT, text)))
            assert measured.reach[row, place] == pytest.approx(chance, rel=1e-4)
            assert measured.accept[row, place] == pytest.approx(likely[guess], rel=1e-4)
            assert measured.agree[row, place] == (np.argmax(likely) == guess)
            chance *= likely[guess]
            text = (*text, guess)


def test_given_texts_are_measured_at_the_first_draft_alone(certain):
    assert len(certain.positions) == 1 and not certain.tokens and not certain.by_context
    assert "On these texts" in certain.conclusion()


@pytest.fixture(scope="module")
def replayed():
    """Rounds of the token rule: what was expected of each and what was accepted, and `generate` with the same keys."""
    drafter, key, prompts = jaxspec.ModelDrafter(DRAFT, k=K), jax.random.key(5), list(PROMPTS) * 8
    options = AcceptanceOptions(max_new_tokens=24, starts="token", batch=len(prompts))
    return drafter, key, prompts, expected_acceptance(TARGET, drafter, prompts, key=key, options=options)


@pytest.mark.slow
def test_rounds_accept_what_is_expected_of_them(replayed):
    measured = replayed[-1].measured
    for place in range(K):
        expected = measured.reach[:, place] * measured.accept[:, place]
        surplus = (measured.accepted > place) - expected
        # A martingale, whose variance is at most the sum of those of its steps.
        error = np.sqrt(np.sum(expected * (1 - expected)))
        assert abs(np.sum(surplus)) < error * np.sqrt(2 * np.log(2 / FALSE_ALARM))


@pytest.mark.slow
def test_rounds_are_those_of_generate(replayed):
    drafter, key, prompts, found = replayed
    padded = np.array([[*prompt, *[0] * (4 - len(prompt))] for prompt in prompts], np.int32)
    result = jaxspec.generate(
        TARGET,
        drafter,
        padded,
        prompt_length=np.array([len(prompt) for prompt in prompts]),
        key=jax.random.split(key, len(prompts)),
        sampling=jaxspec.Sampling(),
        verifier=jaxspec.TokenVerifier(),
        max_new_tokens=24,
    )
    rounds = np.bincount(found.measured.text, minlength=len(prompts))
    assert rounds.tolist() == np.asarray(result.stats.rounds).tolist()
    # The budget cuts the last round of a row alone.
    last = np.array([np.flatnonzero(found.measured.text == text)[-1] for text in range(len(prompts))])
    before = np.delete(found.measured.accepted, last)
    assert 0 <= np.sum(result.stats.accepted) - before.sum() <= K * len(prompts)


@pytest.mark.slow
def test_texts_do_not_depend_on_the_batch_or_on_what_is_skipped():
    drafter = jaxspec.ModelDrafter(DRAFT, k=K)
    whole = expected_acceptance(TARGET, drafter, PROMPTS, options=AcceptanceOptions(max_new_tokens=6))
    parts = expected_acceptance(TARGET, drafter, PROMPTS, options=AcceptanceOptions(max_new_tokens=6, batch=3, every=2))
    rows = {(text, place): row for row, (text, place) in enumerate(_places(whole))}
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    assert sorted(_places(parts)) == sorted(one for one in rows if (one[1] - lengths[one[0]]) % 2 == 0)
    same = [rows[one] for one in _places(parts)]
    assert np.allclose(parts.measured.accept, whole.measured.accept[same], rtol=1e-4)


def _places(found):
    return [*zip(found.measured.text.tolist(), found.measured.context.tolist(), strict=True)]


@pytest.mark.slow
def test_a_tree_is_counted():
    drafter = jaxspec.drafters.TreeDrafter(DRAFT, jaxspec.core.Tree.of_size(5))
    found = expected_acceptance(TARGET, drafter, PROMPTS, options=AcceptanceOptions(max_new_tokens=6))
    assert set(found.tokens) == {"tree"} and found.positions[0].agreement is None
    assert found.tokens["tree"].value == pytest.approx(1 + np.mean(found.measured.accepted))


def _rounds(**changes):
    parts = {
        "text": np.array([0, 0, 1]),
        "context": np.array([63, 64, 130]),
        "reach": np.array([[1, 0.5], [1, 1.0], [1, 0.0]]),
        "accept": np.array([[0.5, 0.4], [1, 0.6], [0, 0.9]]),
    }
    return MeasuredRounds(**parts | changes)


def test_places_are_weighted_by_the_chance_that_a_draft_gets_there():
    found = Acceptance.of(_rounds(), texts=2, given=False, rule=None)
    assert [one.acceptance.value for one in found.positions] == pytest.approx([0.5, (0.5 * 0.4 + 0.6) / 1.5])
    assert [one.reached.value for one in found.positions] == pytest.approx([1, 0.5])
    assert found.tokens["token"].value == pytest.approx(1 + (0.5 + 0.2 + 1 + 0.6) / 3)
    assert [(one.first, one.last, one.rounds) for one in found.by_context] == [(0, 63, 1), (64, 127, 1), (128, 255, 1)]


BAD = {
    "no text": ([], {}, "at least one text"),
    "an empty prompt": ([[]], {}, "at least one token"),
    "some answers": ([Text((1,), (2,)), Text((1,))], {}, "1 of 2 texts"),
    "answers and rounds": ([Text((1,), (2,))], {"starts": "block"}, "write their own text"),
    "too long": ([[1, 2], [1] * 30], {"max_new_tokens": 8}, r"texts\[1\] has 38 tokens.* context is 32"),
}


@pytest.mark.parametrize(("texts", "options", "message"), BAD.values(), ids=BAD)
def test_texts_that_cannot_be_measured(texts, options, message):
    with pytest.raises(ValueError, match=message):
        expected_acceptance(
            tiny.bounded(TARGET, 32), jaxspec.NGramDrafter(k=2), texts, options=AcceptanceOptions(**options)
        )


def test_plain_decoding_and_bad_options_are_refused():
    with pytest.raises(ValueError, match="the drafter proposes nothing"):
        expected_acceptance(TARGET, jaxspec.drafters.NoDrafter(), [[1]])
    with pytest.raises(ValueError, match="one of all, token, block"):
        AcceptanceOptions(starts="tree")
    with pytest.raises(ValueError, match="every=2 skips positions"):
        AcceptanceOptions(starts="token", every=2)
