"""Tokenizers from GGUF metadata and folders: golden ids, bytes, chat templates, errors."""

import json
from pathlib import Path

import pytest
import tokenizers

from jaxspec.checkpoints.gguf import read_gguf
from jaxspec.checkpoints.gguf_tokenizer import build_tokenizer
from jaxspec.checkpoints.tokenizer import Tokenizer
from jaxspec.io.files import FileFormatError
from tests._fixtures import text_models

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tokenizer_smollm2.json").read_text("utf-8"))


def _byte_level(split):
    """The 256 bytes, a start, and a word that no merges build."""
    tokens = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, "<s>", "ab"],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 256,
    }
    return metadata | ({} if split is None else {"tokenizer.ggml.pre": split})


@pytest.fixture(scope="session")
def real(smollm2):
    return smollm2.tokenizer


def _sentencepiece(**changes):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "ab", "▁ab", "é"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * 6]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {key: value for key, value in (metadata | changes).items() if value is not None}


@pytest.mark.smollm2
@pytest.mark.parametrize("case", GOLDEN["texts"], ids=lambda case: repr(case["text"])[:24])
def test_golden_ids(real, case):
    assert real.encode(case["text"]) == case["ids"]
    assert b"".join(real.token_bytes(i, skip_special_tokens=False) for i in case["ids"]) == case["text"].encode()
    assert real.decode(case["ids"], skip_special_tokens=False) == case["text"]


@pytest.mark.smollm2
@pytest.mark.parametrize("case", GOLDEN["chats"], ids=lambda case: str(len(case["messages"])))
def test_golden_chats(real, case):
    ids = real.apply_chat_template(case["messages"], add_generation_prompt=case["add_generation_prompt"])
    assert ids == case["ids"]


@pytest.mark.smollm2
def test_special_ids(real):
    assert (real.bos_token_id, real.eos_token_ids, real.vocab_size) == (1, (0, 2, 4), 49152)
    assert real.token_bytes(2) == b"" and real.token_bytes(2, skip_special_tokens=False) == b"<|im_end|>"
    assert real.decode([28, 2]) == real.decode([28])


@pytest.mark.smollm2
def test_save_and_read_back(real, tmp_path):
    real.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again == real and hash(again) == hash(real)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.smollm2
@pytest.mark.reference
def test_ids_equal_transformers(real):
    from transformers import AutoTokenizer

    from jaxspec.checkpoints import zoo

    path = zoo.find("smollm2-135m-instruct").path
    reference = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # Its GGUF reader knows no pre-tokenizer named "smollm" and falls back to GPT-2's, which keeps a
    # space and a digit together; the model was released with digits on their own.
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain = [case["text"] for case in GOLDEN["texts"] if "  1" not in case["text"] and "½" not in case["text"]]
    assert len(plain) == len(GOLDEN["texts"]) - 2
    assert [real.encode(text) for text in plain] == [reference.encode(text) for text in plain]
    reference.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, byte_level])
    for case in GOLDEN["texts"]:
        assert real.encode(case["text"]) == reference.encode(case["text"])
        assert real.decode(case["ids"]) == reference.decode(case["ids"], skip_special_tokens=True)
    for case in GOLDEN["chats"]:
        ids = reference.apply_chat_template(
            case["messages"], add_generation_prompt=case["add_generation_prompt"], return_dict=False
        )
        assert case["ids"] == ids


def test_sentencepiece():
    tokenizer = build_tokenizer(_sentencepiece())
    assert tokenizer.encode("ab b") == [1, 263, 259, 261]
    assert tokenizer.encode("ab b", add_special_tokens=False) == [263, 259, 261]
    assert tokenizer.encode("é", add_special_tokens=False) == [259, 264]
    # As llama.cpp: a space before each text between special tokens, also before another space.
    assert tokenizer.encode(" b</s>b", add_special_tokens=False) == [259, 259, 261, 2, 259, 261]
    euro = tokenizer.encode("€", add_special_tokens=False)
    assert [tokenizer.token_bytes(index) for index in euro] == [b" ", b"\xe2", b"\x82", b"\xac"]
    assert tokenizer.decode(euro) == "€"
    assert tokenizer.token_bytes(263) == b" ab"
    assert tokenizer.eos_token_ids == (2,) and tokenizer.bos_token_id == 1


