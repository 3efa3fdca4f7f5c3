"""Banned texts: no token completes one, however tokens cut it, against a search of the bytes."""

import functools
import random

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.processing import Prompt
from jaxspec.grammar.banned import BannedTexts
from jaxspec.testing.contracts.processor import ProcessorContract
from jaxspec.text import request
from tests._fixtures import text_models

TOKENIZERS = {"byte_level": text_models.byte_level(), "sentencepiece": text_models.sentencepiece()}


def completes(banned, before, token):
    """Returns whether a banned text ends within the bytes of a token."""
    whole = before + token
    return any(whole.endswith(one, 0, end) for one in banned for end in range(len(before) + 1, len(whole) + 1))


class TestBannedTexts(ProcessorContract):
    tokens, banned = (b"a", b"ab", b"ba", b""), (b"aab", b"abb", b"aaa")
    processor = BannedTexts.of(banned, tokens)

    def expected(self, logits, prompt, new):
        before = b"".join(self.tokens[token] for token in (*prompt, *new))
        masked = [completes(self.banned, before, token) for token in self.tokens]
        return np.where(masked, -np.inf, logits)


def test_tokens_are_those_that_complete_a_text():
    """Over random vocabularies and texts, where banned texts overlap and contain each other."""
    rng = random.Random(0)
    word = lambda most: bytes(rng.choices(b"abc", k=rng.randint(1, most)))  # noqa: E731
    for banned in ([b"abca", b"b"], [b"aa"], *([word(4) for _ in range(3)] for _ in range(3))):
        tokens = [b"", *(word(4) for _ in range(11))]
        rows = [rng.choices(range(12), k=rng.randint(1, 8)) for _ in range(8)]
        padded = np.array([row + [0] * (8 - len(row)) for row in rows])
        lengths = jnp.array([len(row) for row in rows])
        processor = BannedTexts.of(banned, tokens)
        state = processor.init(Prompt(jnp.asarray(padded), lengths, jnp.zeros((8, 0), jnp.int32), 12))
        path = jnp.zeros((8, 1, 0), jnp.int32)
        logits = processor(jnp.zeros((8, 1, 12)), state, path)[:, 0]
        befores = [b"".join(tokens[token] for token in row) for row in rows]
        assert np.isinf(logits).tolist() == [[completes(banned, one, token) for token in tokens] for one in befores]
        each = jnp.tile(jnp.arange(12, dtype=jnp.int32), (8, 1))
        allowed = processor.allows(state, jnp.zeros((8, 12, 0), jnp.int32), each)
        assert allowed.tolist() == (~np.isinf(logits)).tolist()


@functools.cache
def _excluded(kind, words, before):
    tokenizer = TOKENIZERS[kind]
    processor = request._banned(words, tokenizer, 310)
    ids = tokenizer.encode(before)
    padded = jnp.array([ids + [0] * (16 - len(ids))])
    state = processor.init(Prompt(padded, jnp.array([len(ids)]), jnp.zeros((1, 0), jnp.int32), 310))
    found = processor(jnp.zeros((1, 1, 310)), state, jnp.zeros((1, 1, 0), jnp.int32))
    return {tokenizer._backend.id_to_token(int(index)) for index in np.flatnonzero(np.isinf(found))}


def test_words_of_sentencepiece_vocabularies():
    assert _excluded("sentencepiece", ("a",), "b") == {"a", "▁a", "ab", "<0x61>"}
    assert _excluded("sentencepiece", ("ab",), "b") == {"ab"}
    assert _excluded("sentencepiece", ("ab",), "a") == {"ab", "b", "<0x62>"}
    assert _excluded("sentencepiece", (" a",), "b") == {"▁a"}
    assert _excluded("sentencepiece", (" a",), "b ") == {"a", "▁a", "ab", "<0x61>"}
    assert _excluded("sentencepiece", ("é", "</s>"), "b") == {"é", "</s>"}


def test_words_of_byte_level_vocabularies():
    assert "Ġsea" in _excluded("byte_level", ("sea",), "the") and "sea" not in _excluded("byte_level", ("sea",), "the")
    assert "a" in _excluded("byte_level", ("sea",), "these") and "a" not in _excluded("byte_level", ("sea",), "the")
    assert "Ń" not in _excluded("byte_level", ("中",), "x")  # the last of its three bytes
    assert _excluded("byte_level", ("中文",), "中") - _excluded("byte_level", ("中文",), "x") >= {"æĸĩ"}
    assert text_models.END in _excluded("byte_level", (text_models.END,), "x")  # named as a whole
    assert text_models.END not in _excluded("byte_level", ("e",), "x")


def test_words_are_the_same_with_accents_composed_or_apart():
    """A tokenizer that composes accents writes "é" for "é", which a keyboard may give."""
    assert _excluded("sentencepiece", ("e\u0301",), "b") == _excluded("sentencepiece", ("é",), "b") == {"é"}


def test_tables_that_are_too_large_are_named():
    with pytest.raises(ValueError, match=r"1 banned texts take tables of more than 1,000 bytes; pass fewer or shorter"):
        BannedTexts.of([b"a"], [b"a", b"b"], max_bytes=1000)
    with pytest.raises(ValueError, match=r"2 banned texts take tables of more than 20,000 bytes"):
        BannedTexts.of([b"ab" * 300, b"c"], [b"a", b"b", b"aba", b"bab", b"c"] * 3, max_bytes=20_000)
    with pytest.raises(ValueError, match="the banned texts are over 2 tokens, the target's logits over 3"):
        BannedTexts.of([b"a"], [b"a", b"b"]).check(1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_text_has_a_banned_word(kind):
    """Sampled from a flat distribution, where every spelling of a word is likely."""
    tokenizer = TOKENIZERS[kind]
    target = jaxspec.from_function(lambda params, tokens: jnp.zeros((*tokens.shape, 310)), (), vocab_size=310)
    decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2, tokenizer=tokenizer)
    options = {"max_new_tokens": 64, "temperature": 1, "top_p": None, "stop_tokens": (), "answers": 16, "seed": 1}
    allowed = [index for index in range(310) if tokenizer.token_bytes(index) and tokenizer.token_bytes(index) < b"c"]
    options["allowed_tokens"] = [index for index in allowed if tokenizer.token_bytes(index).strip(b" ab") == b""]
    free = decoder.generate("a b", **options)
    assert any("ab" in result.text for result in free)
    banned = decoder.generate("a b", **options, bad_words=["ab", "bb", " a"])
    assert not any(word in f"b{result.text}" for result in banned for word in ("ab", "bb", " a"))
    assert all(len(result.token_ids) == 64 for result in banned)
