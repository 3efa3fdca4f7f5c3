"""Requests that come and go have the texts of separate calls."""

import asyncio
import importlib
import itertools
import random
import subprocess
import sys

import numpy as np
import pytest

import jaxspec
from jaxspec.serving import CancelledError, Handle, QueueFullError, group, groups
from jaxspec.serving.prefixes import Prefixes
from jaxspec.serving.prompt import Prompt
from tests._fixtures import text_models
from tests._fixtures.chunked import chunked

engine_module = importlib.import_module("jaxspec.serving.engine")
CAPACITY = 64
TEXTS = ["the sea", "hello world", "a", "grüße", "one two three", "the sea is wide"]
KINDS = {
    "greedy": lambda index: {"temperature": 0},
    "seeded": lambda index: {"temperature": 0.6 + index / 10, "seed": index},
    "warped": lambda index: {"temperature": 0.8, "top_p": 0.7, "top_k": 5, "seed": index},
    "stop": lambda index: {"temperature": 0, "stop": ["e", "th"]},
    "penalties": lambda index: {"temperature": 0, "repetition_penalty": 1 + index / 10, "min_new_tokens": 2},
    "choices": lambda index: {"temperature": 0, "choices": ["yes", "no"]},
    "followed": lambda index: {"temperature": 0, "grammar": 'start: "a" start "b" | "c"'},
}


@pytest.fixture(scope="module")
def target():
    return text_models.history_models()[0]


@pytest.fixture
def engine(target):
    with jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        yield engine


def alone(target, prompt, options):
    """The result of a separate call, which is coupled if the request has a seed."""
    verifier = jaxspec.CoupledVerifier() if options.get("seed") is not None else None
    decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2, verifier=verifier)
    return decoder.generate(prompt, capacity=CAPACITY, **options)


def check(engine, target, asked):
    handles = [engine.submit(prompt, **options) for prompt, options in asked]
    for (prompt, options), handle in zip(asked, handles, strict=True):
        assert "".join(handle) == handle.result().text
        expected, found = alone(target, prompt, options), handle.result()
        assert (found.text, found.token_ids, found.stop_reason) == (
            expected.text,
            expected.token_ids,
            expected.stop_reason,
        )
        assert found.stats.emitted.tolist() == expected.stats.emitted.tolist() or found.stop_reason == "stop string"
    assert engine.running == engine.waiting == 0


def test_greedy_texts_are_those_of_lone_calls(engine, target):
    budgets = [1, 9, 4, 12, 2]
    check(engine, target, [(TEXTS[n], {"temperature": 0, "max_new_tokens": most}) for n, most in enumerate(budgets)])


def test_rows_move_to_half_the_width_and_back(target, monkeypatch):
    """Programs are compiled where they are needed, as on a mesh, so that rows do not end before they can move."""
    monkeypatch.setattr(group, "_PATIENCE", 1)
    monkeypatch.setattr(groups, "_compiles_ahead", lambda _: False)
    monkeypatch.setattr(engine_module, "MOST_ROUNDS", 1)
    long = {"temperature": 0, "max_new_tokens": 40, "stop_tokens": ()}
    asked = [("hello", {**long, "max_new_tokens": 2}), ("the sea", long), ("a", {**long, "max_new_tokens": 30})]
    with jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        check(engine, target, asked)


@pytest.mark.slow
def test_texts_of_all_kinds_are_those_of_lone_calls(target):
    draw = random.Random(0)
    asked = [
        (draw.choice(TEXTS), {**kind(index), "max_new_tokens": draw.choice([1, 3, 8, 15])})
        for index in range(4)
        for kind in KINDS.values()
    ]
    draw.shuffle(asked)
    with jaxspec.Engine(target, "ngram", k=2, slots=3, capacity=CAPACITY) as engine:
        check(engine, target, asked)


