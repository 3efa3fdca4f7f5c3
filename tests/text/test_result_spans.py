"""Which of a text was drafted, and where rounds ended: the same streamed and at once, in a notebook and a terminal."""

import dataclasses
import html
import re

import pytest

import jaxspec
from jaxspec.cli.output import mark
from jaxspec.text.result import Span, merge, to_html
from tests._fixtures import text_models, tiny

TOKENIZER = text_models.byte_level()
PROMPT, TEXT = "hello", "the sea is <b>wide</b> 😀 & deep"
OPTIONS = {"max_new_tokens": 40, "temperature": 0}


@pytest.fixture(scope="module")
def reciting():
    """A decoder that continues the prompt with `TEXT`; its drafts are all accepted."""
    target = text_models.reciter(TOKENIZER, PROMPT, TEXT)
    return jaxspec.SpeculativeDecoder(target, target, k=4, tokenizer=TOKENIZER)


def text_of(spans):
    return "".join(span.text for span in spans)


@pytest.mark.slow
def test_spans_are_the_text_and_count_what_the_statistics_do(reciting):
    result = reciting.generate(PROMPT, **OPTIONS)
    assert text_of(result.spans) == result.text == TEXT
    assert len(result.spans) == len(result.token_ids)
    assert sum(span.from_draft for span in result.spans) == result.stats.accepted[0] > 0
    assert sum(span.ends_round for span in result.spans) == result.stats.rounds[0] > 1
    assert all(span.ends_round for span in result.spans if not span.from_draft)


@pytest.mark.parametrize("stop", [(), "is", "e <b", "deep", "p!"])  # the last is held back to the end
def test_streamed_spans_are_those_of_the_result(reciting, stop):
    stream, seen = reciting.stream(PROMPT, **OPTIONS, stop=stop), ""
    for piece in stream:
        seen += piece
        assert text_of(stream.spans()) == seen
    assert stream.spans() == stream.result.spans and text_of(stream.spans()) == stream.result.text
    assert stream.result.spans[-1].ends_round
    if not stop:
        assert stream.result.spans == reciting.generate(PROMPT, **OPTIONS).spans


@pytest.mark.slow
def test_rows_of_a_batch_have_their_own_spans():
    target = dataclasses.replace(tiny.transformer(3, vocab=TOKENIZER.vocab_size), tokenizer=TOKENIZER)
    decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=3)
    stream = decoder.stream(["aaaa", "the sea"], max_new_tokens=16, temperature=0, stop_tokens=())
    for _ in stream:
        pass
    for row, result in enumerate(stream.result):
        assert stream.spans(row) == result.spans and text_of(result.spans) == result.text
        assert sum(span.from_draft for span in result.spans) == result.stats.accepted[0]


SPANS = [Span("a", False, True), Span("", True, False), Span("b<", True, False), Span("c", False, True)]


def test_neighbors_that_look_alike_are_one():
    assert list(merge(SPANS)) == [Span("a", False, True), Span("b<", True, False), Span("c", False, True)]
    rounds = [Span("a", True, True), Span("b", True, True)]
    assert list(merge(rounds)) == rounds
    held = [Span("", True, False), Span("é", False, True)]
    assert list(merge(held)) == [Span("é", False, True)]
    assert list(merge([])) == []


def test_a_terminal_shows_drafts_in_green_and_where_rounds_end():
    assert mark(SPANS, colored=False) == "a|[b<]c|"
    assert mark(SPANS, colored=True) == "a\x1b[2m|\x1b[0m\x1b[32mb<\x1b[0mc\x1b[2m|\x1b[0m"


def test_a_notebook_shows_the_same_and_figures(reciting):
    page = to_html(SPANS, ("2 < 3",))
    assert "b&lt;" in page and "2 &lt; 3" in page and page.count("<span") == 3
    drafted = re.findall(r'<span style="background[^>]*>(.*?)</span>', page)
    assert drafted == ["b&lt;"] and page.count("border-right") == 2
    result = reciting.generate(PROMPT, **OPTIONS)
    page = result._repr_html_()
    assert html.escape(TEXT) in re.sub("<[^>]*>", "", page) and "100% of drafts accepted" in page
    assert f"{len(result.token_ids)} tokens in {result.stats.rounds[0]} rounds · " in page
    assert f" · {result.mean_acceptance_length:.2f} tokens a round · " in page and "as fast as" not in page


def test_a_stream_is_shown_as_far_as_it_has_come(reciting):
    stream = reciting.stream(PROMPT, **OPTIONS)
    assert "0 tokens so far" in stream._repr_html_()
    next(stream)
    assert "tokens so far" in stream._repr_html_()
    for _ in stream:
        pass
    assert stream._repr_html_() == stream.result._repr_html_()


@pytest.mark.slow
def test_nothing_is_no_faster_than_nothing(reciting):
    assert reciting.compare(PROMPT, max_new_tokens=0, temperature=0).speedup is None


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [PROMPT, [PROMPT, PROMPT]])
def test_a_comparison_gives_the_speed_over_plain_decoding(reciting, prompts):
    found = reciting.compare(prompts, **OPTIONS)
    for result in [found] if isinstance(prompts, str) else found:
        assert result.speedup > 0 and result.text == TEXT
        assert f"{result.speedup:.2f} times as fast as plain decoding" in result._repr_html_()


@pytest.mark.slow
def test_a_comparison_answers_messages():
    target = text_models.history_models()[0]
    turn = [{"role": "user", "content": PROMPT}]
    decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
    found = decoder.compare(turn, max_new_tokens=8, temperature=0)
    assert found.token_ids == decoder.chat(turn, max_new_tokens=8, temperature=0).token_ids and found.speedup > 0
    assert [one.token_ids for one in decoder.compare([turn], max_new_tokens=8, temperature=0)] == [found.token_ids]


def test_a_result_is_one_line(reciting):
    result = reciting.generate(PROMPT, **OPTIONS)
    assert repr(result).startswith(f"TextResult({TEXT!r}, {len(result.token_ids)} tokens, stop_reason='stop token', ")
    longer = dataclasses.replace(result, text="line\n" * 50)
    assert len(repr(longer)) < 200 and "\n" not in repr(longer) and "line\\n..." in repr(longer)
