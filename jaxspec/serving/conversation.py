"""Reads what a chat says about functions and thinking, and prepares the prompt, the controls and what reads the answer.

tools            go into the chat template; "required" and a named function become a grammar of calls
thinking         the template's tags; a grammar begins after it, a budget ends it
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jaxspec.checkpoints.call_arguments import is_text
from jaxspec.checkpoints.chat_template import only_thinks
from jaxspec.checkpoints.tokenizer import SET_HERE, Tokenizer
from jaxspec.core.validate import shown
from jaxspec.grammar import Grammar, ThinkingBudget
from jaxspec.grammar.schema import as_dict
from jaxspec.grammar.texts import named_tokens
from jaxspec.serving.channels import MARKS, ChannelReader, final_part, turn_parts
from jaxspec.serving.errors import ApiError
from jaxspec.serving.families import Family, Tags, family_of, has_channels, known_families, tags_of, unread_family
from jaxspec.serving.reader import Reader
from jaxspec.serving.template_reader import TemplateReader, special_tokens, usable_template

_CHOICES = ("none", "auto", "required")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EXAMPLE = '{"type": "function", "function": {"name": "f", "parameters": {...}}}'
# Tokens at the end of a prompt among which the template may have opened or closed the thinking.
_TAIL = 32
# The options of `Engine.submit` that are grammars.
_GRAMMARS = ("schema", "regex", "choices", "grammar")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """Holds the functions that a model may call.

    Attributes:
      given: the functions as the client sent them, for the template; `None` for none.
      schemas: the schema of the arguments of each function, by name, as the client sent it.
      choice: "none", "auto", "required", or "named".
      several: whether there may be more than one call.
      family: the notation of calls; `None` if none are read.

    Example:
        >>> from jaxspec.serving.conversation import Tools
        >>> Tools().choice
        'none'
    """

    given: list[dict[str, Any]] | None = None
    schemas: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choice: str = "none"
    several: bool = True
    family: Family | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversation:
    """Holds a chat that has been read.

    Attributes:
      ids: the prompt.
      tools: the functions.
      tags: the marks around the model's thinking; `None` if it does not think.
      opened: whether the prompt has opened the thinking.
      budget: the number of tokens after which the thinking ends; `None` for no limit.
      template: the tokenizer's response template, which reads answers instead; `None` without one.
      prompt: the text of the prompt, for that template.
      channels: whether the model divides its text into messages of channels.
      calls: the number of calls in the messages.

    Example:
        >>> from jaxspec.serving.conversation import Conversation, Tools
        >>> Conversation(ids=[1], tools=Tools()).reader() is None
        True
    """

    ids: list[int]
    tools: Tools
    tags: Tags | None = None
    opened: bool = False
    budget: int | None = None
    template: Mapping[str, Any] | None = None
    prompt: str = ""
    channels: bool = False
    calls: int = 0

    def reader(self) -> Reader | None:
        """Returns what reads one answer; `None` if all of it is content."""
        most_calls = None if self.tools.several else 1
        if self.template is not None:
            tools = None if self.tools.choice == "none" else self.tools.given
            return TemplateReader(self.template, self.prompt, tools, most_calls)
        if self.channels:
            return ChannelReader(self.tools.schemas, most_calls)
        if self.tags is None and self.tools.family is None:
            return None
        return Reader(
            self.tags,
            self.tools.family,
            opened=self.opened,
            schemas=self.tools.schemas,
            most_calls=most_calls,
        )

    def options(self, options: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
        """Returns the options of `Engine.submit` with the grammar of calls, and those of the thinking.

        Raises:
          ApiError: they cannot be honored together.
        """
        found = {name: value for name, value in options.items() if name not in _GRAMMARS}
        grammar = self._grammar({name: options[name] for name in _GRAMMARS if name in options})
        if self.tags is None:
            found |= grammar
        else:
            start = None if self.opened else self.tags.start
            if start is not None and len(tokenizer.encode(start, add_special_tokens=False)) != 1:
                start = ""  # it cannot be seen in time: a grammar holds from the beginning
            if grammar and start != "":
                grammar = {"grammar": Grammar.after_thinking(_made(grammar), end=self.tags.end, start=start)}
            found |= grammar
            if self.budget is not None:
                if start == "":
                    raise ApiError(
                        400,
                        f"{self.tags.start} is several tokens of this model, so no budget can be kept; leave it out",
                        param="thinking_token_budget",
                    )
                limit = ThinkingBudget.of(tokenizer, vocab_size, self.budget, end=self.tags.end, start=start)
                found["processors"] = (limit,)
        marks = special_tokens(tokenizer) if self.template is not None else named_tokens(tokenizer, self._marks())
        if shown_tokens := {*found.get("shown_tokens", ()), *(one for one in marks if one < vocab_size)}:
            found["shown_tokens"] = tuple(sorted(shown_tokens))
        return found

    def _marks(self) -> str:
        """Returns the texts that the reader looks for."""
        family = self.tools.family
        marks = [*(self.tags or ()), *((family.begin, family.end, *family.inner) if family else ())]
        marks += MARKS if self.channels else ()
        return "\n".join(marks)

    def _grammar(self, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the grammar of calls, or of calls and other answers."""
        tools = self.tools
        family = tools.family
        if (family is None and not (self.channels and given)) or (tools.choice == "auto" and not given):
            return given
        if tools.choice in ("auto", "none") and "grammar" in given:
            raise ApiError(
                400,
                "this model's messages cannot keep to a Lark grammar; pass a schema, a regex or choices"
                if self.channels
                else 'an answer by a Lark grammar cannot be a call as well; pass tool_choice="none", or no grammar',
                param="structured_outputs.grammar",
            )
        texts = [_part(one) for one in given.items()] if tools.choice in ("auto", "none") else []
        if family is None:
            return {"grammar": Grammar.parts(*turn_parts(list(map(final_part, texts))))}
        several = tools.several and not self.channels  # where a call ends the turn
        kept = {name: _kept(schema, name, tools.given) for name, schema in tools.schemas.items()}
        try:
            calls = family.parts(list(kept.items()), several=several)
            if self.channels:
                return {"grammar": Grammar.parts(*turn_parts([calls, *map(final_part, texts)]))}
            return {"grammar": Grammar.parts({"any": [calls, *texts]} if texts else calls)}
        except (TypeError, ValueError) as error:
            for name, schema in kept.items():
                _check_followed(schema, name, tools.given)
            for text in texts:
                Grammar.parts(text)  # whose error is not of the functions
            raise ApiError(400, str(error), param="tools") from None


