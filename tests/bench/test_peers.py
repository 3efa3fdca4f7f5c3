"""Peers: their processes answer, and figures are jaxspec's over theirs."""

import concurrent.futures
import dataclasses
import functools
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.bench.cases import PLAIN, Case, Setting
from jaxspec.bench.measure import Measurement
from jaxspec.bench.peers import panel as peers_panel
from jaxspec.bench.peers.engines import token_ids
from jaxspec.bench.peers.panel import FILE, open_panel
from jaxspec.bench.peers.table import PEERS, Arrays
from jaxspec.bench.peers.worker import Loaded, Request, Worker
from jaxspec.bench.questions import groups
from jaxspec.bench.report import peer_advice, peer_tables
from jaxspec.bench.summary import ALL, against
from jaxspec.bench.timing import Spread
from jaxspec.drafters.base import NoDrafter
from jaxspec.drafters.ngram import NGramDrafter
from jaxspec.training.prompts import Conversation
from tests._fixtures import fake_peer, fake_server, text_models, tiny

ALL_PLAIN = ("dequantized to float32", ["fake", "reader"], None, (1,))
LOADED = Loaded("", None, "float32", 1, 512)
REQUEST = Request([1, 2, 3], 5, 0.0, 0, [])


@pytest.fixture(scope="module")
def panel():
    target = tiny.transformer(1, vocab=text_models.VOCAB)
    target = dataclasses.replace(target, tokenizer=text_models.byte_level())
    with open_panel({"fake": fake_peer.PEER}, Arrays(target, None, "float32"), stop=(), context=512) as panel:
        yield panel


@pytest.mark.slow
def test_a_worker_answers_and_its_own_words_are_no_answers(panel):
    assert panel.labels == ("fake plain", "fake lookup")
    answer = panel.ask("fake lookup", [1, 2, 3], 5, 0.0, jax.random.key(0))
    assert answer["seconds"] > 0
    assert answer | {"seconds": 0} == {"seconds": 0, "tokens": [5], "ids": [[3, 2, 1, 3, 2]]}


@pytest.mark.slow
def test_a_worker_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match=r"Backwards ended with 1 and said: FileNotFoundError: .*'no-file'"):
        Worker(fake_peer.PEER.engine, dataclasses.replace(LOADED, model="no-file"))
    (tmp_path / "weights").write_text("7 float32")
    worker = Worker(fake_peer.PEER.engine, dataclasses.replace(LOADED, model=str(tmp_path / "weights")))
    assert worker.answer("plain", REQUEST)[0] == [3, 2, 1, 3, 2]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ValueError: thirteen is too many"):
            worker.answer("plain", dataclasses.replace(REQUEST, max_new_tokens=13))
    worker.close()


@pytest.mark.slow
def test_a_worker_ends_in_the_middle_of_an_answer(tmp_path):
    """Its weights lie in a folder that is removed after it: stopping a run does not wait for an answer."""
    (tmp_path / "weights").write_text("7 float32")
    os.mkfifo(tmp_path / "busy")
    worker = Worker(fake_peer.PEER.engine, dataclasses.replace(LOADED, model=str(tmp_path / "weights")))
    ask = functools.partial(worker.answer, "plain", dataclasses.replace(REQUEST, max_new_tokens=14))
    asking = concurrent.futures.ThreadPoolExecutor(2)
    answer = asking.submit(ask)
    assert "for ever" in (tmp_path / "busy").read_text()
    asking.submit(worker.close).result(timeout=60)
    assert answer.exception(timeout=60) is not None


def test_draft_models_must_fit():
    peers, models = {"fake": fake_peer.PEER}, (tiny.transformer(), tiny.transformer(vocab=7))
    refused = pytest.raises(ValueError, match="the draft model has 7 tokens, the target 11")
    with refused, open_panel(peers, Arrays(*models, "float32"), stop=(), context=64):
        pass


def test_what_no_peer_can_read_is_refused():
    peers = {"fake": dataclasses.replace(fake_peer.PEER, write=PEERS["transformers"].write)}
    refused = pytest.raises(ValueError, match=r"without sliding windows.*\. Leave --against out")
    weights = Arrays(tiny.transformer(windows=(4,)), None, "float32")
    with refused, open_panel(peers, weights, stop=(), context=64):
        pass


