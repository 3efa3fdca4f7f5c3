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


def test_words_are_tokenized_once_for_all_requests_and_refused_each_time():
    made, tokenizer = [], text_models.byte_level()
    encode = tokenizer.encode
    tokenizer.encode = lambda text, **options: made.append(text) or encode(text, **options)
    options = [], jaxspec.NGramDrafter(k=2), tokenizer, text_models.VOCAB, ()
    for _ in range(3):
        make_processors(jaxspec.TextOptions(bad_words=["driftwood"]), *options)
    assert 0 < made.count("driftwood") <= 2
    for _ in range(2):
        with pytest.raises(ValueError, match="of bad_words has a special token"):
            make_processors(jaxspec.TextOptions(bad_words=[END]), *options)
