"""The files of a tokenizer: errors name the wrong entry."""

import functools
import json
import random

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jaxspec.checkpoints.chat_template import render
from jaxspec.checkpoints.gguf_tokenizer import build_tokenizer
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.io.files import FileFormatError
from tests._fixtures.text_models import byte_level, sentencepiece


@pytest.fixture
def folder(tmp_path):
    byte_level().save(tmp_path)
    return tmp_path


def _change(path, key, value):
    values = json.loads(path.read_text())
    *above, last = key.split(".")
    node = values
    for part in above:
        node = node[int(part) if isinstance(node, list) else part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 2, "version: expected a text, got 2"),
        ("truncation", {"max_length": -1}, "truncation: it cannot be read"),
        ("added_tokens", 3, "added_tokens: expected a list of tokens"),
        ("added_tokens.0.id", -1, "added_tokens.0.id: expected an integer from 0"),
        ("added_tokens.1.special", "true", "added_tokens.1.special: expected true or false"),
        ("added_tokens.1.lstrip", ..., "added_tokens: it cannot be read"),
        ("pre_tokenizer.type", "Klingon", "pre_tokenizer: it cannot be read"),
        ("decoder", True, "decoder: expected an object, or null, got True"),
        ("post_processor", {"type": "x"}, "post_processor: it cannot be read"),
        ("model", ..., "model: it is missing"),
        ("model.type", "LSTM", "model: it cannot be read"),
        ("model.merges", [["a"]], "model: it cannot be read"),
        ("model.continuing_subword_prefix", "####", "model: it cannot be read \\(the library panics: range end index"),
        ("model.vocab.a", -7, "model.vocab.a: expected an integer from 0"),
        ("model.vocab.b", 2**31, "model.vocab.b: expected an integer from 0"),
        ("model.vocab.é", 0, "model.vocab.é: its id 0 is also that of"),
    ],
)
def test_what_is_wrong_in_the_tokenizer(folder, key, value, message):
    key = key.replace("é", "Ã")  # a byte, as GPT-2's vocabulary writes it
    _change(folder / "tokenizer.json", key, value)
    with pytest.raises(FileFormatError, match=f"tokenizer.json: {message.replace('é', 'Ã')}"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chat_template", 1.5),
        ("chat_template", "\ud800"),
        ("chat_template", [{"name": "default"}]),
        ("chat_template", {"default": "x"}),
        ("eos_token", 7),
        ("eos_token", {"content": None}),
        ("eos_token", "\ud800"),
        ("tokenizer_class", ["a"]),
        ("eos_token", {"content": "<|end|>"}),
        ("add_bos_token", "yes"),
        ("added_tokens_decoder", {"310": "<new>"}),
        ("added_tokens_decoder", {"a": {"content": "<new>"}}),
        ("extra_special_tokens", {"image_token": 3}),
        ("additional_special_tokens", "x"),
    ],
)
def test_what_is_wrong_in_its_configuration(folder, key, value):
    _change(folder / "tokenizer_config.json", key, value)
    with pytest.raises(FileFormatError, match=f"tokenizer_config.json: {key}: expected .*, got "):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("special_tokens_map.json", "[1]", "expected a JSON object, got list"),
        ("special_tokens_map.json", '{"pad_token": 3}', "pad_token: expected a token"),
        ("added_tokens.json", "\ufeff{}", ".*BOM"),
        ("added_tokens.json", '{"<new>": "x"}', "<new>: expected an integer from 0"),
    ],
)
def test_what_is_wrong_in_older_files(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(FileFormatError, match=f"{name}: {message}"):
        Tokenizer.from_folder(folder)


def test_older_files_may_have_nulls_and_are_not_read_next_to_newer_ones(folder):
    (folder / "special_tokens_map.json").write_text('{"bos_token": null, "pad_token": null}')
    before = Tokenizer.from_folder(folder)
    _change(folder / "tokenizer_config.json", "added_tokens_decoder", {"0": {"content": "<|end|>"}})
    (folder / "special_tokens_map.json").write_text('{"bos_token": 3}')
    (folder / "added_tokens.json").write_text('{"<new>": "x"}')
    assert Tokenizer.from_folder(folder).vocab_size == before.vocab_size


def test_a_template_reads_each_special_token_that_has_a_name(folder):
    config = {"sep_token": "<|user|>", "extra_special_tokens": {"image_token": "<|tool|>"}}
    for key, value in (config | {"chat_template": "{{ sep_token }}{{ image_token }}{{ mask_token }}x"}).items():
        _change(folder / "tokenizer_config.json", key, value)
    read = Tokenizer.from_folder(folder)
    text = read.decode(read.apply_chat_template([{"role": "user", "content": "a"}]), skip_special_tokens=False)
    assert text == "<|user|><|tool|>x"
    read.save(folder)
    assert Tokenizer.from_folder(folder) == read


@pytest.mark.parametrize(
    ("own", "ends"), [({}, (0, 5)), ({"eos_token_id": 7}, (0, 7)), ({"eos_token_id": None}, (0, 5))]
)
def test_end_tokens_of_a_model_of_text_and_images(folder, own, ends):
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 5}} | own))
    assert Tokenizer.from_folder(folder).eos_token_ids == ends


