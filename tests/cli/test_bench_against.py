"""`jaxspec bench --quality --against`: its report on answers and peers, and how such a run resumes."""

import dataclasses
import json

import pytest
import typer.testing

from jaxspec.bench.measure import Measurement
from jaxspec.bench.peers import panel
from jaxspec.bench.peers.panel import FILE
from jaxspec.bench.peers.table import PEERS
from jaxspec.checkpoints.gguf import export_gguf
from jaxspec.checkpoints.orbax import save
from jaxspec.cli import app as application
from tests._fixtures import fake_peer, text_models, tiny

QUESTIONS = [
    {"turns": ["the sea"], "category": "writing", "reference": ["the sea is wide and deep"]},
    {"turns": ["one two three"], "category": "qa"},
]
OPTIONS = ("-d", "ngram", "-k", "2", "-n", "6", "--repeats", "2", "-t", "0", "-t", "1")
ASKED = ("--quality", "--against", "transformers", "--against", "llama.cpp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("against")
    tokenizer = text_models.byte_level()
    save(dataclasses.replace(tiny.transformer(3, vocab=tokenizer.vocab_size), tokenizer=tokenizer), path / "model")
    (path / "q.jsonl").write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    return path


@pytest.fixture(scope="module", autouse=True)
def _peers(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "kept by the caller"))
        patch.setitem(PEERS, "transformers", fake_peer.PEER)
        patch.setitem(PEERS, "llama.cpp", fake_peer.MISSING)
        yield


def _bench(folder, *arguments):
    words = ["bench", "-m", folder / "model", "--questions", folder / "q.jsonl", "--quiet", *OPTIONS, *arguments]
    return typer.testing.CliRunner().invoke(application.app, [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(folder, _peers):
    result = _bench(folder, *ASKED, "--json", folder / "r.jsonl", "--markdown", folder / "r.md")
    assert result.exit_code == 0, result.stderr
    return result


@pytest.mark.slow
def test_quality_and_peers_are_shown_and_written(folder, finished):
    text = " ".join((folder / "r.md").read_text().split())
    for part in (
        "batch 1, temperature 0: ngram, k=2 wrote the SAME tokens as plain decoding in all 4 answers.",
        "batch 1, temperature 1: ngram, k=2: perplexity ",
        ", negative log-likelihood of a token ",
        "one question is not enough to tell",  # only one has a reference
        "tokens/s of jaxspec over the peers', batch 1, temperature 0",
        "transformers lookup",
        "were DIFFERENT, first at question",
        "llama.cpp was not measured: it is not installed; pip install no-such-package",
        "transformers: pytest",
    ):
        assert part in " ".join(finished.stdout.split()) and part in text
    lines = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    quality = [line for line in lines if line["kind"] == "quality"]
    assert [(one["case"], one["temperature"]) for one in quality] == [("ngram, k=2", 0.0), ("ngram, k=2", 1.0)]
    assert quality[0]["agreement"]["same"] == 4 and quality[1]["bleu"]["error"] is None
    peers = {(line["temperature"], line["peer"], line["task"]) for line in lines if line["kind"] == "against"}
    tasks = ("multi-turn", "qa", "all")
    assert peers == {
        (t, f"transformers {mode}", task) for t in (0, 1) for mode in ("plain", "lookup") for task in tasks
    }
    assert lines[0]["machine"]["peers"]["llama.cpp"] is None


@pytest.mark.slow
def test_the_file_and_its_numbers_are_two_comparisons(folder, tmp_path, monkeypatch):
    """The vocabulary of a written file is of numbers; the tokenizer here is another."""
    monkeypatch.setattr("jaxspec.checkpoints.gguf.build_tokenizer", lambda metadata: text_models.byte_level())
    monkeypatch.setitem(PEERS, "llama.cpp", fake_peer.READER)
    model = export_gguf(tiny.transformer(3, vocab=text_models.VOCAB, norm_eps=2.0**-17), tmp_path, "float32")
    words = ("-m", model, "--count", "1", "--repeats", "1", *ASKED[1:], "--json", tmp_path / "r.jsonl")
    result = _bench(folder, *words)
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    asked = {line["weights"]: {*line["peers"]} for line in lines if line["kind"] == "turn"}
    names = lambda *peers: {f"{peer} {mode}" for peer in peers for mode in ("plain", "lookup")}
    of_file, of_arrays = FILE, "dequantized to float32"
    assert asked == {of_file: names("llama.cpp"), of_arrays: names("llama.cpp", "transformers")}
    compared = {(line["weights"], line["peer"]) for line in lines if line["kind"] == "against"}
    assert compared == {(weights, peer) for weights, peers in asked.items() for peer in peers}
    said = " ".join(result.stdout.split())
    for weights in asked:
        assert f"batch 1, temperature 0, {weights}: jaxspec's" in said
        assert f"tokens/s of jaxspec over the peers', batch 1, temperature 0, {weights}" in said
    again = _bench(folder, *words, "--resume")
    assert again.exit_code == 0 and again.stdout == result.stdout


@pytest.mark.slow
def test_a_finished_run_starts_no_peer(folder, finished, tmp_path, monkeypatch):
    for name in ("Worker", "tempfile"):
        monkeypatch.setattr(panel, name, None)
    (tmp_path / "r.jsonl").write_text((folder / "r.jsonl").read_text())
    again = _bench(folder, *ASKED, "--json", tmp_path / "r.jsonl", "--resume")
    assert again.exit_code == 0, again.stderr
    assert again.stdout == finished.stdout
    assert (tmp_path / "r.jsonl").read_text() == (folder / "r.jsonl").read_text()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_its_peers(folder, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(Measurement, "forget_programs", lambda _: None)
    whole = (folder / "r.jsonl").read_text().splitlines()
    path = tmp_path / "r.jsonl"
    path.write_text("".join(f"{line}\n" for line in whole[:4]))
    again = _bench(folder, *ASKED, "--json", path, "--resume")
    assert again.exit_code == 0, again.stderr
    after = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in after] == [json.loads(line)["kind"] for line in whole]
    ids = lambda line: [one["ids"] for one in line["peers"]["transformers lookup"]]
    assert ids(after[4]) == ids(json.loads(whole[4]))


@pytest.mark.slow
def test_a_run_with_other_peers_is_another_one(folder, finished):
    for arguments, said in (
        (ASKED[:-2], "against[1] was 'llama.cpp', now None"),
        ((*ASKED, "--verifier", "coupled"), "verifier was None, now 'coupled'"),
    ):
        refused = _bench(folder, *arguments, "--json", folder / "r.jsonl", "--resume")
        assert refused.exit_code == 2 and said in refused.stderr


@pytest.mark.slow
def test_coupled_verification_writes_the_same_at_any_temperature(folder):
    result = _bench(folder, "--quality", "--verifier", "coupled", "--count", "1")
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    for temperature in (0, 1):
        assert f"temperature {temperature}: ngram, k=2 wrote the SAME tokens as plain decoding in all 2 answers" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "transformers", "--batch", "2"), "the peers answer one request at a time"),
        (("--against-draft", "x"), "--against-draft is a draft model of the peers; pass --against too"),
        (("--against", "transformers", "--against", "transformers"), "--against must differ from each other"),
        (("--against", "transformers", "--against-draft", "smollm"), "unknown model 'smollm'"),
        (("--verifier", "tree", "-d", "suffix", "--against", "transformers", "--against-draft", "q.gguf"), "q.gguf"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, said):
    result = _bench(folder, *arguments)
    assert result.exit_code == 2 and said in result.stderr and len(result.stderr.splitlines()) == 1