@pytest.mark.slow
def test_the_program_on_the_path_answers_by_http(tmp_path, monkeypatch):
    peer = PEERS["llama-server"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peer.versions() is None and peer.install == "put llama-server on the PATH"
    fake_server.install(tmp_path)
    assert peer.versions() == {"llama-server": "version: 7 built by hand"}
    loaded = dataclasses.replace(LOADED, model="a.gguf", draft="b.gguf", dtype="float16", threads=3)
    worker = Worker(peer.engine, loaded)
    assert worker.modes == ("plain", "lookup", "draft")
    for mode in worker.modes:
        assert worker.answer(mode, REQUEST)[0] == [4, 5, 6, 7, 8]
    with pytest.raises(RuntimeError, match=r"RuntimeError: llama.cpp made 13 tokens and gave 12"):
        worker.answer("plain", dataclasses.replace(REQUEST, max_new_tokens=13))
    worker.close()
    started = {kind: json.loads((tmp_path / kind).read_text()) for kind in ("none", "ngram-simple", "draft-simple")}
    for given in started.values():
        expected = {"--model": "a.gguf", "--threads": "3", "--ctx-size": "512", "--cache-type-k": "f16"}
        assert expected.items() <= given.items()
    assert started["ngram-simple"]["--spec-ngram-simple-size-m"] == "10"
    assert started["draft-simple"]["--spec-draft-model"] == "b.gguf"
    with pytest.raises(RuntimeError, match="llama-server ended with 1 and did not load the model"):
        Worker(peer.engine, dataclasses.replace(loaded, model="no-file"))


def test_replies_without_every_token_are_refused():
    assert token_ids({"tokens": [3, 1], "tokens_predicted": 2}) == [3, 1]
    with pytest.raises(RuntimeError, match="made 3 tokens and gave 2"):
        token_ids({"tokens": [3, 1], "tokens_predicted": 3})
    with pytest.raises(RuntimeError, match="llama.cpp did not answer: .*too long"):
        token_ids({"error": "too long"})


@pytest.mark.parametrize(
    ("model", "draft", "against", "found"),
    [
        ("a.gguf", None, (), [("", [], None, (1, 8))]),
        ("folder", None, ("reader", "fake"), [("", ["reader", "fake"], None, (1, 8))]),
        ("a.gguf", None, ("fake",), [("", ["fake"], None, (1, 8))]),
        ("a.gguf", None, ("missing",), [("", [], None, (1, 8))]),
        ("a.gguf", "b.gguf", ("fake", "reader"), [(FILE, ["reader"], ("a.gguf", "b.gguf"), (1, 8)), ALL_PLAIN]),
        ("a.gguf", "folder", ("fake", "reader"), [(FILE, ["reader"], ("a.gguf", None), (1, 8)), ALL_PLAIN]),
    ],
)
def test_who_reads_the_file_answers_with_it_and_all_with_its_numbers(monkeypatch, model, draft, against, found):
    for name, peer in (("fake", fake_peer.PEER), ("reader", fake_peer.READER), ("missing", fake_peer.MISSING)):
        monkeypatch.setitem(PEERS, name, peer)
    monkeypatch.setattr(peers_panel, "locate", Path)
    setting = Setting(model, ("ngram",), batches=(1, 8), against=against, against_draft=draft if against else None)
    listed = peers_panel.comparisons(setting, TARGET)
    paths = lambda files: files and (str(files.target), files.draft and str(files.draft))
    assert [(one.weights, list(one.peers), paths(one.files), one.batches) for one in listed] == found
    assert [one.loaded for one in listed] == [True, False][: len(found)]
    if against:
        alone = peers_panel.comparisons(dataclasses.replace(setting, file_only=True), TARGET)
        assert alone == listed[:1]


def test_packed_weights_stand_beside_no_others(monkeypatch):
    """Nor is a peer that reads no file compared with a model whose numbers differ from its own."""
    monkeypatch.setitem(PEERS, "fake", fake_peer.PEER)
    packed = jaxspec.quantize_weights(TARGET)
    listed = peers_panel.comparisons(Setting("folder", ("ngram",), against=("fake",)), packed)
    assert [(one.weights, list(one.peers)) for one in listed] == [(FILE, []), ("dequantized to float32", ["fake"])]


class Answers:
    """A panel in this process whose first peer knows what plain decoding writes."""

    labels = ("a plain", "b plain")

    def __init__(self):
        self.asked = []

    def ask(self, label, prompt, most, temperature, key):
        self.asked.append((label, tuple(prompt)))
        ids = [0] * 3
        if label == "a plain":
            result = jaxspec.generate(TARGET, None, jnp.asarray([prompt]), key=key, max_new_tokens=most)
            ids = result.tokens[0].tolist()
        return {"seconds": 0.5, "tokens": [len(ids)], "ids": [ids]}


TARGET = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB), tokenizer=text_models.byte_level())
QUESTIONS = [Conversation(("the sea",), category="qa"), Conversation(("hello",), category="qa")]


@pytest.mark.slow
def test_peers_take_their_turns_and_their_tokens_are_compared():
    panel = Answers()
    cases = [Case(PLAIN, PLAIN, NoDrafter()), Case("x", "ngram", NGramDrafter(k=2))]
    setting = Setting("tiny", ("ngram",), max_new_tokens=6, repeats=2)
    measurement = Measurement(TARGET, cases, QUESTIONS, setting, panel=panel)
    (record,) = measurement.turns(groups(QUESTIONS, 1)[0], 0.0)
    assert [label for label, _ in panel.asked] == ["a plain", "b plain"] * 2
    plain = record["cases"][PLAIN]
    peer = record["peers"]["a plain"]
    assert [one["ids"] for one in plain] == [one["ids"] for one in peer]
    assert all(one["divergences"] == [None] for one in peer)
    assert record["cases"]["x"][0]["divergences"] == [None] and "divergences" not in plain[0]
    ((place, distance),) = record["peers"]["b plain"][0]["divergences"]
    assert place == 0 and distance > 0.01
    # Batches are not for them, and drawn tokens need not be the same.
    (record,) = measurement.turns(groups(QUESTIONS, 2)[0], 0.0)
    assert "peers" not in record
    (record,) = measurement.turns(groups(QUESTIONS, 1)[0], 1.0)
    assert "divergences" not in record["peers"]["b plain"][0]


