"""Functions and thinking of a chat: the prompt, the grammar of calls, and errors that name the field."""

import json

import pytest

from jaxspec.grammar import Grammar
from jaxspec.serving import conversation
from jaxspec.serving.errors import ApiError
from jaxspec.serving.families import family_of, tags_of, unread_family
from jaxspec.serving.fields import read_chat
from jaxspec.serving.turn import Turn
from jaxspec.text.result import Span
from tests._fixtures import scripted, text_models
from tests._fixtures.grammars import follower, takes

TOKENIZER = scripted.tokenizer()
NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": NUMBER}}
NOW = {"type": "function", "function": {"name": "now"}}
SEA = [{"role": "user", "content": "the sea"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"x": 7}'}}
CONTINUED = {"continue_final_message": True}
NAMED = {"type": "function", "function": {"name": "add"}}


def read(tokenizer=TOKENIZER, **body):
    return read_chat({"messages": SEA, **body}, tokenizer)


def prompt(asked):
    return TOKENIZER.decode(asked.prompts[0], skip_special_tokens=False)


def test_functions_and_earlier_calls_are_in_the_prompt():
    turns = [
        *SEA,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "8"}]},
    ]
    asked = read_chat({"messages": turns, "tools": [ADD, NOW]}, TOKENIZER)
    assert prompt(asked) == (
        "<|system|>add now <tool_call><|end|><|user|>the sea<|end|><|assistant|>7<|end|><|tool|>8<|end|><|assistant|>"
    )
    for name in ("reasoning", "reasoning_content"):  # its answer had no room for more
        turns = [*SEA, {"role": "assistant", "content": None, name: "so"}, *SEA]
        assert "<|end|><|assistant|><|end|><|user|>" in prompt(read_chat({"messages": turns}, TOKENIZER))
    assert prompt(read(tools=[ADD], tool_choice="none")).startswith("<|system|>add")
    assert prompt(read(chat_template_kwargs={"open": True})).endswith("<|assistant|><think>\n")
    assert prompt(read(reasoning_effort="none")).endswith("<think>\n\n</think>\n\n")
    assert prompt(read(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})).endswith(
        "</think>\n\n"
    )


def test_the_last_message_may_be_continued():
    turns = [*SEA, {"role": "assistant", "content": "It is "}]
    asked = read_chat({"messages": turns, **CONTINUED}, TOKENIZER)
    assert prompt(asked) == "<|user|>the sea<|end|><|assistant|>It is "
    for text in ("<", "end", "|>"):  # which are in what the template writes after it
        asked = read_chat({"messages": [*SEA, {"role": "assistant", "content": text}], **CONTINUED}, TOKENIZER)
        assert prompt(asked) == f"<|user|>the sea<|end|><|assistant|>{text}"
    with pytest.raises(ApiError, match="continue_final_message") as found:
        read_chat({"messages": [*SEA, {"role": "user", "content": " "}], **CONTINUED}, TOKENIZER)
    assert found.value.status == 400


def test_special_tokens_may_be_shown():
    shown = read(skip_special_tokens=False).options["shown_tokens"]
    names = [TOKENIZER.decode([one], skip_special_tokens=False) for one in shown]
    assert {"<|user|>", "<|assistant|>", "<think>"} <= {*names} and "<|end|>" not in names


