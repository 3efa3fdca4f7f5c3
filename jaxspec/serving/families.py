"""Lists how families of models mark thinking and calls of functions, which their chat templates show."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxspec.grammar.dialect import translated
from jaxspec.serving.calls import CallReader, JsonCall, ListedCalls, TaggedCall


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


_TAGS = (Tags("<think>", "</think>"), Tags("[THINK]", "[/THINK]"), Tags("<seed:think>", "</seed:think>"))


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
      bare: whether a text that begins with an object is a call.
      between: what separates calls.
      reader: makes what reads calls, from the schemas of the arguments by name.
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
    reader: Callable[[Mapping[str, Any]], CallReader]
    call: Callable[[str, Any], list[Any]]
    end: str = ""
    bare: bool = False
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


def _tagged(name: str, schema: Any) -> list[Any]:
    """Returns the parts of a call in tags, with the arguments that are required and those that may be missing."""
    required = schema.get("required", ())
    parts: list[Any] = [f"<tool_call>\n<function={name}>\n"]
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for key, value in schema.get("properties", {}).items():
        argument = [f"<parameter={key}>\n", _tagged_value(value, definitions), "\n</parameter>\n"]
        parts.append(argument if key in required else {"any": [argument, ""]})
    return [*parts, "</function>\n</tool_call>"]


# Texts of a line or more, which do not begin a tag that ends them.
_FREE = r"([^<]|<[^/])*"


def _tagged_value(schema: Any, definitions: Mapping[str, Any]) -> Any:
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


_HERMES_MARKS = ("<tool_call>", "</tool_call>")
_LIST_MARK = "[TOOL_CALLS]"
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
        "Qwen3-Coder",
        ("<tool_call>", "<function="),
        _HERMES_MARKS[0],
        TaggedCall,
        _tagged,
        end=_HERMES_MARKS[1],
        between="\n",
    ),
    Family(
        "Hermes",
        ("<tool_call>", "!<arg_key>"),
        _HERMES_MARKS[0],
        JsonCall,
        _hermes,
        end=_HERMES_MARKS[1],
        between="\n",
    ),
    Family(
        "Llama3",
        ("<|start_header_id|>", '"parameters"'),
        "<|python_tag|>",
        JsonCall,
        _llama3,
        bare=True,
        between="; ",
    ),
)


def family_of(template: str) -> Family | None:
    """Returns the notation of calls that a template shows; `None` if it is none of those known."""
    has = lambda text: text[1:] not in template if text[0] == "!" else text in template  # noqa: E731
    return next((one for one in _FAMILIES if all(map(has, one.shows))), None)


def known_families() -> str:
    """Returns the names of the notations, for errors."""
    return ", ".join(dict.fromkeys(one.name.split(",")[0] for one in _FAMILIES))
