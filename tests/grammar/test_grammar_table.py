"""A grammar's table allows the tokens by which a text stays the beginning of one of the grammar, and no others."""

import json
import re

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest

import jaxspec
from jaxspec.core import processing
from jaxspec.grammar import Grammar, TableTooLargeError
from tests._fixtures import text_models, tiny

TARGET, DRAFT = text_models.history_models()
TOKENIZER, VOCAB = TARGET.tokenizer, TARGET.vocab_size
STOP = TOKENIZER.eos_token_ids[0]
CHOICES = ("the", "the sea", "the river", "there", "a", "ab")
TEXTS = [b"" if TOKENIZER.is_special(index) else TOKENIZER.token_bytes(index) for index in range(TOKENIZER.vocab_size)]
PROMPT = jnp.asarray([[5, 6, 7], [9, 8, 4]], jnp.int32)
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "kind": {"enum": ["low", "high"]}},
    "required": ["x", "kind"],
    "additionalProperties": False,
}


def state_of(table, rows=1):
    prompt = processing.Prompt(PROMPT[:rows], jnp.full(rows, 3, jnp.int32), jnp.full((rows, 1), STOP, jnp.int32), VOCAB)
    return table.init(prompt)


def allowed_after(table, ids):
    """The tokens that are left after some, drafted all together, and committed in two pieces."""
    half = len(ids) // 2
    padded = [ids + [-1] * (8 - len(ids)), *(piece + [7] * (8 - len(piece)) for piece in (ids[:half], ids[half:]))]
    drafted, committed = _left(table, *(jnp.asarray([each], jnp.int32) for each in padded), half, len(ids) - half)
    np.testing.assert_array_equal(drafted, committed)
    return set(np.flatnonzero(drafted).tolist())


@jax.jit
def _left(table, path, first, second, half, rest):
    zeros, state = jnp.zeros((1, 1, VOCAB)), state_of(table)
    drafted = table(zeros, state, path[:, None])[0, 0]
    for piece, count in ((first, half), (second, rest)):
        state = table.commit(state, piece, jnp.reshape(count, 1))
    return jnp.isfinite(drafted), jnp.isfinite(table(zeros, state, jnp.full((1, 1, 0), -1, jnp.int32))[0, 0])


def spelled(fitting):
    """Of tokens that are beginnings of one the longest alone: only one text can follow."""
    longest = max(fitting, key=lambda token: len(TEXTS[token]), default=0)
    return {longest} if fitting and all(TEXTS[longest].startswith(TEXTS[token]) for token in fitting) else fitting


def test_choices_against_their_beginnings():
    table = Grammar.choices(CHOICES).table(TOKENIZER, VOCAB)
    choices = [choice.encode() for choice in CHOICES]
    rng, seen = np.random.default_rng(0), 0
    for _ in range(30):
        ids, text = [], b""
        while True:
            fitting = {
                token for token, own in enumerate(TEXTS) if own and any(one.startswith(text + own) for one in choices)
            }
            left = spelled(fitting) if text not in choices else fitting
            assert allowed_after(table, ids) == left | ({STOP} if text in choices else set()), text
            seen += 1
            if not fitting or len(ids) == 8 or (text in choices and rng.random() < 0.5):
                break
            ids.append(int(rng.choice(sorted(left))))
            text += TEXTS[ids[-1]]
    assert seen > 60


@pytest.mark.slow
def test_what_must_come():
    """The longest token where all others are beginnings of it, none where there is a choice, then a stop token."""
    table = Grammar.choices(["the sea"]).table(TOKENIZER, VOCAB)
    state, ids, text = state_of(table), [], ""
    for _ in range(12):
        path = jnp.asarray([[ids + [-1] * (12 - len(ids))]], jnp.int32)
        token = int(table.next_forced(state, path)[0, 0])
        fitting = [own for own in TEXTS if own and b"the sea".startswith(text.encode() + own)]
        if not fitting:
            assert token == STOP and text == "the sea"
            break
        assert TEXTS[token] == max(fitting, key=len)
        assert bool(table.allows(state, path, jnp.asarray([[token]], jnp.int32))[0, 0])
        assert not bool(table.allows(state, path, jnp.asarray([[STOP]], jnp.int32))[0, 0])
        ids, text = [*ids, token], text + TEXTS[token].decode()
    free = Grammar.regex("[a-z]+").table(TOKENIZER, VOCAB)
    assert int(free.next_forced(state_of(free), jnp.full((1, 1, 0), -1, jnp.int32))[0, 0]) == -1


