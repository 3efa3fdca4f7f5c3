"""Faults of what is shown of speculation: drafts that pass for the target's tokens, rounds that end elsewhere."""

from tests.mutants.mutant import Mutant

_SPANS = "tests/text/test_result_spans.py"
_DRAFTED = "tests/decoding/test_steps.py::test_each_token_is_an_accepted_draft_or_ends_its_round"

MUTANTS = (
    Mutant(
        "the target's token after the drafts passes for one of them",
        "decoding/commit.py",
        "_store(state.from_draft, slots, position < accepted[:, None])",
        "_store(state.from_draft, slots, position <= accepted[:, None])",
        (_DRAFTED,),
    ),
    Mutant(
        "what was drafted stays where the prompt was",
        "decoding/generate.py",
        "from_draft=moved(state.from_draft),",
        "from_draft=state.from_draft[:, :width],",
        (_DRAFTED,),
    ),
    Mutant(
        "a text that a stop string ends has no last round",
        "text/result.py",
        "Span(shown, drafted, not drafted or self.stopped)",
        "Span(shown, drafted, not drafted)",
        (f"{_SPANS}::test_streamed_spans_are_those_of_the_result",),
    ),
    Mutant(
        "a completion loses its first space",
        "text/result.py",
        "Detokenizer(tokenizer, prompt, shown)",
        "Detokenizer(tokenizer, (), shown)",
        ("tests/text/test_detokenizer.py::test_the_first_space_of_a_completion_is_part_of_it",),
    ),
    Mutant(
        "text that was held back is shown by no span",
        "text/result.py",
        "Span(self.spans[-1].text + shown, self.spans[-1].from_draft, True)",
        "Span(self.spans[-1].text, self.spans[-1].from_draft, True)",
        (f"{_SPANS}::test_streamed_spans_are_those_of_the_result",),
    ),
    Mutant(
        "text is put into a page as it is",
        "text/result.py",
        "html.escape(span.text).replace",
        "span.text.replace",
        (f"{_SPANS}::test_a_notebook_shows_the_same_and_figures",),
    ),
    Mutant(
        "a round that ended is drawn into the next",
        "text/result.py",
        "elif not held.ends_round and (",
        "elif (",
        (f"{_SPANS}::test_neighbors_that_look_alike_are_one",),
    ),
)
