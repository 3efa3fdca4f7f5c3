"""The `jaxspec` command: its output and exit codes."""

import dataclasses
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import typer.testing

from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.orbax import save
from jaxspec.checkpoints.zoo import list_models
from jaxspec.cli import app as application, info
from jaxspec.cli.help import Help
from jaxspec.cli.options import parameters
from jaxspec.cli.output import mark
from jaxspec.text.decoder import SpeculativeDecoder
from tests._fixtures import text_models, tiny

SHORT = ("-n", "12", "--temperature", "0")
PLACE = ("--num-processes", "2", "--coordinator")


@pytest.fixture(scope="module")
def decoder(folder):
    return SpeculativeDecoder(load(folder), "ngram", k=4)


@pytest.fixture(autouse=True)
def _own_compilation_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "kept by the caller"))


def _run(*arguments, stdin=None):
    return typer.testing.CliRunner().invoke(application.app, [str(word) for word in arguments], input=stdin)


def _generate(folder, *arguments, stdin=None):
    return _run("generate", "-m", folder, *SHORT, *arguments, stdin=stdin)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--int8", "weights", "--int8", "cache"), ("--float16-cache",)], ids=len)
def test_rounded_weights_and_caches_are_a_target_of_its_own(folder, options):
    """It is decoded, with and without speculation alike."""
    texts = {draft: _generate(folder, *options, "-d", draft, "--json", "the sea") for draft in ("ngram", "none")}
    assert all(result.exit_code == 0 for result in texts.values()), texts
    tokens = [json.loads(result.stdout)["text"] for result in texts.values()]
    assert tokens[0] == tokens[1]
    assert "weights" in _generate(folder, "--int8", "everything", "the sea").stderr
    assert "exclude each other" in _generate(folder, "--int8", "cache", "--float16-cache", "the sea").stderr


@pytest.mark.parametrize("command", [(), *((name,) for name in application._COMMANDS), ("train", "eagle")])
def test_help(command):
    """More than twelve options stand in groups; an example of the command and its options is last."""
    result = _run(*command, "--help")
    assert result.exit_code == 0 and "Usage" in result.stdout
    if not command:
        return
    titles = re.findall(r"^(\w[\w ]*):$", result.stdout, re.M)
    options = re.findall(r"^  -.*", result.stdout.partition("\nOptions:\n")[0], re.M)
    assert len(set(titles)) == len(titles) and (len(options) <= 12 or len(titles) >= 5), titles
    assert titles[-2:] == ["Options", "Example"] and "rich" not in result.stdout
    example = result.stdout.splitlines()[-1].strip()
    words = shlex.split(example)
    assert words[: 1 + len(command)] == ["jaxspec", *command]
    assert all(flag in result.stdout.replace(example, "") for flag in words if flag.startswith("-"))


def test_options_are_in_one_group_each():
    options = parameters(info.Options)
    assert [one.name for one in Help("jaxspec info").arranged(options)] == ["as_json"]
    for groups in ({"Output": ()}, {"Output": ("as_json", "save")}, {"Output": ("as_json",), "More": ("as_json",)}):
        with pytest.raises(ValueError, match="each option must be in one group, got"):
            Help("jaxspec info", groups).arranged(options)


def test_the_first_screen_needs_no_jax():
    """The commands are listed as they are known to be, and neither JAX nor Flax is imported for that."""
    script = (
        "import sys\n"
        "import typer.testing\n"
        "from jaxspec.cli import app\n"
        "print(typer.testing.CliRunner().invoke(app.app, ['--help']).stdout)\n"
        "assert not {'jax', 'flax'} & sys.modules.keys()\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == [
        "generate",
        "complete",
        "serve",
        "manifests",
        "models",
        "info",
        "data",
        "bench",
        "plan",
        "acceptance",
        "prove",
        "compile-report",
        "export-tokenizer",
        "train",
    ]


def test_version():
    result = _run("--version")
    assert result.exit_code == 0 and result.stdout.startswith("jaxspec ")


