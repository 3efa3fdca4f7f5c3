"""Faults of functions and thinking in chats."""

from tests.mutants.mutant import Mutant

_THINKING, _READER, _CONVERSATION = (
    "tests/grammar/test_thinking.py",
    "tests/serving/test_reader.py",
    "tests/serving/test_conversation.py",
)
_FREE = f"{_THINKING}::test_all_tokens_may_come_until_the_end_and_then_those_of_the_grammar"
_PARTS = f"{_READER}::test_texts_have_their_parts"

MUTANTS = (
    Mutant(
        "a prompt to continue loses the space at its end",
        "checkpoints/chat_template.py",
        "return text[:place] if text.startswith(_END, place) else text[:place].rstrip()",
        "return text[:place].rstrip()",
        ("tests/serving/test_conversation.py::test_the_last_message_may_be_continued",),
    ),
    Mutant(
        "the grammar does not begin after the thinking",
        "grammar/thinking.py",
        "np.where(to == thinking.over, start, ",
        "np.where(to == thinking.over, used, ",
        (_FREE,),
    ),
    Mutant(
        "the host's thinking has no end",
        "grammar/thinking.py",
        "self._path.append((_WITHIN if after == self._thinking.over else after, False))",
        "self._path.append((min(after, self._thinking.over - 1), False))",
        (_FREE,),
    ),
    Mutant(
        "drafts within the grammar stay",
        "grammar/thinking.py",
        "self._inner.rollback(sum(taken))",
        "pass",
        (f"{_THINKING}::test_drafts_are_taken_back",),
    ),
    Mutant(
        "a model cannot begin to think",
        "grammar/thinking.py",
        "following[begins] = np.where(is_start[first], used, following[start])",
        "following[begins] = following[start]",
        (f"{_THINKING}::test_a_model_may_begin_to_think_or_to_answer",),
    ),
    Mutant(
        "the budget counts tokens before the thinking",
        "grammar/budget.py",
        "counts = (self._thinks(at) & (token >= 0)).astype(jnp.int32)",
        "counts = (token >= 0).astype(jnp.int32)",
        (f"{_THINKING}::test_a_budget_forces_the_end",),
    ),
    Mutant(
        "a mark that comes in two pieces is content",
        "serving/reader.py",
        "return len(text[: len(text) - next(sizes, 0)].rstrip(space))",
        "return len(text)",
        (_PARTS,),
    ),
    Mutant(
        "an escaped quote ends a string",
        "serving/calls.py",
        'self._escaped = char == "\\\\" and not self._escaped',
        "self._escaped = False",
        (_PARTS,),
    ),
    Mutant(
        "a grammar holds within the thinking",
        "serving/conversation.py",
        'if grammar and start != "":',
        "if False:",
        (f"{_CONVERSATION}::test_a_grammar_and_a_budget_wait_for_the_thinking",),
    ),
    Mutant(
        "an expression takes the text after it too",
        "grammar/parts.py",
        'if isinstance(one, dict) and "regex" in one and isinstance(after, str) and after:',
        "if False:",
        (f"{_CONVERSATION}::test_arguments_that_are_texts_end_before_their_tag",),
    ),
    Mutant(
        "a quote within a text in Python's notation ends it",
        "serving/python_calls.py",
        "closes = char == self._quote and not self._escaped",
        "closes = char == self._quote",
        (_PARTS,),
    ),
    Mutant(
        "a call of a channel has any name",
        "serving/channels.py",
        "if called is not None and called[1] in self._functions:",
        "if called is not None:",
        ("tests/serving/test_channels.py::test_texts_have_their_parts",),
    ),
    Mutant(
        "all calls of Kimi have the number of the first",
        "serving/conversation.py",
        "{conversation.calls + place}",
        "{place}",
        (f"{_CONVERSATION}::test_ids_of_kimi_s_calls_go_on_from_the_messages",),
    ),
    Mutant(
        "one call is as many as any",
        "serving/conversation.py",
        "most_calls = None if self.tools.several else 1",
        "most_calls = None",
        (f"{_CONVERSATION}::test_the_number_of_calls_is_limited",),
    ),
    Mutant(
        "arguments may be null",
        "serving/conversation.py",
        'return found | {"type": "object"}',
        "return found",
        (f"{_CONVERSATION}::test_arguments_are_an_object",),
    ),
    Mutant(
        "a strict function may have any schema",
        "serving/conversation.py",
        'if one["function"].get("strict")):',
        "if False):",
        (f"{_CONVERSATION}::test_schemas_that_no_grammar_follows_matter_where_they_are_enforced",),
    ),
    Mutant(
        "an object with any name is a call",
        "serving/calls.py",
        "if not isinstance(found, str) or found not in self._names or self._name is not None:",
        "if not isinstance(found, str) or self._name is not None:",
        (_PARTS,),
    ),
    Mutant(
        "a name is passed on before it is certain",
        "serving/calls.py",
        "            self._name = found\n",
        '            self._name = found\n            self.news.append(("name", found))\n',
        (f"{_READER}::test_arguments_come_while_they_are_written",),
    ),
    Mutant(
        "half a surrogate pair is written as it is",
        "checkpoints/call_arguments.py",
        "return text if is_text(text) else json.dumps(value)",
        "return text",
        (_PARTS,),
    ),
    Mutant(
        "the patterns of a template run",
        "serving/template_reader.py",
        "if patterns := sorted(_patterns(template)):",
        "if patterns := sorted(_patterns({})):",
        ("tests/serving/test_template_reader.py::test_a_template_with_patterns_is_left_aside",),
    ),
    Mutant(
        "rows of a batch have no scores of their prompts",
        "serving/batch.py",
        "scores = lambda index: self._handles[index].prompt_scores  # noqa: E731",
        "scores = lambda index: None  # noqa: E731",
        (
            "tests/serving/test_completion.py::"
            "test_rows_of_a_batch_have_the_scores_of_their_prompt_and_the_width_of_the_logits",
        ),
    ),
    Mutant(
        "each multiple of eight stop tokens is a program",
        "text/alike.py",
        "        width *= least\n",
        "        width += least\n",
        ("tests/text/test_decoder.py::test_lists_of_tokens_have_few_widths",),
    ),
)
