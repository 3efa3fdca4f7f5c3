"""Figures from records, and the text made from them."""

import json

import pytest

from jaxspec.bench.records import Results
from jaxspec.bench.report import advice, markdown, notes, tables
from jaxspec.bench.summary import ALL, summarize
from jaxspec.bench.timing import Spread

HEADER = {
    "setting": {"model": "tiny", "questions": 2, "max_new_tokens": 8, "repeats": 2},
    "machine": {
        "device": "a chip",
        "jaxspec": "0",
        "jax": "1",
        "python": "3",
        "dtype": "float32",
        "kernels": "xla",
        "peak_memory_of": "process",
    },
    "command": "jaxspec bench",
}


def _repeat(seconds, tokens, rounds, drafted_at=(), accepted_at=()):
    return {
        "prefill_seconds": 1.0,
        "seconds": seconds,
        "tokens": tokens,
        "rounds": rounds,
        "drafted": [sum(drafted_at)],
        "accepted": [sum(accepted_at)],
        "drafted_at": list(drafted_at),
        "accepted_at": list(accepted_at),
    }


def _turn(index, task, plain, draft, *, batch=1):
    return {
        "kind": "turn",
        "unit": [batch, 0.0, index],
        "batch": batch,
        "temperature": 0.0,
        "task": task,
        "turn": 0,
        "questions": [index],
        "left_out": [],
        "prompt_tokens": [3],
        "cases": {"plain": plain, "d, k=2": draft},
        "peak_memory_bytes": 10**9 * (index + 1),
    }


def _records(draft_seconds=(2.0, 3.0), accepted_at=(2, 1), batch=1):
    """Two questions of two tasks; the second is as fast either way."""
    plain = [_repeat(5.0, [8], [8]), _repeat(9.0, [8], [8])]
    draft = [_repeat(seconds, [8], [5], (4, 4), accepted_at) for seconds in draft_seconds]
    same = [_repeat(9.0, [8], [8], (8, 8), (0, 0)), _repeat(9.0, [8], [8], (8, 8), (0, 0))]
    return [_turn(0, "qa", plain, draft, batch=batch), _turn(1, "multi-turn", [_repeat(9.0, [8], [8])] * 2, same)]


def _of(records, case="d, k=2", task=ALL):
    (found,) = [one for one in summarize(records) if (one.case, one.task) == (case, task)]
    return found


def test_the_speed_up_is_of_means_over_questions():
    records = _records()
    assert _of(records, task="qa").speedup == Spread(2.5, 2.75, 3.0)
    # Spec-Bench's: the mean of tokens a second over questions, over the same mean of plain decoding.
    first = (8 / 2 + 8 / 9) / (8 / 5 + 8 / 9)
    second = (8 / 3 + 8 / 9) / (8 / 9 + 8 / 9)
    assert _of(records).speedup == Spread.of([first, second])
    assert _of(records).decode_speedup == Spread.of([(4 + 8) / (1 + 8), (8 + 8) / (2 + 8)])
    assert [one.task for one in summarize(records)][::2] == ["multi-turn", "qa", ALL]


def test_turns_of_a_question_are_one_question():
    records = _records()
    again = dict(records[0], turn=1)
    assert _of([records[0], again, records[1]]).speedup == _of(records).speedup
    assert _of([records[0], again, records[1]]).requests == 3


def test_counts():
    one = _of(_records(), task="qa")
    assert one.requests == 1
    assert one.mean_acceptance_length == 8 / 5 and one.acceptance_rate == 3 / 8
    assert one.acceptance_by_position == (2 / 5, 1 / 5)
    assert one.round_gain == 8 / 5
    assert one.round_cost == pytest.approx(((1 + 2) / 10) / ((4 + 8) / 16))


def test_a_batch_takes_as_many_rounds_as_its_last_row():
    plain = [_repeat(5.0, [8, 2], [8, 2])]
    draft = [_repeat(4.0, [8, 2], [3, 1], (4, 4), (4, 2))]
    one = _of([_turn(0, "qa", plain, draft, batch=2)])
    assert one.mean_acceptance_length == 10 / 4
    assert one.round_gain == pytest.approx((10 / 3) / (10 / 8)) and one.round_cost == pytest.approx((3 / 3) / (4 / 8))
    assert one.requests == 2


def test_waiting_times():
    plain = [[_repeat(float(seconds), [8], [8])] for seconds in range(1, 102)]
    records = [_turn(index, "qa", one, one) for index, one in enumerate(plain)]
    assert _of(records).latency == 51.0
    # Each request of a batch waits for all of it.
    full, alone = [_repeat(4.0, [8, 8], [8, 8])], [_repeat(10.0, [8], [8])]
    assert _of([_turn(0, "qa", full, full, batch=2), _turn(1, "qa", alone, alone, batch=2)]).latency == 4.0