def test_a_text_without_tokens_is_refused_by_us(tmp_path):
    words = tokenizers.Tokenizer(models.WordLevel({"b": 0}))
    with pytest.raises(ValueError, match="the tokenizer cannot encode 'c': .*; pass one with a token for unknown"):
        Tokenizer(words).encode("c")
    assert Tokenizer(words).encode("b") == [0]
    assert Tokenizer(tokenizers.Tokenizer(models.BPE())).vocab_size == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [3]}, "tools"),
        ({"tools": {}}, "tools"),
        ({"variables": {1: 2}}, "variables"),
        ({"variables": {"self": 2}}, "variables must have names that a template can read"),
        ({"variables": {"messages": []}}, "variables has messages, which is a separate argument"),
    ],
)
def test_what_is_wrong_in_a_template_s_variables(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        byte_level().apply_chat_template([{"role": "user", "content": "a"}], **options)


def test_templates_with_names_and_tokens_with_flags(folder):
    named = [{"name": "default", "template": "d"}, {"name": "tools", "template": "t"}]
    _change(folder / "tokenizer_config.json", "chat_template", named)
    _change(
        folder / "tokenizer_config.json", "eos_token", {"content": "<|end|>", "special": True, "__type": "AddedToken"}
    )
    read = Tokenizer.from_folder(folder)
    assert read.eos_token_ids == byte_level().eos_token_ids
    assert read.apply_chat_template([{"role": "user", "content": "x"}]) == read.encode("d")


@pytest.mark.parametrize(
    "one",
    [
        "{% for m in messages %}\n{{ m.content }}\n{% endfor %}\n",
        "\n  {% if tools %}\n{{ tools[0].f }}{% endif %}  ",
        " \n{%- set x = 1 %} {{ x }} \n\n",
        "  {% if 1 %}y{% endif %}\n\n",
        "\ufeff{% macro f(x) %}{{ x }}{% endmacro %}{{ f(messages[0].content) -}} \n",
    ],
)
def test_a_template_for_functions_is_rendered_where_there_are_some(folder, one):
    values, other = json.loads((folder / "tokenizer_config.json").read_text()), "a{# no #} {{ tools }} "
    for default, tool_use in ((one, other), (other, one)):
        named = [{"name": "default", "template": default}, {"name": "tool_use", "template": tool_use}]
        (folder / "tokenizer_config.json").write_text(json.dumps(values | {"chat_template": named}))
        read = Tokenizer.from_folder(folder).chat_template
        for template, tools in ((default, None), (tool_use, [{"f": "g"}])):
            write = functools.partial(render, special_tokens={}, add_generation_prompt=True, tools=tools)
            message = [{"role": "user", "content": "x"}]
            assert write(read, message) == write(template, message)
        file = {"tokenizer.chat_template": default, "tokenizer.chat_template.tool_use": tool_use}
        file |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a"]}
        assert build_tokenizer(file).chat_template == read


def test_a_key_that_stands_twice(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"vocab":{', '"vocab":{"a":3,'))
    with pytest.raises(FileFormatError, match="tokenizer.json: a: it occurs twice"):
        Tokenizer.from_folder(folder)


LABELS = (
    None,
    "PreTrainedTokenizerFast",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "GemmaTokenizerFast",
    "GPT2Tokenizer",
    "Qwen2TokenizerFast",
    "OwnTokenizer",
)


def _backends():
    """Builds the kinds of `tokenizer.json`; the classes that labels name would build others."""
    read = lambda tokenizer: tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())  # noqa: E731
    digits, llama, gemma = read(byte_level()), read(sentencepiece()), read(sentencepiece())
    stages = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    digits.pre_tokenizer = pre_tokenizers.Sequence(stages)
    vocab = json.loads(digits.to_str())["model"]["vocab"]
    merges = [tuple(pair) for pair in json.loads(digits.to_str())["model"]["merges"]]
    vocab["12"], vocab["123"] = len(vocab), len(vocab) + 1
    digits.model = models.BPE(vocab=vocab, merges=[*merges, ("1", "2"), ("12", "3")])
    llama.pre_tokenizer = None
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    start = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    llama.post_processor = start
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return {"byte_level": read(byte_level()), "digits": digits, "sentencepiece": read(sentencepiece())} | {
        "llama": llama,
        "gemma": gemma,
    }


BACKENDS = _backends()


def _folder(path, backend, label, **changes):
    path.mkdir(exist_ok=True)
    values = json.loads(backend.to_str()) | changes
    (path / "tokenizer.json").write_text(json.dumps(values))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": label} if label else {}))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    return path


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("kind", ["digits", "llama"])
def test_the_file_is_the_truth_whatever_the_label(tmp_path, kind, label):
    backend = BACKENDS[kind]
    read = Tokenizer.from_folder(_folder(tmp_path, backend, label))
    assert read.vocab_size == backend.get_vocab_size()
    for text in ("12345", "a b</s> a b", "the sea"):
        assert read.encode(text) == backend.encode(text).ids


CUT = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
FILL = {"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}


@pytest.mark.parametrize("label", [None, "GPT2Tokenizer"])
def test_prompts_are_neither_cut_nor_padded(tmp_path, label):
    path = _folder(tmp_path, BACKENDS["digits"], label, truncation=CUT, padding=FILL | {"pad_token": "<|end|>"})
    read = Tokenizer.from_folder(path)
    assert read.encode("9" * 201) == BACKENDS["digits"].encode("9" * 201).ids
    assert len(read.encode("9" * 201)) == 201 and len(read.encode("9")) == 1
    changed = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert Tokenizer(changed).encode("9" * 201) == read.encode("9" * 201)
    assert changed.truncation is not None  # the caller's own stays


def test_a_prompt_has_the_same_ids_each_time(tmp_path):
    backend = tokenizers.Tokenizer.from_str(BACKENDS["byte_level"].to_str())
    backend.model.dropout = 0.9  # of merges, in training
    read = Tokenizer.from_folder(_folder(tmp_path, backend, None))
    assert read.encode("hello there" * 9) == BACKENDS["byte_level"].encode("hello there" * 9).ids
    assert backend.model.dropout == pytest.approx(0.9)


def test_no_end_token_is_put_after_a_prompt(tmp_path):
    backend = tokenizers.Tokenizer.from_str(BACKENDS["llama"].to_str())
    both = processors.TemplateProcessing(single=["<s>", "$A", "</s>"], special_tokens=[("<s>", 1), ("</s>", 2)])
    backend.post_processor = both
    read = Tokenizer.from_folder(_folder(tmp_path, backend, "LlamaTokenizer"))
    inside = backend.encode("a b", add_special_tokens=False).ids
    assert read.encode("a b") == [1, *inside] and read.encode("a b", add_special_tokens=False) == inside
    assert read.encode("") == [1] and read.encode("a</s>")[-1] == 2


def test_the_files_of_a_template(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    message = [{"role": "user", "content": "x"}]
    text = lambda: (read := Tokenizer.from_folder(folder)).decode(read.apply_chat_template(message))  # noqa: E731
    (folder / "chat_template.json").write_text('{"chat_template": "three"}')
    (folder / "chat_template.jinja").write_bytes(b"\xef\xbb\xbfone\r\nmore")
    assert text() == "one\nmore"
    (folder / "chat_template.jinja").write_text("one")
    assert text() == "one"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "two"}))
    assert text() == "two"
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert text() == "three"
    (folder / "chat_template.json").write_text('{"chat_template": 3}')
    with pytest.raises(FileFormatError, match=r"chat_template.json: chat_template: expected a text, .*, got 3"):
        text()


@pytest.mark.reference
@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("label", LABELS)
def test_ids_of_any_label_equal_transformers(tmp_path, kind, label):
    from transformers import PreTrainedTokenizerFast

    path = _folder(tmp_path, BACKENDS[kind], label, truncation=CUT)
    read, theirs = Tokenizer.from_folder(path), PreTrainedTokenizerFast.from_pretrained(str(path))
    rng = random.Random(0)
    parts = ["the", "sea", " ", "  ", "a", "b", "é", "12", "3", "\n", "😀", "<s>", "</s>", "<|end|>", ".", "▁", "grüße"]
    for _ in range(1000):
        text = "".join(rng.choices(parts, k=rng.randrange(12)))
        ids = theirs.encode(text)
        assert read.encode(text) == ids
        assert read.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
