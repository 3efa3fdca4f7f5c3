"""Finds what tokens spell: the bytes of each, those of named special tokens, and the token that must come."""

from collections.abc import Collection, Sequence

from jaxspec.checkpoints.tokenizer import Tokenizer

# In states with more allowed tokens, no forced token is looked for.
MOST_FORCED = 64


def token_texts(tokenizer: Tokenizer, vocab_size: int, named: Collection[int] = ()) -> list[bytes]:
    """Returns the bytes of each token; empty for special tokens, which no grammar allows, and for padding.

    Args:
      tokenizer: the tokenizer.
      vocab_size: the number of tokens in the target's logits.
      named: special tokens that spell their names.
    """
    count = min(tokenizer.vocab_size, vocab_size)
    texts = [b"" if tokenizer.is_special(index) else tokenizer.token_bytes(index) for index in range(count)]
    for index in named:
        texts[index] = tokenizer.token_bytes(index, skip_special_tokens=False)
    return texts + [b""] * (vocab_size - count)


def named_tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Returns the special tokens whose names are in a text, ascending; those that end a text are left out."""
    ids = {index for index in tokenizer.encode(text, add_special_tokens=False) if tokenizer.is_special(index)}
    spelled = [index for index in ids if tokenizer.token_bytes(index, skip_special_tokens=False).decode() in text]
    return tuple(sorted(set(spelled) - set(tokenizer.eos_token_ids)))


def padded_size(count: int, steps: tuple[int, ...]) -> int:
    """Returns the first of `steps` that is at least `count`, or else the next power of two."""
    return next((step for step in steps if step >= count), 1 << (count - 1).bit_length())


def must_come(found: Collection[int], tokens: Sequence[bytes]) -> int:
    """Returns the longest token if all others are prefixes of it; else -1.

    Even so, another text may follow that no single token spells.
    """
    if not 0 < len(found) <= MOST_FORCED:
        return -1
    longest = max(found, key=lambda token: len(tokens[token]))
    return longest if all(tokens[longest].startswith(tokens[token]) for token in found) else -1