def test_a_conversation_is_one_prompt(engine, target):
    messages = [{"role": "user", "content": "the sea"}]
    found = engine.submit(messages, temperature=0, max_new_tokens=4).result()
    decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
    assert found.text == decoder.chat(messages, temperature=0, max_new_tokens=4, capacity=CAPACITY).text


def test_cancelled_and_late_requests_free_their_slots(engine, target):
    long = {"temperature": 0, "max_new_tokens": 40, "stop_tokens": ()}
    cancelled, late = engine.submit("the sea", **long), engine.submit("the sea", timeout=0.0, **long)
    cancelled.cancel()
    with pytest.raises(CancelledError, match="cancelled"):
        list(cancelled)
    with pytest.raises(TimeoutError, match="time limit"):
        late.result()
    check(engine, target, [("hello world", {"temperature": 0, "max_new_tokens": 4})])


@pytest.fixture
def turns(monkeypatch):
    """The order in which prompts were fed and rows decoded, and what to do after a prompt was fed."""
    log, after = [], []
    feed, advance = Prompt.feed, group.Group.advance

    def fed(self, chunks):
        log.append("feed")
        feed(self, chunks)
        for act in after:
            act(self.job, log.count("feed"))

    def advanced(self, *args):
        if not self.ahead:
            log.append("advance")
        return advance(self, *args)

    clock = itertools.count()
    monkeypatch.setattr(engine_module, "_work_time", lambda: float(next(clock)))  # a turn of either kind takes a second
    monkeypatch.setattr(Prompt, "feed", fed)
    monkeypatch.setattr(group.Group, "advance", advanced)
    return log, after


LONG = "the sea is wide and the sea is deep, hello world, hello there"
NEIGHBOR = ("one two", {"temperature": 0, "max_new_tokens": 40, "stop_tokens": ()})


