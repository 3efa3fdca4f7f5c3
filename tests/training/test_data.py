"""Training data: the target's answers, resuming to the byte, and reading them back."""

import collections
import dataclasses
import json

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer.testing

import jaxspec
from jaxspec.checkpoints.orbax import save
from jaxspec.cli import app as application
from jaxspec.training import data, loop
from jaxspec.training.answers import AnswerOptions, Dialogue, answer_all, conversation_keys
from jaxspec.training.data import make_data
from jaxspec.training.dataset import Dataset
from jaxspec.training.files import read_manifest
from jaxspec.training.prompts import Conversation, read_prompts, turn_hash
from tests._fixtures import text_models, tiny
from tests._fixtures.contamination import contaminated

TOKENIZER = text_models.byte_level()
END = TOKENIZER.eos_token_ids[0]
OPTIONS = AnswerOptions(max_new_tokens=12, temperature=1.0, seed=5, batch=3, max_length=100)
LINES = [
    {"turns": ["hello"], "category": "chat", "source": "a", "license": "MIT"},
    {"turns": ["the sea is wide", "and deep?", "why"], "category": "sea", "source": "a", "license": "MIT"},
    {"turns": ["one"], "answers": ["one two three"]},
    {"prompt": "x" * 95},
    {"messages": [{"role": "system", "content": "the sea"}, {"role": "user", "content": "one two three"}]},
    {"turns": ["hello there", "y" * 80], "category": "chat"},
    {"turns": ["one two", "three"], "answers": ["hello", "z" * 95]},
    {"turns": ["there hello"]},
    {"turns": ["grüße"], "category": "chat"},
    {"turns": ["Do you know?"], "category": "chat"},
]


@pytest.fixture(scope="module")
def target():
    model = tiny.transformer(3, vocab=TOKENIZER.vocab_size)
    return dataclasses.replace(model, tokenizer=TOKENIZER)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture(scope="module")
def exclude(tmp_path_factory):
    path = tmp_path_factory.mktemp("exclude") / "evaluation.jsonl"
    path.write_text(json.dumps({"turns": ["other", "do YOU  know?"]}) + "\n")
    return path


