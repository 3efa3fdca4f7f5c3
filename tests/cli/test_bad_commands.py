"""Command lines that are wrong in one option: exit code 2, and an error that names the option or its value."""

import re

import pytest
import typer.testing

from jaxspec.cli import app as application

HUGE, NO_NUMBER = ("4294967299", "1" + "0" * 30), ("x", "", "nan", "1e9", "٣x")
# Options that typer or the command itself refuses before a model is loaded.
WRONG = {
    "generate": {
        "--max-new-tokens": NO_NUMBER,
        "--top-k": NO_NUMBER,
        "--seed": NO_NUMBER,
        "--temperature": ("x", ""),
        "--num-drafts": NO_NUMBER,
        "--draft-vocabulary": NO_NUMBER,
        "--verifier": ("x", ""),
        "--kernels": ("x", ""),
        "--dtype": ("int4", ""),
        "--int8": ("x", ""),
        "--num-processes": NO_NUMBER,
        "--mesh": ("x", "data", "data=0", "data=x", "data=" + HUGE[1]),
        "--model": ("", "no-such", "./nowhere"),
        "--file": ("", "./nowhere"),
        "--answers": ("0", *NO_NUMBER),
        "--pass-tokens": ("0", "-1", *NO_NUMBER),
        "--alternatives": ("-1", "2", *NO_NUMBER),
        "--logit-bias": ("", "7", "x=1", "7=x", "7=1=2", "=1"),
    },
    "models": {"--no-such": ("1",)},
    "export-tokenizer": {"--out": ("",)},
    "data": {"--max-new-tokens": NO_NUMBER, "--seed": NO_NUMBER, "--batch": NO_NUMBER, "--shard": NO_NUMBER},
    "bench": {
        "--max-new-tokens": NO_NUMBER,
        "--count": ("0", *NO_NUMBER),
        "--repeats": NO_NUMBER,
        "--verifier": ("x",),
        **dict.fromkeys(("--out", "--json", "--markdown", "--plots", "--questions"), ("",)),
    },
    "plan": {"--max-new-tokens": NO_NUMBER, "--count": NO_NUMBER, "--repeats": NO_NUMBER, "--kernels": ("x",)},
    "acceptance": {
        "--max-new-tokens": NO_NUMBER,
        "--every": NO_NUMBER,
        "--limit": ("0", "-1"),
        "--seed": ("-1", HUGE[0]),
        "--starts": ("x",),
        "-k": NO_NUMBER,
    },
    "prove": {
        "--page": ("",),
        "--uniforms": NO_NUMBER,
        "--top-k": NO_NUMBER,
        "--samples": NO_NUMBER,
        "--kind": ("x", ""),
    },
    "compile-report": {"--batch": NO_NUMBER, "--context": NO_NUMBER, "-k": NO_NUMBER},
}
# Those that are checked against the model.
WRONG_FOR_THE_MODEL = {
    "--max-new-tokens": (*HUGE, "-1"),
    "--seed": (*HUGE, "-1"),
    "--top-k": ("-1", "-" + HUGE[1]),
    "--logit-bias": ("9999=1", "-1=1", "7=nan"),
    "--grammar": ("", "./nowhere"),
    "--schema": ("", "./nowhere"),
    "-k": ("-1", "1000000", HUGE[1], "adaptive:0", "adaptive:-1", "fast", ""),
    "--drafter": ("", "ngram+", "no-such", "./nowhere", "ngram:3"),
    "--stop": ("", "\udcff"),
    "--temperature": ("nan", "inf", "-1", "1e300"),
    "--top-p": ("nan", "-1", "0", "1.5", "inf"),
    "--min-p": ("nan", "-1", "1.5", "inf"),
}
MODEL_CASES = [(option, value) for option, values in WRONG_FOR_THE_MODEL.items() for value in values]
CASES = [(name, option, value) for name, table in WRONG.items() for option, values in table.items() for value in values]


# Names that an error may use for an option.
NAMES = {
    "--file": "--file|nowhere",
    "--grammar": "--grammar|nowhere",
    "--schema": "--schema|nowhere",
    "--model": "model|there is no file or folder",
    "--drafter": "draft|ngram takes no arg|nowhere",
}


def _refuses(option, *words):
    result = typer.testing.CliRunner().invoke(application.app, words)
    assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
    assert result.stdout == "" and "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert re.search(NAMES.get(option, f"{option}|{option.strip('-').replace('-', '[_ ]')}"), last), last
    # Quoted or said by typer, what was given stays as it is; axes and biases are spelled with an equals sign.
    if option not in ("--mesh", "--logit-bias"):
        assert not re.search(
            r"\b[a-z]\w*=|\b(top|max|min|num|pass|bit)_\w+", last.replace(words[words.index(option) + 1], "")
        ), last
    return result.stderr


@pytest.mark.parametrize(("name", "option", "value"), CASES)
def test_a_wrong_option_is_named(name, option, value):
    _refuses(option, name, option, value, *(["hello"] if name in ("generate", "prove") else []))


@pytest.mark.slow
@pytest.mark.parametrize(("option", "value"), MODEL_CASES)
def test_an_option_that_does_not_fit_the_model_is_named(folder, monkeypatch, tmp_path, option, value):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("jaxspec.decoding.rounds.start", lambda *arguments: pytest.fail("it was accepted"))
    drafter = [] if option == "--drafter" else ["--drafter", "ngram"]
    errors = _refuses(option, "generate", "hello", "--model", folder, *drafter, option, value)
    assert errors.startswith("error: ") and len(errors.splitlines()) == 1