def test_too_short_to_time():
    short = [_turn(0, "qa", [_repeat(0.9, [8], [8])], [_repeat(0.8, [8], [4], (4, 4), (4, 0))])]
    one = _of(short)
    assert (one.decode_speedup, one.round_cost) == (None, None)
    assert list(advice(summarize(short)))[0][0]
    assert "A round took" not in list(advice([one]))[0][1]


def test_a_gain_is_said_to_be_one():
    ((faster, text),) = advice(summarize(_records()))
    assert faster and "FASTER than plain decoding: 1.98x (repeats 1.96 to 2.00)" in text
    assert "slower" not in text and "spread" not in text


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (_records((20.0, 30.0)), "SLOWER than plain decoding: 0.5"),
        (_records((20.0, 30.0)), "A round took"),
        (_records((20.0, 30.0), (4, 4)), "use a cheaper drafter, draft fewer tokens (-k 1), or decode without one"),
        (_records((20.0, 30.0), (0, 0)), "Only 0% of the drafts were accepted: use a drafter trained"),
        (_records((5.2, 9.2)), "SLOWER"),
        (_records((5.2, 8.8)), "within the spread of the repeats"),
        (_records((20.0, 30.0), batch=2)[:1], "decode smaller batches"),
    ],
)
def test_a_loss_is_said_with_what_to_change(records, said):
    ((faster, text),) = advice(summarize(records))
    assert said in text and "--drafter none" in text or said == "within the spread of the repeats" and said in text
    assert faster == ("FASTER" in text)


def test_tasks_that_lost_are_named_even_if_the_whole_gained():
    records = _records()
    records[1]["cases"]["d, k=2"] = [_repeat(10.0, [8], [8], (8, 8), (0, 0))] * 2
    ((faster, text),) = advice(summarize(records))
    assert faster and "slower on multi-turn 0.90x" in text


def test_a_loss_points_to_a_case_that_gained():
    records = _records()
    for record in records:
        record["cases"]["slow, k=4"] = [_repeat(20.0, [8], [8], (9,) * 4, (8,) * 4)] * 2
    found = [text for faster, text in advice(summarize(records)) if not faster]
    assert len(found) == 1 and found[0].endswith("Use d, k=2, which was 1.98x here.")


def test_tables_and_markdown():
    records = _records()
    summaries = summarize(records)
    found = tables(summaries)
    assert len(found) == 2
    for table in found:
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert found[0].rows == (("d, k=2", "1.00", "2.75", "1.98"),)
    records[0]["left_out"] = [4]
    sentences = [text for _, text in advice(summaries)]
    text = markdown(HEADER["command"], notes(HEADER, records), found, sentences)
    for part in (
        "| d, k=2 | 1.00 | 2.75 | 1.98 |",
        "peak memory 2.00 GB",
        "1 answers left out",
        "FASTER",
    ):
        assert part in text


class TestResults:
    header = {"setting": {"repeats": 2}, "machine": {"jax": "1"}, "command": "first"}

    def _written(self, path):
        results = Results(path, self.header)
        first, second = _records()
        results.add([first | {"turn": turn} for turn in (0, 1)])
        results.add([second])
        results.finish({"summary": [{"task": "qa"}]})
        return path.read_text()

    def test_a_finished_file_stays_as_it_is(self, tmp_path):
        text = self._written(tmp_path / "r")
        again = Results(tmp_path / "r", self.header | {"command": "second"}, resume=True)
        assert again.has([1, 0.0, 0]) and again.has([1, 0.0, 1]) and not again.has([2, 0.0, 0])
        assert "summary" not in (tmp_path / "r").read_text()
        again.finish({"summary": [{"task": "qa"}]})
        assert (tmp_path / "r").read_text() == text and len(again.records) == 3
        assert [json.loads(line)["kind"] for line in text.splitlines()] == ["run", "turn", "turn", "turn", "summary"]

    def test_it_is_whole_after_every_unit(self, tmp_path, monkeypatch):
        results = Results(tmp_path / "r", self.header)
        results.add([{"kind": "turn", "unit": [0]}])
        before = (tmp_path / "r").read_text()

        def killed(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            results.add([{"kind": "turn", "unit": [1]}])
        assert (tmp_path / "r").read_text() == before

    @pytest.mark.parametrize(
        ("text", "resume", "said"),
        [
            ("", False, "exists; pass --resume"),
            ("", True, "expected one header of a run, in its first line"),
            ('{"kind": "run"\n', True, "line 1: JSONDecodeError"),
            ("[]\n", True, "line 1: expected a JSON object, got list"),
            ('{"kind": "run", "setting": {"repeats": 3}, "machine": {"jax": "1"}}\n', True, "repeats was 3, now 2"),
            ('{"kind": "run", "setting": {"repeats": 2}, "machine": {}}\n', True, "jax was None, now '1'"),
        ],
    )
    def test_files_that_it_does_not_go_on_with(self, tmp_path, text, resume, said):
        (tmp_path / "r").write_text(text)
        with pytest.raises(ValueError, match=said):
            Results(tmp_path / "r", self.header, resume=resume)
        assert (tmp_path / "r").read_text() == text
