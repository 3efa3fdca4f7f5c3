"""The search for blocks to skip: what a set is worth, and that the best one is found."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer.testing

import jaxspec
from jaxspec.bench.skipping import search as searching
from jaxspec.bench.skipping.calibrate import find_skip_set
from jaxspec.bench.skipping.measure import Measure, costs
from jaxspec.bench.skipping.prediction import Rounds
from jaxspec.bench.skipping.report import verdict
from jaxspec.bench.skipping.search import search
from jaxspec.bench.skipping.texts import Reading, Texts, of_answers, of_text, read_texts
from jaxspec.bench.speed.setting import policy_at
from jaxspec.cli import app as application
from jaxspec.drafters.skipping import SkippingModel
from jaxspec.nn import Rope
from jaxspec.nn.skipping import run_where
from jaxspec.training.prompts import Conversation
from jaxspec.weights import load, save, zoo
from jaxspec.weights.skip_set import SkipSet, skip_set_path
from tests import text_models, tiny
from tests.drafters.test_skipping import without

LAYERS = 4
SILENT = {"attention": (1, 3), "mlp": (0,)}
TARGET = tiny.transformer(1, layers=LAYERS, ropes=tuple(Rope(10.0**n) for n in (4, 2, 3, 1)), windows=(None, 5, 2, 4))
ROWS = np.random.default_rng(0).integers(0, tiny.VOCAB, (3, 12))
TEXTS = Texts.of([(row.tolist(), [place > 1 for place in range(12)]) for row in ROWS])


def blocks(attention=(), mlp=()):
    return frozenset([("attention", layer) for layer in attention] + [("mlp", layer) for layer in mlp])


@jax.jit
def states_where(attends, feeds):
    model = TARGET
    x = run_where(model.module, model.params, attends, feeds, jnp.asarray(ROWS, jnp.int32), model.init_cache(3, 0))
    return model.normalise(x) @ model.head.T


@pytest.mark.parametrize("skipped", [{}, {"attention": (0, 2), "mlp": (1, 2)}, {"mlp": (3,)}])
def test_a_pass_by_flags_is_the_pass_without_those_blocks(skipped):
    flags = [jnp.asarray([i not in skipped.get(name, ()) for i in range(LAYERS)]) for name in ("attention", "mlp")]
    model = SkippingModel(TARGET, skipped.get("attention", ()), skipped.get("mlp", ()))
    expected = jax.jit(lambda tokens: model(tokens, model.init_cache(3, 12)).logits)(jnp.asarray(ROWS, jnp.int32))
    np.testing.assert_allclose(states_where(*flags), expected, atol=1e-4)
    assert states_where._cache_size() == 1


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_acceptance_is_what_both_laws_have_in_common(temperature):
    skipped = {"attention": (2,), "mlp": (1, 3)}
    measure = Measure.of(TARGET, policy_at(temperature), TEXTS)
    draft, found = without(TARGET, **skipped), []
    for row, place in itertools.product(ROWS.tolist(), range(2, 12)):
        laws = np.array([tiny.transformer_law(model, row[: place + 1]) for model in (TARGET, draft)], np.float64)
        if temperature:
            laws = laws ** (1 / temperature) / np.sum(laws ** (1 / temperature), axis=1, keepdims=True)
        else:
            laws = np.eye(tiny.VOCAB)[np.argmax(laws, axis=1)]
        found.append(np.sum(np.min(laws, axis=0)))
    np.testing.assert_allclose(measure(blocks(**skipped)), np.mean(found), atol=1e-5)
    np.testing.assert_allclose(measure(frozenset()), 1, atol=1e-6)


def test_costs_are_shares_of_the_weights():
    """Of width 16: two query heads and one of keys and values, 8 wide; an inner width of 24; 11 tokens."""
    attention, mlp, rest = 16 * (16 + 16 + 16) + 16, 16 * 3 * 24 + 16, 11 * 16 + 16
    total = LAYERS * (attention + mlp) + rest
    found = costs(TARGET)
    assert len(found) == 2 * LAYERS
    np.testing.assert_allclose(found["attention", 2], attention / total)
    np.testing.assert_allclose(found["mlp", 1], mlp / total)


def test_what_is_expected_of_rounds():
    """Leviathan et al. 2211.17192, equation 1 and theorem 3.8."""
    rounds = Rounds(k=3, verify_cost=1.5)
    np.testing.assert_allclose(rounds.tokens(0.8), (1 - 0.8**4) / (1 - 0.8))
    np.testing.assert_allclose(rounds.speedup(0.8, 0.4), (1 - 0.8**4) / (1 - 0.8) / (3 * 0.4 + 1.5))
    assert rounds.tokens(1.0) == 4
    for options in ({"k": 0}, {"verify_cost": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            Rounds(**options)


def test_blocks_that_do_nothing_are_found_and_no_others():
    # Sharp, so that every other block matters more than it costs.
    config = TARGET.module.config
    sharp = tiny.transformer(
        1, layers=LAYERS, sharpness=20.0, ropes=config.ropes, windows=config.windows, tied_head=False
    )
    target, told = without(sharp, **SILENT), []
    rounds = Rounds(4, verify_cost=4.0)  # which makes every rejected draft dear
    found = find_skip_set(target, TEXTS, rounds=rounds, temperature=1.0, tell=told.append)
    assert (found.attention, found.mlp) == (SILENT["attention"], SILENT["mlp"])
    saved = sum(costs(target)[block] for block in blocks(**SILENT))
    np.testing.assert_allclose([found.acceptance, found.cost], [1, 1 - saved], atol=1e-5)
    np.testing.assert_allclose(found.speedup, 5 / (4 * (1 - saved) + 4), atol=1e-4)
    assert found.measured == len(told) <= 60 and found.places == TEXTS.places == 30
    assert found == find_skip_set(target, TEXTS, rounds=rounds, temperature=1.0)


NAMES = [(kind, layer) for kind in ("attention", "mlp") for layer in range(5)]


class Invented:
    """Blocks whose skipping costs acceptance, some of them more together; counts measurements."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.loss = dict(zip(NAMES, rng.uniform(0, 0.25, len(NAMES)) ** 2, strict=True))
        self.together = {pair: 0.1 * rng.uniform() ** 3 for pair in itertools.combinations(NAMES, 2)}
        self.costs = dict(zip(NAMES, rng.uniform(0.03, 0.12, len(NAMES)), strict=True))
        self.seen = []

    def measure(self, skipped):
        assert skipped not in self.seen
        self.seen.append(skipped)
        return self.acceptance(skipped)

    def acceptance(self, skipped):
        pairs = sum(loss for pair, loss in self.together.items() if set(pair) <= skipped)
        return float(np.exp(-sum(self.loss[block] for block in skipped) - pairs))

    def best(self, speedup):
        """Of all sets."""
        sets = (frozenset(s) for n in range(1, 11) for s in itertools.combinations(NAMES, n))
        sets = (s for s in sets if sum(kind == "attention" for kind, _ in s) < 5)
        return max(speedup(self.acceptance(s), 1 - sum(self.costs[b] for b in s)) for s in sets)