@pytest.mark.slow
def test_text_alone_goes_to_stdout(folder, decoder):
    result = _generate(folder, "hello")
    expected = decoder.generate("hello", max_new_tokens=12, temperature=0)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == expected.text + "\n"
    assert len(result.stderr.splitlines()) == 1
    for part in ("tokens/s", "drafter ngram ·", "mean acceptance length", "acceptance rate"):
        assert part in result.stderr


@pytest.mark.slow
def test_drafts_are_shown(folder, decoder):
    """In brackets where there are no colors; with `--json` as spans; of several prompts too."""
    spans = decoder.generate("hello", max_new_tokens=12, temperature=0).spans
    result = _generate(folder, "hello", "--show-drafts", "-d", "ngram", "-k", "4")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == mark(spans, colored=False) + "\n" and "[" in result.stdout
    assert "accepted drafts are in brackets, and each round ends with |" in result.stderr
    result = _generate(folder, "hello", "--show-drafts", "--json", "-d", "ngram", "-k", "4")
    assert json.loads(result.stdout)["spans"] == [list(span) for span in spans]
    assert "accepted drafts are" not in result.stderr
    result = _generate(folder, "hello", "hello", "--show-drafts", "-d", "ngram", "-k", "4")
    assert result.stdout.count(mark(spans, colored=False)) == 2


@pytest.mark.slow
def test_plain_decoding_prints_the_same(folder):
    result = _generate(folder, "hello", "--drafter", "none")
    assert result.stdout == _generate(folder, "hello", "--drafter", folder, "-k", "2").stdout
    assert "acceptance" not in result.stderr


@pytest.mark.slow
def test_a_draft_of_another_tokenizer(folder, tmp_path):
    """It is used, and a message says what it can guess."""
    tokenizer = text_models.sentencepiece()
    save(dataclasses.replace(tiny.transformer(4, vocab=tokenizer.vocab_size), tokenizer=tokenizer), tmp_path / "draft")
    result = _generate(folder, "hello", "--drafter", tmp_path / "draft", "-k", "2")
    assert result.stdout == _generate(folder, "hello", "--drafter", "none").stdout
    assert "the draft has another tokenizer: it drafts the" in result.stderr
    trimmed = _generate(folder, "hello", "--drafter", tmp_path / "draft", "-k", "2", "--draft-vocabulary", "200")
    assert trimmed.stdout == result.stdout
    result = _generate(folder, "hello", "--drafter", tmp_path / "draft", "--num-drafts", "2")
    assert result.exit_code != 0 and "leave --num-drafts out" in result.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the .* cannot be divided evenly")
def test_over_all_devices(folder):
    expected = _generate(folder, "hello", "the sea", "--drafter", folder, "-k", "2").stdout
    split = _generate(folder, "hello", "the sea", "--drafter", folder, "-k", "2", "--mesh", "data=2,model=4")
    assert (split.exit_code, split.stdout) == (0, expected)