@pytest.fixture(scope="module")
def made(target, prompts, exclude, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    manifest = _make(target, prompts, exclude, folder)
    return folder, manifest


def _make(target, prompts, exclude, folder, **options):
    options = {"options": OPTIONS, "shard": 4, "name": "tiny"} | options
    return make_data(target, [prompts], folder, exclude=[exclude], **options)


def _files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def _answer(target, *conversations, **options):
    options = dataclasses.replace(OPTIONS, **options)
    return answer_all(target, TOKENIZER, list(enumerate(conversations)), options)


@pytest.mark.slow
def test_answers_are_what_generate_gives(target):
    conversations = [Conversation((text,)) for text in ("hello", "the sea is wide", "one")]
    key = jax.random.key(OPTIONS.seed)
    for temperature, sampling in ((1.0, jaxspec.Sampling(1.0)), (0.0, jaxspec.Greedy())):
        for index, dialogue in enumerate(_answer(target, *conversations, temperature=temperature)):
            prompt = TOKENIZER.apply_chat_template([{"role": "user", "content": dialogue.conversation.turns[0]}])
            alone = jaxspec.generate(
                target,
                None,
                jnp.asarray([prompt + [0] * (32 - len(prompt))]),
                prompt_length=len(prompt),
                key=jax.random.fold_in(key, index)[None],
                sampling=sampling,
                max_new_tokens=OPTIONS.max_new_tokens,
                stop_tokens=TOKENIZER.eos_token_ids,
            )
            answer = alone.tokens[0, : alone.length[0]].tolist()
            assert dialogue.tokens == prompt + answer
            assert dialogue.written == [False] * len(prompt) + [True] * len(answer)


def test_conversations_have_keys_of_their_own():
    keys = jax.random.key_data(conversation_keys(5, np.arange(4, dtype=np.uint32)))
    other = jax.random.key_data(conversation_keys(6, np.arange(4, dtype=np.uint32)))
    assert len({tuple(words) for words in [*keys.tolist(), *other.tolist()]}) == 8


@pytest.mark.slow
def test_what_a_row_is_batched_with_makes_no_difference(target, prompts):
    conversations = list(enumerate(read_prompts([prompts])))
    dialogues = lambda chosen, batch: answer_all(target, TOKENIZER, chosen, dataclasses.replace(OPTIONS, batch=batch))
    together = dialogues(conversations, 3)
    assert dialogues(conversations, 5) == together
    assert dialogues(conversations[1::2], 3) == together[1::2]


@pytest.mark.slow
def test_the_next_turn_stands_behind_the_answer(target):
    (dialogue,) = _answer(target, Conversation(("the sea", "and?"), system="hello"))
    assert len(dialogue.answers) == 2
    messages = [
        {"role": "system", "content": "hello"},
        {"role": "user", "content": "the sea"},
        {"role": "assistant", "content": dialogue.answers[0]},
        {"role": "user", "content": "and?"},
    ]
    prompt = TOKENIZER.apply_chat_template(messages)
    assert dialogue.tokens[: len(prompt)] == prompt
    second = dialogue.tokens[len(prompt) :]
    assert TOKENIZER.decode(second) == dialogue.answers[1]
    assert all(dialogue.written[len(prompt) :])
    (first,) = _answer(target, Conversation(("the sea",), system="hello"))
    start = first.written.index(True)
    written = first.tokens[start:]
    # As far as the template spells the answer as the target did.
    same = next((i for i, token in enumerate(written) if prompt[start + i] != token), len(written))
    assert dialogue.written[: len(prompt)] == [start <= i < start + same for i in range(len(prompt))]


def test_only_what_was_written_counts_as_the_targets():
    dialogue = Dialogue(0, Conversation(("a", "b")))
    dialogue.extend([1, 2], [7, 8, 9], "seven")
    # The template spells the answer's end as 6 and not as 8 9, and ends it with 0.
    dialogue.extend([1, 2, 7, 6, 0, 3], [5], "five")
    assert dialogue.tokens == [1, 2, 7, 6, 0, 3, 5]
    assert dialogue.written == [False, False, True, False, False, False, True]


@pytest.mark.slow
def test_a_stop_token_ends_the_answer_and_belongs_to_it():
    reciter = text_models.reciter(TOKENIZER, "<|user|>hello<|end|><|assistant|>", "the sea")
    (dialogue,) = answer_all(
        reciter, TOKENIZER, [(0, Conversation(("hello",)))], dataclasses.replace(OPTIONS, temperature=0.0)
    )
    answer = [token for token, written in zip(dialogue.tokens, dialogue.written, strict=True) if written]
    assert answer == [*TOKENIZER.encode("the sea"), END]
    assert dialogue.answers == ["the sea"]


def test_answers_that_are_given_are_used_as_they_are(target):
    reports = []
    conversation = Conversation(("one", "two"), ("hello there", "the sea"))
    (dialogue,) = answer_all(
        target, TOKENIZER, [(0, conversation)], OPTIONS, lambda answers, tokens: reports.append(answers)
    )
    assert not reports
    text = "<|user|>one<|end|><|assistant|>{}<|user|>two<|end|><|assistant|>{}"
    answers = [[*TOKENIZER.encode(answer), END] for answer in conversation.answers]
    assert TOKENIZER.decode(dialogue.tokens, skip_special_tokens=False) == text.format(
        "hello there<|end|>", "the sea<|end|>"
    )
    written = [token for token, written in zip(dialogue.tokens, dialogue.written, strict=True) if written]
    assert written == answers[0] + answers[1]


def test_calls_of_tools_are_given_to_the_template(target):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "clock"}}]}
    said = [{"role": "user", "content": "time?"}, call, {"role": "tool", "content": "9"}]
    said.append({"role": "assistant", "content": "nine"})
    conversation = Conversation(("time?", "9"), ("", "nine"), given=tuple(said))
    (dialogue,) = answer_all(target, TOKENIZER, [(0, conversation)], OPTIONS)
    text = "<|user|>time?<|end|><|assistant|><|end|><|tool|>9<|end|><|assistant|>nine<|end|>"
    assert TOKENIZER.decode(dialogue.tokens, skip_special_tokens=False) == text


@pytest.mark.slow
def test_what_is_too_long_is_left_out_and_counted(made):
    _, manifest = made
    assert manifest["left_out"] == {
        "longer than max_length": 1,
        "shares a turn with an excluded one": 1,
        "turns cut at max_length": 2,
    }
    assert manifest["conversations"] == 9
    assert sum(shard["sequences"] for shard in manifest["shards"]) == 8
    assert [shard["left_out"] for shard in manifest["shards"]] == [
        {"longer than max_length": 1},
        {"turns cut at max_length": 2},
        {},
    ]


@pytest.mark.slow
def test_the_manifest_says_what_was_made(made, target, prompts, exclude):
    folder, manifest = made
    assert read_manifest(folder) == manifest
    assert manifest["complete"] and manifest["target"]["name"] == "tiny"
    assert manifest["target"]["tokenizer"] == TOKENIZER.digest
    assert manifest["options"] == dataclasses.asdict(OPTIONS) | {"shard": 4, "limit": None}
    assert manifest["counts"]["category"] == {"chat": 3, "sea": 1, "unstated": 5}
    assert manifest["counts"]["license"] == {"MIT": 2, "unstated": 7}
    assert [entry["file"] for entry in manifest["prompts"] + manifest["excluded"]] == [prompts.name, exclude.name]
    asked = [turn_hash(text) for text in ("and deep?", "Do you know?", "other")]
    assert contaminated(folder, asked) == asked[:1]
    other = make_data(tiny_again(7), [prompts], folder.with_name("other"), OPTIONS, limit=1)
    assert other["target"]["weights"] != manifest["target"]["weights"]
    assert other["conversations"] == 1 and other["left_out"] == {"beyond limit": 9}


