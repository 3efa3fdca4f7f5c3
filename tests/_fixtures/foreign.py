"""Small models of other projects: their random weights, and texts that they continue without a cache."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.foreign import for_heads
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions
from tests._fixtures.bigram import Conversations

VOCAB, NEW_TOKENS = 64, 16
LENGTHS = np.asarray([9, 5, 7, 3, 1, 2, 8, 6], np.int32)
# For models of fewer tokens.
PROMPT = jnp.asarray(np.random.default_rng(0).integers(0, 29, (8, 9)), jnp.int32)
CHAINS = ("none", "ngram", "suffix", "model", "hybrid")
TREES = ("tree", "dynamic tree")


@contextlib.contextmanager
def lenient():
    """Lets other projects' code promote dtypes and ranks, as it does for its users."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def randomized(params, seed=0, scale=0.4):
    """Draws every matrix, sharp enough that a text's history matters; vectors are norms' and biases', and stay."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [
        jax.random.normal(key, x.shape, x.dtype) * jnp.asarray(scale, x.dtype) if x.ndim > 1 else x
        for key, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, drawn)


def near(params, share=0.1):
    """Makes the parameters of a draft model that agrees often, not always."""
    return jax.tree.map(lambda x, y: (1 - share) * x + share * y, params, randomized(params, seed=1))


def prompts():
    """Makes a prompt of `max(LENGTHS)` tokens for each row."""
    return jnp.asarray(np.random.default_rng(0).integers(1, VOCAB, (len(LENGTHS), max(LENGTHS))), jnp.int32)


def uncached_greedy(logits_of, prompt, lengths, count):
    """Continues each row by the most probable token, and reads the whole text for each.

    `logits_of(tokens)` is causal, so that tokens after a row's text change nothing.
    """
    rows, lengths = np.arange(prompt.shape[0]), np.asarray(lengths)
    text = np.zeros((prompt.shape[0], prompt.shape[1] + count), np.int32)
    text[:, : prompt.shape[1]] = prompt
    run, found = jax.jit(logits_of), []
    for step in range(count):
        at = lengths + step
        token = np.argmax(np.asarray(run(jnp.asarray(text)), np.float32)[rows, at - 1], axis=-1)
        text[rows, at] = token
        found.append(token)
    return np.stack(found, axis=1)


def greedy(logits_of, count):
    """Continues `PROMPT`."""
    return uncached_greedy(logits_of, PROMPT, LENGTHS, count)


def drafter(name, draft):
    """Makes a drafter; one that is a model drafts with `draft`."""
    made = {
        "ngram": lambda: jaxspec.NGramDrafter(k=3),
        "suffix": lambda: jaxspec.SuffixDrafter(k=3),
        "model": lambda: jaxspec.ModelDrafter(draft, k=3),
        "none": lambda: None,
        "hybrid": lambda: jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=3), jaxspec.ModelDrafter(draft, k=3)),
        "tree": lambda: jaxspec.TreeDrafter(draft, jaxspec.Tree.of_size(8)),
        "dynamic tree": lambda: jaxspec.drafters.DynamicTreeDrafter(draft, top_k=2, depth=3, nodes=6),
    }
    return made[name]()


def continued(target, drafter, **options):
    """Continues all rows with a drafter."""
    options = {"max_new_tokens": NEW_TOKENS, "prompt_length": jnp.asarray(LENGTHS, jnp.int32), **options}
    return jaxspec.generate(target, drafter, prompts() % target.vocab_size, **options)


def expect_greedy(target, drafter, logits_of):
    """Checks that all rows are continued as without a cache, by texts that do not repeat one token."""
    result = continued(target, drafter)
    expected = uncached_greedy(logits_of, prompts(), LENGTHS, NEW_TOKENS)
    np.testing.assert_array_equal(result.tokens, expected)
    assert np.mean([len(set(row)) for row in expected.tolist()]) > 4
    return result.stats


def expect_coupled(target, drafter):
    """Checks that tokens drawn at temperature 1 are those drawn with the same key and no drafts."""
    options = {"sampling": jaxspec.Sampling(temperature=1.0), "key": jax.random.key(3)}
    plain = continued(target, None, **options)
    drafted = continued(target, drafter, verifier=jaxspec.CoupledVerifier(), **options)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)


def expect_no_tree(target):
    """Checks that a tree of drafts is refused before anything is generated."""
    with pytest.raises(TypeError, match="chain"):
        continued(target, drafter("tree", target))


def expect_heads(target, folder):
    """Checks that heads are trained for a foreign model, written and read again, and draft for it."""
    shown = for_heads(target)
    counts = Conversations(vocab=target.vocab_size).token_counts()
    options = TrainingOptions(steps=60, batch_tokens=128, learning_rate=1e-2, log_every=1)
    plain = continued(target, None)
    eagle = jaxspec.heads.eagle.EagleRecipe(capture=(0, 1, 2), draft_vocabulary=None, mlp_width=32, steps=2, k=3)
    for recipe in (eagle, jaxspec.heads.medusa.MedusaRecipe(num_heads=2)):
        name = type(recipe).__name__
        data = Conversations(width=16, vocab=target.vocab_size)
        trained = train(recipe, shown, data, options, folder / name, quiet=True)
        losses = [line["loss"] for line in trained.curve]
        assert np.mean(losses[-10:]) < np.mean(losses[:10]), name
        recipe.save(trained.params, shown, counts, folder / f"{name}-head")
        head = jaxspec.load_head(folder / f"{name}-head", shown)
        drafter = jaxspec.EagleDrafter(head, k=3) if recipe is eagle else jaxspec.MedusaDrafter(head)
        result = continued(target, drafter)
        np.testing.assert_array_equal(result.tokens, plain.tokens, err_msg=name)
        assert result.stats.drafted.sum() > 0
