"""A tokenizer of bytes, with which `llguidance` follows single characters."""

import llguidance

from jaxspec.grammar import Grammar


class _Bytes:
    """A tokenizer whose tokens are bytes."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = tuple(bytes([byte]) for byte in range(256)) + (b"",)

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


BYTES = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)


def follower(grammar):
    """Returns what follows a grammar on the host, byte by byte."""
    found = llguidance.LLMatcher(BYTES, grammar.matcher_source(), log_level=0)
    assert not found.is_error(), found.get_error()
    return found


def takes(start, text):
    """Returns whether a follower takes a text as a whole."""
    matcher, ids = start.deep_copy(), list(text.encode())
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


def accepts(schema, text):
    """Returns whether the host accepts a text under a schema."""
    return takes(follower(Grammar.json_schema(schema)), text)