def read_conversation(values: Mapping[str, Any], tokenizer: Tokenizer) -> Conversation:
    """Reads the messages, the functions and the fields about thinking of a chat.

    Args:
      values: the fields of the request, without those that are null.
      tokenizer: has the chat template.

    Raises:
      ApiError: a field is wrong, or cannot be honored.
    """
    template = tokenizer.chat_template or ""
    response = usable_template(tokenizer)
    tools = read_tools(values, template, any_notation=response is not None)
    messages = [_message(one, place) for place, one in enumerate(values["messages"])]
    ids = _prompt(messages, tools, values, tokenizer)
    tags = tags_of(template)
    end = "" if tags is None else tokenizer.decode(ids[-_TAIL:], skip_special_tokens=False).rstrip()
    if tags is not None and end.endswith(tags.end):  # the template has skipped the thinking
        tags = None
    budget = values.get("thinking_token_budget")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or not -1 <= budget < 2**31):
        raise ApiError(
            400,
            f"thinking_token_budget must be a number of tokens, or -1 for no limit, got {shown(budget)}",
            param="thinking_token_budget",
        )
    if budget is not None and tags_of(template) is None:
        raise ApiError(
            400,
            "this model's chat template has no tags of thinking, so there is no budget for it; leave it out",
            param="thinking_token_budget",
        )
    return Conversation(
        ids=ids,
        tools=tools,
        tags=tags,
        opened=tags is not None and end.endswith(tags.start),
        budget=None if budget is None or budget < 0 else budget,
        template=response,
        prompt="" if response is None else tokenizer.decode(ids, skip_special_tokens=False),
        channels=response is None and has_channels(template),
        calls=sum(len(one.get("tool_calls", ())) for one in messages),
    )


def _prompt(messages: list[dict[str, Any]], tools: Tools, values: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    """Returns the prompt."""
    try:
        return tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=values.get("add_generation_prompt", True),
            continue_final_message=values.get("continue_final_message", False),
            tools=tools.given,
            variables=_variables(values),
        )
    except (TypeError, ValueError) as error:
        raise ApiError(400, str(error), param="messages") from None


