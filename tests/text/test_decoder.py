"""Text in, text out: streaming, stop strings, batches, seeds, chats, and mistakes."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.decoding.rounds import jit_of
from jaxspec.text.decoder import SpeculativeDecoder
from tests._fixtures import text_models, tiny

TOKENIZER = text_models.history_models()[0].tokenizer
PROMPT = "hello"
SHORT = {"max_new_tokens": 16, "temperature": 0}
SAMPLED = {"max_new_tokens": 16, "temperature": 1.5, "top_p": None, "stop_tokens": ()}


@pytest.fixture(scope="module")
def model():
    return text_models.history_models()[0]


@pytest.fixture(scope="module")
def decoder(model):
    return SpeculativeDecoder(model, "ngram", k=3)


def _reciting(text, *, k=4):
    """A decoder that is certain to continue the prompt with `text`, `k + 1` tokens a round."""
    target = text_models.reciter(TOKENIZER, PROMPT, text)
    return SpeculativeDecoder(target, target, k=k, tokenizer=TOKENIZER)


def _drain(stream):
    return list(stream), stream.result


@pytest.mark.parametrize(
    "options",
    [pytest.param(SHORT, id="greedy", marks=pytest.mark.slow), pytest.param(SAMPLED | {"seed": 5}, id="sampled")],
)
def test_stream_shows_what_generate_returns(decoder, options):
    options = options | {"stop_tokens": ()}
    pieces, streamed = _drain(decoder.stream(PROMPT, **options))
    generated = decoder.generate(PROMPT, **options)
    assert "".join(pieces) == streamed.text == generated.text == TOKENIZER.decode(streamed.token_ids)
    assert streamed.token_ids == generated.token_ids and len(generated.token_ids) == 16
    assert streamed.log_probs == pytest.approx(generated.log_probs, abs=1e-4)
    assert streamed.stop_reason == generated.stop_reason == "max new tokens"
    assert streamed.acceptance_rate == generated.acceptance_rate


def test_a_stream_is_closed_by_leaving_its_loop_its_block_or_by_hand(decoder):
    options = SHORT | {"stop_tokens": ()}

    def left():
        stream = decoder.stream(PROMPT, **options)
        for _ in stream:
            break
        return stream

    def block():
        with decoder.stream(PROMPT, **options) as stream:
            next(stream)
        return stream

    def by_hand():
        stream = decoder.stream(PROMPT, **options)
        stream.close()
        stream.close()
        return stream

    for make, shown in ((left, True), (block, True), (by_hand, False)):
        stream = make()
        assert next(stream, None) is None and list(stream) == [] and bool(stream.spans()) == shown
        assert stream._pieces.gi_frame is None  # with the state, and so the caches
        with pytest.raises(RuntimeError, match="the stream was closed before its end, so it has no result"):
            stream.result  # noqa: B018


def test_a_closed_stream_that_had_ended_keeps_its_result(decoder):
    stream = decoder.stream(PROMPT, **SHORT, stop_tokens=())
    first = next(stream)
    rest = "".join(stream)
    stream.close()
    assert first + rest == stream.result.text


def test_a_stream_is_closed_from_another_thread_while_it_decodes(decoder, monkeypatch):
    stream = decoder.stream(PROMPT, **SHORT, stop_tokens=())

    def closing(function, models, **options):
        step = jit_of(function, models, **options)

        def closed_meanwhile(**arguments):
            other = threading.Thread(target=stream.close)
            other.start()
            other.join()
            return step(**arguments)

        return closed_meanwhile

    monkeypatch.setattr("jaxspec.decoding.rounds.jit_of", closing)
    assert list(stream) == [] and stream._pieces.gi_frame is None
    with pytest.raises(RuntimeError, match="the stream was closed before its end"):
        stream.result  # noqa: B018


@pytest.mark.slow
def test_the_first_space_of_a_completion_is_part_of_it():
    """A prompt and its continuation are the decoding of all tokens; choices tell " a" from "a"."""
    tokenizer = text_models.sentencepiece()
    prompt, said = tokenizer.encode("a b"), [tokenizer._backend.token_to_id(one) for one in ("▁a", "▁b")]
    target = text_models.recite_ids([*prompt, *said, *tokenizer.eos_token_ids])
    decoder = SpeculativeDecoder(target, "ngram", k=2, tokenizer=tokenizer)
    pieces, result = _drain(decoder.stream("a b", **SHORT))
    assert "".join(pieces) == result.text == decoder.generate("a b", **SHORT).text == " a b"
    assert "a b" + result.text == tokenizer.decode(prompt + said)
    for choices in ([" a", "a"], ["a"]):
        assert decoder.generate("a b", **SHORT, choices=choices).text == choices[0]


@pytest.mark.slow
def test_whole_characters_are_streamed():
    text = "x😀é 中文."
    pieces, result = _drain(_reciting(text, k=0).stream(PROMPT, **SHORT))
    assert "".join(pieces) == result.text == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.slow
def test_a_stop_token_ends_the_text_and_is_no_part_of_it():
    result = _reciting("the sea").generate(PROMPT, **SHORT)
    assert (result.text, result.stop_reason) == ("the sea", "stop token")
    assert result.token_ids[-1] == TOKENIZER.eos_token_ids[0]
    assert len(result.log_probs) == len(result.token_ids)
    ordinary = TOKENIZER.encode(" sea")[-1]
    result = _reciting("the sea").generate(PROMPT, **SHORT, stop_tokens=[ordinary])
    assert (result.text, result.token_ids[-1]) == ("the", ordinary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "expected", "reason"),
    [
        ("is", "the sea ", "stop string"),
        ("e 😀", "the sea is wid", "stop string"),
        (["deep", " wi"], "the sea is", "stop string"),
        (["wide 😁", "zzz"], "the sea is wide 😀 and deep", "stop token"),
        ("deeper", "the sea is wide 😀 and deep", "stop token"),
        ("t", "", "stop string"),
    ],
)
@pytest.mark.parametrize("k", [0, 4])
def test_stop_strings_end_a_text(stop, expected, reason, k):
    decoder = _reciting("the sea is wide 😀 and deep", k=k)
    pieces, streamed = _drain(decoder.stream(PROMPT, **SHORT, stop=stop))
    generated = decoder.generate(PROMPT, **SHORT, stop=stop)
    assert "".join(pieces) == streamed.text == generated.text == expected
    assert streamed.token_ids == generated.token_ids
    assert streamed.stop_reason == generated.stop_reason == reason
    assert expected.startswith(TOKENIZER.decode(streamed.token_ids))
    assert len(streamed.log_probs) == len(streamed.token_ids)


def test_tokens_are_cut_to_those_wholly_before_the_stop_string():
    decoder = _reciting("😀😁")
    half = decoder.generate(PROMPT, **SHORT, stop="😁")
    assert half.token_ids == tuple(TOKENIZER.encode("😀"))
    inside_a_token = _reciting("hello there").generate(PROMPT, **SHORT, stop="re")
    assert inside_a_token.text == "hello the"
    assert inside_a_token.text.startswith(TOKENIZER.decode(inside_a_token.token_ids))
    assert inside_a_token.stats.rounds[0] <= 3


@pytest.mark.slow
def test_rows_of_a_batch_equal_single_prompts(decoder):
    prompts = ["hello", "the sea is wide", "中"]
    together = decoder.generate(prompts, **SHORT, stop_tokens=())
    alone = [decoder.generate(prompt, **SHORT, stop_tokens=()) for prompt in prompts]
    assert [row.token_ids for row in together] == [row.token_ids for row in alone]
    assert [row.prompt_tokens for row in together] == [len(TOKENIZER.encode(prompt)) for prompt in prompts]
    stream = decoder.stream(prompts, **SHORT, stop_tokens=())
    pieces, ended = [], stream.ended
    for row, piece in stream:
        assert not ended[row]
        pieces, ended = [*pieces, (row, piece)], stream.ended
    streamed = stream.result
    for row, result in enumerate(streamed):
        assert "".join(piece for index, piece in pieces if index == row) == result.text == alone[row].text


@pytest.mark.slow
def test_a_stop_string_ends_its_own_row_alone(decoder):
    prompts = ["hello", "the sea is wide"]
    options = SAMPLED | {"seed": 1}
    free = decoder.generate(prompts, **options)
    stop = next(letter for letter in free[0].text if letter not in free[1].text)
    stream = decoder.stream(prompts, **options, stop=stop)
    _, cut = _drain(stream)
    assert stream.ended == (True, True)
    assert (cut[0].text, cut[0].stop_reason) == (free[0].text.split(stop)[0], "stop string")
    assert (cut[1].token_ids, cut[1].stop_reason) == (free[1].token_ids, "max new tokens")
    assert cut[0].stats.rounds[0] < cut[1].stats.rounds[0]


@pytest.mark.slow
def test_a_seed_repeats_a_text(decoder):
    first = decoder.generate(PROMPT, **SAMPLED)
    assert decoder.generate(PROMPT, **SAMPLED, seed=first.seed).token_ids == first.token_ids
    others = [decoder.generate(PROMPT, **SAMPLED, seed=seed) for seed in (1, 2, 2**32 - 1)]
    assert len({other.token_ids for other in others}) == 3
    assert [other.seed for other in others] == [1, 2, 2**32 - 1]
    assert decoder.generate(PROMPT, **SHORT).seed is None


@pytest.mark.slow
def test_coupled_decoding_gives_plain_text(model, decoder):
    options = SAMPLED | {"temperature": 0.8, "seed": 7}
    coupled = jaxspec.CoupledVerifier()
    plain = SpeculativeDecoder(model, None, verifier=coupled).generate(PROMPT, **options)
    assert SpeculativeDecoder(model, "ngram", verifier=coupled).generate(PROMPT, **options).text == plain.text
    assert plain.stats.drafted[0] == 0 and plain.mean_acceptance_length == 1


@pytest.mark.slow
def test_chat_renders_the_template(decoder):
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hello"}]
    rendered = f"<|system|>be short{text_models.END}<|user|>hello{text_models.END}<|assistant|>"
    result = decoder.chat(messages, **SHORT)
    assert result.text == decoder.generate(rendered, **SHORT).text
    pieces, streamed = _drain(decoder.stream_chat(messages, **SHORT))
    assert "".join(pieces) == streamed.text == result.text
    both = decoder.chat([messages, messages[1:]], **SHORT)
    assert [both[0].text, both[1].text] == [result.text, decoder.chat(messages[1:], **SHORT).text]


@pytest.mark.slow
def test_budgets(decoder):
    empty = decoder.generate(PROMPT, max_new_tokens=0)
    assert (empty.text, empty.token_ids, empty.stop_reason) == ("", (), "max new tokens")
    assert list(decoder.stream(PROMPT, max_new_tokens=0)) == []
    rows = decoder.generate([PROMPT, PROMPT], max_new_tokens=[3, 7], temperature=0, stop_tokens=())
    assert [len(row.token_ids) for row in rows] == [3, 7]


@pytest.mark.slow
def test_timing_counts_every_token(decoder):
    _, streamed = _drain(decoder.stream([PROMPT, "the sea"], **SHORT))
    timing = streamed[0].timing
    assert timing is streamed[1].timing
    assert timing.tokens == sum(len(row.token_ids) for row in streamed)
    assert 0 < timing.first_seconds < timing.seconds and 0 < timing.first_tokens < timing.tokens
    assert streamed[0].tokens_per_second == pytest.approx(
        (timing.tokens - timing.first_tokens) / (timing.seconds - timing.first_seconds)
    )
    assert decoder.generate(PROMPT, **SHORT).timing.first_seconds is None


def test_an_unfinished_stream_has_no_result(decoder):
    stream = decoder.stream(PROMPT, **SHORT)
    with pytest.raises(RuntimeError, match="iterate to its end"):
        stream.result  # noqa: B018


def test_drafts_by_name(model):
    assert SpeculativeDecoder(model, None).drafter.max_drafts == 0
    assert isinstance(SpeculativeDecoder(model).drafter, jaxspec.NGramDrafter)  # "auto"
    assert SpeculativeDecoder(model, "none", k=0).drafter.max_drafts == 0
    assert SpeculativeDecoder(model, "ngram", k="fixed").drafter == jaxspec.NGramDrafter(k=4)
    assert SpeculativeDecoder(model, model, k=2).drafter == jaxspec.ModelDrafter(model, k=2)
    own = jaxspec.NGramDrafter(k=6)
    assert SpeculativeDecoder(model, own).drafter is SpeculativeDecoder(model, own, k=6).drafter is own


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(ValueError, match="the prompt is empty"):
        SpeculativeDecoder(model).generate("", **SHORT)
    with pytest.raises(ValueError, match=r"prompts\[1\] is empty"):
        SpeculativeDecoder(model).generate(["a", ""], **SHORT)


@pytest.mark.slow
def test_logits_that_are_not_finite_raise(model):
    broken = jax.tree.map(lambda x: x * jnp.nan, model)
    for stop in ((), "x"):
        with pytest.raises(FloatingPointError, match="NOT_FINITE_LOGITS"):
            SpeculativeDecoder(broken).generate(PROMPT, **SHORT, stop=stop)


@dataclasses.dataclass(frozen=True)
class _Lossy(jaxspec.TokenVerifier):
    lossless = False


@pytest.mark.parametrize(
    ("drafter", "options", "error", "match"),
    [
        ("ngram", {"k": -1}, ValueError, "k must be at least 0, got -1"),
        ("ngram", {"k": 2.5}, TypeError, "k must be a static integer"),
        ("none", {"k": 4}, ValueError, "nothing to draft with"),
        (jaxspec.NGramDrafter(k=3), {"k": 4}, ValueError, "made with k=3"),
        ("no-such-model", {}, ValueError, "unknown drafter 'no-such-model'"),
        (3, {}, TypeError, "drafter must be a drafter, a model, a head or the name of one, got int"),
        (jaxspec.NGramDrafter, {}, TypeError, "got the class NGramDrafter itself"),
        (tiny.transformer(vocab=7), {}, ValueError, "draft of 7 tokens for a target of 310"),
        ("ngram", {"verifier": "coupled"}, TypeError, "verifier must be a jaxspec Verifier, got str"),
        ("ngram", {"verifier": _Lossy()}, ValueError, "pass lossy=True"),
        ("ngram", {"verifier": _Lossy(), "lossy": "yes"}, TypeError, "lossy must be True or False, got 'yes'"),
        (None, {"verifier": jaxspec.verifiers.KSequence()}, TypeError, r"pass MultiDraftVerifier\(KSequence\(\)\)"),
        (
            "ngram",
            {"tokenizer": "x"},
            TypeError,
            "tokenizer must be a jaxspec.Tokenizer or None, got str; pass jaxspec",
        ),
        ("ngram", {"k": 10**6}, ValueError, "k must be at most 1024, got 1000000"),
        ("", {}, ValueError, "a drafter's name, or its part .* is empty; pass 'ngram'"),
        ("ngram+", {}, ValueError, r"a drafter's name, or its part after '\+', is empty"),
    ],
)
def test_arguments_that_do_not_fit(model, drafter, options, error, match):
    with pytest.raises(error, match=match):
        SpeculativeDecoder(model, drafter, **options)


def test_a_tokenizer_is_needed(model):
    bare = dataclasses.replace(model, tokenizer=None)
    with pytest.raises(ValueError, match="no tokenizer; pass tokenizer="):
        SpeculativeDecoder(bare)
    assert SpeculativeDecoder(bare, tokenizer=TOKENIZER).tokenizer is TOKENIZER


@pytest.mark.parametrize(
    ("prompts", "options", "error", "match"),
    [
        ([], {}, ValueError, "there is no prompt"),
        (5, {}, TypeError, "prompts must be a string or a list of them, got int"),
        (None, {}, TypeError, "prompts must be a string or a list of them, got NoneType"),
        (["a", 3], {}, TypeError, r"prompts\[1\] must be a string, got int"),
        ("a\ud800", {}, ValueError, r"the prompt has a lone surrogate, '\\ud800' at character 1, .*; pass text.encode"),
        (["a", "\udfff"], {}, ValueError, r"prompts\[1\] has a lone surrogate"),
        ("a", {"max_tokens": 3}, TypeError, "unexpected keyword argument .max_tokens.; pass max_new_tokens=..."),
        ("a", {"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0"),
        ("a", {"temperature": -0.5}, ValueError, "temperature must be >= 0"),
        ("a", {"temperature": float("nan")}, ValueError, "temperature must be >= 0"),
        ("a", {"top_p": 0.0}, ValueError, "top_p must be in"),
        ("a", {"temperature": 0, "top_p": 1.5}, ValueError, "top_p must be in"),
        ("a", {"seed": -1}, ValueError, "seed must be in"),
        ("a", {"seed": 1.0}, TypeError, "seed must be an integer, got float"),
        ("a", {"seed": 2**32 + 1}, ValueError, "seed must be in"),
        ("a", {"max_new_tokens": 2**32 + 3}, ValueError, "context is 512; pass max_new_tokens=511 or less"),
        ("a", {"max_new_tokens": 10**30}, ValueError, "max_new_tokens must be numbers of at most 64 bits"),
        ("a", {"max_new_tokens": True}, ValueError, "max_new_tokens must be one integer"),
        ("a", {"stop": ""}, ValueError, "must not be empty"),
        ("a", {"stop": 5}, TypeError, "stop must be a string or a list of strings, got 5; ids go in stop_tokens"),
        ("a", {"stop": ["\ud800"]}, ValueError, "stop has a lone surrogate"),
        ("a", {"stop_tokens": "."}, ValueError, "stop_tokens must be integers, got .*; text goes in stop"),
        ("a", {"stop_tokens": [[1]]}, ValueError, "stop_tokens must be ids for all prompts"),
        ("a", {"stop": text_models.END}, ValueError, r"has a special token.*pass stop_tokens=\[0\]"),
        ("a", {"stop": "x" + text_models.END}, ValueError, r"has a special token.*pass stop_tokens=\[0\]"),
        ("a", {"stop_tokens": [999]}, ValueError, "stop_tokens must be in"),
        ("hello" * 600, {}, ValueError, "^prompt and new tokens are .* target model's context is 512"),
        (["hello", "hello" * 600], {}, ValueError, r"^prompts\[1\]: prompt and new tokens are"),
    ],
)
def test_requests_that_do_not_fit(decoder, prompts, options, error, match):
    with pytest.raises(error, match=match):
        decoder.generate(prompts, **options)


def _asked(decoder, prompts=PROMPT, **options):
    return decoder._continue(prompts, jaxspec.TextOptions(**(SHORT | options)))


def test_a_space_is_a_stop_string():
    """SentencePiece decodes it to nothing at the start of a text."""
    decoder = SpeculativeDecoder(text_models.recite_ids([0]), tokenizer=text_models.sentencepiece())
    assert _asked(decoder, stop=[" ", "\n"]).stop == (" ", "\n")


def test_no_stop_and_a_single_stop_token(decoder):
    assert _asked(decoder, stop=None).stop == ()
    assert _asked(decoder, stop_tokens=7).stop_tokens == (7,)
    assert _asked(decoder, stop_tokens=None).stop_tokens == TOKENIZER.eos_token_ids


def test_lists_of_tokens_have_few_widths(decoder):
    """Each width is a program, so clients must not choose among many."""
    stops = [_asked(decoder, stop_tokens=range(count)).arguments.rows.stop_tokens for count in (0, 8, 9, 64)]
    assert [one.shape[-1] for one in stops] == [8, 8, 64, 64]
    biases = [dict.fromkeys(range(count), 1.0) for count in (1, 16, 17)]
    rows = [_asked(decoder, logit_bias=bias).arguments.rows for bias in biases]
    assert [one.processors[0].tokens.shape[-1] for one in rows] == [16, 16, 256]


def test_no_budget_is_up_to_the_context(decoder):
    asked = _asked(decoder, [PROMPT, PROMPT + " world"], max_new_tokens=None)
    rows = asked.arguments.rows
    assert (rows.max_new_tokens + rows.prompt_length).tolist() == [512, 512]
    room = asked.arguments.room
    assert room.tokens >= 512 and room.new >= 512 - len(asked.prompts[0])


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "messages must be a list"),
        (5, "messages must be a list of at least one message, .* got 5"),
        (None, "messages must be a list"),
        ("hello", "messages must be a list"),
        ({"role": "user", "content": "hello"}, "messages must be a list"),
        ([[]], r"messages must be a list of messages, .* got \[\] in it"),
        ([5], "or of such lists, got 5 in it"),
        ([{"role": "user"}], "messages must be dictionaries with 'role' and 'content'"),
        ([{"role": "user", "content": None}], "the content of a message must be a string, got NoneType"),
        ([{"role": 5, "content": "hello"}], "the role of a message must be a string, got int"),
        ([{"role": "user", "content": "\ud800"}], "the content of a message has a lone surrogate"),
        ([{"role": "user", "content": [{"type": "image"}]}], "models here read text only"),
    ],
)
def test_messages_that_are_none(decoder, messages, match):
    with pytest.raises((TypeError, ValueError), match=match):
        decoder.chat(messages)


def test_a_role_is_the_template_s_to_write(decoder):
    request = decoder._answer([{"role": "tool", "content": "hello"}], jaxspec.TextOptions(temperature=0))
    assert TOKENIZER.decode(request.prompts[0], skip_special_tokens=False).startswith("<|tool|>hello")


def test_a_chat_needs_a_template(model):
    plain = text_models.byte_level(chat_template=None)
    with pytest.raises(ValueError, match="no chat template"):
        SpeculativeDecoder(model, tokenizer=plain).chat([{"role": "user", "content": "hello"}])


@pytest.mark.slow
@pytest.mark.smollm2
def test_the_default_model_answers(smollm2):
    decoder = SpeculativeDecoder(smollm2, "ngram")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    pieces, result = _drain(decoder.stream_chat(messages, max_new_tokens=24, temperature=0, stop=["."]))
    assert "Paris" in result.text and "." not in result.text
    assert "".join(pieces) == result.text and len(pieces) > 3
    assert result.stop_reason in ("stop string", "stop token")
