"""`jaxspec train`: options from fields, a drafter from one command, and one-line errors."""

import dataclasses
import json
import shutil

import pytest
import typer.testing

import jaxspec
from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.orbax import save
from jaxspec.cli import app as application
from jaxspec.cli.recipes import recipe_parameters, recipe_values
from jaxspec.cli.train import UpdateOptions, kinds, whole_models
from jaxspec.contrib.exit_head.training import EarlyExitRecipe
from jaxspec.contrib.layer_skip import LayerSkipRecipe
from jaxspec.training import losses
from jaxspec.training.answers import AnswerOptions
from jaxspec.training.data import make_data
from jaxspec.training.state import TrainingOptions
from tests._fixtures import text_models, tiny

SMALL = ("--width", "12", "--heads", "2", "--layers", "1", "--mlp-width", "16", "--frequent", "0")
SHORT = ("--steps", "3", "--batch-tokens", "256", "--validation", "2", "--validation-tokens", "2", "--quiet")


@pytest.fixture(autouse=True)
def _own_compilation_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "kept by the caller"))


@pytest.fixture(scope="module")
def model():
    tokenizer = text_models.byte_level()
    return dataclasses.replace(tiny.transformer(3, vocab=tokenizer.vocab_size), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def folders(model, tmp_path_factory):
    """A small model, and conversations with answers that are given."""
    folder = tmp_path_factory.mktemp("train")
    save(model, folder / "model")
    conversations = [{"turns": [f"hello {i}"], "answers": ["the sea is wide " * (1 + i % 3)]} for i in range(8)]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(one) + "\n" for one in conversations))
    make_data(load(folder / "model"), [prompts], folder / "data", AnswerOptions(max_length=512))
    return folder


@pytest.fixture(scope="module")
def deep(folders, model, tmp_path_factory):
    """The same conversations, and a model with layers to exit after."""
    folder = tmp_path_factory.mktemp("deep")
    save(
        dataclasses.replace(tiny.transformer(3, layers=3, vocab=model.vocab_size), tokenizer=model.tokenizer),
        folder / "model",
    )
    shutil.copytree(folders / "data", folder / "data")
    return folder


def _train(folders, kind, out, *arguments):
    words = ["train", kind, "--data", folders / "data", "--model", folders / "model", "--out", out, *arguments]
    return typer.testing.CliRunner().invoke(application.app, [str(word) for word in words])