def tiny_again(seed):
    return dataclasses.replace(tiny.transformer(seed, vocab=TOKENIZER.vocab_size), tokenizer=TOKENIZER)


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", ["answer_all", "write_manifest"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    monkeypatch, tmp_path, made, target, prompts, exclude, interrupted
):
    whole, _ = made
    run, calls = getattr(data, interrupted), []

    def until_the_third(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(data, interrupted, until_the_third)
    with pytest.raises(KeyboardInterrupt):
        _make(target, prompts, exclude, tmp_path)
    monkeypatch.undo()
    answered = []
    monkeypatch.setattr(data, "answer_all", lambda *arguments: answered.append(1) or answer_all(*arguments))
    noted = json.loads((tmp_path / "manifest.json").read_text())
    assert not noted["complete"] and 0 < len(noted["shards"]) < 3
    with pytest.raises(ValueError, match="not finished"):
        Dataset.open(tmp_path)
    assert len(Dataset.open(tmp_path, unfinished=True)) == sum(entry["sequences"] for entry in noted["shards"])
    assert loop.describe_folder(tmp_path)["sequences"] == len(Dataset.open(tmp_path, unfinished=True))
    _make(target, prompts, exclude, tmp_path)
    assert len(answered) == 3 - len(noted["shards"])
    assert _files(tmp_path) == _files(whole)


@pytest.mark.slow
def test_a_damaged_shard_is_found_and_made_again(tmp_path, made, target, prompts, exclude):
    whole, _ = made
    for name, content in _files(whole).items():
        (tmp_path / name).write_bytes(content)
    damaged = tmp_path / "shard-00001.npz"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"shard-00001\.npz: its SHA-256 is not"):
        Dataset.open(tmp_path)
    _make(target, prompts, exclude, tmp_path)
    assert _files(tmp_path) == _files(whole)


def test_other_options_are_refused(made, target, prompts, exclude, tmp_path):
    folder, _ = made
    before = _files(folder)
    with pytest.raises(ValueError, match="options.seed was 5, now 6"):
        _make(target, prompts, exclude, folder, options=dataclasses.replace(OPTIONS, seed=6))
    with pytest.raises(ValueError, match="options.shard was 4, now 5"):
        _make(target, prompts, exclude, folder, shard=5)
    with pytest.raises(ValueError, match="target.weights was"):
        _make(tiny_again(4), prompts, exclude, folder)
    with pytest.raises(ValueError, match=r"excluded\[0\].file was 'evaluation.jsonl', now None"):
        make_data(target, [prompts], folder, OPTIONS, shard=4, name="tiny")
    changed = tmp_path / prompts.name
    changed.write_text(prompts.read_text() + json.dumps({"prompt": "more"}) + "\n")
    with pytest.raises(ValueError, match=r"prompts\[0\].sha256 was"):
        _make(target, changed, exclude, folder)
    with filelock.FileLock(folder / ".lock"), pytest.raises(ValueError, match="another process"):
        _make(target, prompts, exclude, folder)
    assert _files(folder) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"temperature": -1.0}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"max_length": 12}, "leaves no room"),
        ({"max_length": 10_000}, "the target's context of 512"),
    ],
)
def test_bad_options(target, prompts, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_data(target, [prompts], tmp_path / "out", dataclasses.replace(OPTIONS, **changes))
    assert not (tmp_path / "out").exists()


def test_bad_input(target, prompts, tmp_path):
    with pytest.raises(ValueError, match="shard must be at least 1"):
        make_data(target, [prompts], tmp_path, OPTIONS, shard=0)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        make_data(target, [prompts], tmp_path, OPTIONS, limit=0)
    with pytest.raises(ValueError, match="no prompt is left"):
        make_data(target, [prompts], tmp_path, OPTIONS, exclude=[prompts])
    plain = dataclasses.replace(target, tokenizer=text_models.byte_level(chat_template=None))
    with pytest.raises(ValueError, match="chat template"):
        make_data(plain, [prompts], tmp_path, OPTIONS)
    with pytest.raises(ValueError, match="holds no training set"):
        Dataset.open(tmp_path)
    with pytest.raises(ValueError, match="no folder"):
        Dataset.open([])
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="manifest.json: version: is missing"):
        Dataset.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"version": 0}')
    with pytest.raises(ValueError, match="version: expected 1, got 0"):
        Dataset.open(tmp_path)


