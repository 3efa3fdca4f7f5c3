"""Quality: BLEU by hand, noise by its rule, and where answers diverge."""

import dataclasses
import importlib.util
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

import jaxspec
from jaxspec.bench.quality import (
    Agreement,
    assess,
    bleu,
    bleu_counts,
    check_bleu,
    compare_corpora,
    compare_perplexity,
    divergence,
    score_of,
)
from jaxspec.bench.report import quality_advice
from jaxspec.training.prompts import Conversation, read_prompts
from tests._fixtures import tiny

PROBS = np.log([0.4, 0.4 - 2e-4, 0.15, 0.05])


def test_bleu_of_a_corpus_is_sacrebleus():
    answers = ["the cat sat on the mat today", "Hi, there: you!", "a b c d", ""]
    references = ["the cat sat on the mat", "Hi, there: they!", "a b c d e f", "a b"]
    counts = [bleu_counts(answers[:2], references[:2]), bleu_counts(answers[2:], references[2:])]
    assert bleu(counts) == pytest.approx(sacrebleu.corpus_bleu(answers, [references]).score)
    assert bleu(counts[:1]) == pytest.approx(sacrebleu.corpus_bleu(answers[:2], [references[:2]]).score)


def test_bleu_by_hand():
    # The n-grams' precisions, and the brevity penalty.
    expected = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert bleu([bleu_counts(["a b c d e"], ["a b c d f"])]) == pytest.approx(100 * expected)
    assert bleu([bleu_counts(["a b c d"], ["a b c d e f"])]) == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_without_sacrebleu_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "jaxspec-decode\[bench\]"'):
        check_bleu()


def test_perplexities_differ_by_their_interval():
    plain = [1.0, 2.0, 3.0]
    found = compare_perplexity(plain, [1.2, 2.0, 3.4])
    error = 0.2 / math.sqrt(3)
    assert (found.plain, found.other) == pytest.approx((math.exp(2.0), math.exp(2.2)))
    assert (found.difference, found.error) == pytest.approx((0.2, error))
    # Student's t of two degrees of freedom at 99.5 %.
    assert (found.low, found.high) == pytest.approx((0.2 - 9.92484 * error, 0.2 + 9.92484 * error), rel=1e-5)
    assert found.within_noise
    assert compare_perplexity(plain, [1.2, 2.2, 3.2001]).within_noise is False
    assert compare_perplexity([1.0], [7.0]).within_noise is None


def test_corpora_are_drawn_in_pairs():
    mean = lambda values: sum(values) / len(values)
    same = compare_corpora([1.0, 5.0, 9.0], [1.5, 5.5, 9.5], mean)  # question by question the same difference
    assert (same.difference, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5)) and same.within_noise is False
    noise = compare_corpora([0.0] * 40, [1.0, -1.0] * 20, mean)
    assert noise.within_noise and noise.error == pytest.approx(1 / math.sqrt(40), rel=0.1)
    assert compare_corpora([1.0], [2.0], mean).within_noise is None


def test_where_answers_diverge():
    score = lambda text: {0: PROBS, 1: PROBS[::-1]}[len(text)]
    assert divergence([0, 1], [0, 1], score) is None
    assert divergence([0, 1], [1, 1], score) == (0, pytest.approx(5e-4, rel=1e-3))
    assert divergence([0, 3], [0, 0], score) == (1, pytest.approx(math.log(0.4 / 0.05)))
    assert divergence([0, 1], [0], score) == (1, None)


def test_both_sides_of_a_tie_are_near_the_best():
    # The two best are a tie, and neither side wrote the second of them.
    assert divergence([0], [3], lambda _: PROBS) == (0, pytest.approx(math.log(0.4 / 0.05)))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [jaxspec.Greedy(), jaxspec.Sampling(0.8)], ids=["greedy", "coupled"])
