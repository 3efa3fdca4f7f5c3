"""Lists how families of models mark thinking and calls of functions, which their chat templates show."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxspec.grammar.dialect import translated
from jaxspec.serving.calls import CallReader, JsonCall, ListedCalls
from jaxspec.serving.python_calls import NAME, PythonCalls
from jaxspec.serving.section_calls import DEEPSEEK, KIMI, SectionCalls
from jaxspec.serving.tagged_calls import DSML, MINIMAX, KeyedCall, TaggedCalls


class Tags(NamedTuple):
    """Holds the texts around a model's thinking.

    Attributes:
      start: opens the thinking.
      end: ends it.

    Example:
        >>> from jaxspec.serving.families import tags_of
        >>> tags_of("... <think> ... </think> ...")
        Tags(start='<think>', end='</think>')
    """

    start: str
    end: str


_TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("◁think▷", "◁/think▷"),
)


def tags_of(template: str) -> Tags | None:
    """Returns the tags of thinking that a template has; `None` if it has none of those known."""
    return next((tags for tags in _TAGS if tags.end in template), None)


@dataclasses.dataclass(frozen=True)
class Family:
    """Describes a notation of calls.

    Attributes:
      name: the name of the notation, for errors.
      shows: texts of which a template of the family has all; one after `!` it must not have.
      begin: the mark before calls; with `bare`, one that may be missing.
      end: the mark after a call; empty if there is none.
      bare: the character with which a text that is a call begins without a mark; empty if none does.
      between: what separates calls.
      reader: makes what reads calls, from the schemas of the arguments by name; `None` if the text has channels.
      call: makes the parts of the grammar of one call, from the name and the schema of its arguments.
      around: the texts before and after all calls in that grammar.
      inner: marks within calls.

    Example:
        >>> from jaxspec.serving.families import family_of
        >>> family_of("{{ tools }} <tool_call> ...").name
        'Hermes'
    """

    name: str
    shows: tuple[str, ...]
    begin: str
    reader: Callable[[Mapping[str, Any]], CallReader] | None
    call: Callable[[str, Any], list[Any]]
    end: str = ""
    bare: str = ""
    between: str = ""
    around: tuple[str, str] = ("", "")
    inner: tuple[str, ...] = ()

    def parts(self, functions: Sequence[tuple[str, Any]], *, several: bool) -> list[Any]:
        """Returns the parts of a grammar of calls.

        Args:
          functions: the name of each function, and the schema of its arguments.
          several: whether there may be more than one call.
        """
        call = {"any": [self.call(*function) for function in functions]}
        calls = {"repeat": call, "between": self.between} if several else call
        return [part for part in (self.around[0], calls, self.around[1]) if part]


def _hermes(name: str, schema: Any) -> list[Any]:
    opening = f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    return [opening, {"schema": schema}, "}\n</tool_call>"]


def _llama3(name: str, schema: Any) -> list[Any]:
    return [f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": ', {"schema": schema}, "}"]


def _listed(name: str, schema: Any) -> list[Any]:
    return [f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ', {"schema": schema}, "}"]


def _named(name: str, schema: Any) -> list[Any]:
    return [f"[TOOL_CALLS]{name}[ARGS]", {"schema": schema}]


def _arguments(schema: Any, before: Callable[[str, bool], str], after: str) -> list[Any]:
    """Returns the parts of arguments, of which those that are not required may be missing.

    Args:
      schema: that of the arguments.
      before: returns the text before a value, from its name and whether it is written without quotes.
      after: the text after a value.
    """
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parts: list[Any] = []
    for key, value in schema.get("properties", {}).items():
        part = _value(value, definitions)
        argument = [before(key, "schema" not in part), part, after]
        parts.append(argument if key in schema.get("required", ()) else {"any": [argument, ""]})
    return parts


def _tagged(name: str, schema: Any, *, space: str = "\n", mark: str = "tool_call") -> list[Any]:
    """Returns the parts of a call in tags, with the name of the function in one of them."""
    values = _arguments(schema, lambda key, _: f"<parameter={key}>{space}", f"{space}</parameter>\n")
    return [f"<{mark}>\n<function={name}>\n", *values, f"</function>\n</{mark}>"]


def _invoked(name: str, schema: Any, *, prefix: str = "", says: bool = False) -> list[Any]:
    """Returns the parts of a call whose tags have names as attributes, and perhaps whether a value is text."""

    def before(key: str, is_text: bool) -> str:
        return f'<{prefix}parameter name="{key}"' + f' string="{str(is_text).lower()}"' * says + ">"

    values = _arguments(schema, before, f"</{prefix}parameter>\n")
    return [f'<{prefix}invoke name="{name}">\n', *values, f"</{prefix}invoke>\n"]


def _keyed(name: str, schema: Any) -> list[Any]:
    values = _arguments(schema, lambda key, _: f"<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n")
    return [f"<tool_call>{name}\n", *values, "</tool_call>"]


def _deepseek(name: str, schema: Any) -> list[Any]:
    opening = f"{DEEPSEEK.call}function<｜tool▁sep｜>{name}\n```json\n"
    return [opening, {"schema": schema}, "\n```" + DEEPSEEK.call_end]


def _deepseek_short(name: str, schema: Any) -> list[Any]:
    return [f"{DEEPSEEK.call}{name}<｜tool▁sep｜>", {"schema": schema}, DEEPSEEK.call_end]


def _kimi(name: str, schema: Any) -> list[Any]:
    number = {"regex": "[0-9]{1,2}"}
    opening = f"{KIMI.call}functions.{name}:"
    return [opening, number, "<|tool_call_argument_begin|>", {"schema": schema}, KIMI.call_end]


def _python(name: str, schema: Any) -> list[Any]:
    """Returns the parts of a call in Python's notation, the required arguments first."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if unread := [key for key in properties if not NAME.fullmatch(key)]:
        raise ValueError(f"this model writes calls in Python's notation, which has no argument {unread[0]!r:.80}")
    written = {
        key: [f"{key}=", {"schema": {**definitions, **(value if isinstance(value, dict) else {})}}]
        for key, value in properties.items()
    }
    needed = [written[key] for key in written if key in required]
    others = [written[key] for key in written if key not in required]
    rest = lambda parts: [{"any": [[", ", *part], ""]} for part in parts]  # noqa: E731
    if needed:
        first, *more = needed
        inner: list[Any] = [first, *([", ", *part] for part in more), *rest(others)]
    else:  # any of the others may be the first
        starts = [[part, *rest(others[place + 1 :])] for place, part in enumerate(others)]
        inner = [{"any": [*starts, ""]}] if starts else []
    return [f"{name}(", *inner, ")"]


