"""The native product: the same numbers as XLA's, a model like any other, and plain words where it cannot be had."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.native import NativeKernel, NoCompilerError, build, register
from jaxspec.nn.products import project
from jaxspec.weights.stored import stored_kernels
from tests import blocks, medusa, tandem, tiny
from tests.contracts import ModelContract
from tests.drafters.test_eagle import eagle_head

FLOAT = tiny.transformer(layers=2)
try:
    register()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.slow
class TestFloat32(ModelContract):
    model = jaxspec.native_products(tiny.transformer(layers=2, qkv_bias=True, tied_head=False))


class TestBfloat16(ModelContract):
    model = jaxspec.native_products(FLOAT, weights=jnp.bfloat16)


@pytest.mark.parametrize("weights", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("width", "outputs"), [(576, 192), (37, 11), (16, 1), (5, 300), (1536, 70)])
def test_products_are_those_of_the_weights(width, outputs, weights):
    """Of every number of rows that has a form of its own, of groups of rows, and of tails in both directions."""
    rng = np.random.default_rng(0)
    values = jnp.asarray(rng.normal(size=(outputs, width)), jnp.float32).astype(weights)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 48, 60):
        x = jnp.asarray(rng.normal(size=(1, rows, width)), jnp.float32)
        found = jax.jit(project)(x, NativeKernel(values))
        expected = np.asarray(x, np.float64) @ np.asarray(values, np.float64).T
        np.testing.assert_allclose(found, expected, atol=2e-6 * width**0.5 * 10, rtol=1e-5)


def test_kernels_of_more_axes_and_batches():
    rng = np.random.default_rng(1)
    values = jnp.asarray(rng.normal(size=(2, 3, 4, 24)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(3, 2, 24)), jnp.float32)
    found = jax.jit(project)(x, NativeKernel(values))
    np.testing.assert_allclose(found, jnp.einsum("bti,nmoi->btnmo", x, values), atol=1e-5)


SAMPLED = pytest.param(jaxspec.Sampling(temperature=1.0), marks=pytest.mark.slow)


@pytest.mark.parametrize("sampling", [jaxspec.Greedy(), SAMPLED])
def test_speculation_gives_the_same_tokens(sampling):
    """As plain decoding of it, and as XLA's products."""
    target = jaxspec.native_products(FLOAT)
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    run = lambda model, drafter: (
        jaxspec.generate(
            model,
            drafter,
            prompts,
            key=jax.random.key(7),
            sampling=sampling,
            verifier=jaxspec.CoupledVerifier(),
            max_new_tokens=40,
        ).tokens
    )
    plain = run(target, None)
    np.testing.assert_array_equal(run(target, jaxspec.ModelDrafter(target, k=3)), plain)
    np.testing.assert_array_equal(run(FLOAT, None), plain)


IDS = [0, 2, 3, 5, 8, 9]


@pytest.mark.parametrize(
    "drafter",
    [
        jaxspec.EagleDrafter(eagle_head(ids=IDS, target=FLOAT), k=3),
        pytest.param(jaxspec.TandemDrafter(tandem.random_head(FLOAT, ids=IDS), k=3), marks=pytest.mark.slow),
        pytest.param(jaxspec.MedusaDrafter(medusa.conditioned_head(FLOAT, ids=IDS)), marks=pytest.mark.slow),
        jaxspec.BlockDrafter(blocks.random_head(FLOAT, ids=IDS), k=3),
    ],
    ids=lambda drafter: type(drafter).__name__,
)
def test_heads_draft_the_same(drafter):
    """A head of native products makes the same drafts, of which as many are kept."""
    head = jaxspec.native_products(drafter.head)
    assert isinstance(stored_kernels(head)[0], NativeKernel)
    prompts = jnp.asarray(np.random.default_rng(1).integers(0, tiny.VOCAB, size=(3, 6)), jnp.int32)
    options = {"key": jax.random.key(3), "sampling": jaxspec.Sampling(temperature=1.0), "max_new_tokens": 30}
    run = jax.jit(lambda drafter: jaxspec.generate(FLOAT, drafter, prompts, **options))
    found, expected = run(dataclasses.replace(drafter, head=head)), run(drafter)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.stats.accepted, expected.stats.accepted)
    assert expected.stats.accepted.sum() > 0


def test_bad_input(tmp_path):
    native = jaxspec.native_products(FLOAT)
    with pytest.raises(TypeError, match="plain weights, got NativeKernel"):
        jaxspec.native_products(native)
    with pytest.raises(TypeError, match="or a head, got EagleLayer"):
        jaxspec.native_products(dataclasses.replace(FLOAT, module=eagle_head().module))
    with pytest.raises(TypeError, match="float32 model, got bfloat16"):
        jaxspec.native_products(
            dataclasses.replace(FLOAT, module=dataclasses.replace(FLOAT.module, dtype=jnp.bfloat16))
        )
    with pytest.raises(ValueError, match="float32 or bfloat16, got float16"):
        jaxspec.native_products(FLOAT, weights=jnp.float16)
    with pytest.raises(TypeError, match="save takes plain float weights"):
        jaxspec.save(native, tmp_path / "model")
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with pytest.raises(TypeError, match="products XLA splits"):
        jaxspec.shard(native, mesh)
    with pytest.raises(TypeError, match="on one device"):
        jaxspec.native_products(jaxspec.shard(FLOAT, mesh, jaxspec.sharding.REPLICATED))


def test_without_a_compiler(monkeypatch, tmp_path):
    """What is missing is named, and what a compiler says is passed on."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match=r"none of c\+\+, g\+\+, clang\+\+ is on the path"):
        register.__wrapped__()
    monkeypatch.setenv("CXX", str(tmp_path / "there-is-none"))
    with pytest.raises(NoCompilerError, match="did not run"):
        register.__wrapped__()
    broken = tmp_path / "compiler"
    broken.write_text("#!/bin/sh\ncase $1 in --version) echo 1;; *) echo a fault >&2; exit 1;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", f"/bin/sh {broken}")
    with pytest.raises(NoCompilerError, match="a fault"):
        register.__wrapped__()
    assert not list((tmp_path / "native").glob("*"))


@pytest.mark.slow
def test_it_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    first = build._compiled()
    made = first.stat().st_mtime_ns
    assert build._compiled() == first and first.stat().st_mtime_ns == made
    monkeypatch.setattr(build, "_processor", lambda: "another machine")
    assert build._compiled() != first