def test_a_neighbor_is_decoded_between_the_chunks_of_a_long_prompt(target, turns):
    log, _ = turns
    short = chunked(target, 4)
    chunks = -(-(len(target.traits.tokenizer.encode(LONG)) - 1) // 4)
    with jaxspec.Engine(short, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        with engine._news:  # both wait before the first turn
            asked = [NEIGHBOR, (LONG, {"temperature": 0, "max_new_tokens": 4})]
            handles = [engine.submit(prompt, **options) for prompt, options in asked]
        results = [handle.result(timeout=60.0) for handle in handles]
    assert [result.token_ids for result in results] == [alone(short, *one).token_ids for one in asked]
    assert chunks >= 4 and log.count("feed") == 1 + chunks
    assert log[:9] == ["feed", *["feed", "advance"] * 4]


def test_a_prompt_that_begins_like_an_earlier_text_is_not_fed_from_its_first_token(target):
    short, asked = chunked(target, 4), {"temperature": 0, "max_new_tokens": 4, "stop_tokens": ()}
    chunks = (len(target.traits.tokenizer.encode(LONG)) - 1) // 4
    with jaxspec.Engine(short, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        check(engine, short, [(LONG, asked)])
        check(engine, short, [(LONG + ending, asked) for ending in (" one", "")])
        assert engine.reused_tokens >= 2 * 4 * (chunks - 1) > 0
        engine._prefixes = Prefixes(0)
        before = engine.reused_tokens
        check(engine, short, [(LONG, asked)])
        assert engine.reused_tokens == before


@pytest.mark.slow
def test_short_prompts_pass_a_long_one_but_not_for_ever(target, turns, monkeypatch):
    """Before its end, no more chunks of others are fed than it has itself."""
    monkeypatch.setattr(engine_module, "_IDLE_CHUNKS", 1)
    order, short, options = [], chunked(target, 4), {"temperature": 0, "max_new_tokens": 1}
    turns[1].append(lambda job, feeds: order.append(job.request.prompts[0]))
    chunks = -(-(len(target.traits.tokenizer.encode(LONG)) - 1) // 4)
    with jaxspec.Engine(short, "ngram", k=2, slots=16, capacity=CAPACITY, prompt_share=1.0) as engine:
        with engine._news:
            handles = [engine.submit(text, **options) for text in (LONG, *["one two"] * 2 * chunks)]
        results = [handle.result(60.0).token_ids for handle in handles]
    expected = [alone(short, text, options).token_ids for text in (LONG, "one two")]
    assert results == [expected[0], *[expected[1]] * 2 * chunks]
    fed, long = [len(ids) for ids in order], len(order[0])
    assert fed.count(long) == chunks and len(fed) - 1 - fed[::-1].index(long) == 2 * chunks - 1


def test_a_text_with_another_salt_is_never_continued(target):
    short, asked = chunked(target, 4), {"temperature": 0, "max_new_tokens": 4, "stop_tokens": ()}
    with jaxspec.Engine(short, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        for salt in ("one", "two", None, ""):
            engine.submit(LONG, cache_salt=salt, **asked).result()
            assert engine.reused_tokens == 0
        engine.submit(LONG, cache_salt="one", **asked).result()
        assert engine.reused_tokens > 0
        with pytest.raises(TypeError, match="cache_salt"):
            engine.submit("the sea", cache_salt=3)


def test_lists_of_tokens_are_data_of_a_program(engine):
    def kind(**options):
        asked = engine._request("the sea", {"temperature": 0, "max_new_tokens": 4, **options})
        return engine._groups.signature_of(asked.arguments)

    assert kind(logit_bias={5: 1.0}) == kind(logit_bias=dict.fromkeys(range(16), 1.0))
    assert kind(logit_bias={5: 1.0}) != kind(logit_bias=dict.fromkeys(range(17), 1.0))
    assert kind(allowed_tokens=[5]) == kind(allowed_tokens=list(range(5, 12))) == kind(allowed_tokens=[5, 6, 7])


@pytest.mark.slow
def test_filled_lists_bias_and_allow_what_they_name(target, engine):
    """Their padding names no token; -1 as an index would be the last one."""
    last = target.vocab_size - 1
    asked = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12, "stop_tokens": ()}
    plain = engine.submit("the sea", **asked).result().token_ids
    for neutral in ({"logit_bias": {5: 0.0}}, {"allowed_tokens": list(range(target.vocab_size))}):
        assert engine.submit("the sea", **asked, **neutral).result().token_ids == plain
    for forced in ({"logit_bias": {last: 1e4}}, {"logit_bias": {5: 0.0, last: 1e4}}, {"allowed_tokens": [last]}):
        assert set(engine.submit("the sea", **asked, **forced).result().token_ids) == {last}
    assert set(engine.submit("the sea", **asked, allowed_tokens=[5, 7]).result().token_ids) <= {5, 7}


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 5, 6, 11, 47])
def test_a_prompt_is_scored_while_it_is_fed(target, length):
    """In chunks of 5, of which one that ends at the end of the buffer moves back."""
    short, ids = chunked(target, 5), np.random.default_rng(0).integers(0, target.vocab_size, length).tolist()
    with jaxspec.Engine(short, "ngram", k=2, slots=2, capacity=48) as engine:
        for most in (1, 0, 1):  # the last one finds an earlier text, and is not continued from it
            handle = engine.submit(ids, temperature=0, max_new_tokens=most, prompt_alternatives=2)
            assert len(handle.result().token_ids) <= most
            found = handle.prompt_scores
            expected = jaxspec.score(target, [ids])
            np.testing.assert_allclose(found.log_probs[0, : len(ids)], expected.log_probs[0], atol=1e-4)
            assert found.tokens.shape[2] == 2 and handle.reused_tokens == 0
        handle = engine.submit(ids, temperature=0, max_new_tokens=1)
        assert handle.result() and handle.prompt_scores is None


@pytest.mark.parametrize("late", [False, True], ids=["cancelled", "late"])
def test_a_prompt_is_dropped_while_it_is_fed(target, turns, late):
    log, after = turns

    def drop(job, feeds):
        if feeds == 3 and late:  # the neighbor's, and two of the long prompt's
            job.deadline = 0.0
        elif feeds == 3:
            job.handle.cancel()

    after.append(drop)
    short = chunked(target, 4)
    with jaxspec.Engine(short, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        with engine._news:
            neighbor = engine.submit(NEIGHBOR[0], **NEIGHBOR[1])
            dropped = engine.submit(LONG, temperature=0, max_new_tokens=4)
        with pytest.raises(TimeoutError if late else CancelledError):
            dropped.result(timeout=60.0)
        assert neighbor.result(timeout=60.0).token_ids == alone(short, *NEIGHBOR).token_ids
        assert log.count("feed") == 3
        check(engine, short, [("hello", {"temperature": 0, "max_new_tokens": 2})])


def test_an_event_loop_reads_texts_while_others_are_decoded(engine):
    async def read(handle):
        return "".join([piece async for piece in handle])

    async def both():
        handles = [engine.submit(text, temperature=0, max_new_tokens=6) for text in TEXTS[:2]]
        texts = await asyncio.gather(*map(read, handles))
        return [(text, (await handle.wait()).text) for text, handle in zip(texts, handles, strict=True)]

    for text, expected in asyncio.run(both()):
        assert text == expected


def test_wrong_requests_leave_the_engine_alone(engine, target):
    with pytest.raises(ValueError, match="room for 64"):
        engine.submit("the sea " * 100)
    with pytest.raises(ValueError, match="empty"):
        engine.submit("")
    with pytest.raises(ValueError, match="one prompt, got 2"):
        engine.submit(["the sea", "hello world"], max_new_tokens=4)
    with pytest.raises(TypeError, match="submit got answers"):
        engine.submit("the sea", answers=2)
    with pytest.raises(TypeError, match="no_such_option"):
        engine.submit("the sea", no_such_option=1)
    with pytest.raises(ValueError, match="timeout"):
        engine.submit("the sea", timeout=-1.0)
    for kinds in (None, {"seed": 1}, "x", [3], [None]):
        with pytest.raises(TypeError, match="kinds"):
            engine.prepare(kinds)
    with pytest.raises(TypeError, match="options have names, got 1|kinds"):
        engine.prepare([{1: 2}])
    with pytest.raises(TypeError, match="timeout"):
        Handle(lambda: None).result(timeout="x")
    with pytest.raises(TimeoutError):
        Handle(lambda: None).result(timeout=-1.0)
    with pytest.raises(ValueError, match="prompt_share between 0.0 and 1.0, got 2.0"):
        jaxspec.Engine(target, "ngram", prompt_share=2.0)
    with pytest.raises(ValueError, match="prompt_share of Engine must be above 0"):
        jaxspec.Engine(target, "ngram", prompt_share=0)
    with pytest.raises(TypeError, match="allowed_tokens must be a list of token ids, got array"):
        engine.submit("the sea", allowed_tokens=np.array(3))
    with pytest.raises(TypeError, match="drain"):
        engine.close(drain="all")
    check(engine, target, [("hello world", {"temperature": 0, "max_new_tokens": 4})])


def test_a_closed_engine_refuses_requests_and_ends_those_it_had(target):
    engine = jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY, most_waiting=1)
    engine._news.acquire()  # the thread takes nothing up meanwhile
    handle = engine.submit("the sea", temperature=0, max_new_tokens=4)
    with pytest.raises(QueueFullError, match="1 requests are waiting"):
        engine.submit("the sea", temperature=0, max_new_tokens=4)
    engine._closing = True
    engine._news.release()
    engine.close()
    with pytest.raises(CancelledError):
        handle.result()
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit("the sea", max_new_tokens=4)


def test_a_prompt_that_cannot_be_fed_is_reported(target, monkeypatch):
    """Its request is neither waiting nor in a slot."""
    with jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:

        def fail(self, job, feeding):
            raise MemoryError("no memory is left")

        monkeypatch.setattr(group.Group, "add", fail)
        handle = engine.submit("the sea", temperature=0, max_new_tokens=4)
        with pytest.raises(MemoryError, match="no memory is left"):
            handle.result(timeout=60.0)


def test_a_reader_that_leaves_its_event_loop_stops_nobody(engine, target):
    handle = engine.submit("the sea", temperature=0, max_new_tokens=40, stop_tokens=())
    reader = handle.__aiter__()
    asyncio.run(anext(reader))  # the loop is closed, and the reader is not
    assert len(handle.result(timeout=60.0).token_ids) == 40
    check(engine, target, [("hello world", {"temperature": 0, "max_new_tokens": 4})])


def test_a_failing_program_is_reported_to_every_request(target, monkeypatch):
    with jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:

        def fail(self):
            raise MemoryError("no memory is left")

        monkeypatch.setattr(jaxspec.Engine, "_turn", fail)
        handle = engine.submit("the sea", temperature=0, max_new_tokens=4)
        with pytest.raises(MemoryError, match="no memory is left"):
            handle.result()
        with pytest.raises(RuntimeError, match="the engine has failed"):
            engine.submit("the sea", max_new_tokens=4)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["add", "advance"])
def test_an_error_of_one_kind_of_request_leaves_the_others_alone(target, monkeypatch, place):
    """As that of a custom processor, which is found while its program is traced."""
    real, left = getattr(group.Group, place), [None]

    def fail_once(self, *arguments):
        if left and not self.ahead:
            left.pop()
            raise ValueError("a processor's result has another dtype")
        return real(self, *arguments)

    monkeypatch.setattr(group.Group, place, fail_once)
    with jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        with pytest.raises(ValueError, match="another dtype"):
            engine.submit("hello", temperature=0, max_new_tokens=4).result()
        check(engine, target, [("the sea", {"temperature": 0, "max_new_tokens": 4})])
        assert engine.open


@pytest.mark.slow
def test_a_rule_with_numbers_decodes(target):
    rule = jaxspec.verifiers.RelaxedVerifier(jaxspec.verifiers.StaticEnsemble(0.7))
    with jaxspec.Engine(target, "ngram", k=2, verifier=rule, lossy=True, slots=2, capacity=CAPACITY) as engine:
        assert len(engine.submit("hello", temperature=1.0, max_new_tokens=4, stop_tokens=()).result().token_ids) == 4


@pytest.mark.slow
def test_pieces_hold_the_text_of_their_tokens(target):
    """Also where a row ends with text that was held back, in a round before its neighbor's last."""
    asked = {"temperature": 0, "stop": ["th zz", "e zz"], "stop_tokens": ()}
    with jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY) as engine:
        handles = [engine.submit("the sea", max_new_tokens=count, **asked) for count in (40, 3, 5, 7, 9, 11)]

        async def read(handle):
            return [piece async for piece in handle.pieces()]

        for handle in handles:
            pieces = asyncio.run(read(handle))
            assert "".join(piece.text for piece in pieces) == handle.result().text
            assert "".join(span.text for piece in pieces for span in piece.spans) == handle.result().text


@pytest.mark.slow
def test_a_short_queue_holds_all_prompts_in_turn(target):
    with jaxspec.Engine(target, "ngram", k=2, slots=1, capacity=CAPACITY, most_waiting=1) as engine:
        found = list(jaxspec.complete(engine, ["the sea"] * 5, temperature=0, max_new_tokens=2, stop_tokens=()))
    assert [len(one.token_ids) for one in found] == [2] * 5


@pytest.mark.slow
def test_python_ends_though_an_engine_is_open():
    """With a request that is not complete, and programs that are being compiled."""
    script = """
import jaxspec
from tests._fixtures import text_models
kinds = [{"temperature": 0}, {"temperature": 1.0}]
engine = jaxspec.Engine(text_models.history_models()[0], "ngram", k=2, slots=8, capacity=64, kinds=kinds)
next(iter(engine.submit("the sea", temperature=0, max_new_tokens=50, stop_tokens=())))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
