"""A grammar begins where the thinking ends, on tables and on the host, and a budget ends the thinking.

What others shipped, each a test here: a grammar that misses the token after an end in mid-round, and repeats it; one
that is ignored if the end was drafted; one that is asked after its own end; drafts beyond the end that are judged by
the state before it; an end within the answer that is taken for the thinking's; a budget that drafts pass by.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core import processing
from jaxspec.grammar import Grammar, ThinkingBudget
from jaxspec.grammar.host import RowMatchers
from tests._fixtures import scripted, text_models
from tests._fixtures.text_models import VOCAB

CHOICES = ['{"a":1}', '{"a":22}', "[</think>]"]
REGULAR, HOST = Grammar.choices(CHOICES), Grammar.lark('start: "{" /"a":(1|22)/ "}" | "[</think>]"')
# The end is one special token, or several tokens.
TOKENIZERS = {"one token": scripted.tokenizer(), "several tokens": text_models.byte_level()}
STOP = TOKENIZERS["one token"].eos_token_ids[0]


def walk(tokenizer, grammar, start, ids):
    """The tokens that the table and the host allow after each prefix of some."""
    table = Grammar.after_thinking(grammar, start=start).table(tokenizer, VOCAB)
    arrays = {name: np.asarray(getattr(table, name)) for name in ("allowed", "following", "classes", "final", "forced")}
    host = RowMatchers([Grammar.after_thinking(grammar, start=start)], tokenizer, VOCAB, (STOP,))
    state = int(table.start)
    for count in range(len(ids) + 1):
        bits = np.unpackbits(arrays["allowed"][state].view(np.uint8), bitorder="little")[:VOCAB]
        by_table = set(np.flatnonzero(bits)) - {STOP} | ({STOP} if arrays["final"][state] else set())
        allowed, forced = host.after_paths(np.asarray([[ids[:count] + [-1] * (len(ids) - count)]]))
        by_host = set(np.flatnonzero(np.unpackbits(allowed[0, 0].view(np.uint8), bitorder="little")[:VOCAB]))
        assert by_table == by_host, count
        assert arrays["forced"][state] == forced[0, 0] or by_table == {STOP}, count
        yield by_table
        if count < len(ids):
            assert ids[count] in by_table
            state = int(arrays["following"][state, arrays["classes"][ids[count]]])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_all_tokens_may_come_until_the_end_and_then_those_of_the_grammar(name):
    tokenizer = TOKENIZERS[name]
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    thoughts = encode("x </thi </think>")
    ids = thoughts + encode('{"a":1}')
    found = list(walk(tokenizer, REGULAR, None, ids))
    everything = set(range(VOCAB)) - {STOP}
    assert found[: len(thoughts) - 1] == [everything] * (len(thoughts) - 1) or name == "several tokens"
    assert all(len(one) > VOCAB - 20 and STOP not in one for one in found[: len(thoughts)])
    first = {index for index in range(VOCAB) if tokenizer.token_bytes(index) in (b"{", b'{"', b"[", b"[<")}
    assert found[len(thoughts)] == first
    assert found[-1] == {STOP}


def test_a_model_may_begin_to_think_or_to_answer():
    tokenizer = TOKENIZERS["one token"]
    think, end = (tokenizer.encode(name, add_special_tokens=False)[0] for name in ("<think>", "</think>"))
    answer = tokenizer.encode('{"a":1}', add_special_tokens=False)
    thought = list(walk(tokenizer, REGULAR, "<think>", [think, 9, 3, end, *answer]))
    direct = list(walk(tokenizer, REGULAR, "<think>", answer))
    assert think in thought[0] and thought[0] == direct[0] and len(thought[1]) == VOCAB - 1
    assert think not in direct[1] and direct[-1] == thought[-1] == {STOP}
    assert thought[4] == direct[0] - {think}


def test_drafts_are_taken_back():
    """A follower that has seen drafts over the end stands where it stood."""
    tokenizer = TOKENIZERS["one token"]
    ids = tokenizer.encode('x</think>{"a":22}', add_special_tokens=False)
    grammar = Grammar.after_thinking(HOST)
    matchers = RowMatchers([grammar], tokenizer, VOCAB, (STOP,))
    fresh = RowMatchers([grammar], tokenizer, VOCAB, (STOP,))
    for count in range(len(ids)):
        rest = np.asarray([[ids[count:] + [STOP] + [-1] * count]])
        matchers.after_paths(rest)
        for size in range(len(ids) - count + 1):
            path = np.asarray([[ids[count : count + size] + [-1] * (len(ids) - size)]])
            np.testing.assert_array_equal(matchers.after_paths(path)[0], fresh.after_paths(path)[0])
        for each in (matchers, fresh):
            each.commit(np.asarray([[ids[count]]]), np.asarray([1]))


def test_wrong_arguments_are_named():
    tokenizer = TOKENIZERS["several tokens"]
    with pytest.raises(TypeError, match="grammar"):
        Grammar.after_thinking("a")
    with pytest.raises(ValueError, match="already"):
        Grammar.after_thinking(Grammar.after_thinking(REGULAR))
    with pytest.raises(ValueError, match="end"):
        Grammar.after_thinking(REGULAR, end="")
    with pytest.raises(ValueError, match="start must be one token"):
        Grammar.after_thinking(REGULAR, start="<think>").table(tokenizer, VOCAB)
    with pytest.raises(ValueError, match="budget"):
        ThinkingBudget.of(tokenizer, VOCAB, -1)
    with pytest.raises(ValueError, match="end"):
        ThinkingBudget.of(tokenizer, VOCAB, 1, end="")
    with pytest.raises(ValueError, match="vocab_size"):
        ThinkingBudget.of(tokenizer, VOCAB, 1).check(1, VOCAB + 1)


@jax.jit
def _forced(budget, first, count, path):
    """The forced token after committed tokens and drafts."""
    prompt = processing.Prompt(jnp.ones((1, 1), jnp.int32), jnp.ones(1, jnp.int32), jnp.asarray([[STOP]]), VOCAB)
    return budget.next_forced(budget.commit(budget.init(prompt), first, count), path[None])


@pytest.mark.parametrize(("name", "start"), [("one token", "<think>"), ("one token", None), ("several tokens", None)])
def test_a_budget_forces_the_end(name, start):
    """Against a plain count of the tokens of each text, in paths of drafts and in committed pieces."""
    tokenizer = TOKENIZERS[name]
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    end, begin = encode("</think>"), encode(start) if start else []
    budget = ThinkingBudget.of(tokenizer, VOCAB, 3, start=start)
    assert budget is ThinkingBudget.of(tokenizer, VOCAB, 3, start=start)  # so that requests share a program
    padded = lambda ids: jnp.asarray([ids + [-1] * (24 - len(ids))], jnp.int32)  # noqa: E731
    texts = [[*begin, 9, 8, 7, *end, 9, 9], [*begin, 9, *end, 9, 9, 9, 9, 9], [9, 9, 9, 9, 9, 9]]
    for ids in texts:
        thinks, spent = not begin, 0
        for count in range(len(ids) + 1):
            expected = end[spent - 3] if thinks and spent >= 3 else -1
            half = count // 2
            found = _forced(budget, padded(ids[:half]), jnp.asarray([half]), padded(ids[half:count]))
            assert found.item() == expected, (ids, count)
            if count == len(ids) or expected not in (-1, ids[count]):
                break
            spent += thinks
            thinks = (thinks or (count == 0 and ids[:1] == begin)) and ids[: count + 1][-len(end) :] != end


# The model wants to write something else than the grammar allows, and a text that no grammar holds.
WRITES = ["<think>so it is</think>```json", "<think>on and on and on and on", '{"b":1}', "<think>a</think>[</think>]x"]
PROMPT = "<|user|>{}<|end|><|assistant|>"
DRAFTERS = {
    "plain": lambda target: None,
    "n-gram": lambda target: jaxspec.NGramDrafter(k=4, min_ngram=1),
    "model": lambda target: jaxspec.ModelDrafter(target, k=6),
}


@functools.cache
def written(drafter, host, name, budget):
    """The text, without marks, and what the model wrote before the answer."""
    tokenizer = TOKENIZERS["one token"]
    target = scripted.model(tokenizer, WRITES)
    decoder = jaxspec.SpeculativeDecoder(target, DRAFTERS[drafter](target), tokenizer=tokenizer)
    marks = [tokenizer.encode(mark, add_special_tokens=False)[0] for mark in scripted.MARKS[:2]]
    limit = ThinkingBudget.of(tokenizer, VOCAB, budget, start="<think>")
    result = decoder.generate(
        PROMPT.format(name),
        grammar=Grammar.after_thinking(HOST if host else REGULAR, start="<think>"),
        processors=[limit],
        temperature=0,
        max_new_tokens=90,
        shown_tokens=marks,
    )
    return result.text, result.token_ids, result.stop_reason


@pytest.mark.slow
@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("drafter", list(DRAFTERS)[1:])
@pytest.mark.parametrize("name", "abcd")
def test_texts_keep_to_the_grammar_and_to_the_budget_under_drafts(drafter, host, name):
    """The drafts of the model itself reach over the end of the thinking, and over that of the answer."""
    for budget in (0, 4, 50):
        text, ids, reason = written(drafter, host, name, budget)
        assert (text, ids, reason) == written("plain", host, name, budget)
        thought, _, answer = text.partition("</think>") if name != "c" else ("", "", text)
        tokenizer = TOKENIZERS["one token"]
        assert answer in CHOICES and reason == "stop token", text
        if name != "c":
            thoughts = tokenizer.encode(thought.removeprefix("<think>"), add_special_tokens=False)
            assert thought.startswith("<think>") and len(thoughts) <= budget
        if name == "a" and budget == 50:
            assert thought == "<think>so it is"
        if name == "c":
            assert json.loads(answer)["a"] in (1, 22)