def test_a_set_is_read_as_it_was_made(made, target, prompts):
    folder, manifest = made
    dataset = Dataset.open(folder)
    chosen = [place for place in range(9) if place != 3]
    conversations = list(enumerate(read_prompts([prompts])))
    dialogues = answer_all(target, TOKENIZER, [conversations[place] for place in chosen], OPTIONS)
    counts = collections.Counter()
    for index, dialogue in enumerate(dialogues):
        tokens, answer = dataset.read(index)
        assert tokens.tolist() == dialogue.tokens and answer.tolist() == dialogue.written
        assert dataset.category(index) == dialogue.conversation.category
        counts.update(tokens[answer].tolist())
    assert dataset.lengths.tolist() == [len(dialogue.tokens) for dialogue in dialogues]
    assert sum(dataset.lengths) == sum(shard["tokens"] for shard in manifest["shards"])
    token_counts = dataset.token_counts()
    assert token_counts.dtype == np.int64 and token_counts.shape == (target.vocab_size,)
    assert {token: count for token, count in enumerate(token_counts.tolist()) if count} == counts
    assert sum(counts.values()) == sum(shard["answer_tokens"] for shard in manifest["shards"])
    assert dataset.counts() == {"chat": 3, "sea": 1, "unstated": 4}


def test_batches_of_a_set(made):
    dataset = Dataset.open(made[0])
    schedule = dataset.batches(batch_tokens=256, seed=1)
    seen = sorted(index for step in range(schedule.steps_per_epoch) for index in schedule.indices(step))
    assert seen == list(range(len(dataset)))
    batch = schedule.batch(0)
    assert batch.tokens.shape == (2, 128)
    np.testing.assert_array_equal(batch.tokens[0, : batch.length[0]], dataset.read(schedule.indices(0)[0])[0])


def test_several_folders_are_one_set(made, target, prompts, tmp_path):
    answers = tmp_path / "answers.jsonl"
    line = {"turns": ["hello"], "answers": ["the sea"], "category": "a first category"}
    answers.write_text(json.dumps(line) + "\n")
    make_data(target, [answers], tmp_path / "more", OPTIONS)
    both, alone = Dataset.open([made[0], tmp_path / "more"]), Dataset.open(made[0])
    assert len(both) == 9 and both.category(8) == "a first category"
    for index in range(8):
        assert both.category(index) == alone.category(index)
        np.testing.assert_array_equal(both.read(index)[0], alone.read(index)[0])
    other = dataclasses.replace(target, tokenizer=text_models.byte_level(bos="<|system|>"))
    make_data(other, [answers], tmp_path / "other", OPTIONS)
    with pytest.raises(ValueError, match="another tokenizer"):
        Dataset.open([made[0], tmp_path / "other"])


def test_a_split_follows_from_the_conversations(made, target, tmp_path):
    dataset = Dataset.open(made[0])
    training, validation = dataset.split(3)
    assert len(validation) == 3 and len(training) == 5
    texts = lambda part: {tuple(part.read(index)[0].tolist()) for index in range(len(part))}
    assert texts(training) | texts(validation) == texts(dataset) and not texts(training) & texts(validation)
    assert (training.token_counts() + validation.token_counts() == dataset.token_counts()).all()
    assert texts(dataset.split(2)[1]) < texts(validation)
    assert len(dataset.split(0)[1]) == 0
    with pytest.raises(ValueError, match="leaves none of 8"):
        dataset.split(8)
    with pytest.raises(ValueError, match="at least 0"):
        dataset.split(-1)
    # The same question with another answer is on the same side.
    answers = tmp_path / "answers.jsonl"
    lines = [{"turns": [turn], "answers": [answer]} for turn in ("a", "b", "c") for answer in ("x", "y")]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    make_data(target, [answers], tmp_path / "twice", OPTIONS)
    assert [len(part) for part in Dataset.open(tmp_path / "twice").split(1)] == [4, 2]


@pytest.mark.slow
def test_the_command(target, prompts, exclude, made, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "kept by the caller"))
    save(target, tmp_path / "tiny")
    arguments = ["data", prompts, "--out", tmp_path / "out", "--model", tmp_path / "tiny", "--exclude", exclude]
    arguments += ["-n", 12, "-t", 1, "--seed", 5, "--batch", 3, "--shard", 4, "--max-length", 100]
    run = lambda *more: typer.testing.CliRunner().invoke(application.app, [str(word) for word in [*arguments, *more]])
    for _ in range(2):
        result = run()
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("8 sequences, ") and "left out: 1 longer than max_length" in result.stdout
        shards = {name: content for name, content in _files(tmp_path / "out").items() if name.startswith("shard")}
        assert shards == {name: content for name, content in _files(made[0]).items() if name.startswith("shard")}
    refused = run("--limit", 3)
    assert refused.exit_code == 2 and "options.limit was None, now 3" in refused.stderr