def test_the_search_comes_close_to_the_best_of_all_sets():
    speedup, shares = Rounds(4).speedup, []
    for seed in range(4):
        invented = Invented(seed)
        found = search(invented.measure, invented.costs, speedup, limit=400)
        assert found.measured == len(invented.seen) < 130
        shares.append((found.speedup - 1) / (invented.best(speedup) - 1))
    assert min(shares) > 0.95 and np.median(shares) > 1 - 1e-9, shares


def test_an_exchange_undoes_what_greed_did(monkeypatch):
    """The best block alone goes well with one other, but not with the two that are best together."""
    for name in ("_SETS", "_TRIED"):
        monkeypatch.setattr(searching, name, 1)
    costs = {("attention", 0): 0.3, ("attention", 1): 0.01, ("mlp", 0): 0.29, ("mlp", 1): 0.29}

    def acceptance(skipped):
        if ("attention", 1) in skipped:
            return 0.05
        if ("attention", 0) not in skipped or len(skipped) == 1:
            return 1.0
        return 0.2 if ("mlp", 1) in skipped else 0.9

    found = search(acceptance, costs, Rounds(4).speedup, limit=50)
    assert found.skipped == {("mlp", 0), ("mlp", 1)}


def test_one_attention_stays_however_little_it_matters():
    found = search(lambda skipped: 1.0, dict.fromkeys(NAMES, 0.05), Rounds(4).speedup, limit=400)
    assert len(found.skipped) == 9 and sum(kind == "attention" for kind, _ in found.skipped) == 4
    with pytest.raises(ValueError, match="must have two layers"):
        search(lambda skipped: 1.0, {("attention", 0): 0.1, ("mlp", 0): 0.1}, Rounds(4).speedup, limit=9)


