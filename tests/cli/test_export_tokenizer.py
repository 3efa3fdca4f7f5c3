"""`jaxspec export-tokenizer`: the folder has the ids and texts of the model's tokenizer, read by transformers."""

import random

import pytest
import typer.testing

from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.cli import app as application
from tests._fixtures import text_models

PARTS = ["The", " sea", "sea", " ", "  ", "\n", "\t", "a", "é", "中文", "😀", "12", "3.5", " 7", "don't", ",", " ."]
PARTS += ["()", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "grüße", "İ", "\u200b", "e\u0301", "ﬁ", "x" * 40]
PARTS += ["def f(x):\n    ", "½", " ,"]


def _export(*arguments):
    return typer.testing.CliRunner().invoke(application.app, ["export-tokenizer", *map(str, arguments)])


def texts(count):
    rng = random.Random(0)
    return ["".join(rng.choices(PARTS, k=rng.randrange(1, 14))) for _ in range(count)]


def test_a_saved_model_s_tokenizer_is_exported(folder, tmp_path):
    done = _export("--model", folder, "--out", tmp_path / "out")
    assert done.exit_code == 0 and "310 tokens" in done.stdout
    found, ours = Tokenizer.from_folder(tmp_path / "out"), text_models.byte_level()
    assert [found.encode(text) for text in texts(50)] == [ours.encode(text) for text in texts(50)]
    assert found.has_chat_template and found.eos_token_ids == ours.eos_token_ids
    done = _export("--model", "no-such", "--out", tmp_path / "other")
    assert done.exit_code == 2 and "no-such" in done.stderr and not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.smollm2
def test_transformers_has_the_ids_of_a_gguf_file(smollm2, tmp_path):
    from transformers import AutoTokenizer

    ours = smollm2.tokenizer
    assert _export("--out", tmp_path).exit_code == 0
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in texts(1000):
        ids = ours.encode(text)
        assert theirs.encode(text) == ids
        for skip in (True, False):
            assert theirs.decode(ids, skip_special_tokens=skip) == ours.decode(ids, skip_special_tokens=skip)
    rng = random.Random(1)
    for _ in range(200):  # parts of characters too
        ids = rng.choices(range(ours.vocab_size), k=8)
        assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False)
    messages = [{"role": "user", "content": "Name a river."}, {"role": "assistant", "content": "Rhine"}] * 2
    for opens in (True, False):
        chat = theirs.apply_chat_template(messages, add_generation_prompt=opens, return_dict=False)
        assert chat == ours.apply_chat_template(messages, add_generation_prompt=opens)
    assert theirs.eos_token_id in ours.eos_token_ids and len(theirs) == ours.vocab_size