WRONG = [
    ({"tools": []}, "tools"),
    ({"tools": "add"}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [ADD, {"type": "other", "function": {"name": "f"}}]}, "tools[1]"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [ADD, ADD]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "function": {"name": "\ud800"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
    ({"tools": [ADD], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": 3}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"function": {"name": "now"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
    ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs.tokenize"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"thinking_token_budget": True}, "thinking_token_budget"),
    ({"include_reasoning": 1}, "include_reasoning"),
    ({"tools": [ADD], "structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages"),
    ({"messages": [{"role": "user", "content": None, "reasoning": "so"}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": {"id": "a"}}]}, "messages"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        "messages",
    ),
]


@pytest.mark.parametrize(("body", "param"), WRONG)
def test_what_cannot_be_honored_names_its_field(body, param):
    with pytest.raises(ApiError) as found:
        read(**body)
    assert (found.value.status, found.value.param) == (400, param)


def test_variables_that_repeat_fields_are_dropped():
    repeated = {"add_generation_prompt": True, "continue_final_message": False, "enable_thinking": False}
    assert conversation._variables({"chat_template_kwargs": repeated}) == {"enable_thinking": False}
    own = {"add_generation_prompt": False, "chat_template_kwargs": {"add_generation_prompt": False}}
    assert conversation._variables(own) == {}
    with pytest.raises(ApiError, match="tokenize is no variable of the template; leave it out"):
        conversation._variables({"chat_template_kwargs": {"tokenize": True}})


# Schemas that clients send and no grammar follows, with the place that is named.
UNFOLLOWED = [
    ({"properties": {"x": {"type": "float"}}}, ".properties.x.type is 'float'"),
    ({"properties": {"x": {"type": "array", "uniqueItems": True}}}, ".properties.x.uniqueItems cannot be followed"),
    ({"properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}, ".properties.x has the pattern"),
    ({"properties": {"x": {"$ref": "#/$defs/x"}}}, ".properties.x.$ref is '#/$defs/x', which"),
    ({"properties": {"x": {"type": "string", "required": True}}}, ".properties.x.required must be a list"),
    *(
        ({"properties": None}, ".properties must"),
        ({"properties": []}, ".properties"),
        ({"required": None}, ".required"),
    ),
    *(
        ({"type": "dict"}, ".type is 'dict'"),
        ({"type": ["null", "string"]}, ".type is ['null', 'string'], but arguments"),
    ),
]


@pytest.mark.parametrize(("wrong", "place"), UNFOLLOWED)
@pytest.mark.parametrize("template", ["tools <tool_call>", "tools <tool_call> <function="])
def test_schemas_that_no_grammar_follows_matter_where_they_are_enforced(template, wrong, place):
    """Elsewhere the function is called as the model likes: OpenAI and vLLM take such schemas too."""
    tokenizer = text_models.byte_level(chat_template=template)
    function = {"name": "f", "parameters": {"type": "object", **wrong}}
    tools = [ADD, {"type": "function", "function": function}]
    for choice in ("auto", "none", NAMED):
        asked = read(tokenizer, tools=tools, tool_choice=choice)
        assert ("grammar" in asked.options) == (choice == NAMED)
    text = '<tool_call>\n{"name": "f", "arguments": {"y": 1}}\n</tool_call>'
    if template.endswith("="):
        text = "<tool_call>\n<function=f>\n<parameter=y>\n1\n</parameter>\n</function>\n</tool_call>"
    [call] = Turn(read(tokenizer, tools=tools).conversation).message(text)["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"y": 1}
    strict = [{"type": "function", "function": {**function, "strict": True}}]
    form = {"response_format": {"type": "json_object"}}
    for more in ({"tools": tools, "tool_choice": "required"}, {"tools": tools, **form}, {"tools": [ADD, *strict]}):
        with pytest.raises(ApiError) as found:
            read(tokenizer, **more)
        name = "tools[1].function.parameters"
        assert found.value.param == name and found.value.message.startswith(name + place)
        assert "of the function 'f'" in found.value.message and found.value.status == 400


def test_texts_without_quotes_keep_to_their_pattern():
    """It is a pattern of schemas, which allows some look-ahead and has no control characters."""
    tokenizer = text_models.byte_level(chat_template="tools <tool_call> <function=")
    schema = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}
    function = {"name": "f", "parameters": {"properties": {"x": schema}, "required": ["x"]}}
    tools = [{"type": "function", "function": function}]
    host = follower(read(tokenizer, tools=tools, tool_choice="required").options["grammar"])
    call = "<tool_call>\n<function=f>\n<parameter=x>\n%s\n</parameter>\n</function>\n</tool_call>"
    assert [takes(host, call % text) for text in ("-1.5", ".", "a")] == [True, False, False]
    schema["maxLength"] = 4
    with pytest.raises(ApiError, match="one with a pattern has no minLength or maxLength"):
        read(tokenizer, tools=tools, tool_choice="required")


def test_arguments_are_an_object():
    """Schemas that do not say so, and those that also allow others."""
    for schema in (
        {"properties": {"x": {"enum": [1]}}},
        {"type": ["object", "null"], "properties": {"x": {"enum": [1]}}},
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        host = follower(read(tools=tools, tool_choice="required", reasoning_effort="none").options["grammar"])
        call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
        assert [takes(host, call % text) for text in ('{"x":1}', "null", "1")] == [True, False, False]


def test_a_template_without_functions_or_thinking_says_so():
    plain = text_models.byte_level()
    with pytest.raises(ApiError, match="no place for tools") as found:
        read(plain, tools=[ADD])
    assert found.value.param == "tools"
    unknown = text_models.byte_level(chat_template="{{ tools }} <calls>")
    with pytest.raises(ApiError, match="Hermes"):
        read(unknown, tools=[ADD])
    with pytest.raises(ApiError, match="no tags"):
        read(plain, thinking_token_budget=3)
    assert read(plain, tools=[ADD], tool_choice="none").prompts == read(plain).prompts
    assert read(plain).conversation.reader() is None
    several = text_models.byte_level(chat_template=scripted.TEMPLATE)
    with pytest.raises(ApiError, match="several tokens"):
        read(several, thinking_token_budget=3)
    assert read(several, response_format={"type": "json_object"}).options["schema"]


# A template of each family, a call, and one with wrong arguments.
CALLS = [
    (
        "tools <tool_call>",
        '<tool_call>\n{"name": "add", "arguments": {"x":1}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
    ),
    (
        'tools <|start_header_id|> "parameters"',
        '{"name": "add", "parameters": {"x":1}}',
        '{"name": "add", "parameters": {"x":"1"}}',
    ),
    (
        "tools [TOOL_CALLS]",
        '[TOOL_CALLS][{"name": "add", "arguments": {"x":1}}]',
        '[TOOL_CALLS][{"name": "sub", "arguments": {"x":1}}]',
    ),
    (
        "tools [TOOL_CALLS] [",
        '[TOOL_CALLS] [{"name": "add", "arguments": {"x":1}}, {"name": "now", "arguments": {}}]',
        "[TOOL_CALLS] []",
    ),
    ("tools [TOOL_CALLS] [ARGS]", '[TOOL_CALLS]add[ARGS]{"x":1}[TOOL_CALLS]now[ARGS]{}', "[TOOL_CALLS]add[ARGS]{}"),
    (
        "tools <TOOLCALL>[",
        '<TOOLCALL>[{"name": "add", "arguments": {"x":1}}, {"name": "now", "arguments": {}}]</TOOLCALL>',
        "<TOOLCALL>[]</TOOLCALL>",
    ),
    (
        "tools <tool_call></tool_call> <tool_calls>[",
        '<tool_calls>[{"name": "add", "arguments": {"x":1}}]</tool_calls>',
        '<tool_calls>[{"name": "add", "arguments": {"x":1}}]',
    ),
    (
        "tools <tool_call> <function=",
        "<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n</function>\n</tool_call>",
    ),
    (
        "tools <｜tool▁calls▁begin｜> ```json",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"x":1}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
    ),
    (
        "tools <｜tool▁calls▁begin｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"x":1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "tools ｜DSML｜ function_calls",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n<｜DSML｜parameter name="x" string="false">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n<｜DSML｜parameter name="x" string="true">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "tools <|tool_calls_section_begin|>",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"x":1}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        '<|tool_calls_section_begin|><|tool_call_begin|>add<|tool_call_argument_begin|>{"x":1}'
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "tools <tool_call> <arg_key>",
        "<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "<tool_call>add\n</tool_call>",
    ),
    (
        "tools <minimax:tool_call> <invoke name=",
        '<minimax:tool_call>\n<invoke name="add">\n<parameter name="x">1</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="add">\n</invoke>\n</minimax:tool_call>',
    ),
    (
        "tools <seed:tool_call> <function=",
        "<seed:tool_call>\n<function=add>\n<parameter=x>1</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=add>\n</function>\n</seed:tool_call>",
    ),
    (
        "tools <|start_of_role|> <|tool_call|>",
        '<|tool_call|>[{"name": "add", "arguments": {"x":1}}, {"name": "now", "arguments": {}}]',
        "<|tool_call|>[]",
    ),
    ("tools functools[", 'functools[{"name": "add", "arguments": {"x":1}}]', "functools[]"),
    (
        "tools <|tool_list_start|>",
        "<|tool_call_start|>[add(x=1), now()]<|tool_call_end|>",
        "<|tool_call_start|>[add()]<|tool_call_end|>",
    ),
    ("tools [func_name1(param1=", "[add(x=1), now()]", "[add(1)]"),
    ("tools ```tool_code", "```tool_code\nadd(x=1)\nnow()\n```", "```tool_code\nadd()\n```"),
    ('tools <|header_start|> "parameters"', '{"name": "add", "parameters": {"x":1}}', '{"name": "add"}'),
]


@pytest.mark.parametrize(("template", "good", "bad"), CALLS)
def test_required_calls_keep_to_the_schemas(template, good, bad):
    """Texts that the grammar takes are read."""
    tokenizer = text_models.byte_level(chat_template=template)
    asked = read(tokenizer, tools=[ADD, NOW], tool_choice="required")
    host = follower(asked.options["grammar"])
    assert takes(host, good) and not takes(host, bad) and not takes(host, "the sea")
    message = Turn(asked.conversation).message(good)
    assert message["content"] is None and message["tool_calls"][0]["function"]["name"] == "add"
    assert [json.loads(one["function"]["arguments"]) for one in message["tool_calls"]] in ([{"x": 1}], [{"x": 1}, {}])
    assert len({one["id"] for one in message["tool_calls"]}) == len(message["tool_calls"])
    assert len(message["tool_calls"][0]["id"]) == (
        9 if "TOOL_CALLS" in template else 15 if "section" in template else 29
    )
    named = follower(read(tokenizer, tools=[ADD, NOW], tool_choice=NAMED).options["grammar"])
    assert takes(named, good) == ("now" not in good)


def test_arguments_that_are_texts_end_before_their_tag():
    """Also in a grammar that the host follows, whose expressions give nothing back."""
    function = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]},
    }
    for template, before, after in (
        (
            "<tool_call> <function=",
            "<tool_call>\n<function=f>\n<parameter=t>\n",
            "\n</parameter>\n</function>\n</tool_call>",
        ),
        ("<tool_call> <arg_key>", "<tool_call>f\n<arg_key>t</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"),
    ):
        tokenizer = text_models.byte_level(chat_template=f"tools {template}")
        asked = read(tokenizer, tools=[{"function": function}], tool_choice="required")
        host = follower(asked.options["grammar"])
        for text in ("", "a < b\nc", "\n"):
            assert takes(host, before + text + after)
        assert not takes(host, before + "a</b>" + after) and not takes(host, before + "a")


OPTIONAL = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def test_optional_arguments_in_python_s_notation_have_commas_between_them():
    tokenizer = text_models.byte_level(chat_template="tools [func_name1(param1=")
    function = {"name": "f", "parameters": OPTIONAL}
    host = follower(read(tokenizer, tools=[{"function": function}], tool_choice="required").options["grammar"])
    texts = {"[f()]": True, "[f(a=1)]": True, "[f(b=1)]": True, "[f(a=1, b=2)]": True, "[f(a=1b=2)]": False}
    assert {text: takes(host, text) for text in texts} == texts
    function["parameters"] = OPTIONAL | {"required": ["b"]}
    host = follower(read(tokenizer, tools=[{"function": function}], tool_choice="required").options["grammar"])
    texts = {"[f()]": False, "[f(a=1)]": False, "[f(b=1)]": True, "[f(b=1, a=2)]": True, "[f(b=1, )]": False}
    assert {text: takes(host, text) for text in texts} == texts
    function["parameters"] = {"type": "object", "properties": {"a b": {}}}
    with pytest.raises(ApiError, match="Python's notation, which has no argument 'a b'"):
        read(tokenizer, tools=[{"function": function}], tool_choice="required")


CHANNELS = "tools <|start|>assistant<|channel|>final<|message|>"
ANALYSIS, COMMENTARY = (
    "<|channel|>analysis<|message|>so<|end|><|start|>assistant",
    "<|channel|>commentary to=functions.",
)
CALLED = f'{COMMENTARY}add <|constrain|>json<|message|>{{"x":1}}'


def test_messages_of_channels_are_read_and_keep_to_grammars():
    tokenizer = text_models.byte_level(chat_template=CHANNELS)
    asked = read(tokenizer, tools=[ADD, NOW], tool_choice="required")
    host = follower(asked.options["grammar"])
    assert takes(host, CALLED) and takes(host, ANALYSIS + CALLED)
    assert not takes(host, CALLED + CALLED) and not takes(host, "<|channel|>final<|message|>yes")
    message = Turn(asked.conversation).message(ANALYSIS + CALLED)
    assert message["reasoning"] == "so" and message["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": '{"x":1}',
    }
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes"]}}}
    for body, taken in (({}, False), ({"tools": [ADD]}, True)):
        host = follower(read(tokenizer, response_format=form, **body).options["grammar"])
        final = '<|channel|>final<|message|>"yes"'
        assert takes(host, final) and takes(host, ANALYSIS + final) and takes(host, CALLED) == taken
        assert not takes(host, '"yes"')
    with pytest.raises(ApiError, match="Lark"):
        read(tokenizer, structured_outputs={"grammar": 'start: "a"'})
    assert "grammar" not in read(tokenizer, tools=[ADD]).options


def test_ids_of_kimi_s_calls_go_on_from_the_messages():
    tokenizer = text_models.byte_level(chat_template="tools <|tool_calls_section_begin|>")
    turns = [*SEA, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]
    asked = read_chat({"messages": turns, "tools": [ADD]}, tokenizer)
    section = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:2<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    assert Turn(asked.conversation).message(section)["tool_calls"][0]["id"] == "functions.add:2"


def test_a_template_that_joins_arguments_to_a_text_gets_them_as_one():
    calls = "{% for c in m['tool_calls'] or [] %}{{ '<' + c.function.arguments }}{% endfor %}"
    template = f"{{% for m in messages %}}{calls}{{% endfor %}}"
    turns = [*SEA, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    asked = read_chat({"messages": turns}, text_models.byte_level(chat_template=template))
    assert text_models.byte_level().decode(asked.prompts[0]) == '<{"x": 7}'


@pytest.mark.parametrize(("template", "name"), [("<|START_ACTION|>", "Command R7B"), ("<|tool|>", "Phi-4-mini")])
def test_a_notation_that_is_known_by_name_alone_is_named(template, name):
    with pytest.raises(ApiError, match=name) as found:
        read(text_models.byte_level(chat_template=f"{{{{ tools }}}} {template}"), tools=[ADD])
    assert found.value.param == "tools"


def test_the_number_of_calls_is_limited():
    one = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    several = read(tools=[NOW], tool_choice="required", reasoning_effort="none")
    single = read(tools=[NOW], tool_choice="required", reasoning_effort="none", parallel_tool_calls=False)
    for asked, count in ((several, 2), (single, 1)):
        assert takes(follower(asked.options["grammar"]), f"{one}\n{one}") == (count == 2)
        assert len(Turn(asked.conversation).message(f"{one}\n{one}")["tool_calls"]) == count


def test_a_schema_holds_for_an_answer_without_calls():
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes"]}}}
    asked = read(tools=[NOW], response_format=form, reasoning_effort="none")
    host = follower(asked.options["grammar"])
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert [takes(host, text) for text in ('"yes"', call, "yes", f'{call}"yes"')] == [True, True, False, False]


def test_a_grammar_and_a_budget_wait_for_the_thinking():
    form = {"structured_outputs": {"regex": "[0-9]"}, "thinking_token_budget": 5}
    asked = read(**form)
    assert asked.options["grammar"] == Grammar.after_thinking(Grammar.regex("[0-9]"), start="<think>")
    opened = read(**form, chat_template_kwargs={"open": True})
    assert opened.options["grammar"] == Grammar.after_thinking(Grammar.regex("[0-9]"))
    assert int(opened.options["processors"][0].budget) == 5 and opened.conversation.opened
    skipped = read(**form, reasoning_effort="none")
    assert skipped.options["regex"] == "[0-9]" and "processors" not in skipped.options
    assert "processors" not in read(thinking_token_budget=-1).options
    names = [TOKENIZER.decode([one], skip_special_tokens=False) for one in asked.options["shown_tokens"]]
    assert names == ["<think>", "</think>"]


def test_families_are_found_by_their_templates():
    assert family_of("no calls") is None
    assert tags_of("no thinking") is None
    for template, *_ in CALLS:
        assert family_of(template) is not None and unread_family(template) is None


def test_spans_and_counts_belong_to_the_content():
    turn = Turn(read().conversation)
    pieces = [("<think>", False), ("so", True), ("</think>", False), ("\n\nthe", True), (" sea", False), ("!", True)]
    found = []
    for text, drafted in pieces:
        found += turn.push(text, [Span(text, drafted, True)])
    found += turn.push("", last=True)
    assert [delta for delta, _ in found] == [
        {"reasoning": "so", "reasoning_content": "so"},
        {"content": "the"},
        {"content": " sea"},
        {"content": "!"},
    ]
    assert [[(span.text, span.from_draft) for span in spans] for _, spans in found] == [
        [],
        [("the", True)],
        [(" sea", False)],
        [("!", True)],
    ]
    assert turn.reasoning_tokens() == 3
    hidden = Turn(read().conversation, reasoning=False)
    assert hidden.message("<think>so</think>yes") == {"role": "assistant", "content": "yes"}


def test_a_wrong_schema_of_the_answer_is_not_said_of_the_functions():
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with pytest.raises((ApiError, ValueError), match="properties.a") as found:
        read(tools=[ADD], response_format=form)
    assert getattr(found.value, "param", None) != "tools"
