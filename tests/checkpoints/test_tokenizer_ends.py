"""Nothing is put after a prompt, for any vocabulary; texts are no token ids."""

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from jaxspec.checkpoints.tokenizer import Tokenizer

NO_UNKNOWN = models.BPE(vocab={"<s>": 0, "</s>": 1, "海": 2, "广": 3}, merges=[])
WORDS = models.WordLevel({"<s>": 0, "</s>": 1, "海": 2, "广": 3, "a": 4}, unk_token="广")
AROUND = processors.TemplateProcessing(single=["<s>", "$A", "</s>"], special_tokens=[("<s>", 0), ("</s>", 1)])
SEVERAL = processors.TemplateProcessing(single=["$A", "</s>", "</s>"], special_tokens=[("</s>", 1)])
BERT = processors.BertProcessing(("</s>", 1), ("<s>", 0))


def _backend(model, processor, normalizer=None):
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor, backend.normalizer = processor, normalizer
    if model is WORDS:
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


@pytest.mark.parametrize("processor", [AROUND, SEVERAL, BERT, processors.Sequence([processors.ByteLevel(), AROUND])])
@pytest.mark.parametrize(
    ("model", "normalizer"), [(NO_UNKNOWN, None), (WORDS, None), (WORDS, normalizers.Replace("a", ""))]
)
def test_no_vocabulary_lets_an_end_token_follow_a_prompt(model, normalizer, processor):
    read = Tokenizer(_backend(model, processor, normalizer), eos_token_ids=[1])
    start = [] if processor is SEVERAL else [0]
    assert read.encode("海") == [*start, 2] and read.encode("") == start
    assert read.encode("海</s>") == [*start, 2, 1]  # which is written there
    assert read.encode("海", add_special_tokens=False) == [2]


def test_a_tokenizer_that_adds_nothing():
    assert Tokenizer(_backend(NO_UNKNOWN, None)).encode("海广") == [2, 3]


@pytest.mark.parametrize("text", ["", "12", b"ab", bytearray(b"a"), memoryview(b"a")])
def test_texts_are_no_token_ids(text):
    read = Tokenizer(_backend(NO_UNKNOWN, AROUND))
    for call in (read.decode, read.ending_with):
        with pytest.raises(TypeError, match="must be token ids, integers, got"):
            call(text)
