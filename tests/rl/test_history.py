"""`History`: the answers to each prompt, packed for a call, bounded, and restored."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.decoding.options import PROMPT_END, after_the_prompt
from jaxspec.rl import History

PROMPT = list(range(20, 31))
END = PROMPT[-PROMPT_END:]


def packed(history, prompt, max_new_tokens=6):
    row = history.pack([prompt], max_new_tokens=max_new_tokens)[0]
    return row[: np.flatnonzero(row >= 0)[-1] + 2].tolist() if (row >= 0).any() else []


def test_the_newest_answers_come_last_each_after_the_end_of_its_prompt():
    history = History(answers=2)
    for answer in ([1], [2, 3], [4, 5, 6]):
        history.add(PROMPT, answer)
    history.add([9], [7, 8])
    history.add([9], [])
    assert packed(history, PROMPT) == [2, 3, -1, *END, 4, 5, 6, -1]
    assert packed(history, [9]) == [7, 8, -1]
    assert packed(history, [8]) == [] and len(history) == 2


@pytest.mark.slow
def test_a_drafter_finds_the_answers_at_the_first_token():
    """Of any answer: the end of the prompt stands before each, also before the first."""
    history = History(answers=2)
    for answer in ([1, 2, 3], [4, 5, 6]):
        history.add(PROMPT, answer)
    prompt, length = jnp.asarray([PROMPT], jnp.int32), jnp.asarray([len(PROMPT)], jnp.int32)
    known = after_the_prompt(jnp.asarray(history.pack([PROMPT], max_new_tokens=6)), prompt, length)
    text, length = jnp.concatenate([known, prompt], axis=1), length + known.shape[1]
    assert jaxspec.NGramDrafter(k=3).guess(text, length).tokens.tolist() == [[4, 5, 6]]
    text, length = jnp.concatenate([text, jnp.asarray([[1]], jnp.int32)], axis=1), length + 1
    assert jaxspec.NGramDrafter(k=2).guess(text, length).tokens.tolist() == [[2, 3]]


def test_a_call_s_width_does_not_depend_on_the_answers():
    history, shapes = History(answers=3), set()
    for _ in range(5):
        shapes.add(history.pack([PROMPT, [1]], max_new_tokens=6).shape)
        history.add(PROMPT, range(6))
    assert shapes == {(2, 48)}
    narrow = History(answers=3, width=20)
    for first in (1, 2, 3):
        narrow.add(PROMPT, [first] * 3)
    assert narrow.pack([PROMPT], max_new_tokens=6).shape == (1, 24)
    assert packed(narrow, PROMPT) == [2, 2, 2, -1, *END, 3, 3, 3, -1]


def test_beyond_its_bytes_the_prompts_that_rested_longest_are_dropped():
    history = History(answers=2, most_bytes=1000)
    for prompt in ([1], [2], [3]):
        history.add(prompt, [5, 6])
    history.pack([[1]], max_new_tokens=4)  # uses it
    history.add([4], [5, 6])
    assert packed(history, [1]) and not packed(history, [2]) and len(history) == 3
    assert history.bytes <= 1000
    history.add([5], range(2000))  # alone larger than all
    assert history.bytes == 0 and len(history) == 0


def test_its_state_restores_answers_keys_and_order():
    history = History(answers=2, most_bytes=1400)
    for number, prompt in enumerate(([1], [2], [1], [3], [1])):
        history.add(prompt, range(number + 1), key=(number, 7) if number else ())
    other = History(answers=2, most_bytes=1400)
    other.add([8], [8])
    other.load_state(history.state())
    for name, x in history.state().items():
        np.testing.assert_array_equal(other.state()[name], x, err_msg=name)
    assert other.bytes == history.bytes and other.keys([1]) == {(2, 7), (4, 7)} and other.keys([2]) == {(1, 7)}
    assert packed(other, [1]) == packed(history, [1]) and not packed(other, [8])
    for each in (history, other):
        each.add([4], [1])
        each.add([5], [1])
        assert not packed(each, [2])
    empty = History()
    empty.load_state(History().state())
    assert len(empty) == 0


def test_other_states_and_sizes_are_refused():
    with pytest.raises(ValueError, match="has no counts, lengths"):
        History().load_state({"prompts": np.zeros((0, 16), np.uint8)})
    history = History()
    history.add([1], [2])
    with pytest.raises(ValueError, match="do not fit each other"):
        History().load_state(history.state() | {"tokens": np.zeros(3, np.int32)})
    with pytest.raises(ValueError, match="answers of at least 1"):
        History(answers=0)
    with pytest.raises(TypeError, match="width"):
        History(width=2.5)