@pytest.mark.slow
def test_prompts_from_everywhere(folder, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("hello\n", "utf-8")
    expected = _generate(folder, "hello").stdout
    assert _generate(folder, "--file", file).stdout == expected
    assert _generate(folder, "-", stdin="hello\n").stdout == expected
    assert _generate(folder, "--file", "-", stdin="hello").stdout == expected
    assert _generate(folder, stdin="hello").stdout == expected


@pytest.mark.slow
def test_several_prompts_get_a_header_each(folder):
    result = _generate(folder, "hello", "the sea\nis " + "wide " * 20)
    texts = [_generate(folder, text).stdout for text in ("hello", "the sea\nis " + "wide " * 20)]
    headers = ["[1] hello\n", "[2] the sea is wide wide wide wide wide wide wide wide wide w...\n"]
    for header, text in zip(headers, texts, strict=True):
        assert header + text in result.stdout
    assert len(result.stdout) == sum(map(len, [*headers, *texts])) + len("\n\n")


@pytest.mark.slow
def test_json_lines(folder, decoder):
    fixed = ("--temperature", "0.9", "--seed", "5", "--top-k", "40", "-k", "4")
    result = _generate(folder, "hello", "the sea", "--json", *fixed)
    records = [json.loads(line) for line in result.stdout.splitlines()]
    options = {"max_new_tokens": 12, "temperature": 0.9, "seed": 5, "top_k": 40}
    expected = decoder.generate(["hello", "the sea"], **options)
    assert [record["prompt"] for record in records] == ["hello", "the sea"]
    assert [tuple(record["token_ids"]) for record in records] == [row.token_ids for row in expected]
    assert [record["text"] for record in records] == [row.text for row in expected]
    assert {record["seed"] for record in records} == {5} and {record["drafts"] for record in records} == {"4"}
    # As the option takes it: "auto" is said to be what it stands for.
    assert {(record["drafter"], record["max_new_tokens"], record["k"]) for record in records} == {("ngram", 12, 4)}
    assert result.stderr == ""


@pytest.mark.slow
def test_drafts_adapt_where_no_number_is_given(folder):
    plain = _generate(folder, "hello hello hello", "--drafter", "none").stdout
    for options, said in (((), "k adaptive up to 8, costs given or estimated"), (("-k", "adaptive:4"), "up to 4,")):
        result = _generate(folder, "hello hello hello", *options)
        assert said in result.stderr and result.stdout == plain
    assert "k 4 " in _generate(folder, "hello hello hello", "-k", "fixed").stderr


@pytest.mark.slow
def test_chat_and_stop(folder, decoder):
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hello"}]
    options = {"max_new_tokens": 12, "temperature": 0}
    free = decoder.chat(messages, **options)
    stop = free.text[2:4]
    result = _generate(folder, "--chat", "--system", "be short", "hello", "--stop", stop)
    assert result.stdout == free.text[: free.text.index(stop)] + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(), pytest.param(("--temperature", "0.8", "--verifier", "coupled"), marks=pytest.mark.slow)]
)
def test_compare_finds_the_same_tokens(folder, options):
    result = _generate(folder, "hello", "--compare", *options)
    assert result.exit_code == 0, result.stderr
    for part in ("speculative", "plain", "ratio", "tokens: identical"):
        assert part in result.stderr
    record = json.loads(_generate(folder, "hello", "--compare", "--json", *options).stdout)
    assert record["compare"]["tokens"] == "identical"
    assert record["compare"]["ratio"] == pytest.approx(
        record["compare"]["tokens_per_second"] / record["compare"]["plain_tokens_per_second"]
    )


@pytest.mark.slow
def test_a_prediction_is_drafted(folder, tmp_path):
    """It is read from a file; plain decoding, for comparison, ignores it."""
    text = json.loads(_generate(folder, "-d", "none", "--json", "the sea").stdout)["text"]
    file = tmp_path / "expected.txt"
    file.write_text(text)
    result = _generate(folder, "--prediction", file, "-k", "4", "--compare", "--json", "the sea")
    found = json.loads(result.stdout)
    assert found["text"] == text and result.exit_code == 0
    (tmp_path / "picture").write_bytes(b"\x89PNG")
    binary = _generate(folder, "--prediction", tmp_path / "picture", "the sea")
    assert binary.exit_code == 2 and "picture is not UTF-8 text" in binary.stderr
    missing = _generate(folder, "--prediction", tmp_path / "nothing.txt", "the sea")
    assert missing.exit_code == 2 and "nothing.txt" in missing.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        pytest.param("--choice", "the sea", "the sea", marks=pytest.mark.slow),
        ("--grammar", 'start: "a" "o" | "o" "a"', "(ao|oa)"),
        pytest.param("--regex", "[ao]{3}", "[ao]{3}", marks=pytest.mark.slow),
        pytest.param("--schema", '{"enum": ["sea"]}', '"sea"', marks=pytest.mark.slow),
    ],
)
def test_texts_of_a_grammar(folder, tmp_path, option, value, text):
    if option == "--grammar":
        (tmp_path / "grammar.lark").write_text(value)
        value = tmp_path / "grammar.lark"
    result = _generate(folder, option, value, "the ")
    assert re.fullmatch(text, result.stdout.strip()), result.stderr


