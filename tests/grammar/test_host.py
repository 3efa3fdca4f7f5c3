"""Grammars that the host follows between passes: texts match them, and equal those of plain decoding."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoints.spelling import Speller
from jaxspec.core import processing
from jaxspec.grammar import Grammar
from jaxspec.grammar.automaton import over_bytes
from jaxspec.grammar.host import HostMasks, RowMatchers
from jaxspec.text import request
from tests._fixtures import examples, text_models

TARGET, DRAFT = text_models.history_models()
TOKENIZER, VOCAB = TARGET.tokenizer, TARGET.vocab_size
STOP = TOKENIZER.eos_token_ids[0]
NESTED = 'start: "(" start ")" | "sea"'
TREE = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 40}, "in": {"$ref": "#"}},
    "required": ["n"],
    "additionalProperties": False,
}
DRAFTS_OF_TREES = functools.partial(jaxspec.TreeDrafter, topology=jaxspec.Tree.of_size(6))
DRAFTS = {
    "plain": None,
    "n-gram": jaxspec.NGramDrafter(k=4, min_ngram=1),
    "model": jaxspec.ModelDrafter(DRAFT, k=3),
    "tree": DRAFTS_OF_TREES(DRAFT),
    "dynamic tree": jaxspec.drafters.DynamicTreeDrafter(DRAFT, top_k=2, depth=3, nodes=6),
}


def bits(words):
    return set(np.flatnonzero(np.unpackbits(np.asarray(words).view(np.uint8), bitorder="little")[:VOCAB]).tolist())


class State:
    """The fields of a generation state that masks read."""


def masks_of(matchers, masks, tokens, valid, parents):
    prompt = processing.Prompt(*(jnp.ones(shape, jnp.int32) for shape in ((1, 1), (1,), (1, 1))), VOCAB)
    policy = jaxspec.Greedy((masks,))
    state = jaxspec.init(TARGET, None, jnp.asarray([[5]]), sampling=policy, max_new_tokens=1)
    told = matchers.after_drafts(masks, state, 0, tokens, valid, parents)
    assert jnp.shape(masks.init(prompt).allowed) == told.context.processed[0].allowed.shape
    return told.context.processed[0]


def test_what_follows_each_node_is_what_the_table_allows():
    """A tree of two choices, one token that is not allowed among them; the matcher stands where it stood."""
    grammar = Grammar.choices(["the sea", "there", "a"])
    table = grammar.table(TOKENIZER, VOCAB)
    first = [TOKENIZER.encode(text, add_special_tokens=False) for text in ("the", "a")]
    tokens = np.array([[first[0][0], first[1][0], *TOKENIZER.encode(" ", add_special_tokens=False), 9]], np.int32)
    parents, valid = np.array([[-1, -1, 0, 1]]), np.array([[True, True, True, True]])
    masks = HostMasks(4, 2)
    matchers = RowMatchers([grammar], TOKENIZER, VOCAB, (STOP,))
    known = masks_of(matchers, masks, tokens, valid, parents)
    again = masks_of(matchers, masks, tokens, valid, parents)
    np.testing.assert_array_equal(known.allowed, again.allowed)
    paths = processing.paths(jnp.asarray(tokens), jnp.asarray(parents, jnp.int32), 2)
    prompt = processing.Prompt(jnp.ones((1, 1), jnp.int32), jnp.ones(1, jnp.int32), jnp.asarray([[STOP]]), VOCAB)
    by_table = np.isfinite(table(jnp.zeros((1, 5, VOCAB)), table.init(prompt), paths)[0])
    by_host = np.isfinite(masks(jnp.zeros((1, 5, VOCAB)), known, paths)[0])
    for node in range(4):
        assert by_host[node].any()
        np.testing.assert_array_equal(by_host[node], by_table[node], err_msg=str(node))
    # Nodes after a rejected draft are not masked.
    assert by_host[4].all()
    # A position that the host was not asked about is left as it is.
    other = masks(jnp.zeros((1, 1, VOCAB)), known, jnp.asarray([[[8, 8]]], jnp.int32))
    assert np.isfinite(other).all()


QUICK = (("n-gram", 1.0),)
CASES = [(name, temperature) for name in DRAFTS for temperature in (0, 1.0) if name != "plain"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "temperature"), [pytest.param(*case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in CASES]
)
def test_texts_are_of_the_grammar_and_those_of_plain_decoding(name, temperature):
    decoder = lambda draft: jaxspec.SpeculativeDecoder(TARGET, draft, verifier=jaxspec.CoupledVerifier())
    prompts, options = ["the sea", "a"], {"temperature": temperature, "seed": 3, "max_new_tokens": 40}
    for asked in ({"schema": TREE}, {"grammar": NESTED}):
        plain = decoder(None).generate(prompts, **options, **asked)
        found = decoder(DRAFTS[name]).generate(prompts, **options, **asked)
        assert [one.token_ids for one in found] == [one.token_ids for one in plain]
        for one in found:
            if one.stop_reason != "stop token":
                continue
            if "schema" in asked:
                jsonschema.validate(json.loads(one.text), TREE)
            else:
                assert re.fullmatch(r"(\(*)sea(\)*)", one.text) and one.text.count("(") == one.text.count(")")
        assert sum(one.stats.drafted.sum() for one in found) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"grammar": 'start: "abc" | "xyz"'},
        pytest.param({"schema": TREE}, marks=pytest.mark.slow),
        pytest.param({"grammar": 'start: "cafe\u0301"'}, marks=pytest.mark.slow),
    ],
    ids=["rules", "schema", "a letter in two parts"],
)
def test_tokenizers_that_do_not_encode_a_text_as_it_is(options):
    """One that puts a space before it; what must follow is spelled by tokens that read as it does."""
    tokenizer = text_models.sentencepiece()
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("abc", add_special_tokens=False))) != b"abc"
    decoder = jaxspec.SpeculativeDecoder(TARGET, DRAFTS["n-gram"], tokenizer=tokenizer)
    for seed in range(3):
        result = decoder.generate("the sea", seed=seed, temperature=1.0, max_new_tokens=40, **options)
        assert result.error is None and result.token_ids
        if "schema" in options:
            assert result.text.startswith('{"n":')
        elif result.stop_reason == "stop token":
            assert result.text in ("abc", "xyz", "cafe\u0301")
    speller = Speller(tokenizer, VOCAB)
    for text in ("abc", "the sea", " a", "e\u0301"):
        assert b"".join(map(tokenizer.token_bytes, speller.spell(text.encode()))) == text.encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["model", "n-gram", *(pytest.param(one, marks=pytest.mark.slow) for one in ("tree", "dynamic tree"))]
)
@pytest.mark.parametrize("temperature", [pytest.param(0, marks=pytest.mark.slow), 1.0])
@pytest.mark.filterwarnings("error:Some donated buffers were not usable")
def test_drafts_are_drawn_from_what_the_host_allows(name, temperature):
    """As by a table of the same language: the same tokens in the same rounds, of which as many were drafted."""
    decoder = jaxspec.SpeculativeDecoder(TARGET, DRAFTS[name])
    options = {"temperature": temperature, "seed": 5, "max_new_tokens": 30}
    prompts = ["the sea", "a"]
    by_table = decoder.generate(prompts, regex="(the |sea |[aeo]){2,9}", **options)
    by_host = decoder.generate(prompts, grammar="start: /(the |sea |[aeo]){2,9}/", **options)
    for one, other in zip(by_host, by_table, strict=True):
        assert one.token_ids == other.token_ids
        for count in ("rounds", "drafted", "accepted"):
            np.testing.assert_array_equal(getattr(one.stats, count), getattr(other.stats, count), err_msg=count)
    assert sum(one.stats.accepted.sum() for one in by_host) > 0


@pytest.mark.filterwarnings("ignore:a grammar cannot be followed")
def test_drafts_beyond_the_grammar_s_limits_end_no_row():
    """A rule that nothing but a wrong guess takes is too large to be followed; the text goes on as without it."""
    first = {letter: TOKENIZER.encode(letter, add_special_tokens=False)[0] for letter in "xb"}
    rules = 'start: "x" start | "a" start | "c" | "b" large\nlarge: ' + '"a"? ' * 3000
    options = {"grammar": rules, "temperature": 0, "max_new_tokens": 8, "logit_bias": {first["x"]: 50.0}}
    plain = jaxspec.SpeculativeDecoder(TARGET, None).generate("the sea", **options)
    decoder = jaxspec.SpeculativeDecoder(TARGET, jaxspec.NGramDrafter(k=4, min_ngram=1))
    found = decoder.generate("the xxba xxba x", prediction="xxbaa", **options)
    assert found.text == plain.text == "x" * 8 and found.error is None


@pytest.mark.parametrize("grammar", [Grammar.regex("b?a{1000000000}"), Grammar.lark('start: "b"? "a"{60000}')])
def test_a_forced_text_without_end_is_followed(grammar):
    """To look that far ahead uses up the library's limits, for all copies of a matcher."""
    matchers = RowMatchers([grammar, grammar], TOKENIZER, VOCAB, (STOP,))
    [letter] = TOKENIZER.encode("a", add_special_tokens=False)
    for _ in range(3):
        allowed, _ = matchers.after_paths(np.array([[[-1, -1], [letter, letter]]] * 2))
        assert all(bits(one) == {letter} for one in allowed[:, 1])
        matchers.commit(np.array([[letter]] * 2), np.array([1, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("stops", [pytest.param((STOP,), marks=pytest.mark.slow), (STOP, 5)])
def test_rounds_are_those_of_a_table_with_several_stop_tokens(stops):
    decoder = jaxspec.SpeculativeDecoder(TARGET, DRAFTS["n-gram"], verifier=jaxspec.CoupledVerifier())
    options = {"temperature": 1.0, "seed": 4, "max_new_tokens": 20, "stop_tokens": stops}
    by_table = decoder.generate(["the sea", "a"], regex="(ab|cd){2}", **options)
    by_host = decoder.generate(["the sea", "a"], grammar="start: /(ab|cd){2}/", **options)
    for one, other in zip(by_host, by_table, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_array_equal(one.stats.drafted, other.stats.drafted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "tree"])
@pytest.mark.filterwarnings("ignore:the key-value heads")
def test_the_host_is_asked_from_a_mesh(name):
    """By one of its devices, for all: the texts of one device, in the same rounds."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    make = {"model": lambda draft: jaxspec.ModelDrafter(draft, k=3), "tree": DRAFTS_OF_TREES}[name]
    options = {"grammar": NESTED, "temperature": 1.0, "seed": 5, "max_new_tokens": 20}
    models = examples.models()
    found = [
        jaxspec.SpeculativeDecoder(target, make(draft)).generate(["the sea", "a"], **options)
        for target, draft in (models, tuple(jaxspec.shard(model, mesh) for model in models))
    ]
    for one, other in zip(*found, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_array_equal(one.stats.accepted, other.stats.accepted)


@pytest.mark.slow
def test_a_stream_shows_the_same_text():
    decoder = jaxspec.SpeculativeDecoder(TARGET, DRAFTS["n-gram"])
    options = {"temperature": 0, "max_new_tokens": 30, "grammar": NESTED}
    assert "".join(decoder.stream("the sea", **options)) == decoder.generate("the sea", **options).text


def test_small_grammars_are_tables_and_others_are_followed():
    def made(**given):
        options = jaxspec.TextOptions(**given)
        grammars = request.grammars_of(options, 2)
        return request.make_processors(options, grammars, jaxspec.NGramDrafter(k=2), TOKENIZER, VOCAB, (STOP,))

    assert [type(one).__name__ for one in made(choices=["a", "b"])] == ["GrammarTable"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("jaxspec.grammar.grammar.over_bytes", functools.partial(over_bytes, states=5))
        assert [type(one).__name__ for one in made(regex="[abc]{9}")] == ["HostMasks"]
    assert [type(one).__name__ for one in made(schema=TREE)] == ["HostMasks"]
    assert made(choices=["a", "b"])[0] is made(choices=["a", "b"])[0]
    every = made(
        grammar=NESTED,
        repetition_penalty=1.1,
        logit_bias={3: 1.0},
        min_new_tokens=2,
        allowed_tokens=[5],
        bad_words="sea",
    )
    order = ["LogitBias", "Penalties", "BannedTexts", "MinNewTokens", "AllowedTokens", "HostMasks"]
    assert [type(one).__name__ for one in every] == order


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"schema": TREE, "regex": "a"}, ValueError, "keeps to one grammar, got schema and regex; pass one of them"),
        ({"regex": "a", "stop_tokens": ()}, ValueError, "a grammar ends a text by a stop token, got stop_tokens=()"),
        ({"grammar": "start: ((("}, ValueError, "this lark grammar is not supported"),
        ({"grammar": "start: <|end|>"}, ValueError, "name no special token such as"),
        ({"grammar": "start: <[100]>"}, ValueError, "the grammar names the token <[100]>, which cannot be followed"),
        ({"grammar": "start: a\na: start"}, ValueError, "the rule a of the grammar never ends"),
        ({"grammar": 'start: ""'}, ValueError, "this lark grammar allows no answer that has a token"),
        ({"grammar": "start: other"}, ValueError, "at 1(8): unknown name"),
        ({"regex": "a[z-b]"}, ValueError, "the regular expression 'a[z-b]' has no automaton: it has unclosed"),
        (
            {"schema": {"type": "array", "contains": {"type": "null"}}},
            ValueError,
            "schema.contains cannot be followed by a grammar; write items or prefixItems",
        ),
        ({"bad_words": [""]}, TypeError, "bad_words must be strings, none of them empty"),
        ({"logit_bias": {9999: 1.0}}, ValueError, "logit_bias has id 9999"),
        ({"logit_bias": [5]}, TypeError, "logit_bias must map token ids to numbers, got [5]"),
        ({"allowed_tokens": []}, ValueError, "allowed_tokens is empty, so every answer would be empty"),
        ({"allowed_tokens": [True]}, TypeError, "allowed_tokens must be a list of token ids, got [True]"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty must be above 0"),
        ({"logit_bias": {5: float("nan")}}, ValueError, "logit_bias must be numbers or -inf"),
        ({"frequency_penalty": "much"}, TypeError, "frequency_penalty must be between -10000 and 10000"),
        ({"min_new_tokens": -1}, ValueError, "min_new_tokens must be an integer >= 0"),
        ({"processors": [7]}, TypeError, "must be instances of jaxspec.core.Processor, got 7"),
    ],
)
def test_what_does_not_fit_is_said(options, error, text):
    decoder = jaxspec.SpeculativeDecoder(TARGET, "ngram", k=2)
    with pytest.raises(error, match=re.escape(text)):
        decoder.generate("the sea", max_new_tokens=4, temperature=0, **options)
