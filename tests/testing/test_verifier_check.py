"""The check of verification functions: right ones pass, and every planted fault is found, with a counterexample."""

import functools
import io
import json
import pathlib
import re

import jaxtyping
import numpy as np
import pytest

from jaxspec.testing import check_verifier
from jaxspec.testing.cells import NotPartitionedError
from jaxspec.testing.given_uniforms import GivenUniforms, MoreUniformsError, check_given
from jaxspec.testing.policy_orders import PolicyOrder
from tests.testing import engine_rules as rules

UNIFORMS, QUICK = rules.UNIFORMS, 8


@pytest.fixture(autouse=True, scope="module")
def few_random_points():
    """A tenth of those that users get, for time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxspec.testing.verifier_check._CHECKS", 1000)
        patch.setattr("jaxspec.testing.verifier_check._MORE_CHECKS", 100)
        yield


@functools.cache
def checked(rule):
    return check_verifier(rule, uniforms=UNIFORMS)


@pytest.mark.parametrize(
    "rule", [rules.token_rule, pytest.param(rules.block_rule, marks=pytest.mark.slow)], ids=lambda rule: rule.__name__
)
def test_what_is_lossless_passes(rule):
    report = checked(rule)
    assert report.lossless and report.exact and report.total_variation < 1e-5, str(report)
    assert report.counterexample is None and not report.findings
    assert report.tokens_per_round < report.best_tokens_per_round


@pytest.mark.slow
def test_a_block_accepts_no_less():
    token, block = checked(rules.token_rule), checked(rules.block_rule)
    assert block.tokens_per_round > token.tokens_per_round + 0.01


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.slow] * (i >= QUICK)) for i, rule in enumerate(rules.PLANTED)],
    ids=lambda rule: rule.__name__,
)
def test_a_planted_fault_is_found(rule):
    report = checked(rule)
    assert not report.lossless and report.exact
    assert report.counterexample is not None and "target [" in report.counterexample
    assert json.loads(report.to_json())["counterexample"] == report.counterexample
    assert str(report).startswith("BIASED: exact") and report.counterexample in str(report)


def test_the_counterexample_is_in_words():
    report = checked(rules.silently_greedy)
    assert report.counterexample == "target [0.5, 0.5], draft [0.6, 0.4]: token 0 comes out with 1, should be 0.5"
    assert [finding.kind for finding in report.findings] == ["greedy"]


def test_uniforms_of_zero_are_looked_at(monkeypatch):
    """Their chance is 0 here: all other figures are those of the right rule, from no fewer points."""
    monkeypatch.setattr("jaxspec.testing.verifier_check._FEW_CHECKS", None)  # never used
    report = check_verifier(rules.accepts_at_zero, uniforms=UNIFORMS)
    assert report.total_variation < 1e-5
    assert "u = 0 emits token 1, whose target probability is 0" in report.counterexample


SEVERAL = {
    "one target": (rules.recursive_rejection, rules.several_against_one_target, {"kind": "drafts"}),
    "with replacement": (
        rules.tree_rejection,
        rules.siblings_as_with_replacement,
        {"kind": "tree", "drafts": "distinct"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_drafts_that_branch(name):
    right, _, options = SEVERAL[name]
    report = check_verifier(right, uniforms=5, **options)
    assert report.lossless and report.exact and not report.findings, str(report)
    assert report.best_tokens_per_round is None


def test_a_third_draft_of_several_is_looked_at():
    report = check_verifier(rules.reduced_once, uniforms=5, kind="drafts")
    assert report.counterexample.startswith("3 drafts, target [0.1, 0.6, 0.3], draft [0.5, 0.5, 0]: token 1 comes out")
    assert report.total_variation == report.cases[-1].total_variation > 0.05


@pytest.mark.parametrize("name", [pytest.param("one target", marks=pytest.mark.slow), "with replacement"])
def test_faults_where_drafts_branch(name):
    _, wrong, options = SEVERAL[name]
    report = check_verifier(wrong, uniforms=5, **options)
    assert not report.lossless and report.exact
    assert report.counterexample.startswith("2 drafts, target [")
    assert (" without replacement: token " in report.counterexample) == ("drafts" in options)


def test_greedy():
    right = check_verifier(rules.silently_greedy, greedy=True, uniforms=0)
    assert right.lossless and right.exact and right.total_variation == 0
    wrong = check_verifier(rules.token_rule, greedy=True, uniforms=UNIFORMS)
    assert not wrong.lossless and wrong.counterexample.endswith("token 0 comes out with 0.75, should be 1")

    def third_unverified(target, draft, tokens, uniforms):
        found = rules.silently_greedy(target, draft, tokens, uniforms)
        return [*tokens, target[-1].argmax()] if len(found) == len(tokens) == 3 else found

    assert not check_verifier(third_unverified, greedy=True, uniforms=0).lossless


def test_most_likely_tokens_that_are_called_drawn():
    wrong = check_verifier(rules.token_rule, drafts="argmax", uniforms=UNIFORMS)
    assert "draft [0.6, 0.4], its most likely tokens: token 0 comes out with 0.833, should be 0.5" in str(wrong)
    assert [finding.kind for finding in wrong.findings] == ["argmax drafts"]

    def one_hot(target, draft, tokens, uniforms):
        return rules.token_rule(target, np.eye(draft.shape[1])[tokens], tokens, uniforms)

    assert check_verifier(one_hot, drafts="argmax", uniforms=UNIFORMS).lossless


def with_generator(rule):
    return lambda target, draft, tokens, rng: rule(target, draft, tokens, rng.random(UNIFORMS))


def by_calls(residual=lambda target, draft: np.maximum(target - draft, 0), choose="choice"):
    """A verifier that draws as it goes, by methods of the generator."""

    def verify(target, draft, tokens, rng):
        for i, token in enumerate(tokens):
            if rng.uniform(0, draft[i, token]) >= target[i, token]:
                rest = residual(target[i], draft[i])
                return i, one_of(rng, rest / rest.sum())
        return len(tokens), one_of(rng, target[-1])

    def one_of(rng, probs):
        return rng.choice(probs.size, p=probs) if choose == "choice" else int(rng.multinomial(1, probs).argmax())

    return verify


@pytest.mark.parametrize("choose", ["choice", pytest.param("multinomial", marks=pytest.mark.slow)])
def test_a_generator_is_given_uniforms(choose):
    right = check_verifier(by_calls(choose=choose))
    assert right.lossless and right.exact and right.total_variation < 1e-5 and not right.findings, str(right)
    wrong = check_verifier(by_calls(lambda target, draft: target, choose))
    assert not wrong.lossless and wrong.exact
    assert wrong.counterexample == ("target [0.5, 0.5], draft [0.6, 0.4]: token 0 comes out with 0.55, should be 0.5")


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rules.token_rule, *rules.PLANTED], ids=lambda rule: rule.__name__)
def test_rules_of_a_generator_are_found_out_as_rules_of_uniforms(rule):
    own, given = check_verifier(with_generator(rule)), checked(rule)
    assert (own.lossless, own.exact, own.counterexample) == (given.lossless, True, given.counterexample)


def test_given_uniforms_are_as_a_generator_s():
    """NumPy's own methods on the same uniforms, where it has them; and each is handed out once."""
    drawn = np.random.default_rng(3).random(6)
    given, real = GivenUniforms(drawn), np.random.default_rng(3)
    assert isinstance(given, np.random.Generator) and np.random.default_rng(given) is given
    probs = [0.2, 0.5, 0.3]
    assert given.random() == real.random() and given.uniform(2, 3) == real.uniform(2, 3)
    np.testing.assert_array_equal(given.choice(3, (2, 1), p=probs), real.choice(3, (2, 1), p=probs))
    np.testing.assert_array_equal(given.random((2,)), real.random(2))
    check_given(given)
    np.testing.assert_array_equal(given.multinomial(1, probs), [0, 1, 0])  # 0.5 once they are used up
    with pytest.raises(MoreUniformsError, match="^7$"):
        check_given(given)
    for mistake in (lambda rng: rng.choice(2, p=[0.5, 0.6]), lambda rng: rng.multinomial(1, [0.7, 0.6, 0])):
        with pytest.raises(ValueError, match="sum"):
            mistake(GivenUniforms(drawn))