def test_sentencepiece_switches():
    bare = build_tokenizer(
        _sentencepiece(**{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    )
    assert bare.encode("ab") == [262]
    closed = build_tokenizer(_sentencepiece(**{"tokenizer.ggml.add_eos_token": True}))
    assert closed.encode("ab") == [1, 263]  # to be continued


def test_sentencepiece_without_ids_has_those_of_llama_cpp():
    bare = {key: value for key, value in _sentencepiece().items() if not key.endswith("_token_id")}
    assert build_tokenizer(bare) == build_tokenizer(_sentencepiece())


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("olmo", "ab (x) 1234, a", "ab| (|x|)| 1234|,| a"),
        ("refact", "ab (x) 1234, a", "ab| (|x|)| |1|2|3|4|,| a"),
        ("dbrx", "ab (x) 1234, a", "ab| (|x|)| |123|4|,| a"),
        ("tekken", "abC Dé 12 /\n", "ab|C| Dé| |1|2| /\n"),
        ("deepseek-coder", "ab (x) 12中\na", "ab| (|x|)| |1|2|中|\n|a"),
        # llama.cpp's own splits, which no model was trained with.
        ("default", "ab (x) 1234, a", "ab| |(|x|)| |123|4|,| a"),
        ("", "a  b\n", "a| | b|\n"),
        (None, "a<b> 12345", "a|<|b|>| |123|45"),
    ],
)
def test_texts_are_split_as_the_name_says(caplog, name, text, pieces):
    splits = build_tokenizer(_byte_level(name))._backend.pre_tokenizer
    assert [text[slice(*place)] for _, place in splits.pre_tokenize_str(text)] == pieces.split("|")
    assert ("convert the model again" in caplog.text) == (name in ("default", "", None))


def test_names_of_splits_say_how_words_and_starts_are_encoded():
    ids = {name: build_tokenizer(_byte_level(name)).encode("ab") for name in ("tekken", "falcon3", "dbrx", "olmo")}
    assert ids == {"tekken": [256, 257], "falcon3": [256, 257], "dbrx": [64, 65], "olmo": [64, 65]}


def test_equality_is_by_content():
    left, right = build_tokenizer(_sentencepiece()), build_tokenizer(_sentencepiece())
    assert left == right and hash(left) == hash(right) and left is not right
    template = build_tokenizer(_sentencepiece(**{"tokenizer.chat_template": "x"}))
    assert left != template and left != "something else"


def _with_tokens(**kinds):
    """Adds tokens of these types after the 265 of `_sentencepiece`."""
    changed = _sentencepiece()
    for name, more in (("tokens", list(kinds)), ("token_type", list(kinds.values())), ("scores", [0.0] * len(kinds))):
        changed[f"tokenizer.ggml.{name}"] = [*changed[f"tokenizer.ggml.{name}"], *more]
    return build_tokenizer(changed)


def test_control_tokens_that_end_a_turn():
    tokenizer = _with_tokens(**{"<end_of_turn>": 3, "<tool>": 4})
    assert tokenizer.eos_token_ids == (2, 265)
    assert tokenizer.encode("a<tool>", add_special_tokens=False)[-1] == 266
    assert tokenizer.decode([266]) == "<tool>" and tokenizer.decode([265]) == ""


@pytest.mark.parametrize("kind", [1, 4, 5])
def test_tokens_that_look_like_control_tokens_are(kind):
    """As llama.cpp overrides the types that converters gave them."""
    ends = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<eos>")
    ends = (*ends, "<|file_sep|>", "<|repo_name|>", "<fim_pad>")
    tokenizer = _with_tokens(**dict.fromkeys((*ends, "<|fim_prefix|>", "<tool>"), kind))
    assert tokenizer.eos_token_ids == (2, *range(265, 275))
    for index, text in enumerate((*ends, "<|fim_prefix|>"), 265):
        assert tokenizer.encode(f"a{text}b", add_special_tokens=False) == [259, 260, index, 259, 261]
        assert (tokenizer.decode([index]), tokenizer.is_special(index)) == ("", True)
    assert tokenizer.decode([276]) == "<tool>"


@pytest.mark.parametrize("ends", [("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>")])
def test_messages_within_a_turn_end_in_tokens_too(ends):
    """As in llama.cpp, where other tokens end the turn."""
    tokenizer = _with_tokens(**dict.fromkeys(("<|end|>", *ends), 3))
    assert tokenizer.eos_token_ids == (2, 266, 267) and tokenizer.is_special(265)
    assert _with_tokens(**{"<|end|>": 3, ends[0]: 3}).eos_token_ids == (2, 265, 266)
    assert _with_tokens(**{"<|tool_response>": 3}).eos_token_ids == (265,)