@pytest.mark.parametrize("limit", [1, 7, 13])
def test_a_limit_is_kept_and_the_best_so_far_is_the_answer(limit):
    invented = Invented(0)
    found = search(invented.measure, invented.costs, Rounds(4).speedup, limit=limit)
    assert found.measured == len(invented.seen) == limit
    worth = [Rounds(4).speedup(invented.acceptance(s), 1 - sum(invented.costs[b] for b in s)) for s in invented.seen]
    assert found.speedup == pytest.approx(max(worth))
    with pytest.raises(ValueError, match="limit must be at least 1"):
        search(invented.measure, invented.costs, Rounds(4).speedup, limit=0)


def test_pieces_lie_evenly_over_a_text():
    tokenizer = text_models.byte_level()
    text = "".join(f"{number} " for number in range(400))
    tokens = tokenizer.encode(text)
    found = of_text(text, tokenizer, 70, longest=32)
    assert found.places == 70 and found.tokens.shape == (3, 64)
    first, middle, last = (row[counts].tolist() for row, counts in zip(found.tokens, found.counts, strict=True))
    cut = [tokens[start : start + 32] for start in range(0, len(tokens), 32)]
    assert middle == cut[len(cut) // 2] or middle == cut[(len(cut) - 1) // 2]
    assert last == cut[-1] and first == tokens[: 70 - 32 - len(last)]
    with pytest.raises(ValueError, match="the text is empty"):
        of_text("", tokenizer, 70)


@pytest.fixture(scope="module")
def model():
    tokenizer = text_models.byte_level()
    silent = without(tiny.transformer(3, layers=3, vocab=tokenizer.vocab_size), attention=(1,), mlp=(2,))
    return dataclasses.replace(silent, tokenizer=tokenizer)


def test_laws_count_where_answers_are(model):
    """Those that are given too; the target's own are the same to it."""
    questions = [Conversation(("hello",), ("hello there",)), Conversation(("the sea",), ("is wide",))]
    found = of_answers(questions, model, Reading(), 0.0)
    for question, tokens, counts in zip(questions, found.tokens, found.counts, strict=True):
        answer = [*model.tokenizer.encode(question.answers[0]), *model.tokenizer.eos_token_ids]
        assert tokens[np.flatnonzero(counts) + 1].tolist() == answer
    assert found.places == found.counts.sum()
    without_template = dataclasses.replace(model, tokenizer=text_models.byte_level(chat_template=None))
    with pytest.raises(ValueError, match="has no chat template"):
        read_texts(None, without_template, Reading(), 0.0)


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "kept by the caller"))
    save(model, tmp_path / "model")
    (tmp_path / "text.txt").write_text("the sea is wide and the sea is deep. " * 9)
    return tmp_path / "model"


def run(*words):
    return typer.testing.CliRunner().invoke(application.app, [str(word) for word in words])


