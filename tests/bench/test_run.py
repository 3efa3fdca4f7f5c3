"""Measuring speed: the questions, the time covered, and the counts."""

import dataclasses

import jax
import pytest

from jaxspec.bench import timing
from jaxspec.bench.cases import PLAIN, Case, Setting
from jaxspec.bench.measure import Measurement, peak_memory
from jaxspec.bench.questions import TASKS, evenly, groups, is_asked, padded, prompt_of, read_questions, task_of
from jaxspec.bench.summary import ALL, summarize
from jaxspec.bench.timing import Spread
from jaxspec.drafters.base import NoDrafter
from jaxspec.training.prompts import Conversation, turn_hash
from tests._fixtures import text_models, tiny
from tests._fixtures.clock import Clock
from tests._fixtures.evaluation import EVALUATION

TARGET = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB), tokenizer=text_models.byte_level())
# The clock does not depend on the drafter of a case, and a single drafter needs a single program.
OTHER = "other, k=0"
CASES = [Case(PLAIN, PLAIN, NoDrafter()), Case(OTHER, "other", NoDrafter())]
QUESTIONS = [
    Conversation(("the sea", "hello"), category="writing"),
    Conversation(("one two three",), category="qa"),
    Conversation(("hello world",), category="qa"),
]
SETTING = Setting("tiny", ("ngram",), (2,), max_new_tokens=104, repeats=2)


@pytest.fixture(scope="module")
def compilations():
    """How often JAX traced or compiled since the tests began."""
    events = []

    def listen(event: str, _: float, **__):
        if event.startswith("/jax/core/compile/"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return events


def _measurement(**changes) -> Measurement:
    return Measurement(**({"target": TARGET, "cases": CASES, "questions": QUESTIONS, "setting": SETTING} | changes))


def test_built_in_prompts_are_five_of_each_task_and_no_evaluation_questions():
    prompts = read_questions("built-in")
    tasks = [task_of(one) for one in prompts]
    assert {task: tasks.count(task) for task in TASKS} == dict.fromkeys(TASKS, 5) and len(tasks) == 30
    assert {len(one.turns) for one in prompts if task_of(one) == "multi-turn"} == {2}
    hashes = [turn_hash(turn) for one in prompts for turn in one.turns]
    assert len(set(hashes)) == len(hashes)
    assert not {one[:16] for one in hashes} & set(EVALUATION)
    assert [task_of(one) for one in evenly(prompts, 6)] == list(dict.fromkeys(tasks))


def test_evenly():
    five = [Conversation((letter,)) for letter in "abcde"]
    assert evenly(five, None) == evenly(five, 9) == five and evenly(five, 3) == five[::2]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        evenly(five, 0)


def test_padded_takes_few_widths():
    tokens, length = padded([[1, 2, 3], [4] * 65], 3)
    assert tokens.shape == (3, 512) and length.tolist() == [3, 65, 1]
    assert tokens[0, :4].tolist() == [1, 2, 3, 0] and tokens[1].sum() == 4 * 65
    assert padded([[4] * 513], 1)[0].shape == (1, 1024)
    assert padded([[4] * 65], 1, widest=100)[0].shape == (1, 100)


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1, 1, 1]), (2, [2, 2]), (3, [3, 3])])
def test_every_batch_is_full_and_of_one_task(batch, sizes):
    found = groups(QUESTIONS, batch)
    assert [len(group.members) for group in found] == sizes
    assert {index for group in found for index in group.members} == {0, 1, 2}
    for group in found:
        assert {task_of(QUESTIONS[index]) for index in group.members} == {group.task}
    assert found[0].task == "multi-turn"
    units = [tuple(group.unit(0.0)) for group in found]
    assert len(set(units)) == len(units) and not {tuple(group.unit(1.0)) for group in found} & set(units)


def test_answers_that_are_given_are_not_asked_for():
    question = Conversation(("a", "b", "c"), answers=("x",), system="be short")
    assert [is_asked(question, turn) for turn in range(4)] == [False, True, True, False]
    says = lambda role, text: {"role": role, "content": text}
    messages = [says("system", "be short"), says("user", "a"), says("assistant", "x"), says("user", "b")]
    messages += [says("assistant", "y"), says("user", "c")]
    tokenizer = text_models.byte_level()
    assert prompt_of(tokenizer, question, ["x", "y"]) == tokenizer.apply_chat_template(messages)
    bare = text_models.byte_level(chat_template=None)
    assert prompt_of(bare, question, ["x"]) == bare.encode("be short\n\na\n\nx\n\nb")


@pytest.mark.slow
def test_compilation_is_not_timed(compilations, monkeypatch):
    monkeypatch.setattr(timing, "clock", lambda: float(len(compilations)))
    measurement = _measurement()
    jax.clear_caches()
    before = len(compilations)
    (record,) = measurement.turns(groups(QUESTIONS, 1)[1], 0.0)
    assert len(compilations) > before
    for case in record["cases"].values():
        for repeat in case:
            assert (repeat["prefill_seconds"], repeat["seconds"]) == (0.0, 0.0)


@pytest.mark.slow
def test_speed_ups_are_taken_repeat_by_repeat(monkeypatch):
    # Of each repeat: the prompt and the whole, of plain decoding and of the other case.
    warm_up, first, second = [1000.0] * 4, [1.0, 5.0, 1.0, 3.0], [1.0, 9.0, 3.0, 11.0]
    monkeypatch.setattr(timing, "clock", Clock([*warm_up, *first, *second]))
    (record,) = _measurement().turns(groups(QUESTIONS, 1)[1], 0.0)
    tokens = record["cases"][PLAIN][0]["tokens"][0]
    assert tokens == record["cases"][OTHER][0]["tokens"][0] > 1
    assert record["unit"] == [1, 0.0, 2]
    found = {one.case: one for one in summarize([record]) if one.task == ALL}
    assert found[OTHER].speedup == Spread.of([(tokens / 3) / (tokens / 5), (tokens / 11) / (tokens / 9)])
    assert found[OTHER].decode_speedup == Spread.of([4 / 2, 8 / 8])
    assert found[PLAIN].tokens_per_second == Spread.of([tokens / 5, tokens / 9]) and found[PLAIN].speedup is None
    assert found[OTHER].prefill_seconds == 2.0


def test_a_text_without_room_is_left_out_and_so_are_its_later_turns():
    long = Conversation(("word " * 600, "hello"), category="writing")
    measurement = _measurement(questions=[long], cases=CASES[:1])
    records = list(measurement.turns(groups([long], 1)[0], 0.0))
    assert [(one["questions"], one["left_out"], one["cases"]) for one in records] == [([], [0], {})]


def test_memory_of_this_machine():
    size, whose = peak_memory()
    assert size > 10_000_000 and whose in ("device", "process")