DRAFTERS = {
    "n-gram": jaxspec.NGramDrafter(k=4, min_ngram=1),
    "model": jaxspec.ModelDrafter(DRAFT, k=3),
    "hybrid": jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=3, min_ngram=1), jaxspec.ModelDrafter(DRAFT, k=3)),
    "dynamic tree": jaxspec.drafters.DynamicTreeDrafter(DRAFT, top_k=2, depth=3, nodes=6),
}
QUICK = (("n-gram", 1.0),)
CASES = [(name, temperature) for name in DRAFTERS for temperature in (0, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "temperature"), [pytest.param(*case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in CASES]
)
def test_texts_are_of_the_grammar_and_those_of_plain_decoding(name, temperature):
    table = Grammar.json_schema(POINT).table(TOKENIZER, VOCAB)
    policy = jaxspec.Sampling(temperature, processors=(table,)) if temperature else jaxspec.Greedy((table,))
    options = {"key": jax.random.key(1), "sampling": policy, "stop_tokens": [STOP], "max_new_tokens": 60}
    run = lambda drafter: jaxspec.generate(TARGET, drafter, PROMPT, verifier=jaxspec.CoupledVerifier(), **options)
    plain, found = run(None), run(DRAFTERS[name])
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    for row in range(2):
        text = TOKENIZER.decode(found.tokens[row, : found.length[row]].tolist())
        if found.stop_reason[row] == jaxspec.StopReason.STOP_TOKEN:
            jsonschema.validate(json.loads(text), POINT)
        else:
            assert re.match(r'\{"x":-?\d', text)
    assert found.stats.accepted.sum() > 0


@pytest.mark.slow
def test_what_must_come_is_drafted_for_nothing():
    """Copies are found nowhere in the prompt; the grammar's own text is drafted all the same."""
    table = Grammar.json_schema(POINT).table(TOKENIZER, VOCAB)
    options = {"sampling": jaxspec.Greedy((table,)), "stop_tokens": [STOP], "max_new_tokens": 40}
    result = jaxspec.generate(TARGET, jaxspec.NGramDrafter(k=4, min_ngram=3), PROMPT, **options)
    assert result.stats.mean_acceptance_length > 1.2


@pytest.mark.slow
@pytest.mark.parametrize("by", ["table", pytest.param("host", marks=pytest.mark.slow)])
def test_texts_that_no_token_spells_as_far_may_follow_too(by):
    """The longest token begins with the others, and yet another text exists: "th", and then "q"."""
    asked = {"regex": "a(the|thq)"} if by == "table" else {"grammar": "start: /a(the|thq)/"}
    decoder = jaxspec.SpeculativeDecoder(TARGET, jaxspec.NGramDrafter(k=2))
    found = {decoder.generate("a", temperature=1.0, seed=seed, max_new_tokens=9, **asked).text for seed in range(30)}
    assert found == {"athe", "athq"}


@pytest.mark.slow
@pytest.mark.parametrize("by", ["host", pytest.param("table", marks=pytest.mark.slow)])
def test_what_must_come_is_spelled_in_one_way_unless_that_is_excluded(by):
    """Then every draft of it is accepted, more of them than pay otherwise; else in letters, here."""
    text = "the sea the sea the sea"
    asked = {"choices": [text]} if by == "table" else {"grammar": f'start: "{text}"'}
    dear = jaxspec.Adaptive((1.0, 2.2, 3.1, 5.0), prior=0.1)  # where drafts are right one time in ten they do not pay
    decoder = jaxspec.SpeculativeDecoder(TARGET, jaxspec.NGramDrafter(k=dear, min_ngram=3))
    result = decoder.generate("a", temperature=1.0, seed=2, max_new_tokens=40, **asked)
    assert result.text == text and len(result.token_ids) < len(text) / 2
    assert result.stats.drafted.sum() == result.stats.accepted.sum() > 4
    letters = [token for token, own in enumerate(TEXTS) if len(own) == 1]
    spelled = decoder.generate("a", temperature=1.0, seed=2, max_new_tokens=40, allowed_tokens=letters, **asked)
    assert spelled.text == text and len(spelled.token_ids) == len(text) + 1


@pytest.mark.slow
def test_inside_the_caller_s_jit():
    table = Grammar.choices(CHOICES).table(TOKENIZER, VOCAB)

    @jax.jit
    def write(table, key):
        policy = jaxspec.Sampling(1.0, processors=(table,))
        options = {"key": key, "sampling": policy, "stop_tokens": [STOP], "max_new_tokens": 12}
        return jaxspec.generate(TARGET, jaxspec.NGramDrafter(k=2), PROMPT, **options)

    result = write(table, jax.random.key(0))
    for row in range(2):
        assert TOKENIZER.decode(result.tokens[row, : result.length[row]].tolist()) in CHOICES


@pytest.mark.parametrize("pattern", ["[ab]*", "(the sea)?", "a|ab|"])
def test_expressions_that_match_nothing_too(pattern):
    """A text may end before its first token."""
    table = Grammar.regex(pattern).table(TOKENIZER, VOCAB)
    found, rng = allowed_after(table, []), np.random.default_rng(0)
    fitting = lambda text: re.fullmatch(pattern, text) is not None
    assert STOP in found and fitting("")
    ids = []
    while len(ids) < 6 and (left := sorted(found - {STOP})):
        ids.append(int(rng.choice(left)))
        found = allowed_after(table, ids)
        assert (STOP in found) == fitting(TOKENIZER.decode(ids))
    assert ids


def test_what_has_no_table_or_a_large_one_is_said():
    with pytest.raises(TableTooLargeError, match="this lark grammar is not known to be regular"):
        Grammar.lark('start: "a" start | "b"').table(TOKENIZER, VOCAB)
    with pytest.raises(
        TableTooLargeError, match=r"states times 310 tokens take 10,240 bytes, more than max_bytes=100; pass more"
    ):
        Grammar.regex("[a-z]{20}").table(TOKENIZER, VOCAB, max_bytes=100)
    with pytest.raises(ValueError, match="has no automaton"):
        Grammar.regex("(a").table(TOKENIZER, VOCAB)
    table = Grammar.choices(["a"]).table(TOKENIZER, VOCAB)
    with pytest.raises(ValueError, match="the grammar's table is over 310 tokens, the target's logits over 11"):
        jaxspec.generate(tiny.transformer(0), None, PROMPT, sampling=jaxspec.Greedy((table,)), max_new_tokens=2)


def test_what_must_come_leaves_an_end_open():
    """Of two choices of which one is the other's beginning, the shorter may end."""
    table = Grammar.choices(["a", "ab"]).table(TOKENIZER, VOCAB)
    after = jnp.asarray([[TOKENIZER.encode("a", add_special_tokens=False)]], jnp.int32)
    assert int(table.next_forced(state_of(table), after)[0, 0]) == -1


def test_a_stop_token_of_the_grammar_s_own_ends_no_text_within_it():
    """A caller may stop at a token that the grammar has in its midst: it may come at the end alone."""
    table = Grammar.choices(["the sea"]).table(TOKENIZER, VOCAB)
    space = TOKENIZER.encode(" ", add_special_tokens=False)
    options = {"sampling": jaxspec.Greedy((table,)), "max_new_tokens": 12}
    free = jaxspec.generate(TARGET, None, PROMPT, stop_tokens=[STOP, STOP], **options)
    own = free.tokens[0, 1:2].tolist()
    assert own != [STOP] and len(space) == 1
    result = jaxspec.generate(TARGET, None, PROMPT, stop_tokens=[STOP, own[0]], **options)
    for row in range(2):
        if result.stop_reason[row] == jaxspec.StopReason.STOP_TOKEN:
            assert TOKENIZER.decode(result.tokens[row, : result.length[row] - 1].tolist()) == "the sea"


def test_copies_that_the_grammar_excludes_are_left_out():
    """They would be refused: the pass need not hold them."""
    table = Grammar.regex("[a-c]+").table(TOKENIZER, VOCAB)
    ids = TOKENIZER.encode("abzab", add_special_tokens=False)
    prompt = jnp.asarray([ids], jnp.int32)
    drafter = jaxspec.NGramDrafter(k=3, min_ngram=1)
    options = {"sampling": jaxspec.Greedy((table,)), "stop_tokens": [STOP], "max_new_tokens": 4}
    state = jax.jit(lambda: jaxspec.init(TARGET, drafter, prompt, **options))()
    _, info = jax.jit(lambda state: jaxspec.step(TARGET, drafter, None, state))(state)
    # After "ab" the prompt goes on with "z", which is no draft here.
    assert info.drafted.tolist() == [0]
