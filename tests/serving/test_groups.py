"""Programs of another kind of request, or of more rows, compile while others run."""

import threading
import time

import pytest

import jaxspec
from jaxspec.decoding.slots import row_arguments
from jaxspec.drafters import adapt as adapting
from jaxspec.serving.group import Group
from jaxspec.serving.groups import Groups
from tests._fixtures import arrivals, eagle, text_models, tiny

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


def eagle_hybrid(head, target):
    return adapting.adapt(jaxspec.HybridDrafter(jaxspec.NGramDrafter(), jaxspec.EagleDrafter(head)), target)


def test_the_head_of_many_live_rows_rests(monkeypatch):
    monkeypatch.setattr(adapting, "_is_worth", lambda *given: given[3] < 4)  # the number of rows
    options = {"capacity": CAPACITY, "max_new_tokens": 8}
    drafter = eagle_hybrid(eagle.HEAD, eagle.TARGET)
    group = Group(row_arguments(eagle.TARGET, drafter, [[1, 2, 3]], options), 8, 2)
    rests = []
    for group.width in (1, 2, 4, 8):
        rests.append(group._round_of_width().drafter.rests)
    assert rests == [False, False, True, True]


@pytest.mark.slow
def test_rows_for_which_a_head_rested_have_the_tokens_of_lone_calls(monkeypatch):
    """One of two rows ends first, and the other one is drafted for again; its next turn continues what is held."""
    monkeypatch.setattr(adapting, "_is_worth", lambda *given: given[3] < 2)
    tokenizer = text_models.byte_level()
    network = tiny.transformer(3, layers=2, vocab=tokenizer.vocab_size)
    drafter = eagle_hybrid(eagle.eagle_head(1, target=network), network)
    plain = arrivals.Alone(network, None, tokenizer=tokenizer)
    options = {"temperature": 1.0, "seed": 5, "stop_tokens": ()}
    asked = [("the sea", 6), ("abcabcab", 30), ("the sea of", 12)]
    with jaxspec.Engine(network, drafter, slots=2, capacity=arrivals.CAPACITY, tokenizer=tokenizer) as engine:
        handles = [engine.submit(text, max_new_tokens=count, **options) for text, count in asked]
        found = [handle.result(120.0) for handle in handles]
        asked.append((asked[1][0] + found[1].text[:8], 20))
        found.append(engine.submit(asked[-1][0], max_new_tokens=20, **options).result(120.0))
    for (text, count), result in zip(asked, found, strict=True):
        assert result.token_ids == plain(text, options | {"max_new_tokens": count}).token_ids
    assert len({*found[1].token_ids}) > 9