def test_ends_that_the_metadata_name():
    names = ("fim_pad", "fim_rep", "fim_sep")
    named = {f"tokenizer.ggml.{name}_token_id": index for index, name in enumerate(names, 5)}
    assert build_tokenizer(_sentencepiece(**named)).eos_token_ids == (2, 5, 6, 7)
    with pytest.raises(ValueError, match="fim_sep_token_id: 999, but the vocabulary has 265 tokens"):
        build_tokenizer(_sentencepiece(**named | {"tokenizer.ggml.fim_sep_token_id": 999}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5'; supported: gpt2, llama"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "klingon"}, "'klingon'.*supported: .*smollm"),
        ({"tokenizer.ggml.tokens": []}, "has no tokenizer"),
        ({"tokenizer.ggml.scores": None}, "neither merges nor scores"),
        ({"tokenizer.ggml.bos_token_id": 999}, "bos_token_id: 999, but the vocabulary has 265 tokens"),
    ],
)
def test_bad_metadata(changes, message):
    with pytest.raises(ValueError, match=message):
        build_tokenizer(_sentencepiece(**changes))


def test_bad_arguments():
    tokenizer = build_tokenizer(_sentencepiece())
    with pytest.raises(ValueError, match="at least 0, got -1"):
        tokenizer.decode([1, -1])
    with pytest.raises(ValueError, match="at least 0, got -2"):
        tokenizer.token_bytes(-2)
    assert tokenizer.decode([261, 99999]) == "b" and tokenizer.token_bytes(99999) == b""
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    with pytest.raises(ValueError, match="unknown special tokens"):
        Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), special_tokens={"mask": "x"})


def test_chat_template_errors():
    template = "{{ raise_exception('roles must alternate') }}"
    tokenizer = build_tokenizer(_sentencepiece(**{"tokenizer.chat_template": template}))
    with pytest.raises(ValueError, match="refuses these messages: roles must alternate"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    with pytest.raises(ValueError, match="'role' and 'content', got"):
        tokenizer.apply_chat_template([{"role": "user"}])
    image = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": "x"}]
    with pytest.raises(ValueError, match=r"must be \{'type': 'text', .*got \{'type': 'image_url'.*read text only"):
        tokenizer.apply_chat_template([{"role": "user", "content": image}])
    with pytest.raises(TypeError, match="the text of a part of a message must be a string, got NoneType"):
        tokenizer.apply_chat_template([{"role": "user", "content": [{"type": "text"}]}])


_QUOTES, _JOINS, _ASKS = (
    "{{ one.function.arguments | tojson }}",
    "{{ '<' + one.function.arguments }}",
    "{{ one.function.arguments if one.function.arguments is string else one.function.arguments | tojson }}",
)


@pytest.mark.parametrize(
    ("template", "given", "rendered"),
    [
        (_QUOTES, {"x": "é"}, '{"x": "é"}'),
        (_QUOTES, '{"x": "é"}', '{"x": "é"}'),
        (_QUOTES, "{}", "{}"),
        (_QUOTES, "", "{}"),
        (_QUOTES, "half {", '"half {"'),
        ("{{ one.function | tojson }}", '{"x":1}', '{"name": "f", "arguments": {"x": 1}}'),
        ("{% for name, x in one.function.arguments.items() %}{{ name }}={{ x }}{% endfor %}", '{"x":1}', "x=1"),
        (_JOINS, {"x": "é"}, '<{"x": "é"}'),
        (_JOINS, '{"x":1}', '<{"x":1}'),
        (_ASKS, {"x": 1}, '{"x": 1}'),
        (_ASKS, '{"x":1}', '{"x":1}'),
        ("{{ one.function.arguments }}", '{"x":1}', '{"x":1}'),
    ],
)
def test_arguments_of_calls_are_objects_or_their_json(template, given, rendered):
    template = f"{{% for one in messages[0].tool_calls %}}{template}{{% endfor %}}"
    tokenizer = text_models.byte_level(chat_template=template)
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": given}}]}
    assert tokenizer.decode(tokenizer.apply_chat_template([message])) == rendered
    assert message["tool_calls"] == [{"function": {"name": "f", "arguments": given}}]


def test_a_quoted_text_elsewhere_makes_no_objects():
    """Only arguments that the template quotes become objects: not those that a message quotes, or are empty."""
    template = (
        "{% for m in messages %}{{ m.content }}{% for x in m.tool_calls %}{{ x.arguments }}{% endfor %}{% endfor %}"
    )
    tokenizer = text_models.byte_level(chat_template=template)
    given = '{"x":"a"}'
    for content, arguments in (('print("")', [given, ""]), ("null", [given, None]), (json.dumps(given), [given])):
        calls = [{"name": "f", "arguments": one} for one in arguments]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "", "tool_calls": calls}]
        assert given in tokenizer.decode(tokenizer.apply_chat_template(messages))


