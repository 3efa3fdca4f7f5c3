"""`bit_exact` on a mesh: speculation equals plain decoding on the same mesh, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.testing.collectives import collectives
from jaxspec.testing.random_models import wide_transformer
from tests._fixtures import tiny

TARGET, DRAFT = (tiny.in_dtype(wide_transformer(seed), jnp.bfloat16) for seed in (0, 1))
PROMPT = np.random.default_rng(0).integers(0, 64, (8, 9))
LENGTH = np.asarray([9, 2, 5, 1, 9, 7, 3, 4])


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 4), (8, 1)])
@pytest.mark.parametrize("policy", ["greedy", "coupled"])
def test_speculation_is_plain_decoding(sizes, policy):
    mesh = jax.make_mesh(sizes, ("data", "model"))
    options = {"prompt_length": LENGTH, "max_new_tokens": 30, "bit_exact": True, "rows": 8, "key": jax.random.key(0)}
    verifier = None
    if policy == "coupled":
        options["sampling"], verifier = jaxspec.Sampling(temperature=0.8, top_p=0.95), jaxspec.CoupledVerifier()
    plain = jaxspec.generate(TARGET, None, PROMPT, mesh=mesh, **options)
    tree = jaxspec.TreeDrafter(DRAFT, jaxspec.Tree.chains(2, 3))
    for drafter in (jaxspec.NGramDrafter(k=4, min_ngram=1), tree):
        found = jaxspec.generate(TARGET, drafter, PROMPT, mesh=mesh, verifier=verifier, **options)
        for name in ("tokens", "log_probs", "warped_log_probs"):
            np.testing.assert_array_equal(getattr(found, name), getattr(plain, name), err_msg=name)
        assert found.stats.accepted.sum() > 0


@pytest.mark.slow
def test_no_row_of_the_cache_is_sent_to_another_device():
    mesh, slots = jax.make_mesh((8, 1), ("data", "model")), 256
    models = [jaxspec.shard(model, mesh) for model in (TARGET, DRAFT)]

    def run(target, draft):
        drafter = jaxspec.TreeDrafter(draft, jaxspec.Tree.chains(2, 3))
        return jaxspec.generate(
            target, drafter, PROMPT, prompt_length=LENGTH, max_new_tokens=30, bit_exact=True, pass_tokens=8
        )

    text = jax.jit(run).lower(*models).compile().as_text()
    assert f"[1,1,8,{slots},8]" in text, "each device has a row"
    sent = {moved.shape for moved in collectives(text)}
    assert sent
    assert not [shape for shape in sent if max(shape, default=0) >= slots], sent
    # Nor what is fed, by attention: keys or values with one axis for the layer's rows.
    assert not [shape for shape in sent if len(shape) == 4 and shape[-1] == TARGET.module.config.head_dim], sent
