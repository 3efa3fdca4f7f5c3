"""Errors on the command line name its options, not the Python arguments that they become."""

import pathlib
import re

import pytest
import typer

import jaxspec
from jaxspec.cli import bench, compile_report, errors, generate, prove
from jaxspec.cli.errors import flags_of, spelled
from jaxspec.cli.options import parameters

FLAGS = flags_of(parameters(generate.Options))


def test_options_are_spelled_as_they_are_typed():
    assert FLAGS["max_new_tokens"] == "--max-new-tokens" and FLAGS["k"] == "-k" and FLAGS["top_p"] == "--top-p"
    assert FLAGS["as_json"] == "--json" and FLAGS["drafter"] == "--drafter"
    assert flags_of(parameters(bench.Options))["json_file"] == "--json"
    assert flags_of(parameters(compile_report.Options))["pass_tokens"] == "--pass-tokens"
    # Positional arguments have no option name.
    assert "prompts" not in FLAGS and "function" not in flags_of(parameters(prove.Options))
    assert spelled("prompts must be strings", FLAGS) == "prompts must be strings"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("k must be at least 0, got -1; pass k=0 for plain decoding", "-k must be at least 0, got -1; pass -k 0 for"),
        ("drafts need k=4, or leave num_drafts out", "drafts need -k 4, or leave --num-drafts out"),
        (
            "passes of pass_tokens=16 hold 15; pass pass_tokens=21",
            "passes of --pass-tokens 16 hold 15; pass --pass-tok",
        ),
        ("pass bit_exact=True, and pass_tokens=... with it", "pass --bit-exact, and --pass-tokens ... with it"),
        ("pass another drafter, or bit_exact=False", "pass another drafter, or no --bit-exact"),
        ("pass dtype='float32' to load", "pass --dtype float32"),
        ("temperatures must differ", "--temperature must differ"),
        ("drafting needs temperature of at least 0", "drafting needs --temperature of at least 0"),
        ("the model has no seed must", "the model has no seed must"),
        ("got layers=9 of 4, weights='stored'", "got layers 9 of 4, weights 'stored'"),
        ("got 'top_p=1'; pass --mesh data=2,model=4", "got 'top_p=1'; pass --mesh data=2,model=4"),
        (
            "an answer keeps to one grammar, got regex and choices; pass",
            "an answer keeps to one grammar, got --regex and --",
        ),
        (
            "TokenVerifier verifies one chain of drafts, got a tree; pass one of trees, such as TreeVerifier()",
            "--verifier token verifies one chain of drafts, got a tree; pass one of trees, such as --verifier tree",
        ),
        ("pass NGramDrafter() or SuffixDrafter(), or leave", "pass --drafter ngram or --drafter suffix, or leave"),
        ("got ModelDrafter and NGramDrafter", "got ModelDrafter and NGramDrafter"),
        (
            "agree to the bit; pass a model from jaxspec.load, or bit_exact=False",
            "agree to the bit; pass another model, or",
        ),
        ("the model's top_k=3 is well-known, k=2", "the model's --top-k 3 is well-known, -k 2"),
    ],
)
def test_an_error_names_options(text, said):
    assert spelled(text, FLAGS).startswith(said)


def test_what_is_said_of_python_is_said_somewhere():
    sources = [path.read_text() for path in pathlib.Path(jaxspec.__file__).parent.rglob("*.py")]
    # A long text is written as several strings.
    joined = [re.sub(r'"\s+f?"', "", text) for text in sources if "_PYTHON = MappingProxyType" not in text]
    assert not [words for words in errors._PYTHON if not any(words in text for text in joined)]


def test_nothing_but_arguments_is_changed():
    for text in ("", "unknown drafter 'smollm'. Known drafters: auto, none", "a == b", "org/name: No such file"):
        assert spelled(text, FLAGS) == text


def test_a_command_says_it(capsys):
    def fail(**given):
        raise ValueError("max_new_tokens=0 leaves nothing to write")

    from jaxspec.cli.options import declare

    with pytest.raises(typer.Exit):
        declare(fail, parameters(generate.Options), "")()
    assert capsys.readouterr().err == "error: --max-new-tokens 0 leaves nothing to write\n"


def test_files_of_windows_are_read_as_their_texts(tmp_path):
    """Without the byte-order mark and the carriage returns that editors on Windows write."""
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfhello\r\n\r\nthere\r\n")
    assert generate.read_prompts([], [str(path)]) == ["hello\n\nthere"]
    path.write_bytes(b'\xef\xbb\xbf{"type":\r\n"null"}\r\n')
    given = generate.Decoding(schema=str(path), grammar=None, prediction=str(path)).keywords()
    assert given["schema"] == given["prediction"] == '{"type":\n"null"}\n'