def test_half_a_surrogate_pair_is_escaped():
    given = json.dumps({"x": "\ud83d"})
    tokenizer = text_models.byte_level(chat_template="{{ messages[0].tool_calls[0].arguments | tojson }}")
    for arguments in (given, json.loads(given)):
        message = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": arguments}]}
        assert tokenizer.decode(tokenizer.apply_chat_template([message])) == json.dumps(given)


def test_arguments_that_no_form_of_is_taken():
    tokenizer = text_models.byte_level(chat_template="{{ messages[0].tool_calls[0].function.arguments.x.y }}")
    call = {"function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(ValueError, match="refuses these messages"):
        tokenizer.apply_chat_template([{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "a\nb"),
        ("{% for m in messages %}{% if 'x' in m.content %}x{% endif %}{{ m['content'] }}{% endfor %}", "a\nb"),
        ("{% for m in messages %}{% for x in m.content %}<{{ x.text }}>{% endfor %}{% endfor %}", "<a><b>"),
        ("{% for m in messages %}{% for x in m['content'] %}<{{ x.text }}>{% endfor %}{% endfor %}", "<a><b>"),
        (
            "{% for m in messages %}{% set content = m.content %}{% for x in content %}<{{ x.text }}>{% endfor %}"
            "{% endfor %}",
            "<a><b>",
        ),
        ("{% for x in messages[0]['content'] %}<{{ x.text }}>{% endfor %}", "<a><b>"),
        ("{%- for x in messages[0].content|list -%}<{{ x.text }}>{%- endfor -%}", "<a><b>"),
        ("{% for x in messages[0].get('content') %}<{{ x['text'] }}>{% endfor %}", "<a><b>"),
        ("{{ messages[0]['content'][0]['text'] }}{{ messages[0].content[1].text }}", "ab"),
        ("{{ messages[0].content | map(attribute='text') | join(' and ') }}", "a and b"),
        ("{{ messages | selectattr('content') | map(attribute='content') | join }}", "a\nb"),
        ("{% for m in messages if m.content %}{{ m.content }}{% endfor %}", "a\nb"),
        ("{% for m in messages | selectattr('content') %}{{ m.content[0] }}{% endfor %}", "a"),
    ],
)
def test_content_in_parts(template, rendered):
    """A template that reads parts gets them, as in transformers; any other gets their text."""
    tokenizer = build_tokenizer(_sentencepiece(**{"tokenizer.chat_template": template}))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert tokenizer.decode(tokenizer.apply_chat_template([{"role": "user", "content": parts}])) == rendered


@pytest.mark.parametrize("none", [{}, {"content": None}])
def test_a_call_of_a_tool_has_no_content(none):
    template = "{% for m in messages %}{{ m.content is defined }} {{ m.tool_calls[0].function.name }}{% endfor %}"
    tokenizer = build_tokenizer(_sentencepiece(**{"tokenizer.chat_template": template}))
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "clock", "arguments": {}}}], **none}
    assert tokenizer.decode(tokenizer.apply_chat_template([call])) == "False clock"


def test_folder_without_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer that can be read"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("known", [True, False])
def test_code_of_a_folder_is_not_run(tmp_path, messages, monkeypatch, known):
    """Whether transformers has its own class for the tokenizer or not; and the user is not prompted."""
    monkeypatch.setattr("builtins.input", lambda *_: 1 / 0)
    tokenizer = build_tokenizer(_sentencepiece())
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    values = json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": ["own.Own", None]}}
    path.write_text(json.dumps(values if known else values | {"tokenizer_class": "Own"}))
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}')
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nOwn = Config = None\n")
    assert Tokenizer.from_folder(tmp_path).encode("a b") == tokenizer.encode("a b")
    assert not (tmp_path / "ran").exists()
    (said,) = messages()
    assert "auto_map in config.json, tokenizer_config.json), which is not run" in said
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="has no tokenizer that can be read"):
        Tokenizer.from_folder(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("ends", ["-1", "true", '"</s>"', "[2, 1.5]", "99999999999"])
def test_an_end_that_is_no_token_id_is_named(tmp_path, ends):
    build_tokenizer(_sentencepiece()).save(tmp_path)
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ends}}}')
    with pytest.raises(FileFormatError, match="generation_config.json: eos_token_id: expected token ids"):
        Tokenizer.from_folder(tmp_path)


def test_folder_with_several_ends(tmp_path):
    build_tokenizer(_sentencepiece()).save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 8, "model_type": "llama"}')
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (2, 7, 8)


def test_metadata_survives_the_file(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    metadata = _sentencepiece()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_scores(metadata["tokenizer.ggml.scores"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = read_gguf(tmp_path / "vocabulary.gguf").metadata
    assert build_tokenizer(read) == build_tokenizer(metadata)
