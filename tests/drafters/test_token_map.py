"""`TokenMap`: which tokens two vocabularies share, and how the others are spelled."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models

import jaxspec
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.drafters.token_map import MOST_PIECES
from tests._fixtures import text_models

TOKENIZERS = {"bytes": text_models.byte_level(), "pieces": text_models.sentencepiece()}
PAIRS = [("bytes", "pieces"), ("pieces", "bytes")]


def pieces_of(token_map, index) -> list[int]:
    return np.asarray(token_map.pieces)[index, : int(token_map.count[index])].tolist()


def text_of(tokenizer, ids) -> bytes:
    return b"".join(tokenizer.token_bytes(index, skip_special_tokens=False) for index in ids)


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_every_token_keeps_its_text(own, other):
    own, other = TOKENIZERS[own], TOKENIZERS[other]
    token_map = jaxspec.drafters.TokenMap.between(own, other)
    columns = np.asarray(token_map.columns)
    shared = columns[columns >= 0]
    assert len(set(shared.tolist())) == len(shared) == token_map.shared()
    for index, column in enumerate(columns):
        ids = pieces_of(token_map, index)
        assert column < 0 or ids == [column]
        if not own.is_special(index):
            assert text_of(other, ids) == own.token_bytes(index)


def test_spellings_of_spaces_newlines_bytes_and_characters():
    """What GPT-2 spells `Ġa`, `Ċ` and `Ã`, SentencePiece spells `▁a`, `<0x0A>` and `<0xC3>`."""
    own, other = TOKENIZERS["pieces"], TOKENIZERS["bytes"]
    token_map = jaxspec.drafters.TokenMap.between(own, other)
    ids, others = own._backend.token_to_id, other._backend.token_to_id
    for piece, token in {"a": "a", "▁": "Ġ", "<0x0A>": "Ċ", "<0xC3>": "Ã", "<0xFF>": "ÿ"}.items():
        assert int(token_map.columns[ids(piece)]) == others(token)
    # Text is made of `a`; `<0x61>` is read as the same, and is not guessed.
    assert int(token_map.columns[ids("<0x61>")]) == -1
    assert pieces_of(token_map, ids("<0x61>")) == [others("a")]
    # No token there is one character of two bytes, or two spaces.
    for piece, text in {"é": "é", "▁▁": "  "}.items():
        assert text_of(other, pieces_of(token_map, ids(piece))) == text.encode()


def test_special_tokens_are_no_text():
    """They are matched by spelling or role, and an end token is never read as its letters."""
    own, other = TOKENIZERS["bytes"], TOKENIZERS["pieces"]
    token_map = jaxspec.drafters.TokenMap.between(own, other)
    end = own.eos_token_ids[0]
    assert int(token_map.columns[end]) == other.eos_token_ids[0]
    role = own._backend.token_to_id("<|user|>")
    assert int(token_map.columns[role]) == -1
    assert text_of(other, pieces_of(token_map, role)) == b"<|user|>"
    assert jaxspec.drafters.TokenMap.between(own, own).keeps_ids()
    assert not token_map.keeps_ids()


def with_pieces(*pieces, special=()) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    return Tokenizer(backend)


def test_a_special_token_spelled_like_text_is_another_token():
    token_map = jaxspec.drafters.TokenMap.between(
        with_pieces("<", "/", "s", ">", "</s>"), with_pieces(*"<s>/", special=["</s>"])
    )
    assert token_map.columns.tolist() == [0, 3, 1, 2, -1]
    assert pieces_of(token_map, 4) == [0, 3, 1, 2]


def test_long_texts_keep_their_end():
    token_map = jaxspec.drafters.TokenMap.between(with_pieces("a", "b", "abababababb"), with_pieces("b", "a"))
    assert pieces_of(token_map, 2) == [0, 1, 0, 1, 0, 1, 0, 0][-MOST_PIECES:]


def test_what_cannot_be_spelled_and_padding():
    token_map = jaxspec.drafters.TokenMap.between(
        with_pieces("a", "xax", "y"), with_pieces("b", "a"), target_size=5, draft_size=4
    )
    assert token_map.columns.tolist() == [1, -1, -1, -1, -1]
    assert [pieces_of(token_map, index) for index in range(5)] == [[1], [1], [0], [0], [0]]
    assert (token_map.target_vocab_size, token_map.draft_vocab_size) == (5, 4)


def test_tokens_beyond_the_draft_model_are_not_guessed():
    token_map = jaxspec.drafters.TokenMap.between(with_pieces("a", "b"), with_pieces("a", "b"), draft_size=1)
    assert token_map.columns.tolist() == [0, -1]
    assert int(token_map.pieces.max()) == 0


def test_nothing_in_common():
    with pytest.raises(ValueError, match="share no text token"):
        jaxspec.drafters.TokenMap.between(with_pieces("a"), with_pieces("b"))


@pytest.mark.slow
@pytest.mark.smollm2
def test_a_real_vocabulary(smollm2):
    """Most of a small vocabulary is in a large one, and any text is read as it was written."""
    own, other = TOKENIZERS["bytes"], smollm2.tokenizer
    token_map = jaxspec.drafters.TokenMap.between(own, other)
    assert token_map.shared() > 256
    text = "the sea — naïve 中文 👩‍👩‍👧\t\n\n  42"
    assert text_of(other, sum((pieces_of(token_map, index) for index in own.encode(text)), [])) == text.encode()
