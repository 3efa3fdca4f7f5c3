"""Faults of what is shown of speculation: drafts that pass for the target's tokens, rounds that end elsewhere."""

from tests.mutants.mutant import Mutant

_SPANS = "tests/text/test_spans.py"
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
        "**{name: moved(getattr(state, name)) for name in _BY_TOKEN},",
        "**{name: moved(getattr(state, name)) if name != 'from_draft' else state.from_draft[:, :width]"
        " for name in _BY_TOKEN},",
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
        "text that was held back is shown by no span",
        "text/result.py",
        "Span(self.spans[-1].text + shown, self.spans[-1].from_draft, True)",
        "Span(self.spans[-1].text, self.spans[-1].from_draft, True)",
        (f"{_SPANS}::test_streamed_spans_are_those_of_the_result",),
    ),
    Mutant(
        "text is put into a page as it is",
        "text/spans.py",
        "html.escape(span.text).replace",
        "span.text.replace",
        (f"{_SPANS}::test_a_notebook_shows_the_same_and_figures",),
    ),
    Mutant(
        "a round that ended is drawn into the next",
        "text/spans.py",
        "elif not held.ends_round and (",
        "elif (",
        (f"{_SPANS}::test_neighbors_that_look_alike_are_one",),
    ),
)
