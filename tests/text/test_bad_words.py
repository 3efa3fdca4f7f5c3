"""Names of special tokens are no words: no text has them, and a token is not banned by the bytes of its name."""

import pytest

import jaxspec
from jaxspec.text.request import make_processors
from tests._fixtures import text_models

TOKENIZER = text_models.byte_level()
END = text_models.END


def _made(words):
    return make_processors(
        jaxspec.TextOptions(bad_words=words), [], jaxspec.NGramDrafter(k=2), TOKENIZER, text_models.VOCAB, ()
    )


@pytest.mark.parametrize("words", [END, ["sea", f"a{END}"], [f"{END}b"], "<|user|>"])
def test_a_special_token_is_no_word(words):
    with pytest.raises(ValueError, match=r" of bad_words has a special token, which never .* -inf for each of \[\d\]"):
        _made(words)


def test_parts_of_its_name_are_words():
    for words in ("end", "<|en", "end|>", "|", ["user"]):
        assert len(_made(words)) == 1