def test_exact_cases():
    assert Case("x", "x", NGramDrafter(k=2)).is_exact(0.0) and not Case("x", "x", NGramDrafter(k=2)).is_exact(1.0)
    assert Case("x", "x", NGramDrafter(k=2), jaxspec.CoupledVerifier()).is_exact(1.0)


def _turn(index, task, plain, of_peer, divergences=None):
    """Ten tokens each, in these seconds."""
    side = lambda seconds, more: [{"tokens": [10], "seconds": one, **more} for one in seconds]
    peer = {} if divergences is None else {"divergences": divergences}
    return {
        "kind": "turn", "unit": [1, 0.0, index], "batch": 1, "temperature": 0.0, "task": task, "turn": 0,
        "questions": [index], "cases": {PLAIN: side(plain, {}), "x, k=4": side([one / 2 for one in plain], {})},
        "peers": {"p plain": side(of_peer, peer)},
    }  # fmt: skip


def test_jaxspec_over_the_peers():
    turns = [_turn(0, "qa", [2.0, 1.0], [4.0, 1.0], [None]), _turn(1, "rag", [1.0, 1.0], [1.0, 5.0], [[4, 2.0]])]
    first, _, whole = against(turns)
    assert (first.task, first.ratios[PLAIN], first.ratios["x, k=4"]) == (
        "qa",
        Spread(1.0, 1.5, 2.0),
        Spread(2.0, 3.0, 4.0),
    )
    assert first.tokens_per_second == Spread.of([2.5, 10.0])
    # The mean over questions of tokens a second, then its ratio.
    assert whole.task == ALL and whole.ratios[PLAIN] == Spread.of([(5 + 10) / (2.5 + 10), (10 + 10) / (10 + 2)])
    assert (whole.agreement.same, whole.agreement.different) == (2, 2)
    ratios, speeds = peer_tables([first, whole])
    assert ratios.rows == (("plain / p plain", "1.50", "1.43"), ("x, k=4 / p plain", "3.00", "2.87"))
    assert speeds.rows == (("p plain", "6.2", "6.1"),)
    ((good, text),) = peer_advice([first, whole])
    assert good and text.startswith(
        "batch 1, temperature 0: jaxspec's x, k=4 was FASTER than p plain: 2.87x (repeats 2.40 to"
    )
    assert "2 were DIFFERENT, first at question 1, turn 0, token 4" in text


def test_figures_with_other_weights_are_others():
    file, arrays = ({"weights": weights} for weights in (FILE, "dequantized to float32"))
    turns = [_turn(0, "qa", [2.0], [4.0]) | file, _turn(0, "qa", [3.0], [1.5]) | arrays]
    first, second = (one for one in against(turns) if one.task == ALL)
    assert (first.weights, first.ratios[PLAIN].median) == (FILE, 2.0)
    assert (second.weights, second.ratios[PLAIN].median) == ("dequantized to float32", 0.5)
    texts = [text for _, text in peer_advice([first, second])]
    assert texts[0].startswith(
        "batch 1, temperature 0, the file as it is: jaxspec's x, k=4 was FASTER than p plain: 4.00x"
    )
    assert texts[1].startswith(
        "batch 1, temperature 0, dequantized to float32: jaxspec's x, k=4 was as fast as p plain"
    )
    assert [table.title for table in peer_tables([first, second])][2].endswith(", dequantized to float32")
    (group,) = groups(QUESTIONS[:1], 1)
    assert group.unit(0.0, FILE) == [*group.unit(0.0), FILE]


@pytest.mark.reference
@pytest.mark.parametrize("name", PEERS)
def test_real_peers_write_our_tokens(name, tmp_path):
    if PEERS[name].versions() is None:
        pytest.skip(PEERS[name].install)
    model = tiny.transformer(5, vocab=64, layers=2, norm_eps=2.0**-17)
    weights = Arrays(model, model, "float32")
    with open_panel({name: PEERS[name]}, weights, stop=(), context=256) as panel:
        assert panel.labels == tuple(f"{name} {mode}" for mode in ("plain", "lookup", "draft"))
        prompt = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4]
        expected = jaxspec.generate(model, None, jnp.asarray([prompt]), max_new_tokens=24).tokens[0].tolist()
        for label in panel.labels:
            assert panel.ask(label, prompt, 24, 0.0, jax.random.key(0))["ids"] == [expected], label
            assert len(panel.ask(label, prompt, 24, 1.0, jax.random.key(0))["ids"][0]) == 24