@pytest.mark.slow
def test_several_answers_with_alternatives_and_a_bias(folder):
    """Each has its own key, the biased token is in no answer, and the two most likely tokens are listed."""
    sampled = ("-t", "1", "--seed", "3", "--top-k", "2", "--json")
    several = ("--answers", "3", "--alternatives", "2", "--logit-bias", "7=-inf")
    lines = [json.loads(line) for line in _generate(folder, *sampled, *several, "the sea", "hello").stdout.splitlines()]
    assert [line["prompt"] for line in lines] == ["the sea"] * 3 + ["hello"] * 3
    assert len({line["text"] for line in lines[:3]}) > 1
    for line in lines:
        assert 7 not in line["token_ids"] and len(line["alternatives"]) == len(line["token_ids"])
        for token, found in zip(line["token_ids"], line["alternatives"], strict=True):
            assert len(found) == 2 and found[0]["log_prob"] >= found[1]["log_prob"]
            ids = [one["token_id"] for one in found]
            assert 7 in ids or token in ids
            assert all((one["warped_log_prob"] is None) == (one["token_id"] == 7) for one in found)
    twice = _generate(folder, "--logit-bias", "7=1", "--logit-bias", "7=2", "the sea")
    assert twice.exit_code == 2 and "--logit-bias has a token twice" in twice.stderr
    shown = _generate(folder, "-t", "1", "--seed", "3", "--answers", "2", "the sea").stdout
    assert shown.count("the sea") == 2


