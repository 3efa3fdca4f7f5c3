"""Programs of another kind of request, or of more rows, compile while others run."""

import threading
import time

import pytest

import jaxspec
from jaxspec.serving.groups import Groups
from tests._fixtures import text_models

CAPACITY = 64
GREEDY = {"temperature": 0, "max_new_tokens": 6, "stop_tokens": ()}
PENALIZED = GREEDY | {"repetition_penalty": 1.5}


@pytest.fixture(scope="module")
def target():
    return text_models.history_models()[0]


def engine_of(target, **options):
    return jaxspec.Engine(target, "ngram", k=2, slots=2, capacity=CAPACITY, **options)


def alone(target, **options):
    return jaxspec.SpeculativeDecoder(target, "ngram", k=2).generate("the sea", capacity=CAPACITY, **options)


@pytest.fixture
def gate(monkeypatch):
    """Holds up the compilation for requests with processors until it is set."""
    gate, compile_rows = threading.Event(), Groups._compile

    def held_up(self, arguments, before, after):
        if arguments.rows.processors:
            assert gate.wait(60.0)
        yield from compile_rows(self, arguments, before, after)

    monkeypatch.setattr(Groups, "_compile", held_up)
    yield gate
    gate.set()


def test_others_are_decoded_while_a_kind_compiles(target, gate):
    with engine_of(target) as engine:
        engine.submit("the sea", **GREEDY).result(60.0)
        late = engine.submit("the sea", **PENALIZED)
        timed = engine.submit("the sea", timeout=0.01, **PENALIZED)
        with pytest.raises(TimeoutError, match="time limit"):
            timed.result(60.0)
        again = engine.submit("the sea", **GREEDY).result(60.0)
        assert again.token_ids == alone(target, **GREEDY).token_ids
        assert not late.done and engine.waiting == 1
        gate.set()
        assert late.result(60.0).token_ids == alone(target, **PENALIZED).token_ids


def test_an_engine_is_ready_when_its_kinds_are_compiled(target, gate):
    with engine_of(target, kinds=[PENALIZED]) as engine:
        assert engine.open and not engine.ready
        gate.set()
        while not engine.ready:
            time.sleep(0.01)
        assert len(engine.submit("the sea", **PENALIZED).result(60.0).token_ids) == 6
    with pytest.raises(TypeError, match="no_such_option"):
        engine_of(target, kinds=[{"no_such_option": 1}])


@pytest.mark.slow
def test_an_error_while_a_kind_compiles_is_that_of_its_requests(target, monkeypatch):
    def fail(self, arguments, before, after):
        raise MemoryError("no memory is left for the compiler")

    monkeypatch.setattr(Groups, "_compile", fail)
    with engine_of(target) as engine:  # compiled where it is called
        assert len(engine.submit("the sea", **GREEDY).result(60.0).token_ids) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {5: 1.0}},
        {"allowed_tokens": [4, 5, 6], "logit_bias": {4: 1.0, 5: 2.0}},
        {"min_new_tokens": 2},
        {"presence_penalty": 0.5, "frequency_penalty": 0.1},
        {"repetition_penalty": 1.5, "stop": ["e"]},
    ],
    ids=lambda options: "+".join(options),
)
def test_penalties_biases_and_limits_share_programs(target, options):
    groups = Groups(2, 4, reuses=False, changed=lambda: None)
    kinds = []
    for given in (PENALIZED, GREEDY | options):
        decoder = jaxspec.SpeculativeDecoder(target, "ngram", k=2)
        request = decoder.encode("the sea", jaxspec.TextOptions.of(given), room=CAPACITY)
        kinds.append(groups.signature_of(request.arguments))
    assert kinds[0] == kinds[1]


@pytest.mark.slow
def test_numbers_of_alternatives_share_programs(target):
    decoder, groups = jaxspec.SpeculativeDecoder(target, "ngram", k=2), Groups(2, 4, reuses=False, changed=print)
    kind = lambda count: groups.signature_of(  # noqa: E731
        decoder.encode("the sea", jaxspec.TextOptions.of(GREEDY | {"alternatives": count}), room=CAPACITY).arguments
    )
    assert kind(1) == kind(20) != kind(0) and kind(21) == kind(40) != kind(20)


def test_kinds_for_later_compile_while_the_engine_is_ready(target, gate):
    with engine_of(target) as engine:
        engine.prepare([PENALIZED])
        assert engine.ready and engine._groups.compiling
        gate.set()
        while engine._groups.compiling:
            time.sleep(0.01)
        with pytest.raises(TypeError, match="no_such_option"):
            engine.prepare([{"no_such_option": 1}])
        assert all(key[2] == 1 for key in engine._groups._programs._done)
        found = engine.submit("the sea", **PENALIZED).result(60.0)
        assert found.token_ids == alone(target, **PENALIZED).token_ids
