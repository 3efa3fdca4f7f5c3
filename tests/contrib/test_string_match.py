"""`StringMatch`: drafts by way of strings; the output is the target's own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib.string_match import _Writer
from tests._fixtures import text_models, tiny

BYTES, PIECES = text_models.byte_level(), text_models.sentencepiece()
TEXT = "a b.  grüße 中😀\n\nab ab"


def matched(own, other, text, k=4):
    """A target and a draft that both recite a text, each in its own tokens."""
    target, draft = (text_models.recite_ids(tokenizer.encode(text)) for tokenizer in (own, other))
    return jaxspec.contrib.StringMatch(target, draft, k=k, tokenizer=own, draft_tokenizer=other)


@pytest.mark.slow
@pytest.mark.parametrize(("own", "other"), [(BYTES, PIECES), (PIECES, BYTES)], ids=["pieces draft", "bytes draft"])
def test_a_draft_that_knows_the_text_is_accepted(own, other):
    """Characters of several tokens, runs of spaces and newlines come through both tokenizers."""
    ids = own.encode(TEXT)
    found = matched(own, other, TEXT).generate(jnp.asarray([ids[:2]]), max_new_tokens=len(ids) - 2)
    assert found.tokens[0].tolist() == ids[2:]
    # Where a draft ends within one of the target's tokens, its last token differs from the text's.
    assert found.stats.acceptance_rate > 0.6
    assert found.stats.mean_acceptance_length > 2


def with_tokenizer(model, tokenizer):
    return dataclasses.replace(model, tokenizer=tokenizer)


TARGET = with_tokenizer(tiny.transformer(1, vocab=BYTES.vocab_size), BYTES)
DRAFT = with_tokenizer(tiny.transformer(2, vocab=PIECES.vocab_size), PIECES)
PROMPT = np.zeros((3, 6), np.int32)
for row, text in enumerate(("the sea", "a", "ü 中")):
    PROMPT[row, : len(BYTES.encode(text)[:6])] = BYTES.encode(text)[:6]
LENGTHS = np.array([min(len(BYTES.encode(text)), 6) for text in ("the sea", "a", "ü 中")], np.int32)


SAMPLED = pytest.param(jaxspec.Sampling(0.8), marks=pytest.mark.slow, id="coupled")


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [pytest.param(jaxspec.Greedy(), id="greedy"), SAMPLED])
def test_the_output_is_that_of_plain_decoding(sampling):
    """Random models emit broken characters and special tokens, and their rows end at different times."""
    options = {"prompt_length": LENGTHS, "max_new_tokens": np.array([16, 9, 0]), "sampling": sampling}
    options |= {"key": jax.random.key(1), "stop_tokens": BYTES.eos_token_ids}
    plain = jaxspec.generate(TARGET, None, jnp.asarray(PROMPT), **options)
    verifier = None if sampling.greedy else jaxspec.CoupledVerifier()
    found = jaxspec.contrib.StringMatch(TARGET, DRAFT, k=3).generate(jnp.asarray(PROMPT), verifier=verifier, **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_array_equal(found.length, plain.length)
    np.testing.assert_array_equal(found.stop_reason, plain.stop_reason)
    assert found.lossless and found.stats.drafted.sum() > 0


def test_the_cache_is_rolled_back_to_what_is_still_so():
    """A text whose encoding changes as it grows: its drafts are those of a new draft model."""
    pair = jaxspec.contrib.StringMatch(TARGET, DRAFT, k=3)
    ids = BYTES.encode("the sea — 中 ab")

    def started():
        writer = _Writer(pair)
        writer._make_room([ids[:1]], 60)
        return writer

    writer, done = started(), np.zeros(1, np.bool_)
    for count in (1, 2, 5, 6, 7, 8, len(ids), 3):
        assert writer._draft([ids[:count]], done) == started()._draft([ids[:count]], done)


def test_the_space_in_front_of_a_text_is_none_of_it():
    pair = matched(PIECES, BYTES, TEXT)
    for text in ("a b", "  a", ""):
        ids = PIECES.encode(text)
        assert pair.in_draft_tokens(ids) == (BYTES.encode(PIECES.decode(ids)), b"")


def test_what_the_draft_writes_after_a_cut_character():
    """The draft reads whole characters, and writes the last one again from its beginning."""
    pair = matched(BYTES, PIECES, TEXT)
    ids = BYTES.encode("a😀")
    read, missing = pair.in_draft_tokens(ids[:-1])
    assert (read, missing) == (PIECES.encode("a"), "😀".encode()[:3])
    again = PIECES.encode("😀 b")[1:]
    assert pair.in_target_tokens(again, missing) == [ids[-1], *BYTES.encode(" b")]
    assert pair.in_target_tokens(PIECES.encode("é")[1:], missing) == []


def test_a_draft_ends_before_a_special_token():
    pair = matched(BYTES, PIECES, TEXT)
    word = PIECES.encode("b")[-1]
    assert pair.in_target_tokens([word, PIECES.eos_token_ids[0], word], b"") == BYTES.encode("b")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: jaxspec.contrib.StringMatch(TARGET, 3), TypeError, "needs a Model, got int"),
        (lambda: jaxspec.contrib.StringMatch(TARGET, DRAFT, k=0), ValueError, "k is 0"),
        (lambda: jaxspec.contrib.StringMatch(TARGET, tiny.transformer(2)), ValueError, "pass draft_tokenizer="),
    ],
    ids=["no model", "no drafts", "no tokenizer"],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()