@pytest.mark.slow
def test_a_drafter_in_one_line(folders, tmp_path, model):
    out = tmp_path / "run"
    result = _train(folders, "distill", out, *SMALL, *SHORT, "--divergence", "jsd:0.3")
    assert result.exit_code == 0, result.stderr
    assert f"--drafter {out / 'head'}" in result.stdout
    report = json.loads((out / "training.json").read_text())
    assert report["recipe"]["divergence"] == {"kind": "JensenShannon", "beta": 0.3} and report["recipe"]["width"] == 12
    assert report["recipe"]["frequent"] is None and report["options"]["steps"] == 3
    (data,) = report["data_folders"]
    assert data["name"] == "data" and data["sequences"] == 8 and report["command"].startswith("jaxspec ")
    assert report["curve"][-1]["measured"]["greedy"]["tokens"] > 0
    drafter = jaxspec.ModelDrafter(load(out / "head"), k=2)
    drafter.check(model)
    again = _train(folders, "distill", out, *SMALL, *SHORT, "--divergence", "tvd")
    assert again.exit_code == 2
    assert "recipe.divergence.kind was 'JensenShannon', now 'TotalVariation'" in again.stderr
    assert len(again.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--steps", "3", "--tokens", "9"), "--steps and --tokens both say how long"),
        (("--epochs", "-1"), "--epochs must be above 0"),
        (("--steps", "3", "--divergence", "kl"), "unknown divergence 'kl'"),
        (("--steps", "3", "--heads", "5"), "width must be an even number"),
        (("--steps", "3", "--validation", "8"), "leaves none of 8 sequences"),
        (("--steps", "3", "--dtype", "float16"), "float32 or bfloat16, got float16"),
    ],
)
def test_mistakes(folders, tmp_path, arguments, said):
    result = _train(folders, "distill", tmp_path / "run", *SMALL, "--validation", "0", *arguments)
    assert result.exit_code == 2 and said in result.stderr
    assert not (tmp_path / "run" / "head").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--whole-model", "--draft-vocabulary", "64"),
            "--draft-vocabulary: only for training an exit",
        ),
        (
            ("--whole-model", "--blocks", "1", "--divergence", "tvd"),
            "--blocks, --divergence: only for training an exit",
        ),
        (("--dropout", "0.1"), "--dropout: only with --whole-model"),
        (("--growing-dropout",), "--growing-dropout: only with --whole-model"),
        (("--whole-model", "--states", "kept"), "states are stored for a frozen target"),
        (("--whole-model", "--dropout", "1"), "dropout must be from 0 to below 1"),
    ],
)
def test_a_whole_model_has_no_exit_of_its_own(deep, tmp_path, arguments, said):
    result = _train(deep, "early-exit", tmp_path / "run", *SHORT, *arguments)
    assert result.exit_code == 2 and said in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_two_forms_of_an_early_exit(deep, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("jaxspec.training.loop.train", lambda *args, **_: seen.append(args[0]) or _Done())
    common = ("early-exit", tmp_path / "run", *SHORT, "--layers", "2")
    for extra in ((), ("--blocks", "0", "--draft-vocabulary", "0"), ("--whole-model", "--rotation", "0", "-k", "3")):
        result = _train(deep, *common, *extra)
        assert result.exit_code == 0, result.stderr
    assert seen == [
        EarlyExitRecipe(2),
        EarlyExitRecipe(2, blocks=0, draft_vocabulary=None),
        LayerSkipRecipe(2, rotation=None, k=3),
    ]
    assert "`jaxspec generate --model here --drafter early-exit:2`" in result.stdout


@pytest.mark.slow
def test_a_whole_model_in_one_line(deep, tmp_path):
    out = tmp_path / "run"
    result = _train(deep, "early-exit", out, *SHORT, "--whole-model", "--layers", "1", "--dtype", "float32")
    assert result.exit_code == 0, result.stderr
    assert f"jaxspec generate --model {out / 'head'} --drafter early-exit:1" in result.stdout
    words = [
        "generate",
        "--model",
        out / "head",
        "--drafter",
        "early-exit:1",
        "--max-new-tokens",
        "4",
        "-k",
        "2",
        "--temperature",
        "0",
        "hello",
    ]
    generated = typer.testing.CliRunner().invoke(application.app, [str(word) for word in words])
    assert generated.exit_code == 0, generated.stderr
    plain = typer.testing.CliRunner().invoke(
        application.app,
        [
            str(word)
            for word in [*words[:3], "--drafter", "none", "--max-new-tokens", "4", "--temperature", "0", "hello"]
        ],
    )
    assert plain.exit_code == 0 and plain.stdout == generated.stdout


def test_data_of_another_tokenizer(folders, tmp_path, model):
    save(tiny.transformer(vocab=12), tmp_path / "other")
    result = _train(folders, "distill", tmp_path / "run", *SMALL, "--model", tmp_path / "other")
    assert result.exit_code == 2 and "another tokenizer" in result.stderr


def test_data_longer_than_the_context(folders, tmp_path, model):
    short = dataclasses.replace(model.module, config=dataclasses.replace(model.module.config, context_length=16))
    save(dataclasses.replace(model, module=short), tmp_path / "short")
    result = _train(folders, "distill", tmp_path / "run", *SMALL, "--model", tmp_path / "short")
    assert result.exit_code == 2 and "--max-length 16" in result.stderr


def test_an_epoch_reads_all_data_once(folders, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("jaxspec.training.loop.train", lambda *args, **_: seen.append(args[3]) or _Done())
    shared = (*SMALL, "--batch-tokens", "256", "--validation", "0")  # eight short texts: four batches of two
    # Eight devices share rows of eight, so that one batch holds all.
    for extra in ((), ("--epochs", "2.5"), ("--tokens", "1"), ("--accumulation", "3"), ("--mesh", "data=8,model=1")):
        assert _train(folders, "distill", tmp_path / "run", *shared, *extra).exit_code == 0
    assert [options.steps for options in seen] == [4, 10, 1, 2, 1]


def test_whole_texts_and_where_states_are_kept(folders, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("jaxspec.training.loop.train", lambda *args, **given: seen.append((args[2], given)) or _Done())
    kept = tmp_path / "states"
    for extra in ((), ("--whole-texts", "--states", kept)):
        assert _train(folders, "distill", tmp_path / "run", *SMALL, *SHORT, *extra).exit_code == 0
    (answers, plain), (texts, given) = seen
    assert (plain["states"], given["states"]) == (None, str(kept))
    assert (answers.whole_texts, texts.whole_texts) == (False, True)
    # Validation continues prompts, regardless of the training data.
    assert given["validation"] == plain["validation"]


class _Done:
    folder = "here"


@pytest.mark.parametrize("kind", kinds())
def test_options_are_the_fields(kind):
    recipe = kinds()[kind]
    help_text = typer.testing.CliRunner().invoke(application.app, ["train", kind, "--help"]).stdout
    own = {one.name: one.default for one in recipe_parameters(recipe)}
    fields = {field.name: field for field in dataclasses.fields(recipe)}
    assert own.keys() == {"unrolled_steps" if name == "steps" else name for name in fields}
    for name in own.keys() - {"k"}:
        assert f"--{name.replace('_', '-')}" in help_text
    if kind in whole_models():
        assert "--whole-model" in help_text and "--exit-scale" in help_text
    # Values that are not given are the recipe's.
    made = recipe_values(recipe, own)
    for name, field in fields.items():
        if isinstance(field.default, int | float):
            assert made[name] == field.default


def test_every_field_is_explained():
    for recipe in (*kinds().values(), *whole_models().values()):
        for parameter in recipe_parameters(recipe):
            (option,) = parameter.annotation.__metadata__
            assert len(option.help) > 3, (recipe, parameter.name)


def test_the_options_of_updates_are_those_of_training():
    """Names and defaults agree; only the number of updates is given differently."""
    told = {field.name: field.default for field in dataclasses.fields(UpdateOptions)}
    assert told == {field.name: field.default for field in dataclasses.fields(TrainingOptions) if field.name != "steps"}


def test_zero_stands_for_none():
    eagle = kinds()["eagle"]
    given = {one.name: None for one in recipe_parameters(eagle)} | {"draft_vocabulary": 0, "capture": "2,15,27"}
    assert recipe_values(eagle, given) == {"draft_vocabulary": None, "capture": (2, 15, 27)}
    with pytest.raises(ValueError, match="list of numbers"):
        recipe_values(eagle, given | {"capture": "2;3"})


def test_names_of_divergences():
    for name in ("forward-kl", "reverse-kl", "tvd", "acceptance", "jsd:0.25"):
        assert losses.name_of(losses.by_name(name)) == name
