"""`jaxspec prove`: finds a function, checks it, and ends with 1 where it is biased."""

import json
import subprocess
import sys

import pytest
import typer.testing

import jaxspec
from jaxspec.cli import app as application
from jaxspec.testing import verifier_page

ENGINE = """
def verify(target_probs, draft_probs, tokens, uniforms):
    for i, token in enumerate(tokens):
        if uniforms[i] >= target_probs[i, token]:  # ignores the draft's probability of it
            row = target_probs[i] * (range(len(target_probs[i])) != token)
            return [*tokens[:i], draw(row, uniforms[-1])]
    return [*tokens, draw(target_probs[-1], uniforms[-1])]

def draw(row, uniform):
    below = row.cumsum()
    return below.searchsorted(uniform * below[-1], side="right")

def greedy(target_probs, draft_probs, tokens, uniforms):
    return 0, target_probs[0].argmax()

nested = type("Engine", (), {"verify": staticmethod(verify)})
"""


@pytest.fixture
def prove(tmp_path, monkeypatch):
    (tmp_path / "an_engine.py").write_text(ENGINE)
    (tmp_path / "broken_engine.py").write_text("import no_such_engine_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *words: typer.testing.CliRunner().invoke(application.app, ["prove", *words])


def test_what_is_lossless(prove, tmp_path):
    result = prove("an_engine:nested.verify", "--uniforms", "4", "--page", "page.html")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("lossless: exact, over 16 targets and drafts")
    page = (tmp_path / "page.html").read_text()
    assert '<span class="lossless">lossless</span>' in page and page.count("<tr>") == 17
    assert "src=" not in page and "href=" not in page


def test_a_page_about_samples_does_not_say_lossless():
    case = jaxspec.testing.CheckedCase("target [0.5, 0.5], draft [0.6, 0.4]", 0.01, 1.9, 1.9)
    report = jaxspec.testing.VerifierReport(True, False, None, (), 1e-6, 9000, (case,))
    assert "engine:verify: no bias found</title>" in verifier_page.page(report, "engine:verify")


def test_what_is_biased(prove):
    result = prove("an_engine:greedy", "--uniforms", "4", "--json")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert not found["lossless"] and found["counterexample"].startswith("target [0.5, 0.5], draft [0.6, 0.4]: token 0")
    assert len(found["cases"]) == found["num_instances"] == 16
    assert prove("an_engine:greedy", "--uniforms", "0", "--greedy").exit_code == 0


ABSENT = "flax optax orbax transformers tokenizers safetensors gguf huggingface_hub platformdirs filelock jinja2"


@pytest.mark.slow
def test_few_packages_suffice(prove):
    """In an engine's own environment, without most of what jaxspec depends on."""
    words = ["jaxspec", "prove", "an_engine:greedy", "--uniforms", "0", "--greedy"]
    code = f"import sys; sys.modules |= dict.fromkeys({ABSENT.split()}); sys.argv = {words}"
    code += "; import jaxspec.cli; jaxspec.cli.main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.startswith("lossless: exact"), result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["an_engine"], "must be MODULE:FUNCTION"),
        (["an_engine.py:verify"], "must be MODULE:FUNCTION"),
        (["an_engine:nothing"], "an_engine has no nothing; it has draw, greedy, nested, verify"),
        (["no_such_engine_at_all:verify"], "no_such_engine_at_all cannot be imported: ModuleNotFoundError"),
        (["broken_engine:verify"], "broken_engine cannot be imported"),
        (["an_engine:verify", "--uniforms", "3"], "needs more than --uniforms 3: with 7 its output"),
        (["an_engine:verify", "--samples", "0"], "needs --samples between 1 and 2147483647, got 0"),
        (["an_engine:draw"], "takes 2 positional arguments"),
        (["an_engine:verify", "--top-p", "2"], "policy needs --top-p between 1e-06 and 1, got 2.0"),
    ],
)
def test_mistakes_are_one_line(prove, words, said):
    result = prove(*words)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ") and said in result.stderr
