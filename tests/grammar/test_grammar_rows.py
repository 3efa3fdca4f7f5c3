"""Each row of a batch follows its own grammar, or none."""

import json
import re

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest

import jaxspec
from jaxspec.core import processing
from jaxspec.grammar import Grammar, GrammarTable
from tests._fixtures import text_models

TARGET, DRAFT = text_models.history_models()
TOKENIZER, VOCAB = TARGET.tokenizer, TARGET.vocab_size
STOP = TOKENIZER.eos_token_ids[0]
PROMPT = jnp.asarray([[5, 6, 7], [9, 8, 4], [3, 3, 2], [6, 1, 1]], jnp.int32)
LISTED, SPELLED, CHOSEN = Grammar.choices(["the sea", "the", "a river"]), Grammar.regex("[abc]+"), Grammar.regex("a?b")
NESTED = Grammar.lark('start: "(" start ")" | "sea"')
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
KEY = jax.random.key(0)


def tables(*grammars):
    return [None if one is None else one.table(TOKENIZER, VOCAB) for one in grammars]


def left(table, rows, ids):
    """Which tokens may follow some, in each row."""
    prompt = processing.Prompt(PROMPT[:rows], jnp.full(rows, 3, jnp.int32), jnp.full((rows, 1), STOP, jnp.int32), VOCAB)
    path = jnp.broadcast_to(jnp.asarray(ids, jnp.int32), (rows, 1, len(ids)))
    return np.isfinite(_masked(table, prompt, path))[:, 0]


@jax.jit
def _masked(table, prompt, path):
    return table(jnp.zeros((*path.shape[:2], VOCAB)), table.init(prompt), path)


def test_a_joined_table_allows_in_each_row_what_its_own_does():
    own = tables(LISTED, None, SPELLED, CHOSEN)
    own[3] = own[0]
    joined = GrammarTable.of_rows(own)
    assert joined.start[0] == joined.start[3] and len(set(joined.start.tolist())) == 3
    assert joined.final.shape == own[0].final.shape  # all fit into the smallest
    rng = np.random.default_rng(0)
    for row, table in enumerate(own):
        for _ in range(4):
            ids = []
            for _ in range(5):
                found = left(joined, 4, [*ids, *[-1] * (5 - len(ids))])[row]
                if table is None:
                    assert found.all()
                else:
                    np.testing.assert_array_equal(found, left(table, 1, [*ids, *[-1] * (5 - len(ids))])[0])
                fitting = np.flatnonzero(found & (np.arange(VOCAB) != STOP))
                if not fitting.size:
                    break
                ids.append(int(rng.choice(fitting)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [jaxspec.NGramDrafter(k=3, min_ngram=1), pytest.param(None, marks=pytest.mark.slow)],
    ids=["n-gram", "plain"],
)
def test_rows_write_what_each_writes_alone(drafter):
    own = tables(LISTED, None, SPELLED, CHOSEN)
    run = lambda prompt, key, table: jaxspec.generate(
        TARGET,
        drafter,
        prompt,
        key=key,
        sampling=jaxspec.Sampling(1.0, processors=() if table is None else (table,)),
        verifier=jaxspec.CoupledVerifier(),
        stop_tokens=[STOP],
        max_new_tokens=10,
    )
    keys = jaxspec.core.row_keys(KEY, 4)
    found = run(PROMPT, keys, GrammarTable.of_rows(own))
    for row, table in enumerate(own):
        alone = run(PROMPT[row : row + 1], keys[row : row + 1], table)
        np.testing.assert_array_equal(found.tokens[row], alone.tokens[0])


@pytest.mark.slow
def test_under_vmap_and_with_several_answers():
    """A mapped axis comes before the rows, answers after them."""
    policy = jaxspec.Greedy((GrammarTable.of_rows(tables(LISTED, SPELLED)),))
    options = {"sampling": policy, "stop_tokens": [STOP], "max_new_tokens": 6}
    write = lambda prompt: jaxspec.generate(TARGET, None, prompt, **options).tokens
    prompts = PROMPT.reshape(2, 2, 3)
    mapped = jax.vmap(write)(prompts)
    for index in range(2):
        np.testing.assert_array_equal(mapped[index], write(prompts[index]))
    several = jaxspec.generate(TARGET, None, PROMPT[:2], answers=2, **options).tokens
    np.testing.assert_array_equal(several, np.repeat(write(PROMPT[:2]), 2, axis=0))


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match=r"tables must be GrammarTable or None, got Grammar; pass grammar.table"):
        GrammarTable.of_rows([LISTED])
    with pytest.raises(ValueError, match="tables must be of one grammar each, got a table of several rows"):
        GrammarTable.of_rows([GrammarTable.of_rows(tables(LISTED, SPELLED))])
    with pytest.raises(ValueError, match="of_rows needs at least one table, got none"):
        GrammarTable.of_rows([None])
    other = LISTED.table(TOKENIZER, VOCAB + 1)
    with pytest.raises(ValueError, match=r"tables must be over the same tokens, got tables over \[310, 311\]"):
        GrammarTable.of_rows([*tables(LISTED), other])
    policy = jaxspec.Greedy((GrammarTable.of_rows(tables(LISTED, SPELLED)),))
    with pytest.raises(ValueError, match="the grammar's table has 2 rows, the prompt has 4"):
        jaxspec.generate(TARGET, None, PROMPT, sampling=policy, max_new_tokens=2)


@pytest.mark.parametrize(
    "grammars",
    [
        pytest.param([LISTED, None, Grammar.json_schema(POINT)], marks=pytest.mark.slow),
        pytest.param([NESTED, None, LISTED], marks=pytest.mark.slow),
        pytest.param([NESTED.source, Grammar.json_schema(POINT), NESTED], marks=pytest.mark.slow),
    ],
    ids=["tables", "the host", "two of the host"],
)
def test_texts_of_a_grammar_each(grammars):
    """In the text interface; of two answers each. Rows are those of a decoder without drafts."""
    options = {"grammar": grammars, "temperature": 1.0, "seed": 4, "max_new_tokens": 30, "answers": 2}
    coupled = {"verifier": jaxspec.CoupledVerifier()}
    drafter = jaxspec.NGramDrafter(k=3, min_ngram=1)
    found = jaxspec.SpeculativeDecoder(TARGET, drafter, **coupled).generate(["a", "the", "b"], **options)
    plain = jaxspec.SpeculativeDecoder(TARGET, None, **coupled).generate(["a", "the", "b"], **options)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    for result, grammar in zip(found, [one for one in grammars for _ in range(2)], strict=True):
        if result.stop_reason != "stop token" or grammar is None:
            continue
        if grammar == Grammar.json_schema(POINT):
            jsonschema.validate(json.loads(result.text), POINT)
        elif grammar == LISTED:
            assert result.text in ("the sea", "the", "a river")
        else:
            assert re.fullmatch(r"\(*sea\)*", result.text)


@pytest.mark.parametrize(
    ("grammar", "error", "text"),
    [
        ([None, LISTED], ValueError, "grammar must be one for all prompts or one for each of 3, got 2"),
        ([None, LISTED, 7], TypeError, "a grammar must be a string, got int; pass Lark rules"),
        (7, TypeError, "a grammar must be a string, got int; pass Lark rules"),
    ],
)
def test_other_numbers_of_grammars(grammar, error, text):
    decoder = jaxspec.SpeculativeDecoder(TARGET, "ngram", k=2)
    with pytest.raises(error, match=re.escape(text)):
        decoder.generate(["a", "b", "c"], max_new_tokens=2, temperature=0, grammar=grammar)