OTHERS = {
    "integers": lambda rng: rng.integers(2),
    "gumbel": lambda rng: rng.gumbel(),
    "choice without probabilities": lambda rng: rng.choice(3),
    "two draws": lambda rng: rng.multinomial(2, [0.5, 0.5]),
    "its bits": lambda rng: rng.bit_generator.random_raw(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_are_refused(name):
    given = GivenUniforms(np.full(4, 0.5))
    OTHERS[name](given)
    with pytest.raises(NotPartitionedError, match="not a function of a few uniforms"):
        check_given(given)


def seeded(rule):
    """Draws a seed, as adapters for other libraries do."""
    own = lambda rng: np.random.default_rng(rng.integers(2**63)).random(UNIFORMS)  # noqa: E731
    return lambda target, draft, tokens, rng: rule(target, draft, tokens, own(rng))


def test_another_generator_is_sampled():
    """With the stated chance of a false alarm, and as many rounds as it takes."""
    right = check_verifier(seeded(rules.token_rule), samples=500)
    assert right.lossless and not right.exact and right.false_alarm_rate == 1e-6
    assert "sampled, with a false-alarm rate of 1e-06" in str(right) and "it uses rng.integers" in str(right)
    wrong = check_verifier(seeded(rules.bonus_of_the_draft), samples=500)
    assert not wrong.lossless and not wrong.exact and "sampled rounds)" in wrong.counterexample


def test_randomness_that_is_no_argument_is_no_function_of_it():
    """A function that ignores its generator is called often enough to see that its results differ."""
    own = np.random.default_rng(0)
    report = check_verifier(lambda *given: with_generator(rules.token_rule)(*given[:3], own), samples=100)
    assert report.lossless and not report.exact
    greedy = check_verifier(with_generator(rules.silently_greedy))
    assert not greedy.lossless and greedy.findings[0].kind == "greedy"


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated(monkeypatch):
    """Chernoff's bound is far from tight: of 30 checks at a rate of 0.3, hardly one is false."""
    alarms = 0
    for seed in range(30):
        monkeypatch.setattr("jaxspec.testing.verifier_check._SEED", seed)
        report = check_verifier(seeded(rules.token_rule), samples=300, false_alarm_rate=0.3)
        alarms += not report.lossless
    assert alarms <= 9


def test_uniforms_that_make_no_cells_are_sampled():
    def gumbel(target, draft, tokens, uniforms):
        noise = -np.log(-np.log(uniforms.reshape(3, 3)))
        own = [int(np.argmax(np.log(row) + each[: row.size])) for row, each in zip(target, noise, strict=False)]
        count = next((i for i, token in enumerate(tokens) if token != own[i]), tokens.size)
        return own[: count + 1]

    report = check_verifier(gumbel, uniforms=9, samples=100)
    assert report.lossless and not report.exact
    assert [finding.kind for finding in report.findings] == ["sampled"]


POLICY = {"temperature": 0.7, "top_k": 2, "top_p": 0.7}


@pytest.mark.parametrize(
    ("order", "lossless", "said"),
    [
        (("temperature", "top_k", "top_p"), True, ""),
        (("temperature", "top_p", "top_k"), False, "* order: the output fits temperature, then top-p, then top-k"),
    ],
)
def test_the_order_of_a_policy(order, lossless, said):
    @functools.cache
    def processed(logits, count):
        rows = np.frombuffer(logits).reshape(count, -1)
        return np.stack([PolicyOrder(POLICY, order).probs(row) for row in rows])

    def verify(logits, draft, tokens, uniforms, **policy):
        assert policy == POLICY
        return rules.token_rule(processed(logits.tobytes(), len(logits)), draft, tokens, uniforms)

    report = check_verifier(verify, policy=POLICY, uniforms=UNIFORMS)
    assert report.lossless == lossless and report.exact and said in str(report)
    if not lossless:
        assert report.counterexample.startswith("target [1, 0, 0] from logits [2.89, 2.197, 2.079], draft [0.3333, ")


def test_arguments_that_are_changed():
    def verify(target, draft, tokens, uniforms):
        result = rules.token_rule(target, draft, tokens, uniforms)
        target[0] -= draft[0]
        return result

    report = check_verifier(verify, uniforms=UNIFORMS)
    assert report.lossless and report.exact
    assert [finding.kind for finding in report.findings] == ["arguments"]


@pytest.mark.parametrize(
    ("verify", "options", "words"),
    [
        (rules.token_rule, {"uniforms": 2}, "and 2 uniforms, raises IndexError"),
        (rules.token_rule, {"kind": "trees"}, "kind must be one of"),
        (rules.token_rule, {"drafts": "distinct"}, "siblings of a tree, got kind='chain'; pass kind='tree'"),
        (rules.token_rule, {"policy": [1]}, "policy must be a dictionary, got [1]; pass policy={'temperature': 0.7}"),
        (rules.token_rule, {"policy": {"min_p": 0.1}}, "names in policy must be one of temperature, top_k, top_p, got"),
        (rules.token_rule, {"policy": {"top_p": 2.0}}, "policy needs top_p between 1e-06 and 1, got 2.0"),
        (rules.token_rule, {"policy": {"top_p": float("nan")}}, "policy needs top_p between 1e-06 and 1, got nan"),
        (rules.token_rule, {"policy": {"top_k": "2"}}, "policy needs a number as top_k, got str"),
        (rules.token_rule, {"policy": {"top_k": 2.5}}, "policy needs an integer as top_k, got 2.5"),
        (
            rules.token_rule,
            {"greedy": True, "policy": {"top_k": 2}},
            "greedy=True takes no policy",
        ),
        (rules.token_rule, {"uniforms": 2.5}, "an integer as uniforms, got 2.5; pass the number of uniforms, or leave"),
        (rules.token_rule, {"uniforms": True}, "an integer as uniforms, got True"),
        (rules.token_rule, {"uniforms": 65}, "uniforms between 0 and 64, got 65"),
        (rules.token_rule, {"greedy": "no"}, "greedy must be True or False, got 'no'"),
        (rules.token_rule, {"kind": [1]}, "kind must be one of chain, drafts, tree, got [1]"),
        (rules.token_rule, {"drafts": None}, "drafts must be one of independent, distinct, argmax, got None"),
        (rules.token_rule, {"false_alarm_rate": "x"}, "a number as false_alarm_rate, got str"),
        (rules.token_rule, {"false_alarm_rate": 0}, "false_alarm_rate must be above 0 and below 1, got 0"),
        (lambda *given: 10**400, {}, "returns 1000"),
        (
            lambda *given: given[-1].random(),
            {"uniforms": 2},
            "leave uniforms out for a function that takes a generator",
        ),
        (rules.token_rule, {}, "pass uniforms=4 for a function that takes an array"),
        (lambda *given: None, {}, "returns None; return the emitted tokens"),
        (lambda *given: ([0, 1], 1), {}, "a tuple must be"),
        (
            rules.token_rule,
            {"policy": {"temperature": 0}},
            "policy needs temperature above 0, got 0; pass greedy=True",
        ),
        (rules.token_rule, {"samples": 0}, "needs samples between 1 and 2147483647, got 0"),
        (rules.token_rule, {"samples": "x"}, "needs an integer as samples, got 'x'"),
        (3, {}, "verify must be callable as verify(target_probs, draft_probs, tokens, randomness), got 3"),
    ],
)
def test_mistakes(verify, options, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        check_verifier(verify, **options)
    # Where annotations are checked, that comes first.
    assert words in str(caught.value) or isinstance(caught.value, jaxtyping.TypeCheckError)


def by_the_last_uniform(rule):
    """Draws what follows with the last uniform, as functions do that take an array of any length."""
    return lambda target, draft, tokens, uniforms: rule(
        target, draft, tokens, np.append(np.resize(uniforms[: tokens.size], 3), uniforms[-1:])
    )


@pytest.mark.parametrize("uniforms", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_too_few_uniforms_are_no_bias(uniforms):
    """The last draft and the next token share one; a function that is biased with more is still found."""
    words = f"more than uniforms={uniforms}: with {uniforms + 4} .* it is not; pass uniforms={uniforms + 4}"
    with pytest.raises(ValueError, match=words):
        check_verifier(by_the_last_uniform(rules.token_rule), uniforms=uniforms)
    assert not check_verifier(by_the_last_uniform(rules.target_after_rejection), uniforms=uniforms).lossless


def test_uniforms_that_are_missing_are_said_to_be():
    words = "and 3 uniforms, raises IndexError: list index out of range; pass uniforms=7, with which it does not"
    with pytest.raises(ValueError, match=words):
        check_verifier(rules.token_rule, uniforms=3)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_slow_check_shows_its_calls(monkeypatch):
    """On a terminal alone, and the line is gone at the end."""
    for stream in (Terminal(), io.StringIO()):
        with monkeypatch.context() as patch:
            patch.setattr("sys.stderr", stream)
            patch.setattr("jaxspec.testing.verifier_check._SHOWN_AFTER", 0)
            check_verifier(rules.silently_greedy, greedy=True, uniforms=0)
        shown = stream.getvalue()
        assert (
            shown.startswith("\rfirst call: 0 calls in 00:00") and shown.endswith(" \r")
            if stream.isatty()
            else not shown
        )


def test_tokens_after_the_rejected_draft():
    report = check_verifier(rules.emits_after_the_rejection, uniforms=UNIFORMS)
    assert report.counterexample.startswith("emits [1, 0]: all of it but the last token must be drafts, in their order")


def test_the_guide_shows_what_is_printed(capsys):
    page = (pathlib.Path(__file__).parents[2] / "docs/guides/check-a-verifier.md").read_text()
    faulty, right = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    shown = re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)
    names = {}
    exec(compile(faulty, "check-a-verifier.md", "exec"), names)
    print(check_verifier(names["verify"], uniforms=4))
    exec(compile(right, "check-a-verifier.md", "exec"), {})
    assert capsys.readouterr().out == "".join(shown)