def read_tools(values: Mapping[str, Any], template: str, *, any_notation: bool = False) -> Tools:
    """Reads `tools`, `tool_choice` and `parallel_tool_calls`.

    Args:
      values: the fields of the request, without those that are null.
      template: the chat template.
      any_notation: whether calls are read in the notation of any template.

    Raises:
      ApiError: a field is wrong, or the template cannot honor it.
    """
    given, choice = values.get("tools"), values.get("tool_choice")
    several = values.get("parallel_tool_calls", True)
    if not isinstance(several, bool):
        raise ApiError(
            400, f"parallel_tool_calls must be true or false, got {shown(several)}", param="parallel_tool_calls"
        )
    if given is None:
        if choice not in (None, "none"):
            raise ApiError(400, "tool_choice needs tools; pass tools, or leave it out", param="tool_choice")
        return Tools()
    schemas = _schemas(given)
    kind, named = _choice("auto" if choice is None else choice, schemas)
    for called in (one["function"]["name"] for one in given if one["function"].get("strict")):
        _check_followed(_kept(schemas[called], called, given), called, given)
    knows = "tools" in template
    if kind == "none":
        return Tools(given=given if knows else None)
    if not knows:
        raise ApiError(
            400,
            "this model's chat template has no place for tools, so the model would not see them; leave tools out, "
            'pass tool_choice="none", or serve a model that was trained to call functions',
            param="tools",
        )
    family = family_of(template)
    if family is None and (kind != "auto" or not any_notation):
        whose = unread_family(template)
        named = "a notation that is not known here" if whose is None else f"the notation that is {whose}"
        raise ApiError(
            400,
            f"this model's chat template writes calls in {named}, so they cannot be read; "
            f'known are those of {known_families()}; pass tool_choice="none"',
            param="tools",
        )
    schemas = schemas if named is None else {named: schemas[named]}
    return Tools(given=given, schemas=schemas, choice=kind, several=several and named is None, family=family)


def _schemas(given: Any) -> dict[str, Any]:
    """Returns the schema of the arguments of each function, by name."""
    if not isinstance(given, list) or not given:
        raise ApiError(400, f"tools must be a list of at least one {_EXAMPLE}, got {shown(given)}", param="tools")
    found: dict[str, Any] = {}
    for place, one in enumerate(given):
        name = f"tools[{place}]"
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or one.get("type", "function") != "function":
            raise ApiError(400, f"{name} must be {_EXAMPLE}, got {shown(one)}", param=name)
        called = function.get("name")
        if not isinstance(called, str) or not called or called in found or not is_text(called):
            raise ApiError(
                400,
                f"{name}.function.name must be a text that no other function has, got {shown(called)}",
                param=f"{name}.function.name",
            )
        found[called] = _arguments(function, f"{name}.function")
    return found


