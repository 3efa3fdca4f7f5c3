"""Every kind of head: an untrained one is read back as written, and drafts without changing a token."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contrib import exit_head, tandem
from jaxspec.contrib.exit_head.checkpoint import write_early_exit
from jaxspec.contrib.tandem.checkpoint import write_tandem
from jaxspec.heads import dflash, eagle, medusa
from jaxspec.heads.dflash.checkpoint import write_dflash
from jaxspec.heads.eagle.checkpoint import write_eagle
from jaxspec.heads.files import kind_in, read_head
from jaxspec.heads.medusa.checkpoint import write_medusa
from jaxspec.training.distill import DistillRecipe
from tests._fixtures import tiny

TARGET = tiny.transformer(3, layers=3)
PROMPTS = np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6))
COUNTS = np.arange(tiny.VOCAB)
KINDS = {kind.name: kind for kind in (tandem.KIND, exit_head.KIND, dflash.KIND, eagle.KIND, medusa.KIND, eagle.MTP)}
SMALL = {
    "tandem": {"width": 16, "layers": 1, "heads": 2, "mlp_width": 16},
    "dflash": {"block_size": 3, "num_layers": 1, "mlp_width": 16, "markov_rank": 2},
    "medusa": {"num_heads": 3},
    "early-exit": {"layers": 2},
}
WRITERS = {
    "tandem": lambda head, folder: write_tandem(head, folder, with_head=False),
    "dflash": lambda head, folder: write_dflash(head, folder, with_head=False),
    "eagle": lambda head, folder: write_eagle(head, folder, with_head=False),
    "medusa": write_medusa,
    "early-exit": lambda head, folder: write_early_exit(head, TARGET, folder),
}


def made(kind, **options):
    return KINDS[kind].init(TARGET, jax.random.key(1), **SMALL.get(kind, {}), **options)


def described(head):
    return jax.tree.structure(head), [(x.shape, x.dtype) for x in jax.tree.leaves(head)]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [jaxspec.Greedy(), jaxspec.Sampling(temperature=0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_head_drafts_without_changing_a_token(kind, sampling):
    options = {"key": jax.random.key(2), "sampling": sampling, "max_new_tokens": 12}
    options |= {"verifier": jaxspec.CoupledVerifier()}
    plain = jaxspec.generate(TARGET, None, PROMPTS, **options)
    drafter = KINDS[kind].drafter(made(kind), k=2)
    drafted = jaxspec.generate(TARGET, drafter, PROMPTS, **options)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert np.all(np.asarray(drafted.stats.drafted) > 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("few", "dtype"),
    [
        pytest.param(None, "float32", marks=pytest.mark.slow),
        (5, "bfloat16"),
        pytest.param(None, "bfloat16", marks=pytest.mark.slow),
        pytest.param(5, "float32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", WRITERS)
def test_an_untrained_head_is_what_its_reader_gives_back(kind, few, dtype, tmp_path):
    head = made(kind, draft_vocabulary=few, token_counts=COUNTS, dtype=dtype)
    WRITERS[kind](head, tmp_path / "head")
    read = read_head(tmp_path / "head", TARGET, list(KINDS.values()), dtype=dtype)
    assert kind_in(tmp_path / "head", list(KINDS.values())) is KINDS[kind]
    assert isinstance(head, KINDS[kind].head) and described(read) == described(head)
    if few is not None:
        np.testing.assert_array_equal(head.ids, np.arange(tiny.VOCAB - few, tiny.VOCAB))
    same = lambda a, b: np.testing.assert_array_equal(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))
    jax.tree.map(same, read, head)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].recipe is not None])
def test_training_begins_with_the_untrained_head(kind):
    small = {"draft_vocabulary": 5} | SMALL.get(kind, {})
    recipe = KINDS[kind].recipe.of(TARGET, **small)
    params = recipe.init(jax.random.key(1), TARGET, COUNTS)
    head = made(kind, draft_vocabulary=5, token_counts=COUNTS)
    jax.tree.map(np.testing.assert_array_equal, recipe.head(params, TARGET).params, head.params)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_head_is_the_same_under_strict_settings(kind):
    """64-bit types, the checks for NaN and strict ranks change nothing; the tests' promotion is strict already."""
    plain = made(kind)
    with jax.enable_x64(True), jax.debug_nans(True), jax.numpy_rank_promotion("raise"):
        head = made(kind)
        other = KINDS[kind].init(TARGET, jax.random.key(1, impl="rbg"), **SMALL.get(kind, {}))
    assert described(head) == described(plain) == described(other)
    jax.tree.map(np.testing.assert_array_equal, head, plain)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if KINDS[kind].recipe is not None), "distill"])
def test_training_begins_the_same_under_strict_settings(kind):
    small = {"draft_vocabulary": 5} | SMALL.get(kind, {})
    recipe = KINDS[kind].recipe.of(TARGET, **small) if kind in KINDS else DistillRecipe(width=8, layers=1, heads=1)
    plain = recipe.init(jax.random.key(1), TARGET, COUNTS)
    with jax.enable_x64(True), jax.debug_nans(True), jax.numpy_rank_promotion("raise"):
        params = recipe.init(jax.random.key(1), TARGET, COUNTS)
    jax.tree.map(np.testing.assert_array_equal, params, plain)
    assert [x.dtype for x in jax.tree.leaves(params)] == [x.dtype for x in jax.tree.leaves(plain)]


def test_counts_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="one number for each of the target's 11 tokens"):
        eagle.init(TARGET, jax.random.key(0), token_counts=np.ones(12))


def test_kinds_are_imported_without_jax():
    names = "from jaxspec.heads import dflash, eagle, medusa; from jaxspec.contrib import exit_head, tandem"
    code = f"import sys; {names}; eagle.KIND.recognizes({{}}, {{}}); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_without_a_head_is_of_no_kind(tmp_path):
    assert kind_in(tmp_path, list(KINDS.values())) is None