def test_the_command_and_the_drafter_by_name(folder):
    before = run("generate", "-m", folder, "-d", "skipping", "-n", "8", "the sea")
    assert before.exit_code == 2 and f"run `jaxspec calibrate {folder}`" in before.stderr
    words = (
        "calibrate",
        folder,
        "--text",
        folder.parent / "text.txt",
        "-t",
        "1",
        "--k",
        "3",
        "--tokens",
        "60",
        "--quiet",
    )
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    for part in ("attention skipped", "1 of 3: 1", "1 of 3: 2", "100.0% over 60 places", "a gain is predicted"):
        assert part in result.stdout
    drafter = jaxspec.load_drafter("skipping", load(folder), target_name=str(folder), k="fixed")
    assert drafter == jaxspec.SkippingDrafter((1,), (2,), k=3)
    assert jaxspec.load_drafter(folder / "skipping.json", load(folder), k=2).k == 2
    composed = jaxspec.load_drafter("ngram+skipping", load(folder), target_name=str(folder), k="fixed")
    assert composed.model == drafter
    drafted = run("generate", "-m", folder, "-d", "skipping", "-n", "8", "the sea")
    assert drafted.exit_code == 0 and "mean acceptance length" in drafted.stderr


def test_json_and_another_place(folder):
    out = folder.parent / "new" / "of the model.skipping.json"
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text('{"turns": ["hello"]}\n{"prompt": "the sea"}\n')
    result = run("calibrate", folder, "--text", prompts, "-n", "6", "--limit", "5", "--out", out, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["path"] == str(out) and record["measured"] == 5 and record["places"] == 12
    assert not (folder / "skipping.json").exists()
    assert jaxspec.load_drafter(str(out), load(folder)).attention == tuple(record["attention"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "there.json"), "--out must end in skipping.json"),
        (("-k", "0"), "k must be at least 1, got 0"),
        (("--verify-cost", "0"), "verify_cost must be above 0"),
        (("--text", "no-such-file.txt"), "no-such-file.txt"),
        (("--count", "0"), "count must be at least 1"),
    ],
)
def test_mistakes_are_one_line(folder, words, said):
    result = run("calibrate", folder, *words)
    assert result.exit_code == 2 and said in result.stderr and len(result.stderr.splitlines()) == 1


FOUND = SkipSet((1, 2), (), 4, 0.0, 0.5, 0.75, 1.0, 1.9375, 0.484375, 30, 12, {})


def test_no_gain_is_said():
    text, good = verdict(FOUND)
    assert not good and text.startswith("no gain is predicted")


def test_files(tmp_path, model):
    path = tmp_path / "skipping.json"
    sizes = {"num_layers": 3, "width": 16, "mlp_width": 24, "vocab_size": model.vocab_size}
    found = dataclasses.replace(FOUND, model=sizes)
    found.write(path)
    assert SkipSet.read(path, model) == found and [one.name for one in tmp_path.iterdir()] == ["skipping.json"]
    with pytest.raises(ValueError, match="found for a model of num_layers 3, .* got one of num_layers 4"):
        SkipSet.read(path, TARGET)
    whole = json.loads(path.read_text())
    for text in ("{", "[]", json.dumps(whole | {"version": 2}), json.dumps(whole | {"more": 1})):
        path.write_text(text)
        with pytest.raises(ValueError, match="is no set of blocks to skip .*run `jaxspec calibrate` again"):
            SkipSet.read(path, model)


def test_where_a_set_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(b"")
    assert skip_set_path(tmp_path) == tmp_path / "skipping.json"
    assert skip_set_path(tmp_path / "model.gguf").name == "model.gguf.skipping.json"
    zoo_path = skip_set_path("smollm2-135m-instruct")
    assert zoo_path.parent == zoo.find("smollm2-135m-instruct").path.parent
    assert skip_set_path("somebody/a-model").parent == tmp_path / "cache" / "models" / "somebody--a-model"
    with pytest.raises(FileNotFoundError, match="run `jaxspec calibrate somebody/a-model`"):
        jaxspec.load_drafter("skipping", TARGET, target_name="somebody/a-model")
    with pytest.raises(FileNotFoundError, match="this one has no name"):
        jaxspec.load_drafter("skipping", TARGET)
    with pytest.raises(ValueError, match="only a draft model draws several drafts"):
        jaxspec.load_drafter("skipping", TARGET, target_name="somebody/a-model", num_drafts=2)