def _arguments(function: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the schema of a function's arguments, which need not be one that a grammar follows."""
    schema, strict = function.get("parameters"), function.get("strict")
    if schema is not None and not isinstance(schema, dict):
        raise ApiError(400, f"{name}.parameters must be a JSON schema, got {shown(schema)}", param=f"{name}.parameters")
    if strict is not None and not isinstance(strict, bool):
        raise ApiError(400, f"{name}.strict must be true or false, got {shown(strict)}", param=f"{name}.strict")
    return schema or {"type": "object", "properties": {}}


def _kept(schema: Mapping[str, Any], called: str, given: Any) -> dict[str, Any]:
    """Returns a schema of arguments that have to keep to it: they are an object.

    Raises:
      ApiError: it is not a JSON schema, or allows no object.
    """
    try:
        found = as_dict(schema)
        kinds = found.get("type", "object")
        if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
            raise ValueError(f'schema.type is {kinds!r}, but arguments are an object; pass "object"')
    except (TypeError, ValueError) as error:
        raise _not_kept(error, called, given) from None
    return found | {"type": "object"}


def _check_followed(schema: Any, called: str, given: Any) -> None:
    """Raises `ApiError` if no grammar follows a schema of arguments."""
    try:
        Grammar.json_schema(schema)
    except (TypeError, ValueError) as error:
        raise _not_kept(error, called, given) from None


def _not_kept(error: Exception, called: str, given: Any) -> ApiError:
    """Returns the error of arguments that cannot keep to their schema."""
    place = next(index for index, one in enumerate(given) if one["function"]["name"] == called)
    name, text = f"tools[{place}].function.parameters", str(error)
    where = name + text.removeprefix("schema") if text.startswith("schema") else f"{name}: {text}"
    why = 'tool_choice "required" or a function, and response_format, enforce schemas; strict alone checks them'
    return ApiError(400, f"{where} (of the function {called!r:.80}; {why})", param=name)


def _choice(choice: Any, schemas: Mapping[str, Any]) -> tuple[str, str | None]:
    """Returns the kind of choice, and the function that it names."""
    if isinstance(choice, str) and choice in _CHOICES:
        return choice, None
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ApiError(
            400,
            f'tool_choice must be "none", "auto", "required" or {{"type": "function", "function": {{"name": "f"}}}}, '
            f"got {shown(choice)}",
            param="tool_choice",
        )
    if name not in schemas:
        raise ApiError(400, f"tool_choice names {name!r:.80}, which is not in tools", param="tool_choice")
    return "named", name


def _variables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables of the template that the client sets."""
    given, effort = values.get("chat_template_kwargs", {}), values.get("reasoning_effort")
    if not isinstance(given, dict):
        name = "chat_template_kwargs"
        raise ApiError(400, f"{name} must be an object, got {shown(given)}", param=name)
    # Clients repeat these next to the template's own variables.
    for own, default in (("add_generation_prompt", True), ("continue_final_message", False)):
        if own in given and given[own] is values.get(own, default):
            given = {name: value for name, value in given.items() if name != own}
    if wrong := [one for one in (*SET_HERE, "chat_template", "tokenize") if one in given]:
        name = f"chat_template_kwargs.{wrong[0]}"
        instead = "pass it as a separate field" if wrong[0] in SET_HERE else "leave it out"
        raise ApiError(400, f"{name} is no variable of the template; {instead}", param=name)
    if effort is None:
        return given
    if effort not in _EFFORTS:
        name = "reasoning_effort"
        raise ApiError(400, f"{name} must be one of {', '.join(_EFFORTS)}, got {shown(effort)}", param=name)
    return {"enable_thinking": effort != "none", "reasoning_effort": effort, **given}


def _message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Returns a message as templates read it: the arguments of calls are objects."""
    found = {**message, "role": "system"} if message.get("role") == "developer" else dict(message)
    found |= {"content": ""} if only_thinks(message) else {}  # which any template can write
    calls = message.get("tool_calls")
    if not calls:
        return {name: value for name, value in found.items() if name != "tool_calls"}
    name = f"messages[{place}].tool_calls"
    if not isinstance(calls, list):
        raise ApiError(400, f"{name} must be a list, got {shown(calls)}", param="messages")
    return {**found, "tool_calls": [_called(one, f"{name}[{index}]") for index, one in enumerate(calls)]}


def _called(call: Any, name: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(
            400,
            f'{name} must be {{"id": ..., "type": "function", "function": {{"name": "f", "arguments": "{{}}"}}}}, '
            f"got {shown(call)}",
            param="messages",
        )
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise ApiError(400, f"{name}.function.arguments must be the JSON of an object", param="messages")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _part(given: tuple[str, Any]) -> Any:
    """Returns a grammar option as a part of another grammar."""
    name, value = given
    return {"any": value} if name == "choices" else {name: value}


def _made(given: Mapping[str, Any]) -> Grammar:
    """Returns the grammar that options request."""
    if len(given) > 1:
        raise ApiError(400, f"an answer keeps to one grammar, got {' and '.join(given)}; pass one of them")
    [(name, value)] = given.items()
    if isinstance(value, Grammar):
        return value
    kinds = {"schema": Grammar.json_schema, "regex": Grammar.regex, "choices": Grammar.choices, "grammar": Grammar.lark}
    return kinds[name](value)


def call_id(conversation: Conversation | None, name: str, place: int, random: str) -> str:
    """Returns the id of a call.

    Mistral's templates take nine letters or digits; Kimi's write the id instead of the name, and count the calls.

    Args:
      conversation: the chat.
      name: the name of the function.
      place: the number of calls before it in the answer.
      random: at least 24 random hexadecimal digits.
    """
    family = None if conversation is None else conversation.tools.family
    if conversation is not None and family is not None and family.name.startswith("Kimi"):
        return f"functions.{name}:{conversation.calls + place}"
    return random[:9] if family is not None and family.name.startswith("Mistral") else f"call_{random[:24]}"