# Texts of a line or more, which do not begin a tag that ends them.
_FREE = r"([^<]|<[^/])*"


def _value(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Returns the part of one argument: texts are written without quotes, other values as JSON."""
    if not isinstance(schema, dict):
        return {"schema": {**definitions}}
    listed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if listed and all(isinstance(one, str) and one for one in listed):
        return {"any": list(listed)}
    if schema.get("type") == "string":
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        free = f"[^<]{{{low},{high}}}" if "minLength" in schema or "maxLength" in schema else _FREE
        if "pattern" not in schema:
            return {"regex": free}
        if free != _FREE:
            raise ValueError("this model writes texts without quotes: one with a pattern has no minLength or maxLength")
        return {"regex": translated(schema["pattern"])}
    return {"schema": {**definitions, **schema}}


def _channel_call(name: str, schema: Any) -> list[Any]:
    return [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", {"schema": schema}]


_HERMES_MARKS = ("<tool_call>", "</tool_call>")
_LIST_MARK = "[TOOL_CALLS]"
_DEEPSEEK_MARK, _KIMI_MARK, _GRANITE_MARK = "<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>", "<|tool_call|>"
_CHANNELS = ("<|start|>", "<|channel|>", "<|message|>")
# In the order in which they are looked for.
_FAMILIES = (
    Family(
        "Mistral, with [ARGS]",
        (_LIST_MARK, "[ARGS]"),
        _LIST_MARK,
        ListedCalls,
        _named,
        inner=("[ARGS]", "[CALL_ID]"),
    ),
    Family(
        "Mistral, spaced",
        (_LIST_MARK + " [",),
        _LIST_MARK,
        ListedCalls,
        _listed,
        between=", ",
        around=(_LIST_MARK + " [", "]"),
    ),
    Family(
        "Mistral",
        (_LIST_MARK,),
        _LIST_MARK,
        ListedCalls,
        _listed,
        between=", ",
        around=(_LIST_MARK + "[", "]"),
    ),
    Family(
        "Nemotron",
        ("<TOOLCALL>[",),
        "<TOOLCALL>",
        ListedCalls,
        _listed,
        end="</TOOLCALL>",
        between=", ",
        around=("<TOOLCALL>[", "]</TOOLCALL>"),
    ),
    Family(
        "Apriel",
        ("<tool_calls>[",),
        "<tool_calls>",
        ListedCalls,
        _listed,
        end="</tool_calls>",
        between=", ",
        around=("<tool_calls>[", "]</tool_calls>"),
    ),
    Family(
        "DeepSeek V3",
        (_DEEPSEEK_MARK, "```json"),
        _DEEPSEEK_MARK,
        functools.partial(SectionCalls, section=DEEPSEEK),
        _deepseek,
        between="\n",
        around=(_DEEPSEEK_MARK, DEEPSEEK.end),
        inner=(DEEPSEEK.call, "<｜tool▁sep｜>", DEEPSEEK.call_end, DEEPSEEK.end),
    ),
    Family(
        "DeepSeek V3.1",
        (_DEEPSEEK_MARK,),
        _DEEPSEEK_MARK,
        functools.partial(SectionCalls, section=DEEPSEEK),
        _deepseek_short,
        around=(_DEEPSEEK_MARK, DEEPSEEK.end),
        inner=(DEEPSEEK.call, "<｜tool▁sep｜>", DEEPSEEK.call_end, DEEPSEEK.end),
    ),
    Family(
        "DeepSeek V3.2",
        ("｜DSML｜", "function_calls"),
        "<｜DSML｜function_calls>",
        functools.partial(TaggedCalls, tags=DSML),
        functools.partial(_invoked, prefix="｜DSML｜", says=True),
        around=("<｜DSML｜function_calls>\n", DSML.end),
        inner=("｜DSML｜",),
    ),
    Family(
        "Kimi K2",
        (_KIMI_MARK,),
        _KIMI_MARK,
        functools.partial(SectionCalls, section=KIMI),
        _kimi,
        around=(_KIMI_MARK, KIMI.end),
        inner=(KIMI.call, "<|tool_call_argument_begin|>", KIMI.call_end, KIMI.end),
    ),
    Family(
        "MiniMax M2",
        ("<minimax:tool_call>", "<invoke name="),
        "<minimax:tool_call>",
        functools.partial(TaggedCalls, tags=MINIMAX),
        _invoked,
        around=("<minimax:tool_call>\n", MINIMAX.end),
        inner=(MINIMAX.end,),
    ),
    Family(
        "Seed-OSS",
        ("<seed:tool_call>", "<function="),
        "<seed:tool_call>",
        TaggedCalls,
        functools.partial(_tagged, space="", mark="seed:tool_call"),
        end="</seed:tool_call>",
        between="\n",
    ),
    Family(
        "GLM",
        ("<tool_call>", "<arg_key>"),
        "<tool_call>",
        KeyedCall,
        _keyed,
        between="\n",
        inner=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Family(
        "Granite 3",
        (_GRANITE_MARK, "<|start_of_role|>"),
        _GRANITE_MARK,
        ListedCalls,
        _listed,
        between=", ",
        around=(_GRANITE_MARK + "[", "]"),
    ),
    Family(
        "Phi-4-mini",
        ("functools[",),
        "functools",
        ListedCalls,
        _listed,
        between=", ",
        around=("functools[", "]"),
    ),
    Family(
        "LFM2",
        ("<|tool_list_start|>",),
        "<|tool_call_start|>",
        PythonCalls,
        _python,
        end="<|tool_call_end|>",
        between=", ",
        around=("<|tool_call_start|>[", "]<|tool_call_end|>"),
    ),
    Family(
        "Llama 4 and Gemma 3, in Python's notation",
        ("func_name1(param",),
        "<|python_start|>",
        PythonCalls,
        _python,
        end="<|python_end|>",
        bare="[",
        between=", ",
        around=("[", "]"),
    ),
    Family(
        "Gemma's tool_code",
        ("```tool_code",),
        "```tool_code",
        functools.partial(PythonCalls, end="```"),
        _python,
        between="\n",
        around=("```tool_code\n", "\n```"),
    ),
    Family(
        "gpt-oss",
        _CHANNELS,
        "<|channel|>",
        None,  # `ChannelReader` reads all of such a text
        _channel_call,
    ),
    Family(
        "Qwen3-Coder",
        ("<tool_call>", "<function="),
        _HERMES_MARKS[0],
        TaggedCalls,
        _tagged,
        end=_HERMES_MARKS[1],
        between="\n",
    ),
    Family(
        "Hermes",
        ("<tool_call>",),
        _HERMES_MARKS[0],
        JsonCall,
        _hermes,
        end=_HERMES_MARKS[1],
        between="\n",
    ),
    Family(
        "Llama 4",
        ("<|header_start|>", '"parameters"'),
        "<|python_start|>",
        JsonCall,
        _llama3,
        end="<|python_end|>",
        bare="{",
        between="; ",
    ),
    Family(
        "Llama3",
        ("<|start_header_id|>", '"parameters"'),
        "<|python_tag|>",
        JsonCall,
        _llama3,
        bare="{",
        between="; ",
    ),
)


def has_channels(template: str) -> bool:
    """Returns whether a template divides a text into messages of channels.

    Example:
        >>> from jaxspec.serving.families import has_channels
        >>> has_channels("<|start|>assistant<|channel|>final<|message|>")
        True
    """
    return all(mark in template for mark in _CHANNELS)


# From marks of templates to the owners of notations that are not read.
_UNREAD: Mapping[str, str] = MappingProxyType(
    {
        "<|START_ACTION|>": "Command R7B's",
        "Action: ```json": "Command R's",
        "<|tools_prefix|>": "Apertus'",
        "<|action_start|>": "InternLM 2's",
        "<start_function_call>": "FunctionGemma's",
        "<|tool|>": "Phi-4-mini's own, whose functions are in the system message",
        ">>>": "Functionary's",
    }
)


def unread_family(template: str) -> str | None:
    """Returns whose notation of calls a template shows, if it is one that is not read; `None` if it is unknown.

    Example:
        >>> from jaxspec.serving.families import unread_family
        >>> unread_family("<|action_start|><|plugin|>")
        "InternLM 2's"
    """
    return next((name for mark, name in _UNREAD.items() if mark in template), None)


def family_of(template: str) -> Family | None:
    """Returns the notation of calls that a template shows; `None` if it is none of those known."""
    has = lambda text: text[1:] not in template if text[0] == "!" else text in template  # noqa: E731
    return next((one for one in _FAMILIES if all(map(has, one.shows))), None)


def known_families() -> str:
    """Returns the names of the notations, for errors."""
    return ", ".join(dict.fromkeys(one.name.split(",")[0] for one in _FAMILIES))
