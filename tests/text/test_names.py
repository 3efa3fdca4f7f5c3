"""Drafters by name, and drafters from the objects passed."""

import ast
import dataclasses
import hashlib
import json
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.checkpoints import zoo
from jaxspec.heads.eagle.checkpoint import write_eagle
from jaxspec.nn.network import packed_weights
from jaxspec.ops.native.build import NoCompilerError
from jaxspec.text import names
from jaxspec.text.names import drafter_of
from tests._fixtures import text_models, tiny
from tests._fixtures.eagle import HEAD, TARGET
from tests._fixtures.public import names_of

MESH, RULES = jax.make_mesh((2,), ("model",)), jaxspec.sharding.TENSOR_PARALLEL


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A zoo whose one model ships an EAGLE head, its best drafter, and a draft model."""
    folder = tmp_path / "zoo" / "smollm2-135m-instruct"
    folder.mkdir(parents=True)
    manifest = json.loads((zoo._root() / folder.name / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"drafter": "eagle"}))
    write_eagle(HEAD, folder / "eagle")
    jaxspec.save(tiny.transformer(1), folder / "distilled")
    monkeypatch.setattr(zoo, "_root", lambda: folder.parent)
    zoo._entries.cache_clear()
    zoo._drafters.cache_clear()
    yield folder
    zoo._entries.cache_clear()
    zoo._drafters.cache_clear()


def load(name, *, target=TARGET, **options):
    return jaxspec.load_drafter(name, target, **({"target_name": "smollm2-135m-instruct"} | options))


def test_the_best_that_ships_with_the_model(shipped):
    for name in ("auto", "eagle", "smollm2-135m-instruct/eagle", shipped / "eagle"):
        drafter = load(name, k=2)
        assert isinstance(drafter, jaxspec.EagleDrafter) and drafter.k == 2
    assert isinstance(load("distilled"), jaxspec.ModelDrafter)


@pytest.mark.parametrize("name", ["medusa", "ngram+medusa", "smollm2-135m-instruct/medusa"])
def test_a_drafter_that_this_installation_lacks(shipped, name):
    """As in a wheel, which has one head of those that the manifest names."""
    said = (
        "'smollm2-135m-instruct/medusa' is not in this installation.*pass the folder "
        "models/smollm2-135m-instruct/medusa.*or pass one of: smollm2-135m-instruct/distilled, "
        "smollm2-135m-instruct/eagle$"
    )
    with pytest.raises(FileNotFoundError, match=said):
        load(name)
    with pytest.raises(FileNotFoundError, match=said):
        jaxspec.load_head("smollm2-135m-instruct/medusa", TARGET)
    with pytest.raises(FileNotFoundError, match=said):
        jaxspec.load("smollm2-135m-instruct/medusa")
    (entry,) = jaxspec.list_models()
    assert entry.missing_drafters == ("medusa", "dflash")


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_model_by_the_path_of_its_file_has_the_drafters_of_its_name(shipped, tmp_path, monkeypatch, kind):
    """Its bytes decide, regardless of its folder and name."""
    manifest = json.loads((shipped / "manifest.json").read_text())
    copy, other = tmp_path / "mine.gguf", tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    copy.write_bytes(b"weights of the model")
    other.write_bytes(b"weights of another 1")
    file = {"size": 20, "sha256": hashlib.sha256(copy.read_bytes()).hexdigest()}
    (shipped / "manifest.json").write_text(json.dumps(manifest | {"file": manifest["file"] | file}))
    zoo._entries.cache_clear()
    zoo._name_of_file.cache_clear()
    for name in ("auto", "eagle"):
        assert isinstance(load(name, target_name=kind(copy), k=2), jaxspec.EagleDrafter)
    assert names.short_name("auto", str(copy)) == names.short_name("auto", "smollm2-135m-instruct") == "eagle"
    assert isinstance(load("auto", target_name=kind(other), k=2), jaxspec.NGramDrafter)
    with pytest.raises(ValueError, match="unknown drafter 'eagle'"):
        load("eagle", target_name=kind(other))
    # Of another size no byte is read.
    other.write_bytes(b"short")
    monkeypatch.setattr(zoo, "file_digest", lambda path: pytest.fail("it was read"))
    assert zoo.name_of(kind(other)) == str(other) and zoo.name_of(kind(tmp_path)) == str(tmp_path)


def test_a_folder_with_the_model_s_name_in_it_stays_a_folder(shipped):
    assert names.short_name(f"ngram+{shipped / 'eagle'}", "smollm2-135m-instruct") == f"ngram+{shipped / 'eagle'}"


def test_without_one_the_text_itself(shipped):
    assert isinstance(load("auto", target_name=None), jaxspec.NGramDrafter)
    assert isinstance(load("auto", target_name="gemma-3-270m"), jaxspec.NGramDrafter)
    assert isinstance(load("ngram", k=3), jaxspec.NGramDrafter)
    assert isinstance(load("suffix"), jaxspec.SuffixDrafter) and load("suffix", k=3).k == 3
    assert load("none").max_drafts == 0


def test_beside_a_native_target_drafts_are_native_too(shipped):
    """And of half the bytes; not where the target's products are XLA's."""
    try:
        target = jaxspec.native_kernels(TARGET)
    except NoCompilerError as error:
        pytest.skip(str(error))
    for name, part in (("eagle", "head"), ("distilled", "model")):
        kernels = [x.values.dtype for x in packed_weights(getattr(load(name, target=target), part))]
        assert kernels and set(kernels) == {jnp.dtype(jnp.bfloat16)}
        assert not packed_weights(getattr(load(name), part))
        assert not packed_weights(getattr(load(name, target=target, dtype="bfloat16"), part))


def test_one_beside_n_grams(shipped, monkeypatch):
    drafter = load("ngram+eagle", k=2)
    assert isinstance(drafter, jaxspec.HybridDrafter) and drafter.lookup == jaxspec.NGramDrafter(k=2)
    assert isinstance(drafter.model, jaxspec.EagleDrafter) and drafter.model.k == 2
    assert isinstance(load("suffix+distilled").lookup, jaxspec.SuffixDrafter)
    manifest = (shipped / "manifest.json").read_text()
    (shipped / "manifest.json").write_text(manifest.replace('"drafter": "eagle"', '"drafter": "ngram+eagle"'))
    zoo._entries.cache_clear()
    costs = lambda *_, batch: (1.0, batch + 0.5, 9.0, 9.0)  # noqa: E731
    monkeypatch.setattr("jaxspec.drafters.adapt.estimate_costs", costs)
    assert isinstance(load("auto"), jaxspec.HybridDrafter)
    alone = load("auto", batch=8)
    assert isinstance(alone, jaxspec.NGramDrafter) and isinstance(alone.draft_length, jaxspec.Adaptive)
    assert isinstance(load("ngram+eagle", batch=8), jaxspec.HybridDrafter)
    assert isinstance(load("auto", batch=8, k=2), jaxspec.HybridDrafter)
    with pytest.raises(ValueError, match="takes one draft a round, got num_drafts=2"):
        load("ngram+eagle", num_drafts=2)


def test_the_target_itself(shipped):
    deep = tiny.transformer(layers=9)
    drafter = jaxspec.load_drafter("early-exit", deep)
    assert drafter.layers == 2 and drafter.max_drafts == 8
    assert jaxspec.load_drafter("early-exit:5", deep, k=3) == jaxspec.EarlyExitDrafter(5, k=3)
    assert jaxspec.load_drafter("ngram+early-exit:5", deep, k=3).model.layers == 5
    for name, said in (("early-exit:", "has no number"), ("early-exit:0", "layers"), ("early-exit:9", "got layers=9")):
        with pytest.raises(ValueError, match=said):
            jaxspec.load_drafter(name, deep, k=3)
    assert isinstance(jaxspec.load_drafter("sparse-cache", deep), jaxspec.contrib.SparseCacheDrafter)
    with pytest.raises(ValueError, match="of a target of 1"):
        jaxspec.load_drafter("early-exit", tiny.transformer())


def test_a_folder_of_a_model_is_a_draft_model(shipped, tmp_path):
    copied = shutil.copytree(shipped / "distilled", tmp_path / "copied")
    drafter = load(copied, k=3, num_drafts=2)
    assert isinstance(drafter, jaxspec.ModelDrafter) and drafter.num_drafts == 2


def test_a_draft_model_s_vocabulary_is_trimmed(shipped):
    for drafter in (load("distilled", draft_vocabulary=[1, 4]), load("ngram+distilled", draft_vocabulary=[1, 4]).model):
        assert drafter.model.ids.tolist() == [1, 4] and drafter.info.network.params["head"].shape[0] == 2
        assert isinstance(drafter.draft_length, jaxspec.Adaptive)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("none", {"k": 2}, "nothing to draft with"),
        ("ngram", {"num_drafts": 2}, "only a draft model draws several drafts"),
        ("suffix", {"num_drafts": 2}, "only a draft model draws several drafts"),
        ("eagle", {"num_drafts": 2}, "only a draft model draws several drafts"),
        ("eagle", {"draft_vocabulary": 4}, "only to draft models, got .*/eagle; leave it out"),
        ("ngram", {"draft_vocabulary": 4}, "only to draft models, got ngram; leave it out"),
        ("distilled", {"draft_vocabulary": 0}, "draft_vocabulary must be between 1 and"),
        ("ngram", {"dtype": "float13", "mesh": MESH}, "has no weights, got dtype='float13', mesh=Mesh.*; leave"),
        ("ngram", {"rules": RULES}, "has no weights, got rules="),
        ("early-exit:1", {"dtype": "bfloat16"}, "early-exit:1 has no weights, got dtype='bfloat16'"),
        ("suffix+none", {"dtype": "bfloat16"}, "has no weights"),
        ("auto", {"dtype": "float13"}, "dtype must be one of"),
        ("eagel", {}, "unknown drafter 'eagel'. Did you mean eagle.*: auto, none, ngram, suffix, .*, distilled, eagle"),
        (
            "ngramm",
            {},
            r"unknown drafter 'ngramm'. Did you mean ngram.*Also accepted: a lookup drafter, '\+' and another",
        ),
        ("ngram+sufix", {}, "unknown drafter 'sufix'. Did you mean suffix"),
    ],
)
def test_names_that_do_not_fit(shipped, name, options, message):
    with pytest.raises(ValueError, match=message):
        load(name, **options)


def test_a_drafter_of_a_model_without_its_name_is_told_how_to_be_named(shipped):
    with pytest.raises(ValueError, match="It is a drafter of one model: pass 'smollm2-135m-instruct/eagle'. Known"):
        jaxspec.SpeculativeDecoder(TARGET, "eagle")


def test_no_drafts_of_two_drafters_are_plain_decoding(shipped):
    assert isinstance(load("ngram+eagle", k=0), jaxspec.drafters.NoDrafter)
    with pytest.raises(ValueError, match="unknown drafter 'parrot'"):
        load("ngram+parrot", k=0)


def test_a_decoder_names_the_drafters_that_there_are():
    with pytest.raises(ValueError, match="unknown drafter 'sufix'. Did you mean suffix"):
        jaxspec.SpeculativeDecoder(TARGET, "sufix")


def test_what_is_about_weights_goes_to_the_part_that_has_them(shipped):
    drafter = load("ngram+eagle", dtype="bfloat16")
    assert drafter.model.head.dtype == jnp.bfloat16
    assert isinstance(load("auto", target_name=None, dtype="bfloat16"), jaxspec.NGramDrafter)


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class EchoDrafter(jaxspec.Drafter):
    """Guesses that the last token repeats: a custom drafter that takes no `k`."""

    max_drafts = property(lambda self: 2)
    deterministic = property(lambda self: True)

    def init(self, context, prefilled, slots):
        return ()

    def propose(self, rng, state, context):
        tokens = jnp.repeat(context.last, 2, axis=1)
        return jaxspec.core.Proposal(tokens, ~context.done[:, None] & (tokens >= 0)), state


def test_a_drafter_of_ones_own_by_its_name(monkeypatch):
    monkeypatch.setattr(names, "DRAFTERS", {"echo": names.NamedDrafter(EchoDrafter), **names.DRAFTERS})
    for options in ({}, {"k": "fixed"}):
        assert jaxspec.load_drafter("echo", TARGET, **options) == EchoDrafter()
    for k in (3, "adaptive", "adaptive:4"):
        with pytest.raises(TypeError, match="EchoDrafter drafts a fixed number of tokens; leave k out"):
            jaxspec.load_drafter("echo", TARGET, k=k)
    with pytest.raises(ValueError, match="echo takes no argument, got echo:5"):
        jaxspec.load_drafter("echo:5", TARGET)


@pytest.mark.slow
def test_what_is_no_draft():
    with pytest.raises(TypeError, match="must be a drafter, a model, a head or the name of one, got int"):
        drafter_of(3)
    found = jaxspec.generate(TARGET, drafter_of(HEAD), jnp.asarray([[1, 2, 3]]), max_new_tokens=4)
    assert found.length.tolist() == [4]


def test_commands_and_benchmarks_ask_nothing_for_its_class():
    """They ask a drafter and a verifier for their traits: a new one needs no edit there."""
    kinds = names_of("drafters") | names_of("verifiers")
    assert kinds > {"CrossVocabularyDrafter", "CoupledVerifier"}
    root = pathlib.Path(jaxspec.__file__).parent
    for path in [*(root / "cli").rglob("*.py"), *(root / "bench").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("isinstance", "issubclass"):
                assert not kinds & set(re.findall(r"\w+", ast.unparse(call.args[1]))), f"{path}: {ast.unparse(call)}"


@pytest.mark.slow
def test_a_draft_model_of_another_tokenizer_guesses_what_both_have():
    own, other = text_models.byte_level(), text_models.sentencepiece()
    target = dataclasses.replace(tiny.transformer(1, vocab=text_models.VOCAB), tokenizer=own)
    draft = dataclasses.replace(tiny.transformer(2, vocab=text_models.VOCAB), tokenizer=other)
    # Equally many tokens are not the same tokens.
    found = drafter_of(draft, 3, target=target)
    assert isinstance(found, jaxspec.CrossVocabularyDrafter) and found.k == 3
    assert 0 < found.token_map.shared() < own.vocab_size
    assert isinstance(drafter_of(dataclasses.replace(draft, tokenizer=own), target=target), jaxspec.ModelDrafter)
    decoder = jaxspec.SpeculativeDecoder(target, draft)
    plain = jaxspec.SpeculativeDecoder(target, None)
    options = {"max_new_tokens": 8, "temperature": 0}
    assert decoder.generate("the sea", **options).text == plain.generate("the sea", **options).text
    with pytest.raises(ValueError, match="has another tokenizer than its target"):
        drafter_of(draft, target=target, num_drafts=2)


def test_a_padded_vocabulary_of_the_same_tokens_needs_no_map():
    """Whichever of the two models has more ids, and whoever brings the target's tokenizer."""
    own = text_models.byte_level()
    target = tiny.transformer(1, vocab=own.vocab_size + 6)
    known = dataclasses.replace(target, tokenizer=own)
    for more in (0, 2, 9):
        draft = dataclasses.replace(tiny.transformer(2, vocab=own.vocab_size + more), tokenizer=own)
        for found in (drafter_of(draft, target=known), drafter_of(draft, target=target, tokenizer=own)):
            assert isinstance(found, jaxspec.ModelDrafter) and found.info.network is draft
            found.check(target)
    # A model that lacks some of its own tokenizer's tokens is one of another vocabulary.
    cut = dataclasses.replace(tiny.transformer(2, vocab=own.vocab_size - 1), tokenizer=own)
    assert isinstance(drafter_of(cut, target=known), jaxspec.CrossVocabularyDrafter)