@pytest.mark.slow
def test_compare_says_where_samples_differ(folder):
    arguments = ("hello", "--compare", "--temperature", "1.5", "--seed", "1", "--top-p", "1", "--drafter", folder)
    result = _generate(folder, *arguments)
    assert "tokens: differ" in result.stderr
    assert "the two best logits there are" in result.stderr
    assert "--verifier coupled" in result.stderr
    record = json.loads(_generate(folder, *arguments, "--json").stdout)["compare"]
    assert record["tokens"] == "differ" and record["first_difference"] >= 0 and record["logit_gap"] >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "-k", "-1"], "error: -k must be at least 0, got -1; pass -k 0 for plain decoding"),
        (["hello", "--drafter", "none", "-k", "4"], "nothing to draft with"),
        (["hello", "-k", "some"], "k must be a number, 'fixed', 'adaptive' or 'adaptive:8', got 'some'"),
        (["hello", "--drafter", "smollm"], "Did you mean smollm2-135m-instruct"),
        (["hello", "--drafter", "missing.gguf"], "there is no file or folder 'missing.gguf'"),
        (["hello", "--drafter", "none", "--compare"], "--compare needs a drafter"),
        (["hello", "-t", "0", "--top-p", "0.5"], "--top-p would change nothing at temperature 0"),
        (["hello", "-t", "0", "--seed", "1", "--top-k", "2"], "--top-k, --seed would change nothing"),
        (["hello", "--temperature", "-1"], "temperature must be >= 0"),
        (["hello", "--temperature", "1", "--top-p", "1.5"], "--top-p must be in (0, 1]"),
        (["hello", "--max-new-tokens", "9999"], "the target model's context is 512"),
        (["hello", "--system", "be short"], "pass --chat too"),
        (["hello", "--stop", ""], "a stop string must not be empty"),
        (["--file", "no-such-file.txt"], "no-such-file.txt"),
        (["-", "--file", "-"], "standard input can be read once only"),
        ([], "there is no prompt"),
        (["hello", "--mesh", "model=3"], "--mesh model=3 needs 3 devices, got 8"),
        (["hello", "--mesh", "heads=8"], "--mesh takes sizes of the axes data and model"),
        (["hello", "--mesh", "model=2,model=4"], "each once at most"),
        (["--file", "no/such.txt"], "no/such.txt: No such file or directory"),
        (["hello", "--mesh", "model"], "pass such as --mesh data=2,model=4"),
        (["hello", "--process-id", "0"], "pass --coordinator and --num-processes too"),
        (["hello", "--distributed", "--num-processes", "2"], "--distributed finds the processes; leave out"),
        (["hello", *PLACE, "host", "--process-id", "0"], "--coordinator must be HOST:PORT"),
        (["hello", *PLACE, "host:65536", "--process-id", "0"], "the port at most 65535"),
        (["hello", *PLACE, "host:80", "--process-id", "2"], "below --num-processes, got 2 of 2"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, message):
    result = _run("generate", "-m", folder, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and "Traceback" not in result.stderr


@pytest.mark.parametrize(("error", "line"), [("lost\nits\ntrace", "lost"), ("", "JaxRuntimeError")])
def test_errors_of_jax_are_one_line(folder, monkeypatch, error, line):
    def fail(*args, **kwargs):
        raise jax.errors.JaxRuntimeError(error)

    monkeypatch.setattr("jaxspec.checkpoints.load.load", fail)
    result = _generate(folder, "hello")
    assert (result.exit_code, result.stderr) == (2, f"error: {line}\n")


def test_a_file_that_is_no_text(folder, tmp_path):
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe\x00")
    result = _generate(folder, "--file", file)
    assert result.exit_code == 2 and "is not UTF-8 text" in result.stderr


@pytest.mark.parametrize("arguments", [["generate", "--no-such-option"], ["generate", "--verifier", "x", "hello"]])
def test_bad_usage(arguments):
    assert _run(*arguments).exit_code == 2


def test_an_interruption_is_quiet(folder, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxspec.checkpoints.load.load", interrupted)
    result = _generate(folder, "hello")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.slow
def test_a_real_interruption_is_quiet(folder):
    command = [sys.executable, "-m", "jaxspec", "generate", "-m", folder, "hello", "-n", "400"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        error = process.communicate()[1]
    assert (process.returncode, error) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_folder_behind(number):
    script = (
        "import tempfile, time\n"
        "from jaxspec.cli import app, main\n"
        "def run():\n"
        "    with tempfile.TemporaryDirectory() as folder:\n"
        "        print(folder, flush=True)\n"
        "        time.sleep(60)\n"
        "app.run = run\n"
        "main()\n"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.send_signal(number)
        error = process.communicate()[1]
    assert (process.returncode, error) == (128 + number, "")
    assert not folder.exists()


def test_models():
    table, lines = _run("models"), _run("models", "--json")
    records = [json.loads(line) for line in lines.stdout.splitlines()]
    assert table.exit_code == lines.exit_code == 0
    assert [record["name"] for record in records] == [entry.name for entry in list_models()]
    assert all(record["name"] in table.stdout and record["license"] for record in records)
    assert all(name in table.stdout for record in records for name in record["drafters"])


def test_info_has_what_a_bug_report_needs(tmp_path, monkeypatch):
    """Even on a machine without a cache folder and a compiler."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    record = json.loads(_run("info", "--json").stdout)
    assert record["jax"] == jax.__version__ and record["devices"] == ["cpu cpu"] * 8
    assert record["cache_folder"] == f"{tmp_path / 'cache'} (not made yet)"
    assert re.match("none: no C\\+\\+ compiler|prebuilt: ", record["cpu_kernels"])
    listed = _run("info").stdout
    assert all(name.replace("_", " ") in listed for name in record) and listed.count("cpu cpu") == 8
    assert not (tmp_path / "cache").exists()


def test_models_says_which_drafters_are_elsewhere(monkeypatch):
    monkeypatch.setattr(zoo, "_drafters", lambda: {"smollm2-135m-instruct/eagle": None})
    table, record = _run("models").stdout, json.loads(_run("models", "--json").stdout.splitlines()[-1])
    assert record["missing_drafters"] == ["medusa", "dflash", "distilled"]
    assert "drafters: eagle" in [line.strip() for line in table.splitlines()]
    assert "repository only: medusa" in " ".join(table.split())


@pytest.mark.slow
def test_a_closed_pipe_is_quiet(folder):
    command = [sys.executable, "-m", "jaxspec", "generate", "-m", folder, "hello", *SHORT]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 141
    assert error == ""


@pytest.mark.slow
@pytest.mark.smollm2
def test_the_default_model_compares(smollm2):
    del smollm2
    result = _run("generate", "One, two, three, four, five, six,", "-n", "16", "-t", "0", "--compare", "--json")
    record = json.loads(result.stdout)
    assert "seven" in record["text"]
    assert record["compare"]["tokens"] == "identical"
