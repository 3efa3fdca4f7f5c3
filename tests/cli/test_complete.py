"""`jaxspec complete`: files of prompts and answers, and the exit status."""

import json

import pytest
import typer.testing

from jaxspec.cli import app as application

FEW = ("-n", "4", "--temperature", "0", "--drafter", "ngram", "-k", "2", "--slots", "2", "--capacity", "64")


def _complete(*arguments):
    return typer.testing.CliRunner().invoke(application.app, ["complete", *map(str, arguments)])


@pytest.mark.slow
def test_a_file_of_prompts_is_completed(folder, tmp_path):
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    rows = [{"prompt": "the sea", "id": 7}, {"prompt": "hello world", "max_new_tokens": 2}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = _complete(prompts, "--out", answers, "-m", folder, *FEW)
    assert done.exit_code == 0 and "2 of 2 prompts" in done.stderr
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [len(line["token_ids"]) for line in found] == [4, 2] and found[0]["id"] == 7
    prompts.write_text(prompts.read_text() + "{}\n")
    done = _complete(prompts, "--out", answers, "-m", folder, *FEW)
    assert done.exit_code == 1 and "lacks 1 of the answers" in done.stderr


def test_errors_name_the_option_or_the_file(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    done = _complete(prompts, "--out", tmp_path / "a", "--answers", "2")
    assert done.exit_code == 2 and "--answers is for one prompt" in done.stderr