def test_plain_decoding_writes_what_scores_best(policy):
    target, key, lengths = tiny.transformer(1), jax.random.key(3), [4, 6]
    prompts = jnp.asarray([[1, 2, 3, 4, 0, 0], [5, 6, 7, 8, 9, 10]])
    result = jaxspec.generate(
        target, None, prompts, prompt_length=jnp.asarray(lengths), key=key, sampling=policy, max_new_tokens=8
    )
    for row, length in enumerate(lengths):
        score = score_of(target, prompts[row, :length].tolist(), row, 2, policy, key)
        tokens = result.tokens[row].tolist()
        assert [int(score(tokens[:place]).argmax()) for place in range(8)] == tokens


def _turn(question, temperature, repeats, **more):
    cases = {
        "plain": [{"ids": [[0]], "tokens": [2], "log_probs": [-2.0]}] * len(repeats),
        "x": repeats,
    }
    return {
        "kind": "turn",
        "batch": 1,
        "temperature": temperature,
        "turn": 0,
        "questions": [question],
        "cases": cases,
    } | more


def test_agreement_is_counted():
    turns = [
        _turn(0, 0.0, [{"ids": [[1]], "divergences": [None]}, {"ids": [[1]], "divergences": [[3, 9e-4]]}]),
        _turn(1, 0.0, [{"ids": [[1]], "divergences": [[2, 0.5]]}, {"ids": [[1]], "divergences": [[1, None]]}]),
    ]
    (found,) = assess(turns, [Conversation(("a",))] * 2, str)
    assert found.agreement == Agreement(4, 1, 1, 2, {"question": 1, "turn": 0, "place": 2, "distance": 0.5})
    ((good, text),) = quality_advice([found])
    assert not good and text.startswith("batch 1, temperature 0: x wrote the same tokens as plain decoding in 1 of 4")
    assert "1 diverged where" in text and "2 were DIFFERENT, first at question 1, turn 0, token 2" in text
    (found,) = assess(turns[:1], [Conversation(("a",))], str)
    ((good, text),) = quality_advice([found])
    assert good and "in 1 of 2 answers; 1 diverged where" in text


def test_drawn_answers_are_compared_by_likelihood_and_references():
    repeats = lambda loss, text: [{"ids": [[text]], "tokens": [4], "log_probs": [-loss]}]
    turns = [_turn(0, 1.0, repeats(4.0, 1)), _turn(1, 1.0, repeats(6.0, 1)), _turn(1, 1.0, repeats(2.0, 1))]
    questions = [Conversation(("a",)), Conversation(("b",), references=("a b c d",))]
    (found,) = assess(turns, questions, lambda ids: "a b c d" if ids == [1] else "a b c e")
    # Question 1 has two answers of four tokens each.
    assert (found.perplexity.plain, found.perplexity.other) == pytest.approx((math.e, math.e))
    assert found.bleu.other == pytest.approx(100.0)
    assert found.agreement is None
    ((good, text),) = quality_advice([found])
    assert good and "x: perplexity 2.72 against 2.72, negative log-likelihood of a token +0.0000" in text
    assert (
        f"within noise; BLEU 100.00 against {found.bleu.plain:.2f}, {found.bleu.difference:+.4f}: one question" in text
    )
    (found,) = assess(turns, [Conversation(("a",))] * 2, str)
    assert found.bleu is None and "no references" in next(quality_advice([found]))[1]
    worse = dataclasses.replace(found, perplexity=compare_perplexity([1.0, 1.1], [2.0, 2.1]))
    assert next(quality_advice([worse]))[0] is False


def test_references_are_read(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"turns": ["a", "b"], "reference": ["x", ""]}\n{"prompt": "a", "reference": "y"}\n'
        '{"prompt": "a", "reference": null}\n{"prompt": "a"}\n{"prompt": "a", "reference": [["x y", "z"]]}\n'
    )
    found = read_prompts([path])
    assert [one.references for one in found] == [("x", ""), ("y",), (), (), ("x y; z",)]
    assert repr(found[1]) == repr(found[2])  # files of results know questions by it
    path.write_text('{"prompt": "a", "reference": 3}\n')
    with pytest.raises(ValueError, match="reference must be a string or a list of strings, got int"):
        read_prompts([path])
