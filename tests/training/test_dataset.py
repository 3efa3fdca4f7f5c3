"""Batches: pure in seed and step, and each sequence once an epoch."""

import collections

import jax
import numpy as np
import pytest

from jaxspec.training.dataset import WIDTHS, BatchSchedule, Dataset, widths_for
from jaxspec.training.files import Sequences

RNG = np.random.default_rng(0)
LENGTHS = np.concatenate([RNG.integers(1, 60, 83), [8, 16, 32, 64]])


def _read(index):
    tokens = np.arange(LENGTHS[index], dtype=np.int32) + 100 * index
    return tokens, tokens % 3 == 0


def _schedule(**options):
    options = {"batch_tokens": 64, "seed": 3, "widths": (8, 16, 32, 64)} | options
    return BatchSchedule(LENGTHS, _read, **options)


def _epoch(schedule, number):
    steps = range(number * schedule.steps_per_epoch, (number + 1) * schedule.steps_per_epoch)
    return [schedule.indices(step) for step in steps]


@pytest.mark.parametrize("options", [{}, {"devices": 3}, {"batch_tokens": 1}, {"batch_tokens": 10**6}])
def test_every_sequence_once_an_epoch(options):
    schedule = _schedule(**options)
    for number in range(3):
        seen = collections.Counter(index for indices in _epoch(schedule, number) for index in indices)
        assert seen == collections.Counter(range(len(LENGTHS)))


def test_a_batch_follows_from_seed_and_step():
    forward, backward = _schedule(), _schedule()
    steps = range(3 * forward.steps_per_epoch)
    there = {step: forward.batch(step) for step in steps}
    for step in reversed(steps):
        jax.tree.map(np.testing.assert_array_equal, there[step], backward.batch(step))
    assert _epoch(_schedule(), 0) != _epoch(_schedule(), 1)
    assert _epoch(_schedule(), 0) != _epoch(_schedule(seed=4), 0)
    # Not only the order of batches: their members are drawn again too.
    together = [{frozenset(row) for row in _epoch(_schedule(), number) if len(row) > 1} for number in (0, 1)]
    assert len(together[0] & together[1]) < len(together[0]) / 4


@pytest.mark.slow
def test_what_a_batch_holds():
    schedule = _schedule()
    shapes = set()
    for step in range(schedule.steps_per_epoch):
        batch, indices = schedule.batch(step), schedule.indices(step)
        rows, width = batch.tokens.shape
        shapes.add((rows, width))
        assert batch.answer.shape == (rows, width) and batch.length.shape == (rows,)
        assert (batch.tokens.dtype, batch.length.dtype, batch.answer.dtype) == (np.int32, np.int32, np.bool_)
        assert rows * width == 64 and 0 < len(indices) <= rows
        for row, index in enumerate(indices):
            tokens, answer = _read(index)
            length = len(tokens)
            assert batch.length[row] == length and width == max(8, 1 << (length - 1).bit_length())
            np.testing.assert_array_equal(batch.tokens[row, :length], tokens)
            np.testing.assert_array_equal(batch.answer[row, :length], answer)
            assert not batch.tokens[row, length:].any() and not batch.answer[row, length:].any()
        assert not batch.length[len(indices) :].any() and not batch.answer[len(indices) :].any()
    assert shapes == set(schedule.shapes) == {(8, 8), (4, 16), (2, 32), (1, 64)}


def test_rows_divide_over_devices():
    schedule = _schedule(devices=4, batch_tokens=100)
    assert schedule.shapes == [(12, 8), (4, 16), (4, 32), (4, 64)]


def test_padding_is_the_share_of_tokens_that_are_none():
    schedule = _schedule()
    batches = [schedule.batch(step) for step in range(schedule.steps_per_epoch)]
    room = sum(batch.tokens.size for batch in batches)
    assert schedule.padding == pytest.approx(1 - LENGTHS.sum() / room)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (8, 16)}, "more than the last of widths"),
        ({"widths": (16, 8)}, "ascending"),
        ({"widths": ()}, "ascending"),
        ({"devices": 0}, "devices"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"seed": -1}, "seed"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        _schedule(**options)
    with pytest.raises(ValueError, match="step"):
        _schedule().batch(-1)
    with pytest.raises(ValueError, match="no sequence"):
        BatchSchedule(np.zeros(0, np.int64), _read, batch_tokens=64, seed=0)


def test_widths_for_long_sequences():
    assert widths_for(0) == widths_for(1024) == WIDTHS
    assert widths_for(1025) == (*WIDTHS, 2048) and widths_for(5000) == (*WIDTHS, 2048, 4096, 8192)


def test_a_set_of_long_texts():
    sequences = Sequences(
        tokens=np.zeros(1700, np.uint16),
        offsets=np.array([0, 200, 1700]),
        answer=np.ones(1700, bool),
        category=np.zeros(2, np.int32),
        conversation=np.arange(2, dtype=np.uint64),
    )
    data = Dataset(2, "", ("",), sequences, (("", 2, 1700),), np.arange(2))
    assert data.batches(batch_tokens=4096).shapes == [(16, 256), (2, 2048)]
