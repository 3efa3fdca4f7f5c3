"""An engine's counts: both kinds of files, and where they diverge from the reference."""

import json

import pytest

from jaxspec.bench.engine_log import Comparison, EngineLog
from jaxspec.bench.estimate import Estimate
from jaxspec.io.files import FileFormatError

REFERENCE = [Estimate(0.7, 0.01), Estimate(0.6, 0.01), Estimate(0.5, 0.01)]
RANGES = [(0, 63, Estimate(2.0, 0.02)), (64, 127, Estimate(2.0, 0.02))]


def _read(tmp_path, text):
    path = tmp_path / "log.json"
    path.write_text(text)
    return EngineLog.read(path)


def test_counters_are_shares_of_what_gets_there(tmp_path):
    log = _read(tmp_path, '{"num_drafts": 100,\n "num_accepted_tokens_per_pos": [80, 40, 0]}')
    assert [one.value for one in log.acceptance] == [0.8, 0.5, 0.0]
    assert log.acceptance[0].error == pytest.approx(0.04, rel=0.01) and log.acceptance[2].error > 0
    named = '{"vllm:spec_decode_num_drafts": 100, "vllm:spec_decode_num_accepted_tokens_per_pos": [80, 40, 0]}'
    assert _read(tmp_path, named) == _read(tmp_path, f"\ufeff{named}\r\n") == log


def test_rounds_are_counted_by_what_they_drafted(tmp_path):
    rounds = [(10, 2, 2), (20, 2, 1), (30, 1, 1), (90, 2, 0)]
    lines = [json.dumps(dict(zip(("context", "drafted", "accepted"), one, strict=True))) for one in rounds]
    lines[0] = lines[0].replace("}", ', "text": "a\u2028b\x85"}')
    log = _read(tmp_path, "\n".join(lines))
    assert [one.value for one in log.acceptance] == [0.75, 0.5]
    found = Comparison.of(log, REFERENCE, RANGES)
    assert [one.engine.value for one in found.by_context] == [pytest.approx(1 + 4 / 3), 1.0]


def test_the_first_position_that_parts_is_named(tmp_path):
    fine = _read(tmp_path, '{"num_drafts": 10000, "num_accepted_tokens_per_pos": [7010, 4200, 2100]}')
    agreed = Comparison.of(fine, REFERENCE, [])
    assert agreed.first is None and "within 3 standard errors" in agreed.conclusion()
    # A head that is fed a wrong state from its second draft on looks like this: the third is as bad.
    wrong = _read(tmp_path, '{"num_drafts": 10000, "num_accepted_tokens_per_pos": [7010, 2800, 560]}')
    found = Comparison.of(wrong, REFERENCE, [])
    assert found.first.place == "draft 2" and "differ at draft 2" in found.conclusion()
    assert found.as_record()["first_difference"] == "draft 2" and found.positions[1].errors < -10


def test_a_context_that_parts_is_named_where_no_position_does(tmp_path):
    good, bad = {"context": 9, "drafted": 1, "accepted": 1}, {"context": 100, "drafted": 1, "accepted": 0}
    log = _read(tmp_path, "\n".join(json.dumps(one) for one in [good] * 70 + [bad] * 30))
    assert Comparison.of(log, REFERENCE, RANGES).first.place == "64 to 127 tokens of context"


def test_requests_are_clusters(tmp_path):
    lines = [{"context": 9, "drafted": 1, "accepted": one, "request": one} for one in [0, 1] * 50]
    alone = [one | {"request": place} for place, one in enumerate(lines)]
    errors = [_read(tmp_path, "\n".join(map(json.dumps, one))).acceptance[0].error for one in (lines, alone)]
    assert errors == pytest.approx([0.5, 0.05], rel=0.01)


BAD = {
    "empty": ("\n", "is empty"),
    "other counters": ('{"accepted": 3}', "no num_drafts and no num_accepted_tokens_per_pos"),
    "no list": ('{"num_drafts": 3, "num_accepted_tokens_per_pos": 2}', "a count and a list of counts"),
    "no drafts": ('{"num_drafts": 0, "num_accepted_tokens_per_pos": [0]}', "above 0"),
    "not cumulative": ('{"num_drafts": 9, "num_accepted_tokens_per_pos": [3, 4]}', "than the one before"),
    "no JSON": ("context=3", "line 1"),
    "a field too few": ('{"context": 3, "drafted": 2, "accepted": 1}\n{"context": 3}', "line 2.*expected counts"),
    "too many accepted": ('{"context": 3, "drafted": 2, "accepted": 3}', "3 drafts were accepted of 2"),
    "drafts without end": ('{"context": 3, "drafted": 1000000000, "accepted": 3}', "expected at most 1024 drafts"),
    "nothing drafted": ('{"context": 3, "drafted": 0, "accepted": 0}', "drafted anything"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_files_that_hold_no_counts(tmp_path, text, message):
    with pytest.raises((FileFormatError, ValueError), match=message):
        _read(tmp_path, text)
